/** Providers by id and by name, records, and what the two do not agree about. */
import assert from 'node:assert/strict'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import * as sandhold from 'sandhold'
import { all, directory, home, host, newKey, provider } from './support'

test('an operator finds, lists, pauses and destroys by id', async t => {
  const key = newKey(t)
  const { providerId } = await host().acquire(key, { metadata: { team: 'a' } })
  const id = providerId as string
  assert.equal((await provider.find(id))?.key, key)
  assert.equal(await provider.find('nothing-of-that-id'), null)
  assert.deepEqual((await provider.findKey('default', key)).map(info => info.id), [id])
  const listed = await all(await provider.list({ key, states: ['running'], metadata: { team: 'a' } }))
  assert.deepEqual(listed.map(info => info.id), [id])
  assert.deepEqual(await all(await provider.list({ key, states: ['paused'] })), [])
  assert.equal(await provider.pause(id), 'paused')
  assert.equal((await provider.find(id))?.state, 'paused')
  assert.equal(await provider.destroy(id), 'destroyed')
  assert.equal(await provider.destroy(id), 'already_gone')
})

test('a provider says what it can do and who it is', () => {
  const { capabilities } = provider
  assert.deepEqual([capabilities.pause, capabilities.tags, capabilities.findWithoutWaking], [true, true, true])
  assert.equal(typeof capabilities.listVisibility, 'number')
  assert.equal(provider.fingerprint, new sandhold.LocalProvider({ home }).fingerprint)
  assert.notEqual(provider.fingerprint, new sandhold.LocalProvider({ home: directory() }).fingerprint)
})

test('a snapshot is listed, used as a template and deleted', async t => {
  const sandbox = await host().acquire(newKey(t))
  await sandbox.write('/home/user/kept', 'yes')
  const name = `snapshot-${process.pid}`
  const snapshot = await provider.snapshot(sandbox.providerId as string, { name })
  const listed = await all(await provider.listSnapshots({ name }))
  assert.deepEqual(listed.map(found => [found.id, found.sandbox]), [[snapshot.id, sandbox.providerId]])
  const other = await host().acquire(newKey(t), { template: snapshot.id })
  assert.equal(await other.readText('/home/user/kept'), 'yes')
  await other.destroy()
  assert.equal(await provider.deleteSnapshot(snapshot.id), 'destroyed')
  assert.equal(await provider.deleteSnapshot(snapshot.id), 'already_gone')
})

test('the providers of a program are known by name', () => {
  const providers = new sandhold.Providers({ local: { home }, e2b: { apiKey: 'e2b_0' } })
  assert.deepEqual(providers.names, ['e2b', 'local'])
  assert.equal(providers.fromName('local').fingerprint, provider.fingerprint)
  assert.throws(() => providers.fromName('docker'), { name: 'InvalidArgumentError', reason: 'unknown_provider', message: /e2b, local/ })
  process.env['SANDHOLD_PROVIDER'] = 'e2b'
  assert.equal(providers.fromEnv().name, 'e2b')
  delete process.env['SANDHOLD_PROVIDER']
  assert.throws(() => providers.fromEnv(), { name: 'InvalidArgumentError', reason: 'unknown_provider' })
  assert.throws(() => new sandhold.Providers({ docker: {} } as never), { name: 'TypeError', message: /docker/ })
})

test('a host of another provider leaves a key with the one that made it', async t => {
  const key = newKey(t)
  const registry = `sqlite:${directory()}/registry.sqlite`
  const made = await host({ registry }).acquire(key)
  const providers = new sandhold.Providers({ local: { home }, e2b: { apiKey: 'e2b_0', apiUrl: 'http://127.0.0.1:1' } })
  const elsewhere = new sandhold.Sandboxes(providers.fromName('e2b'), { registry, providers })
  const again = await elsewhere.acquire(key)
  assert.deepEqual([again.providerId, again.provider, again.outcome], [made.providerId, 'local', 'connected'])
  const alone = new sandhold.Sandboxes(providers.fromName('e2b'), { registry })
  await assert.rejects(alone.acquire(key), sandhold.ConflictError)
})

test('what provider and registry do not agree about is reported, and ended only by a plan', async t => {
  const [lost, kept] = [newKey(t), newKey(t)]
  const url = `sqlite:${directory()}/registry.sqlite`
  const owner = `owner-${process.pid}`
  const sandboxes = new sandhold.Sandboxes(provider, { registry: url, owner })
  await sandboxes.acquire(kept)
  const { providerId } = await sandboxes.acquire(lost)
  await provider.destroy(providerId as string)
  const registry = new sandhold.Registry(url)
  assert.equal(await registry.scope(), 'machine')
  const record = await registry.load(owner, lost)
  assert.deepEqual([record?.id, record?.phase, record?.provider], [providerId, 'ready', 'local'])
  assert.equal((await all(await registry.list({ owner, phases: ['ready'] }))).length, 2)
  const reconciler = new sandhold.Reconciler(provider, registry, { owner, minAge: 0 })
  const report = await reconciler.orphans()
  assert.deepEqual(report.findings.map(finding => [finding.kind, finding.key]), [['missing', lost]])
  assert.deepEqual([report.sandboxes, report.records], [1, 2])
  const dry = reconciler.plan(report)
  assert.deepEqual([dry.steps, dry.kept.map(kept => kept.why)], [[], ['policy']])
  // What a create may still be at work on is left alone, however young it is said to count.
  const plan = reconciler.plan(report, { missing: 'remove' })
  assert.deepEqual([plan.steps, plan.kept.map(kept => kept.why)], [[], ['too_young']])
  assert.deepEqual(await reconciler.apply(plan.retain(() => true)), [])
  assert.deepEqual((await registry.load(owner, lost))?.id, providerId)
  await sandboxes.destroy(kept)
  assert.throws(() => reconciler.plan(report, { missing: 'all' as never }), { name: 'InvalidArgumentError', message: /missing/ })
})

test('a move that nobody made needs no confirmation', async t => {
  const key = newKey(t)
  await host().acquire(key)
  assert.equal(await host().confirmMove(key), false)
})

test('a confirmed move lets go of a sandbox under other credentials', async t => {
  const key = newKey(t)
  const registry = `sqlite:${directory()}/registry.sqlite`
  await host({ registry }).acquire(key)
  const moved = new sandhold.Sandboxes(new sandhold.LocalProvider({ home: directory() }), { registry })
  await assert.rejects(moved.acquire(key), { name: 'OwnershipError', reason: 'fingerprint' })
  assert.equal(await moved.confirmMove(key), true)
  const facts = (await moved.acquire(key, { onResumeFailure: 'keep' })).facts
  assert.deepEqual([facts?.how, facts?.replacedBecause], ['replaced', 'gone'])
  await moved.destroy(key)
})

/** A server that answers by a script, and keeps what it was asked. */
async function scripted(t: TestContext, answers: Record<string, unknown>): Promise<{ url: string; asked: string[] }> {
  const asked: string[] = []
  const server = createServer((request: IncomingMessage, response) => {
    let body = ''
    request.on('data', piece => (body += piece))
    request.on('end', () => {
      const call = `${request.method} ${request.url?.split('?')[0]}`
      asked.push(body ? `${call} ${body}` : call)
      const told = answers[call]
      const answer = typeof told === 'function' ? told(new URL(request.url ?? '', 'http://x').searchParams) : told
      response.writeHead(answer === undefined ? 404 : answer === null ? 204 : 200, { 'content-type': 'application/json' })
      response.end(answer === undefined ? '{"code":404,"message":"no"}' : answer === null ? '' : JSON.stringify(answer))
    })
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, asked }
}

const at = '2026-01-02T03:04:05.678Z'

test('volumes, secrets and templates of an account are asked for in its own words', async t => {
  const volume = { volumeID: 'v1', name: 'data', token: 'volume-token' }
  const entry = { name: 'f', type: 'file', path: '/f', size: 3, mode: 420, uid: 0, gid: 0, atime: at, mtime: at, ctime: at }
  const template = { templateID: 't1', buildID: 'b1', public: false, aliases: [], names: ['ns/mine'], createdAt: at, updatedAt: at, spawnCount: 2, buildCount: 1, buildStatus: 'ready', cpuCount: 2, memoryMB: 512, diskSizeMB: 1024, envdVersion: '1' }
  const { url, asked } = await scripted(t, {
    'GET /volumes': [volume],
    'GET /volumes/v1': volume,
    'DELETE /volumes/v1': null,
    'GET /volumecontent/v1/path': entry,
    'POST /secrets': { secretID: 's1', name: 'token', currentVersion: 1, metadata: { My_key: 'x' }, createdAt: at },
    'GET /v2/templates': [template],
    'GET /templates/mine/tags': [{ tag: 'v2', buildID: 'b1', createdAt: at }],
    'POST /templates/tags': { buildID: 'b1', tags: ['v3'] }
  })
  const e2b = new sandhold.E2bProvider({ apiKey: 'e2b_0', apiUrl: url, volumeUrl: url, retry: { maxRetries: 0 } })
  assert.deepEqual(await e2b.volumes.list(), [{ volumeId: 'v1', name: 'data' }])
  const content = await e2b.volumes.open('v1')
  assert.deepEqual([content.id, content.name], ['v1', 'data'])
  const found = await content.stat('/f')
  assert.deepEqual([found.fileType, found.size, found.modifiedAt], ['file', 3, new Date(at)])
  assert.equal(await e2b.volumes.delete('v1'), 'destroyed')
  await assert.rejects(e2b.volumes.open('v2'), { name: 'NotFoundError', reason: 'volume_not_found' })
  const secret = await e2b.secrets.create('token', 'hush', { metadata: { My_key: 'x' } })
  assert.deepEqual([secret.secretId, secret.metadata, secret.createdAt, secret.updatedAt], ['s1', { My_key: 'x' }, new Date(at), null])
  assert.ok(asked.includes('POST /secrets {"name":"token","value":"hush","metadata":{"My_key":"x"}}'))
  const [first] = await all(e2b.templates.list())
  assert.deepEqual([first?.templateId, first?.memoryMb, first?.lastSpawnedAt, first?.builds], ['t1', 512, null, null])
  assert.deepEqual(await e2b.templates.tags('mine'), [{ tag: 'v2', buildId: 'b1', createdAt: new Date(at) }])
  assert.deepEqual(await e2b.templates.assignTags('mine:v2', ['v3']), { buildId: 'b1', tags: ['v3'] })
  assert.equal(await e2b.templates.exists('mine'), false)
})

test('a template is built by its recipe, and its log is followed to the end', async t => {
  const { url, asked } = await scripted(t, {
    'POST /v3/templates': { templateID: 't1', buildID: 'b1', names: ['mine'], aliases: ['mine'], tags: [], public: false },
    'POST /v2/templates/t1/builds/b1': {},
    'GET /templates/t1/builds/b1/status': (asked: URLSearchParams) => ({
      templateID: 't1',
      buildID: 'b1',
      status: 'ready',
      logs: [],
      logEntries: asked.get('logsOffset') === '0' ? [{ timestamp: at, message: 'done', level: 'info' }] : []
    })
  })
  const e2b = new sandhold.E2bProvider({ apiKey: 'e2b_0', apiUrl: url })
  const recipe = sandhold.Recipe.fromImage('debian:12').run('make', { user: 'root' }).env('A', '1').workdir('/srv').user('app')
  const build = await e2b.templates.start(recipe.startCommand('serve').readyCommand('true'), { name: 'mine', cpuCount: 2, memoryMb: 512 })
  assert.deepEqual([build.templateId, build.buildId, build.names], ['t1', 'b1', ['mine']])
  assert.deepEqual((await build.status()).status, 'ready')
  assert.deepEqual((await all(build.logs())).map(line => [line.at, line.message]), [[new Date(at), 'done']])
  await build.wait()
  const sent = asked.find(call => call.startsWith('POST /v2/templates/t1/builds/b1')) ?? ''
  const body = JSON.parse(sent.slice(sent.indexOf('{')))
  assert.deepEqual([body.fromImage, body.startCmd, body.readyCmd, body.steps.length], ['debian:12', 'serve', 'true', 4])
  await assert.rejects(e2b.templates.start(recipe, {} as never), { name: 'TypeError', message: /name/ })
  await assert.rejects(e2b.templates.start({} as never, { name: 'x' }), { name: 'TypeError', message: /recipe/ })
  assert.throws(() => sandhold.Recipe.fromDockerfileText('FROM a\nFROM b\n', '.'), sandhold.UnsupportedError)
})

test('a sandbox of E2B is reached by hosts, tokens and signed URLs', async t => {
  const detail = { sandboxID: 'i1', templateID: 't1', clientID: 'c', startedAt: at, endAt: '2099-01-01T00:00:00Z', cpuCount: 2, memoryMB: 512, diskSizeMB: 1024, state: 'running', envdVersion: '0.2.0', metadata: {}, domain: 'own.example', envdAccessToken: 'inside', trafficAccessToken: 'traffic' }
  const { url } = await scripted(t, { 'GET /sandboxes/i1': detail, 'POST /v2/sandboxes/i1/connect': detail, 'POST /sandboxes/i1/connect': detail })
  const e2b = new sandhold.E2bProvider({ apiKey: 'e2b_0', apiUrl: url, domain: 'own.example' })
  const access = await e2b.access('i1')
  assert.equal(access.host(8080), '8080-i1.own.example')
  assert.deepEqual([access.envdToken, access.trafficToken], ['inside', 'traffic'])
  assert.deepEqual(access.port(8080), { url: 'https://8080-i1.own.example', headers: { 'e2b-traffic-access-token': 'traffic' } })
  const signed = new URL(access.downloadUrl('/home/user/a b', { user: 'user', expires: 60_000 }))
  assert.deepEqual([signed.searchParams.get('path'), signed.searchParams.get('username')], ['/home/user/a b', 'user'])
  assert.match(signed.searchParams.get('signature') ?? '', /^v1_/)
  assert.notEqual(access.uploadUrl('/home/user/a b'), access.downloadUrl('/home/user/a b'))
  assert.throws(() => access.host(70_000), { name: 'InvalidArgumentError', context: { argument: 'port' } })
  assert.equal((await e2b.detail('i1'))['sandboxId'], 'i1')
})
