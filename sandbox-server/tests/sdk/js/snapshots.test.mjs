import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Sandbox, SandboxError, SandboxNotFoundError } from 'e2b'

import { all, api, created, fails, mark, owned } from './support.mjs'

async function snapshotted(sandbox, options) {
  const snapshot = await sandbox.createSnapshot(options)
  snapshots.push(snapshot.snapshotId)
  return snapshot
}
const snapshots = []

test('a snapshot is a state that new sandboxes start from, and its source runs on', async () => {
  const source = await created()
  await source.files.write('state.txt', 'one')
  const snapshot = await snapshotted(source)
  assert.equal(typeof snapshot.snapshotId, 'string')
  assert.equal(await source.isRunning(), true)
  await source.files.write('state.txt', 'two')
  const first = await created({ template: snapshot.snapshotId })
  const second = await created({ template: snapshot.snapshotId })
  assert.notEqual(first.sandboxId, second.sandboxId)
  assert.equal(await first.files.read('state.txt'), 'one')
  await first.files.write('state.txt', 'three')
  assert.deepEqual(
    [await source.files.read('state.txt'), await first.files.read('state.txt'), await second.files.read('state.txt')],
    ['two', 'three', 'one']
  )
})

test('a snapshot outlives its source', async () => {
  const source = await created()
  await source.files.write('state.txt', 'kept')
  const { snapshotId } = await snapshotted(source)
  await source.kill()
  const later = await created({ template: snapshotId })
  assert.equal(await later.files.read('state.txt'), 'kept')
})

test('snapshots are listed, by source and by name, and paged', async () => {
  const source = await created()
  const one = await snapshotted(source)
  const named = await snapshotted(source, { name: `${mark}-named` })
  const tagged = await snapshotted(source, { name: `${mark}-named:v2` })
  assert.match(one.snapshotId, /:default$/)
  assert.match(named.snapshotId, new RegExp(`/${mark}-named:default$`))
  assert.match(tagged.snapshotId, new RegExp(`/${mark}-named:v2$`))
  assert.deepEqual(named.names.map((name) => name.split('/').at(-1)), [`${mark}-named`])
  const ids = (items) => items.map(({ snapshotId }) => snapshotId).sort()
  const expected = ids([one, named, tagged])
  assert.deepEqual(ids(await all(source.listSnapshots())), expected)
  assert.deepEqual(ids(await all(Sandbox.listSnapshots({ sandboxId: source.sandboxId }))), expected)
  assert.deepEqual(ids(await all(Sandbox.listSnapshots({ sandboxId: source.sandboxId, limit: 1 }))), expected)
  const byName = await all(Sandbox.listSnapshots({ name: `${mark}-named:v2` }))
  assert.deepEqual(ids(byName), [tagged.snapshotId])
  assert.deepEqual(await all(Sandbox.listSnapshots({ name: `${mark}-none` })), [])
  const everything = ids(await all(Sandbox.listSnapshots()))
  for (const id of expected) assert.ok(everything.includes(id), id)
  const other = await created()
  assert.deepEqual(await all(other.listSnapshots()), [])
})

test('a snapshot that is deleted is gone, once', async () => {
  const source = await created()
  const { snapshotId } = await source.createSnapshot({ name: `${mark}-deleted` })
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), false)
  assert.deepEqual(await all(source.listSnapshots()), [])
  await fails(Sandbox.create(snapshotId), SandboxError)
})

test('a snapshot that sandboxes stand on is not deleted', async () => {
  const source = await created()
  const { snapshotId } = await snapshotted(source)
  const user = await created({ template: snapshotId })
  const error = await fails(Sandbox.deleteSnapshot(snapshotId), SandboxError)
  assert.equal(error.statusCode, 400)
  await user.pause()
  await fails(Sandbox.deleteSnapshot(snapshotId), SandboxError)
  await user.kill()
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), true)
})

test('only a running sandbox is snapshotted', async () => {
  const sandbox = await created()
  await sandbox.pause()
  await fails(sandbox.createSnapshot(), SandboxNotFoundError)
  const { status, json } = await api('GET', '/snapshots?limit=0')
  assert.deepEqual([status, json?.code], [400, 400])
})

test('a fork has the files and facts of its source, and an end of its own', async () => {
  const source = await created({ metadata: { mark: `${mark}-fork` }, timeoutMs: 600_000, envs: { KEPT: 'yes' } })
  await source.files.write('state.txt', 'one')
  const before = await source.getInfo()
  const [fork] = await source.fork({ timeoutMs: 100_000 })
  assert.ok(fork instanceof Sandbox, String(fork))
  owned(fork)
  assert.notEqual(fork.sandboxId, source.sandboxId)
  assert.equal(await fork.files.read('state.txt'), 'one')
  await fork.files.write('state.txt', 'two')
  assert.equal(await source.files.read('state.txt'), 'one')
  const after = await source.getInfo()
  assert.deepEqual([after.sandboxId, after.endAt, after.state], [before.sandboxId, before.endAt, 'running'])
  const info = await fork.getInfo()
  assert.deepEqual(info.metadata, { mark: `${mark}-fork` })
  assert.ok(Math.abs(info.endAt.getTime() - Date.now() - 100_000) < 5000, `${info.endAt}`)
  const known = await fork.commands.run('echo $KEPT $E2B_SANDBOX_ID; cat /run/e2b/.E2B_SANDBOX_ID')
  assert.equal(known.stdout, `yes ${fork.sandboxId}\n${fork.sandboxId}`)
})

test('several forks stand on one state and on their own', async () => {
  const source = await created()
  await source.files.write('state.txt', 'one')
  const forks = await Sandbox.fork(source.sandboxId, { count: 2, timeoutMs: 60_000 })
  assert.equal(forks.length, 2)
  for (const fork of forks) owned(fork)
  await forks[0].files.write('state.txt', 'two')
  assert.deepEqual([await forks[0].files.read('state.txt'), await forks[1].files.read('state.txt')], ['two', 'one'])
  assert.equal(await forks[0].kill(), true)
  await fails(forks[0].getInfo(), SandboxNotFoundError)
  assert.equal(await source.isRunning(), true)
  assert.equal(await forks[1].isRunning(), true)
})

test('a fork needs a running source and a count', async () => {
  const sandbox = await created()
  const asked = (body) => api('POST', `/sandboxes/${sandbox.sandboxId}/fork`, { body })
  for (const count of [0, -1, 101]) assert.equal((await asked({ count })).status, 400, `${count}`)
  await sandbox.pause()
  assert.equal((await asked({ count: 1 })).status, 409)
})

test('what was made here can be deleted', async () => {
  for (const id of snapshots) {
    const { status } = await api('DELETE', `/templates/${encodeURIComponent(id)}`)
    // Sandboxes of this file still stand on some.
    assert.ok([204, 400, 404].includes(status), `${id}: ${status}`)
  }
})
