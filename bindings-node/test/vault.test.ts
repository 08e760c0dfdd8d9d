/** Snapshots of workspaces, their copies and their restore. */
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { test } from 'node:test'
import * as sandhold from 'sandhold'
import { directory, host, newKey } from './support'

/** A directory with work in it. */
function workspace(): string {
  const place = join(directory(), 'work')
  mkdirSync(join(place, 'deep'), { recursive: true })
  writeFileSync(join(place, 'deep/file'), 'precious')
  return place
}

test('a workspace comes back byte for byte, and the report says what was done', async () => {
  const place = workspace()
  const vault = new sandhold.Vault(directory(), 'tests')
  const phases = new Set<string>()
  const options = { label: 'first', survivePaths: ['deep/file'], progress: (now: sandhold.Progress) => void phases.add(now.phase) }
  const snapshot = await vault.capture(place, options)
  assert.deepEqual([snapshot.label, snapshot.files, snapshot.status, snapshot.isMirrored], ['first', 1, 'snapshot', false])
  assert.ok(Math.abs(Date.now() - snapshot.capturedAt.getTime()) < 60_000)
  assert.deepEqual(snapshot.receipt?.promised.map(kept => kept.path), ['deep/file'])
  assert.deepEqual(snapshot.receipt?.missing, [])
  await assert.rejects(vault.capture(place), { name: 'InvalidStateError', reason: 'nothing_to_snapshot' })
  const target = join(directory(), 'restored')
  const restored = await vault.restore(snapshot.id, target)
  assert.deepEqual([restored.written, restored.deleted, restored.saved, restored.warnings], [1, 0, null, []])
  assert.equal(readFileSync(join(target, 'deep/file'), 'utf8'), 'precious')
  writeFileSync(join(target, 'deep/file'), 'changed')
  await assert.rejects(vault.restore(snapshot.id, target), { name: 'InvalidStateError', reason: 'dirty' })
  const again = await vault.restore(snapshot.id, target, { onDirty: 'capture' })
  assert.equal((await vault.snapshot(again.saved as string)).workspace, target)
  assert.deepEqual((await vault.snapshots()).map(found => found.id).sort(), [snapshot.id, again.saved].sort())
  assert.ok(phases.size > 0)
})

test('a snapshot is looked after: verified, kept, pruned, collected, repaired', async () => {
  const place = workspace()
  const vault = new sandhold.Vault(directory(), 'tests')
  const { id } = await vault.capture(place)
  assert.deepEqual((await vault.verify(id, { depth: 'content' })).flaws, [])
  assert.equal((await vault.verifyAll()).length, 1)
  assert.equal((await vault.setRetention(id, '168h')).retention, '168h')
  assert.deepEqual((await vault.prune({ dry: true })).removed, [])
  assert.equal((await vault.gc()).deleted, 0)
  assert.deepEqual((await vault.repair()).lost, [])
  assert.deepEqual(await vault.unfinishedRestores(), [])
  assert.deepEqual((await vault.sideManifest(id)).warnings, [])
  assert.ok(existsSync(await vault.gitDir()))
  await assert.rejects(vault.verify('nothing'), { name: 'InvalidArgumentError', context: { argument: 'id' } })
  await assert.rejects(vault.capture(place, { labell: 'x' } as never), { name: 'TypeError', message: /labell/ })
})

test('what was to survive and is not there is told, at the capture and at the restore', async () => {
  const vault = new sandhold.Vault(directory(), 'tests')
  const { id, receipt } = await vault.capture(workspace(), { survivePaths: ['absent'] })
  assert.deepEqual(receipt?.missing.map(missing => missing.what), ['absent'])
  await assert.rejects(vault.restore(id, join(directory(), 'restored')), { name: 'InvalidStateError', reason: 'restore_incomplete' })
})

test('a session moves one snapshot along', async () => {
  const place = workspace()
  const vault = new sandhold.Vault(directory(), 'tests')
  const session = await vault.begin(place, { agent: 'robot' })
  assert.equal(session.id, null)
  const first = await session.capture()
  writeFileSync(join(place, 'deep/file'), 'more')
  const last = await session.end('clean', 0)
  assert.deepEqual([last?.id, last?.outcome, last?.exitCode, last?.agent], [first?.id, 'clean', 0, 'robot'])
  assert.equal(session.id, first?.id)
  assert.equal((await vault.snapshots()).length, 1)
})

test('a snapshot travels in a bundle', async () => {
  const vault = new sandhold.Vault(directory(), 'tests')
  const { id, commit } = await vault.capture(workspace())
  const file = join(directory(), 'snapshot.bundle')
  const bundle = await vault.writeBundle(id, file)
  assert.deepEqual([bundle.commit, bundle.prerequisites], [commit, []])
  assert.deepEqual((await sandhold.Vault.bundleHeader(file)).refs.map(([, id]) => id), [commit])
  const other = new sandhold.Vault(directory(), 'tests')
  const imported = await other.importBundle(file, { expected: commit })
  assert.deepEqual([imported.snapshot.id, imported.provenance, imported.wasHere], [id, 'known', false])
  const target = join(directory(), 'restored')
  await other.restore(id, target)
  assert.equal(readFileSync(join(target, 'deep/file'), 'utf8'), 'precious')
  await assert.rejects(other.importBundle(file, { expected: '0'.repeat(40) }), sandhold.SandboxError)
})

test('a mirror keeps copies, and another machine fetches them', async () => {
  const [place, config] = [workspace(), sandhold.MirrorConfig.file(directory(), { prefix: 'copies' })]
  const [vault, mirror] = [new sandhold.Vault(directory(), 'tests'), new sandhold.Mirror(config)]
  await mirror.check()
  const { id } = await vault.capture(place)
  const uploaded = await mirror.upload(vault, id)
  assert.ok(uploaded.isMirrored && uploaded.remote?.uploadedAt instanceof Date)
  assert.deepEqual(await mirror.queued(vault), [])
  assert.deepEqual(await mirror.resume(vault), [])
  assert.deepEqual((await mirror.repos()).map(repo => [repo.key, repo.snapshots]), [['tests', 1]])
  const found = await mirror.snapshots('tests')
  assert.deepEqual(found.snapshots.map(copy => [copy.snapshot.id, copy.isWhole]), [[id, true]])
  assert.deepEqual(await mirror.orphans('tests'), [])
  assert.equal((await mirror.verify(vault, id, { level: 'full' })).provenance, 'known')
  const other = new sandhold.Vault(directory(), 'tests')
  const fetched = await mirror.fetch(other, id)
  assert.deepEqual([fetched.snapshot.id, fetched.wasHere], [id, false])
  const target = join(directory(), 'restored')
  await mirror.restore(new sandhold.Vault(directory(), 'tests'), id, target)
  assert.equal(readFileSync(join(target, 'deep/file'), 'utf8'), 'precious')
  assert.throws(() => new sandhold.Mirror({} as never), { name: 'TypeError', message: /config/ })
  assert.throws(() => new sandhold.Mirror(sandhold.MirrorConfig.s3('b', { maxObjectMb: -1 })), { name: 'InvalidArgumentError' })
})

test('the work of a key comes from the mirror where this machine has lost its vault', async t => {
  const key = newKey(t)
  const mirror = sandhold.MirrorConfig.file(directory(), { mode: 'all' })
  const hook = () => new sandhold.VaultHook(directory(), 'tests', '/home/user/project', { interval: 0, mirror })
  const first = await host({ persist: hook() }).acquire(key)
  await first.write('project/file', 'precious')
  await first.destroy()
  const second = await host({ persist: hook() }).acquire(key)
  assert.equal(await second.readText('project/file'), 'precious')
})

test('a directory inside a sandbox is captured and restored on demand', async t => {
  const sandbox = await host().acquire(newKey(t))
  const vault = new sandhold.Vault(directory(), 'tests')
  await sandbox.write('project/file', 'precious')
  const snapshot = await vault.captureSandbox(sandbox, '/home/user/project')
  assert.equal(await vault.captureSandbox(sandbox, '/home/user/project'), null)
  assert.equal((await vault.newestOfSandbox(sandbox.key, '/home/user/project'))?.id, snapshot?.id)
  await sandbox.write('project/file', 'spoilt')
  await vault.restoreSandbox(sandbox, '/home/user/project', snapshot?.id as string, { onDirty: 'capture' })
  assert.equal(await sandbox.readText('project/file'), 'precious')
  const hook = sandhold.VaultHook.of(vault, '/home/user/project')
  await sandbox.write('project/file', 'newer')
  assert.ok(await hook.save(sandbox))
  assert.ok((await hook.load(sandbox))?.id)
})

test('a snapshot becomes a branch of a repository', async () => {
  const place = workspace()
  const git = (...args: string[]) => execFileSync('git', ['-C', place, '-c', 'user.name=t', '-c', 'user.email=t@t', ...args], { encoding: 'utf8' })
  git('init', '-q', '-b', 'main')
  git('add', '.')
  git('commit', '-q', '-m', 'first')
  const vault = new sandhold.Vault(directory(), await sandhold.Vault.keyOf(place))
  writeFileSync(join(place, 'deep/file'), 'unfinished')
  const { id, branch } = await vault.capture(place)
  assert.equal(branch, 'main')
  const made = await vault.restoreBranch(id, place, { name: 'rescue' })
  assert.equal(git('show', `${made.name}:deep/file`), 'unfinished')
  const patch = join(directory(), 'work.patch')
  assert.ok((await vault.restorePatch(id, patch)) > 0)
  assert.match(readFileSync(patch, 'utf8'), /unfinished/)
  assert.deepEqual((await vault.repairRepository(place)).locks, [])
})

test('settings come to one configuration', async () => {
  const settings = new sandhold.PersistSettings()
  assert.deepEqual(settings.pinned, [])
  const config = settings.resolve()
  assert.equal(config.interval, 300_000)
  assert.equal(typeof config.retention.runs, 'number')
  assert.equal(config.mirror, null)
  assert.equal((await sandhold.PersistConfig.load(null, null)).interval, 300_000)
  assert.throws(() => new sandhold.PersistConfig().withUserFile('{"nonsense": 1}'), sandhold.InvalidArgumentError)
  const hook = new sandhold.VaultHook(directory(), 'tests', '/home/user')
  await hook.apply(config)
})
