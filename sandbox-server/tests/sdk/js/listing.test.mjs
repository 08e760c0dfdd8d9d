import assert from 'node:assert/strict'
import { before, test } from 'node:test'

import { Sandbox } from 'e2b'

import { all, api, created, fails, listed, mark } from './support.mjs'

const metadata = { mark }
/** In the order of their start; the second is paused. */
const ids = []
let middle

before(async () => {
  for (let at = 0; at < 4; at += 1) {
    // Starts are told in milliseconds at least, and must differ.
    await new Promise((done) => setTimeout(done, 50))
    if (at === 2) middle = new Date()
    const sandbox = await created({ metadata: { mark, turn: `${at}`, odd: `a b&c=d%é+${at % 2}` } })
    ids.push(sandbox.sandboxId)
  }
  assert.equal(await Sandbox.pause(ids[1]), true)
})

test('without a state running and paused ones are listed, newest first', async () => {
  const items = await all(Sandbox.list({ query: { metadata } }))
  const states = Object.fromEntries(items.map(({ sandboxId, state }) => [sandboxId, state]))
  assert.deepEqual(states, { [ids[0]]: 'running', [ids[1]]: 'paused', [ids[2]]: 'running', [ids[3]]: 'running' })
  assert.deepEqual(items.map(({ sandboxId }) => sandboxId), ids.toReversed())
})

test('each state alone and both together', async () => {
  assert.deepEqual(await listed(metadata, { state: ['paused'] }), [ids[1]])
  assert.deepEqual(await listed(metadata, { state: ['running'] }), [ids[3], ids[2], ids[0]])
  assert.deepEqual(await listed(metadata, { state: ['running', 'paused'] }), ids.toReversed())
  const repeated = await api('GET', `/v2/sandboxes?state=running&state=paused&metadata=mark%3D${mark}`)
  assert.deepEqual(repeated.json.map(({ sandboxID }) => sandboxID), ids.toReversed())
})

test('oldest first is the exact reverse', async () => {
  assert.deepEqual(await listed(metadata, {}, { order: 'asc' }), ids)
  assert.deepEqual(await listed(metadata, {}, { order: 'desc' }), ids.toReversed())
})

test('pages of one, running and paused mixed, meet every sandbox once', async () => {
  for (const order of ['asc', 'desc']) {
    const paginator = Sandbox.list({ query: { metadata }, limit: 1, order })
    const seen = []
    for (let page = 0; page < 4; page += 1) {
      assert.equal(paginator.hasNext, true)
      const items = await paginator.nextItems()
      assert.equal(items.length, 1)
      seen.push(items[0].sandboxId)
    }
    assert.equal(paginator.hasNext, false)
    assert.equal(paginator.nextToken, undefined)
    assert.deepEqual(seen, order === 'asc' ? ids : ids.toReversed())
    await fails(paginator.nextItems(), Error)
  }
})

test('a listing goes on from a token', async () => {
  const first = Sandbox.list({ query: { metadata }, limit: 3 })
  await first.nextItems()
  const second = Sandbox.list({ query: { metadata }, limit: 3, nextToken: first.nextToken })
  assert.deepEqual((await second.nextItems()).map(({ sandboxId }) => sandboxId), [ids[0]])
  assert.equal(second.hasNext, false)
})

test('a page that is exactly full is the last one', async () => {
  const paginator = Sandbox.list({ query: { metadata }, limit: 4 })
  assert.equal((await paginator.nextItems()).length, 4)
  assert.equal(paginator.hasNext, false)
})

test('metadata are matched whole, together and whatever is in them', async () => {
  assert.deepEqual(await listed({ mark, turn: '2' }), [ids[2]])
  assert.deepEqual(await listed({ mark, turn: '9' }), [])
  assert.deepEqual(await listed({ mark, odd: 'a b&c=d%é+1' }), [ids[3], ids[1]])
  assert.deepEqual(await listed({ mark: mark.slice(0, -1) }), [])
  const pair = `metadata=mark%3D${mark}`
  assert.equal((await api('GET', `/v2/sandboxes?${pair}%26turn`)).status, 400)
  assert.equal((await api('GET', `/v2/sandboxes?${pair}%26turn%3D1%3D2`)).status, 400)
})

test('only those that started since', async () => {
  assert.deepEqual(await listed(metadata, { startedAfter: middle }), [ids[3], ids[2]])
  assert.deepEqual(await listed(metadata, { startedAfter: new Date(Date.now() + 60_000) }), [])
  assert.deepEqual(await listed(metadata, { startedAfter: new Date(0) }), ids.toReversed())
  // The start of a sandbox is included, to the microsecond.
  const [{ startedAt }] = (await api('GET', `/v2/sandboxes?metadata=turn%3D3%26mark%3D${mark}`)).json
  const since = await api('GET', `/v2/sandboxes?metadata=mark%3D${mark}&startedAfter=${encodeURIComponent(startedAt)}`)
  assert.deepEqual(since.json.map(({ sandboxID }) => sandboxID), [ids[3]])
})

test('only those of a template, by name or id', async () => {
  const { templateId } = await Sandbox.getInfo(ids[0])
  assert.deepEqual(await listed(metadata, { template: 'base' }), ids.toReversed())
  assert.deepEqual(await listed(metadata, { template: templateId }), ids.toReversed())
  assert.deepEqual(await listed(metadata, { template: 'no-such-template' }), [])
  assert.equal((await api('GET', '/v2/sandboxes?template=base:tag')).status, 400)
})

test('entries carry what the SDKs ask of them', async () => {
  const items = await all(Sandbox.list({ query: { metadata: { mark, turn: '0' } } }))
  const [{ startedAt, endAt, cpuCount, memoryMB, envdVersion, templateId, ...rest }] = items
  assert.equal(items.length, 1)
  assert.deepEqual([rest.sandboxId, rest.state, rest.name], [ids[0], 'running', 'base'])
  assert.deepEqual(rest.metadata, { mark, turn: '0', odd: 'a b&c=d%é+0' })
  assert.ok(startedAt instanceof Date && endAt > startedAt && cpuCount >= 1 && memoryMB > 0)
  assert.ok(envdVersion && templateId)
  const raw = (await api('GET', `/v2/sandboxes?metadata=turn%3D0%26mark%3D${mark}`)).json[0]
  for (const name of ['templateID', 'sandboxID', 'clientID', 'startedAt', 'endAt', 'cpuCount', 'memoryMB', 'diskSizeMB', 'state', 'envdVersion']) {
    assert.ok(raw[name] !== undefined && raw[name] !== null, name)
  }
  assert.equal(raw.envdAccessToken, undefined)
})

test('a paused sandbox ends at its pause', async () => {
  const info = await Sandbox.getInfo(ids[1])
  assert.equal(info.state, 'paused')
  assert.ok(info.endAt <= new Date() && info.endAt >= info.startedAt, `${info.startedAt} ${info.endAt}`)
})

test('limits and tokens that make no sense are refused', async () => {
  for (const query of ['limit=0', 'limit=101', 'limit=x', 'limit=-1', 'nextToken=junk', 'order=sideways', 'state=dead', 'startedAfter=yesterday']) {
    const { status, json } = await api('GET', `/v2/sandboxes?${query}`)
    assert.deepEqual([query, status, json?.code], [query, 400, 400])
  }
  const { headers } = await api('GET', `/v2/sandboxes?limit=1&order=asc&metadata=mark%3D${mark}`)
  const token = encodeURIComponent(headers.get('x-next-token'))
  const other = await api('GET', `/v2/sandboxes?limit=1&order=desc&nextToken=${token}&metadata=mark%3D${mark}`)
  assert.equal(other.status, 400)
})

test('the number of running ones is told before paging', async () => {
  const { headers } = await api('GET', `/v2/sandboxes?limit=1&state=running&metadata=mark%3D${mark}`)
  assert.equal(headers.get('x-total-running'), '3')
  const paused = await api('GET', `/v2/sandboxes?limit=1&state=paused&metadata=mark%3D${mark}`)
  assert.equal(paused.headers.get('x-total-running'), null)
})

test('the first generation lists the running ones without pages', async () => {
  const { status, json } = await api('GET', `/sandboxes?metadata=mark%3D${mark}`)
  assert.equal(status, 200)
  assert.deepEqual(new Set(json.map(({ sandboxID }) => sandboxID)), new Set([ids[0], ids[2], ids[3]]))
})
