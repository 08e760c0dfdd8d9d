// A daemon that was given an access token: what needs the token, and what a signature allows.

import assert from 'node:assert/strict'
import { before, test } from 'node:test'

import { AuthenticationError, Sandbox } from 'e2b'

const ENVD = 'http://localhost:49983'

/** Token and signature of E2B's published vector: path `hello.txt`, operation `read`, user `user`. */
const TOKEN = '0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0'
const VECTOR = 'v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E'

const of = (envdAccessToken) =>
  new Sandbox({ debug: true, sandboxId: 'debug_sandbox_id', envdVersion: '99.99.99', envdAccessToken })
const sandbox = of(TOKEN)

const init = (body) => fetch(`${ENVD}/init`, { method: 'POST', body: JSON.stringify(body) })

/** Asks for a file with nothing but what the query says. */
const asked = (query, options) => fetch(`${ENVD}/files?${new URLSearchParams(query)}`, options)

before(async () => {
  const answer = await init({
    accessToken: TOKEN,
    envVars: { FROM_INIT: 'global', KEPT: 'global' },
    defaultUser: 'user',
  })
  assert.equal(answer.status, 204)
  assert.match(answer.headers.get('x-envd-version'), /^0\.6\.\d+$/)
  await sandbox.files.write('hello.txt', 'hello')
})

test('with the token everything works', async () => {
  assert.equal((await sandbox.commands.run('echo in')).stdout, 'in\n')
  assert.equal(await sandbox.files.read('hello.txt'), 'hello')
  assert.equal((await sandbox.files.getInfo('hello.txt')).size, 5)
})

test('without the token or with a wrong one nothing does', async () => {
  for (const other of [of(undefined), of('wrong'), of(`${TOKEN}x`)]) {
    await assert.rejects(other.commands.run('true'), AuthenticationError)
    await assert.rejects(other.commands.list(), AuthenticationError)
    await assert.rejects(other.files.list('/'), AuthenticationError)
    await assert.rejects(other.files.read('hello.txt'), AuthenticationError)
    await assert.rejects(other.files.write('hello.txt', 'x'), AuthenticationError)
    await assert.rejects(other.files.watchDir('/tmp', () => {}), AuthenticationError)
    assert.equal(await other.isRunning(), true)
  }
  for (const path of ['/metrics', '/envs']) {
    const answer = await fetch(`${ENVD}${path}`)
    assert.equal(answer.status, 401, path)
    assert.equal((await answer.json()).code, 401)
  }
})

test('variables of the sandbox reach every command, and a command\'s own win', async () => {
  const cmd = 'echo "$FROM_INIT $KEPT"'
  assert.equal((await sandbox.commands.run(cmd)).stdout, 'global global\n')
  assert.equal((await sandbox.commands.run(cmd, { envs: { FROM_INIT: 'own' } })).stdout, 'own global\n')
  assert.equal((await sandbox.commands.run(cmd, { user: 'root' })).stdout, 'global global\n')
  const answer = await fetch(`${ENVD}/envs`, { headers: { 'X-Access-Token': TOKEN } })
  assert.deepEqual(await answer.json(), { FROM_INIT: 'global', KEPT: 'global' })
})

test('the published vector opens its file', async () => {
  const answer = await asked({ path: 'hello.txt', username: 'user', signature: VECTOR })
  assert.deepEqual([answer.status, await answer.text()], [200, 'hello'])
})

test('a signature is for one path, one operation and one user', async () => {
  const query = { path: 'hello.txt', username: 'user', signature: VECTOR }
  const changed = [{ path: 'other.txt' }, { username: 'root' }, { signature: `${VECTOR}=` }, { signature_expiration: '9999999999' }]
  for (const change of changed) {
    const answer = await asked({ ...query, ...change })
    assert.deepEqual([answer.status, await answer.json()], [401, { code: 401, message: 'invalid signature' }])
  }
  const options = { method: 'POST', body: 'x', headers: { 'Content-Type': 'application/octet-stream' } }
  const upload = await asked(query, options)
  assert.deepEqual([upload.status, await upload.json()], [401, { code: 401, message: 'invalid signature' }])
  const unsigned = await asked({ path: 'hello.txt' })
  const message = 'missing signature query parameter'
  assert.deepEqual([unsigned.status, await unsigned.json()], [401, { code: 401, message }])
})

test('a signed address downloads, for the default user, for root and until its end', async () => {
  const rooted = '/root/secret of root.txt'
  await sandbox.files.write(rooted, 'rooted', { user: 'root' })
  const addresses = [
    [await sandbox.downloadUrl('hello.txt'), 'hello'],
    [await sandbox.downloadUrl('hello.txt', { user: 'user' }), 'hello'],
    [await sandbox.downloadUrl(rooted, { user: 'root', useSignatureExpiration: 60 }), 'rooted'],
  ]
  for (const [address, content] of addresses) {
    const answer = await fetch(address)
    assert.deepEqual([answer.status, await answer.text()], [200, content], address)
  }
})

test('an expired address says so', async () => {
  const address = await sandbox.downloadUrl('hello.txt', { useSignatureExpiration: -60 })
  const answer = await fetch(address)
  assert.equal(answer.status, 401)
  assert.deepEqual(await answer.json(), { code: 401, message: 'signature is already expired' })
})

test('a signed address uploads a form', async () => {
  const form = new FormData()
  form.append('file', new Blob(['uploaded']), 'uploaded.txt')
  const address = await sandbox.uploadUrl('signed/uploaded.txt', { useSignatureExpiration: 60 })
  const answer = await fetch(address, { method: 'POST', body: form })
  assert.equal(answer.status, 200)
  const path = '/home/user/signed/uploaded.txt'
  assert.deepEqual(await answer.json(), [{ path, name: 'uploaded.txt', type: 'file' }])
  assert.equal(await sandbox.files.read(path), 'uploaded')
})

test('only who knows the token may change it', async () => {
  for (const body of [{}, { accessToken: 'wrong' }, { accessToken: `${TOKEN}x`, envVars: { TAKEN: '1' } }]) {
    const answer = await init(body)
    assert.equal(answer.status, 401)
    assert.equal((await answer.json()).code, 401)
  }
  assert.equal((await sandbox.commands.run('echo "${TAKEN-unset}"')).stdout, 'unset\n')
})

test('files are joined in their order', async () => {
  const dir = '/home/user/compose'
  await sandbox.files.write(['a', 'b', 'c'].map((name) => ({ path: `${dir}/${name}`, data: name.repeat(3) })))
  const compose = (body) =>
    fetch(`${ENVD}/files/compose`, {
      method: 'POST',
      headers: { 'X-Access-Token': TOKEN, 'Content-Type': 'application/json' },
      body: JSON.stringify(body),
    })
  const answer = await compose({ source_paths: [`${dir}/b`, `${dir}/a`], destination: `${dir}/joined` })
  assert.equal(answer.status, 200)
  const { name, path, type } = await answer.json()
  assert.deepEqual({ name, path, type }, { name: 'joined', path: `${dir}/joined`, type: 'file' })
  assert.equal(await sandbox.files.read(`${dir}/joined`), 'bbbaaa')
  assert.deepEqual((await sandbox.files.list(dir)).map(({ name }) => name), ['c', 'joined'])
  const missing = await compose({ source_paths: [`${dir}/missing`], destination: `${dir}/x` })
  assert.deepEqual([missing.status, (await missing.json()).code], [404, 404])
})

test('the figures of the machine are told', async () => {
  const answer = await fetch(`${ENVD}/metrics`, { headers: { 'X-Access-Token': TOKEN } })
  const metrics = await answer.json()
  const keys = ['ts', 'cpu_count', 'cpu_used_pct', 'mem_total', 'mem_used', 'mem_cache', 'mem_total_mib', 'mem_used_mib', 'disk_used', 'disk_total']
  assert.deepEqual(Object.keys(metrics).sort(), keys.sort())
  assert.ok(metrics.cpu_count >= 1 && metrics.mem_total > metrics.mem_used && metrics.mem_used > 0)
})
