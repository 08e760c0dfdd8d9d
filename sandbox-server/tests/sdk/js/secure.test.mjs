import assert from 'node:assert/strict'
import { test } from 'node:test'

import { AuthenticationError, Sandbox } from 'e2b'

import { ENVD, created, fails, hosted } from './support.mjs'

const routed = ({ sandboxId }, token) => ({
  'E2b-Sandbox-Id': sandboxId,
  'E2b-Sandbox-Port': '49983',
  ...(token === undefined ? {} : { 'X-Access-Token': token }),
})

test('the daemon asks for the token of its own sandbox', async () => {
  const [one, other] = [await created(), await created()]
  await one.files.write('secret.txt', 'mine')
  const path = '/files?path=/home/user/secret.txt'
  for (const token of [undefined, '', 'wrong', other.envdAccessToken]) {
    const answer = await fetch(`${ENVD}${path}`, { headers: routed(one, token) })
    assert.deepEqual([answer.status, (await answer.json()).code], [401, 401], String(token))
    const rpc = await fetch(`${ENVD}/process.Process/List`, {
      method: 'POST',
      headers: { ...routed(one, token), 'Content-Type': 'application/json' },
      body: '{}',
    })
    assert.deepEqual([rpc.status, (await rpc.json()).code], [401, 401], String(token))
  }
  const answer = await fetch(`${ENVD}${path}`, { headers: routed(one, one.envdAccessToken) })
  assert.deepEqual([answer.status, await answer.text()], [200, 'mine'])
  assert.notEqual(one.envdAccessToken, other.envdAccessToken)
})

test('connecting gives the same token again, also after a pause', async () => {
  const sandbox = await created()
  await sandbox.pause()
  const same = await Sandbox.connect(sandbox.sandboxId)
  assert.equal(same.envdAccessToken, sandbox.envdAccessToken)
  assert.equal((await same.commands.run('echo in')).stdout, 'in\n')
})

test('health needs no token, and the inside of the daemon is not to be reached', async () => {
  const sandbox = await created()
  const health = await fetch(`${ENVD}/health`, { headers: routed(sandbox) })
  assert.deepEqual([health.status, await health.text()], [204, ''])
  for (const path of ['/init', '/freeze', '/unfreeze', '/collapse', '/fsfreeze', '/fsthaw', '/upgrade']) {
    const answer = await fetch(`${ENVD}${path}`, {
      method: 'POST',
      headers: routed(sandbox, sandbox.envdAccessToken),
      body: '{}',
    })
    const { code, path: told, message } = await answer.json()
    assert.deepEqual([answer.status, code, told, typeof message], [404, 404, path, 'string'])
  }
  const own = await fetch(`${ENVD}/sandhold/info`, { headers: routed(sandbox, sandbox.envdAccessToken) })
  assert.equal(own.status, 404)
  await own.arrayBuffer()
})

test('a signed address needs no header to name its sandbox', async () => {
  const sandboxes = [await created(), await created(), await created()]
  for (const [at, sandbox] of sandboxes.entries()) await sandbox.files.write('which.txt', `${at}`)
  for (const [at, sandbox] of sandboxes.entries()) {
    const answer = await fetch(await sandbox.downloadUrl('which.txt'))
    assert.deepEqual([answer.status, await answer.text()], [200, `${at}`])
    const limited = await fetch(await sandbox.downloadUrl('which.txt', { useSignatureExpiration: 120 }))
    assert.equal(await limited.text(), `${at}`)
  }
})

test('a signed address uploads to its sandbox', async () => {
  const [sandbox, other] = [await created(), await created()]
  const form = new FormData()
  form.append('file', new Blob(['uploaded']), 'up.txt')
  const address = await sandbox.uploadUrl('signed/up.txt', { useSignatureExpiration: 60 })
  const answer = await fetch(address, { method: 'POST', body: form })
  assert.equal(answer.status, 200)
  assert.deepEqual(await answer.json(), [{ path: '/home/user/signed/up.txt', name: 'up.txt', type: 'file' }])
  assert.equal(await sandbox.files.read('signed/up.txt'), 'uploaded')
  assert.equal(await other.files.exists('signed/up.txt'), false)
})

test('a signed address is for a user', async () => {
  const sandbox = await created()
  await sandbox.files.write('/root/of-root.txt', 'rooted', { user: 'root' })
  const answer = await fetch(await sandbox.downloadUrl('/root/of-root.txt', { user: 'root' }))
  assert.deepEqual([answer.status, await answer.text()], [200, 'rooted'])
})

test('an expired address and a changed one say so', async () => {
  const sandbox = await created()
  await sandbox.files.write('f.txt', 'x')
  const late = await fetch(await sandbox.downloadUrl('f.txt', { useSignatureExpiration: -60 }))
  assert.deepEqual([late.status, await late.json()], [401, { code: 401, message: 'signature is already expired' }])
  const address = new URL(await sandbox.downloadUrl('f.txt'))
  address.searchParams.set('path', 'g.txt')
  // No sandbox has this signature, so that none can be meant.
  const changed = await fetch(address)
  assert.ok([400, 401, 502].includes(changed.status), `${changed.status}`)
  await changed.arrayBuffer()
  const named = await fetch(address, { headers: routed(sandbox) })
  assert.deepEqual([named.status, await named.json()], [401, { code: 401, message: 'invalid signature' }])
})

test('the SDK with a wrong token is no authentication', async () => {
  const sandbox = await created()
  const wrong = new Sandbox({
    sandboxId: sandbox.sandboxId,
    envdVersion: '0.6.13',
    envdAccessToken: 'wrong',
  })
  await fails(wrong.commands.run('true'), AuthenticationError)
  await fails(wrong.files.list('/'), AuthenticationError)
  await fails(wrong.files.read('/etc/hostname'), AuthenticationError)
  assert.equal(await wrong.isRunning(), true)
})

test('ports of a sandbox without public traffic ask for its own token', async () => {
  const sandbox = await created({ network: { allowPublicTraffic: false } })
  assert.equal(typeof sandbox.trafficAccessToken, 'string')
  await sandbox.files.write('site/index.html', 'private')
  await sandbox.commands.run(
    'python3 -m http.server 8000 --directory site >/dev/null 2>&1 & for i in $(seq 100); do curl -s localhost:8000 && break; sleep 0.1; done'
  )
  const host = `8000-${sandbox.sandboxId}.localhost`
  for (const headers of [{}, { 'e2b-traffic-access-token': 'wrong' }]) {
    const { status, text } = await hosted(host, { headers })
    assert.deepEqual([status, JSON.parse(text).code, JSON.parse(text).sandboxId], [403, 403, sandbox.sandboxId])
  }
  const allowed = await hosted(host, { headers: { 'e2b-traffic-access-token': sandbox.trafficAccessToken } })
  assert.deepEqual([allowed.status, allowed.text], [200, 'private'])
  assert.equal((await sandbox.commands.run('echo in')).stdout, 'in\n')
  const open = await created()
  assert.equal(open.trafficAccessToken ?? undefined, undefined)
})
