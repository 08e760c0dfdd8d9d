// Input that makes no sense: the status, and a body that both SDKs can read.

import assert from 'node:assert/strict'
import { before, test } from 'node:test'

import { ENVD, api, created, hosted } from './support.mjs'

const UNKNOWN = 'izzzzzzzzzzzzzzzzzzzz'
let id

before(async () => {
  id = (await created()).sandboxId
})

async function refused(status, method, path, options) {
  const answer = await api(method, path, options)
  const { code, message } = answer.json ?? {}
  assert.deepEqual([path, options?.body, answer.status, code], [path, options?.body, status, status], answer.text)
  assert.ok(typeof message === 'string' && message.length > 0, answer.text)
  assert.match(answer.headers.get('content-type'), /^application\/json/)
}

test('a create is refused for what is wrong with it', async () => {
  const base = { templateID: 'base' }
  for (const path of ['/sandboxes', '/v2/sandboxes']) {
    for (const body of [
      '{',
      '[]',
      '"x"',
      {},
      { templateID: 7 },
      { templateID: '' },
      { templateID: 'no such' },
      { templateID: '../../etc' },
      { templateID: 'a:b:c' },
      { ...base, timeout: 0 },
      { ...base, timeout: -1 },
      { ...base, timeout: 1e9 },
      { ...base, timeout: 'x' },
      { ...base, metadata: { a: 1 } },
      { ...base, metadata: 'x' },
      { ...base, envVars: { 'a=b': 'x' } },
      { ...base, envVars: { '': 'x' } },
      { ...base, envVars: { A: 'nul \u0000 inside' } },
      { ...base, autoPauseMemory: false },
      { ...base, autoPause: true, autoPauseMemory: false, autoResume: { enabled: true } },
      { ...base, volumeMounts: [{ name: 'no-such-volume', path: '/mnt' }] },
      { ...base, volumeMounts: [{ name: 'x', path: 'relative' }] },
      { ...base, network: { allowOut: ['example.com'] } },
      { ...base, network: { denyOut: ['example.com'] } },
      { ...base, network: { denyOut: ['1.2.3.4/99'] } },
    ]) {
      await refused(400, 'POST', path, { body })
    }
    await refused(404, 'POST', path, { body: { templateID: 'no-such-template' } })
    await refused(404, 'POST', path, { body: { templateID: 'base:no-such-tag' } })
  }
})

test('an unknown field and an unknown header do not matter', async () => {
  const body = { templateID: 'base', somethingNew: { a: [1] } }
  const { status, json, text } = await api('POST', '/v2/sandboxes', { body, headers: { 'X-New': 'x', 'Content-Encoding': 'identity' } })
  assert.equal(status, 201, text)
  assert.equal((await api('DELETE', `/sandboxes/${json.sandboxID}`)).status, 204)
})

test('an id that nobody has is not found, whatever is asked of it', async () => {
  for (const [method, path, body] of [
    ['GET', ''],
    ['DELETE', ''],
    ['POST', '/pause', {}],
    ['POST', '/timeout', { timeout: 10 }],
    ['POST', '/refreshes', {}],
    ['POST', '/connect', { timeout: 10 }],
    ['POST', '/resume', {}],
    ['POST', '/fork', {}],
    ['POST', '/snapshots', {}],
    ['PUT', '/network', {}],
    ['GET', '/metrics'],
    ['GET', '/logs'],
  ]) {
    await refused(404, method, `/sandboxes/${UNKNOWN}${path}`, body && { body })
  }
  await refused(404, 'POST', `/v2/sandboxes/${UNKNOWN}/connect`)
})

test('an id of odd characters is refused and reaches nothing', async () => {
  for (const odd of ['..%2f..%2fetc', 'i%00', 'I-UPPER-', 'a-b-c', '%2e%2e', 'i'.repeat(300), 'é', 'a%20b', 'a.b']) {
    const answer = await api('GET', `/sandboxes/${odd}`)
    assert.ok([400, 404].includes(answer.status), `${odd}: ${answer.status}`)
    assert.equal(answer.json?.code, answer.status, `${odd}: ${answer.text}`)
    const { status } = await api('DELETE', `/sandboxes/${odd}`)
    assert.ok([400, 404].includes(status), `${odd}: ${status}`)
  }
  await refused(400, 'GET', '/sandboxes/a-b-c')
  // The old form, with the client's id behind it, still names its sandbox.
  assert.equal((await api('GET', `/sandboxes/${id}-client`)).json.sandboxID, id)
})

test('timeouts that make no sense are refused', async () => {
  for (const body of ['{', {}, { timeout: -1 }, { timeout: 'x' }, { timeout: 1e12 }, { timeout: 1.5 }]) {
    await refused(400, 'POST', `/sandboxes/${id}/timeout`, { body })
  }
  for (const body of ['{', { timeout: -1 }, { timeout: 'x' }]) {
    await refused(400, 'POST', `/v2/sandboxes/${id}/connect`, { body })
  }
  await refused(400, 'POST', `/sandboxes/${id}/refreshes`, { body: { duration: 3601 } })
  await refused(400, 'POST', `/sandboxes/${id}/pause`, { body: '{' })
})

test('a missing or wrong key is told before anything else', async () => {
  for (const [method, path] of [
    ['POST', '/v2/sandboxes'],
    ['POST', '/sandboxes'],
    ['GET', '/v2/sandboxes'],
    ['GET', `/sandboxes/${id}`],
    ['DELETE', `/sandboxes/${id}`],
    ['GET', '/snapshots'],
    ['GET', '/sandboxes/metrics?sandbox_ids=x'],
  ]) {
    for (const key of [null, '', 'wrong']) await refused(401, method, path, { key })
  }
  assert.equal((await api('GET', `/sandboxes/${id}`)).status, 200)
  assert.equal((await api('GET', '/health', { key: null })).status, 200)
})

test('a path or method that does not exist has a body too', async () => {
  for (const [method, path] of [
    ['GET', '/no/such/route'],
    ['PATCH', '/v2/sandboxes'],
    ['PUT', `/sandboxes/${id}`],
    ['GET', '/'],
  ]) {
    const { status, json, text } = await api(method, path)
    assert.ok([404, 405].includes(status) && json?.code === status, `${method} ${path}: ${status} ${text}`)
  }
})

test('a body that is too large is refused and not kept', async () => {
  const body = JSON.stringify({ templateID: 'base', metadata: { a: 'x'.repeat(20 << 20) } })
  const answer = await api('POST', '/v2/sandboxes', { body }).catch((error) => error)
  // The server may hang up on a client that goes on writing.
  if (answer instanceof Error) assert.match(String(answer.cause), /EPIPE|ECONNRESET|other side closed/)
  else assert.deepEqual([answer.status, answer.json?.code], [answer.status === 413 ? 413 : 400, answer.status])
})

test('a host that is not meant is refused', async () => {
  const { status } = await hosted('evil.example', { path: '/v2/sandboxes' })
  assert.equal(status, 421)
  const headers = { Origin: 'http://evil.example' }
  const answer = await fetch(`${ENVD}/health`, { headers })
  assert.ok(answer.status >= 400 && answer.status < 500, `${answer.status}`)
  await answer.arrayBuffer()
})
