import assert from 'node:assert/strict'
import { test } from 'node:test'

import { AuthenticationError, FileNotFoundError, Sandbox, SandboxError, SandboxNotFoundError } from 'e2b'

import { api, created, eventually, fails, listed, mark } from './support.mjs'

const UNKNOWN = 'izzzzzzzzzzzzzzzzzzzz'

test('a created sandbox runs commands and has an id of twenty-one', async () => {
  const sandbox = await created()
  assert.match(sandbox.sandboxId, /^i[a-z0-9]{20}$/)
  assert.equal((await sandbox.commands.run('echo hi')).stdout, 'hi\n')
  assert.equal(await sandbox.isRunning(), true)
})

test('the facts of a sandbox are what it was made with', async () => {
  const metadata = { mark, 'a b': 'c&d=é', empty: '' }
  const before = Date.now()
  const sandbox = await created({ metadata, timeoutMs: 120_000 })
  const info = await sandbox.getInfo()
  const { startedAt, endAt, cpuCount, memoryMB, envdVersion, templateId, ...rest } = info
  assert.deepEqual(
    { sandboxId: rest.sandboxId, metadata: rest.metadata, state: rest.state, lifecycle: rest.lifecycle },
    {
      sandboxId: sandbox.sandboxId,
      metadata,
      state: 'running',
      lifecycle: { onTimeout: 'kill', autoResume: false },
    }
  )
  assert.ok(startedAt.getTime() >= before - 1000 && startedAt.getTime() <= Date.now() + 1000)
  assert.ok(Math.abs(endAt.getTime() - startedAt.getTime() - 120_000) < 2000, `${startedAt} ${endAt}`)
  assert.ok(Number.isInteger(cpuCount) && cpuCount >= 1 && Number.isInteger(memoryMB) && memoryMB > 0)
  assert.match(envdVersion, /^0\.6\.\d+$/)
  assert.equal(typeof templateId, 'string')
  assert.deepEqual(await Sandbox.getInfo(sandbox.sandboxId), info)
  assert.deepEqual((await Sandbox.getFullInfo(sandbox.sandboxId)).metadata, metadata)
})

test('a timeout that was not asked for is five minutes', async () => {
  const { startedAt, endAt } = await (await created()).getInfo()
  assert.ok(Math.abs(endAt.getTime() - startedAt.getTime() - 300_000) < 2000)
})

test('a timeout in milliseconds is rounded up to seconds', async () => {
  const { startedAt, endAt } = await (await created({ timeoutMs: 61_500 })).getInfo()
  assert.ok(Math.abs(endAt.getTime() - startedAt.getTime() - 62_000) < 2000)
})

test('variables of the sandbox reach commands and are no metadata', async () => {
  const envs = { ONE: '1', SPACED: "a b'\"$HOME", EMPTY: '' }
  const sandbox = await created({ envs })
  const { stdout } = await sandbox.commands.run('printf "%s|" "$ONE" "$SPACED" "${EMPTY-unset}"')
  assert.equal(stdout, `1|a b'"$HOME||`)
  assert.deepEqual((await sandbox.getInfo()).metadata, {})
  assert.equal((await sandbox.commands.run('echo $ONE', { envs: { ONE: 'own' } })).stdout, 'own\n')
})

test('python is there by both of its names', async () => {
  const sandbox = await created()
  const versions = await sandbox.commands.run('python --version && python3 --version')
  const [one, other] = versions.stdout.trim().split('\n')
  assert.match(one, /^Python 3\./)
  assert.equal(one, other)
})

test('root is one word away', async () => {
  const sandbox = await created()
  assert.equal((await sandbox.commands.run('id -un; sudo id -un; sudo echo in')).stdout, 'user\nroot\nin\n')
})

test('a sandbox knows what it is', async () => {
  const sandbox = await created()
  const { stdout } = await sandbox.commands.run('echo "$E2B_SANDBOX $E2B_SANDBOX_ID"; cat /run/e2b/.E2B_SANDBOX /run/e2b/.E2B_SANDBOX_ID')
  assert.equal(stdout.replaceAll('\n', ' ').trim(), `true ${sandbox.sandboxId} true${sandbox.sandboxId}`)
  const { templateId } = await sandbox.getInfo()
  const inside = await sandbox.commands.run('echo $E2B_TEMPLATE_ID; cat /run/e2b/.E2B_TEMPLATE_ID')
  assert.equal(inside.stdout.replaceAll('\n', ' ').trim(), `${templateId} ${templateId}`)
})

test('a template that does not exist is an error that names it', async () => {
  const error = await fails(Sandbox.create('no-such-template'), SandboxError)
  assert.equal(error.statusCode, 404)
  assert.match(error.message, /no-such-template/)
})

test('base is a template by name and by its id', async () => {
  const sandbox = await created({ template: 'base' })
  const { templateId, name } = await sandbox.getInfo()
  assert.equal(name, 'base')
  const again = await created({ template: templateId })
  assert.equal((await again.getInfo()).templateId, templateId)
})

test('a killed sandbox is gone everywhere', async () => {
  const metadata = { mark: `${mark}-kill` }
  const sandbox = await created({ metadata })
  assert.deepEqual(await listed(metadata), [sandbox.sandboxId])
  assert.equal(await sandbox.kill(), true)
  assert.deepEqual(await listed(metadata), [])
  assert.equal(await sandbox.kill(), false)
  assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
  assert.equal(await sandbox.isRunning(), false)
  for (const call of [
    () => sandbox.getInfo(),
    () => sandbox.setTimeout(60_000),
    () => sandbox.pause(),
    () => sandbox.connect(),
    () => sandbox.createSnapshot(),
    () => sandbox.getMetrics(),
    () => sandbox.updateNetwork({ allowInternetAccess: false }),
    () => sandbox.fork(),
  ]) {
    await fails(call(), SandboxNotFoundError)
  }
})

test('what never was is gone too', async () => {
  assert.equal(await Sandbox.kill(UNKNOWN), false)
  await fails(Sandbox.connect(UNKNOWN), SandboxNotFoundError)
  await fails(Sandbox.getInfo(UNKNOWN), SandboxNotFoundError)
})

test('connecting gives the same sandbox and its work', async () => {
  const sandbox = await created()
  await sandbox.files.write('work.txt', 'kept')
  const same = await Sandbox.connect(sandbox.sandboxId)
  assert.equal(same.sandboxId, sandbox.sandboxId)
  assert.equal(await same.files.read('work.txt'), 'kept')
  assert.equal(await (await sandbox.connect()).isRunning(), true)
})

test('connecting never shortens and may extend', async () => {
  const sandbox = await created({ timeoutMs: 600_000 })
  const first = (await sandbox.getInfo()).endAt.getTime()
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
  assert.equal((await sandbox.getInfo()).endAt.getTime(), first)
  await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 1_200_000 })
  const longer = (await sandbox.getInfo()).endAt.getTime()
  assert.ok(Math.abs(longer - Date.now() - 1_200_000) < 3000)
})

test('the timeout can be set to more and to less', async () => {
  const sandbox = await created({ timeoutMs: 60_000 })
  const left = async () => (await sandbox.getInfo()).endAt.getTime() - Date.now()
  await sandbox.setTimeout(500_000)
  assert.ok(Math.abs((await left()) - 500_000) < 3000)
  await Sandbox.setTimeout(sandbox.sandboxId, 30_000)
  assert.ok(Math.abs((await left()) - 30_000) < 3000)
})

test('a sandbox ends when its time is over', async () => {
  const metadata = { mark: `${mark}-expiry` }
  const sandbox = await created({ metadata, timeoutMs: 60_000 })
  await sandbox.setTimeout(1000)
  await eventually('the sandbox ends', async () => !(await sandbox.isRunning()))
  assert.deepEqual(await listed(metadata), [])
  await fails(sandbox.getInfo(), SandboxNotFoundError)
})

test('a timeout of zero ends a sandbox at once', async () => {
  const sandbox = await created()
  await sandbox.setTimeout(0)
  await eventually('the sandbox ends', async () => !(await sandbox.isRunning()))
})

test('a wrong key is no authentication', async () => {
  const apiKey = 'e2b_ffffffffffffffffffffffffffffffffffffffff'
  await fails(Sandbox.create({ apiKey }), AuthenticationError)
  await fails(Sandbox.list({ apiKey }).nextItems(), AuthenticationError)
  await fails(Sandbox.kill(UNKNOWN, { apiKey }), AuthenticationError)
})

test('the network policy can be replaced, and is told', async () => {
  const sandbox = await created({ allowInternetAccess: false, network: { httpsPorts: [3000] } })
  assert.equal((await sandbox.getInfo()).allowInternetAccess, false)
  await sandbox.updateNetwork({ denyOut: ['0.0.0.0/0'], allowOut: ['1.1.1.1'] })
  const { network } = await sandbox.getInfo()
  assert.deepEqual([network.denyOut, network.allowOut], [['0.0.0.0/0'], ['1.1.1.1']])
  await Sandbox.updateNetwork(sandbox.sandboxId, {})
  const cleared = (await sandbox.getInfo()).network
  assert.deepEqual([cleared?.denyOut, cleared?.httpsPorts], [undefined, [3000]])
  await fails(sandbox.updateNetwork({ allowOut: ['example.com'] }), SandboxError)
})

test('a sandbox has an address for MCP, and a token where a gateway was started', async () => {
  const sandbox = await created()
  assert.equal(sandbox.getMcpUrl(), `https://${sandbox.getHost(50005)}/mcp`)
  await fails(sandbox.getMcpToken(), FileNotFoundError)
  // What the gateway of a template leaves there is read from there.
  await sandbox.commands.run('mkdir -p /etc/mcp-gateway && printf gate > /etc/mcp-gateway/.token', { user: 'root' })
  assert.equal(await (await Sandbox.connect(sandbox.sandboxId)).getMcpToken(), 'gate')
})

test('a failed MCP start kills the sandbox', async () => {
  const metadata = { mark: `${mark}-mcp` }
  await fails(Sandbox.create('base', { metadata, mcp: { fetch: {} } }))
  assert.deepEqual(await listed(metadata), [])
})

test('many at once are all different', async () => {
  const metadata = { mark: `${mark}-many` }
  const sandboxes = await Promise.all(Array.from({ length: 8 }, () => created({ metadata })))
  const outputs = await Promise.all(
    sandboxes.map(async (sandbox, at) => (await sandbox.commands.run(`echo ${at} > f; cat f; hostname >&2`)).stdout)
  )
  assert.deepEqual(outputs, sandboxes.map((_, at) => `${at}\n`))
  const ids = sandboxes.map(({ sandboxId }) => sandboxId).sort()
  assert.equal(new Set(ids).size, 8)
  assert.deepEqual((await listed(metadata)).sort(), ids)
})

test('both generations of the create and connect calls work', async () => {
  const one = await api('POST', '/sandboxes', { body: { templateID: 'base', metadata: { mark }, secure: true } })
  assert.equal(one.status, 201, one.text)
  const { sandboxID, envdAccessToken, envdVersion, clientID, templateID } = one.json
  assert.ok(sandboxID && envdAccessToken && envdVersion && clientID && templateID, one.text)
  const info = (await api('GET', `/sandboxes/${sandboxID}`)).json
  assert.ok(Math.abs(Date.parse(info.endAt) - Date.parse(info.startedAt) - 15_000) < 2000, 'the first defaults to 15 s')
  const connected = await api('POST', `/sandboxes/${sandboxID}/connect`, { body: { timeout: 100 } })
  assert.deepEqual([connected.status, connected.json.sandboxID], [200, sandboxID])
  assert.equal((await api('POST', `/sandboxes/${sandboxID}/connect`, { body: {} })).status, 400)
  const second = await api('POST', `/v2/sandboxes/${sandboxID}/connect`)
  assert.deepEqual([second.status, second.json.sandboxID], [200, sandboxID])
  assert.equal(second.json.envdAccessToken, envdAccessToken)
  assert.equal((await api('POST', `/sandboxes/${sandboxID}/refreshes`, { body: { duration: 3000 } })).status, 204)
  assert.equal((await api('POST', `/sandboxes/${sandboxID}/resume`, { body: {} })).status, 409)
  assert.equal((await api('DELETE', `/sandboxes/${sandboxID}`)).status, 204)
  assert.equal((await api('POST', `/sandboxes/${sandboxID}/refreshes`)).status, 404)
  const bare = await api('POST', '/sandboxes', { body: { templateID: 'base' } })
  assert.equal(bare.json.envdAccessToken ?? null, null, 'the first gives a token only when asked')
  const open = await fetch(`${process.env.E2B_SANDBOX_URL}/files?path=/etc/hostname`, {
    headers: { 'E2b-Sandbox-Id': bare.json.sandboxID, 'E2b-Sandbox-Port': '49983' },
  })
  assert.equal(open.status, 200)
  await open.arrayBuffer()
  assert.equal((await api('DELETE', `/sandboxes/${bare.json.sandboxID}`)).status, 204)
})
