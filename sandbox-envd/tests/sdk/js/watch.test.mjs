import assert from 'node:assert/strict'
import { test } from 'node:test'

import { FileNotFoundError, FilesystemEventType, InvalidArgumentError, TimeoutError } from 'e2b'

import { Collected, ownDirectory, sandbox } from './support.mjs'

const dir = ownDirectory()
const { commands, files } = sandbox

const { CHMOD, CREATE, REMOVE, RENAME, WRITE } = FilesystemEventType

/** Watches a new directory; the events are collected, and what ends the watch. */
async function watched(name, opts = {}) {
  const path = `${dir}/${name}`
  await files.makeDir(path)
  const [events, ends] = [new Collected(), new Collected()]
  const handle = await files.watchDir(path, events.push, { onExit: (error) => ends.push(error), ...opts })
  return { path, events, ends, handle }
}

/** Names and types, with what repeats told once: the kernel may report one write as several. */
function told({ items }) {
  const pairs = items.map(({ name, type }) => `${type} ${name}`)
  return pairs.filter((pair, at) => pair !== pairs[at - 1])
}

const has = (type, name) => (items) => items.some((event) => event.type === type && event.name === name)

test('each change is told in its order', async () => {
  const { path, events, handle } = await watched('changes')
  await commands.run(': > a; echo x > a; chmod 600 a; mv a b; rm b; mkdir d; rmdir d', { cwd: path })
  await events.until(has(REMOVE, 'd'))
  assert.deepEqual(told(events), [
    `${CREATE} a`,
    `${WRITE} a`,
    `${CHMOD} a`,
    `${RENAME} a`,
    `${CREATE} b`,
    `${REMOVE} b`,
    `${CREATE} d`,
    `${REMOVE} d`,
  ])
  await handle.stop()
})

test('a file written through the SDK is created, then written', async () => {
  const { path, events, handle } = await watched('written')
  await files.write(`${path}/new.txt`, 'x')
  await events.until(has(WRITE, 'new.txt'))
  const seen = told(events)
  assert.equal(seen[0], `${CREATE} new.txt`)
  assert.ok(seen.every((event) => event.endsWith(' new.txt')), `${seen}`)
  await handle.stop()
})

test('what leaves is a rename and what arrives is a creation', async () => {
  const { path, events, handle } = await watched('moves')
  await commands.run(`echo x > ../moves-outside; mv ../moves-outside in; mv in ../moves-outside`, { cwd: path })
  await events.until(has(RENAME, 'in'))
  assert.deepEqual(told(events), [`${CREATE} in`, `${RENAME} in`])
  await handle.stop()
})

test('without recursion what is below is not told', async () => {
  const { path, events, handle } = await watched('flat')
  await commands.run('mkdir sub; echo x > sub/below; echo x > last', { cwd: path })
  await events.until(has(WRITE, 'last'))
  assert.ok(events.items.every(({ name }) => !name.startsWith('sub/')), `${told(events)}`)
  await handle.stop()
})

test('with recursion new directories lose no event', async () => {
  const { path, events, handle } = await watched('deep', { recursive: true })
  await commands.run('mkdir -p a/b/c && echo x > a/b/c/file && echo y > a/near', { cwd: path })
  for (const name of ['a', 'a/b', 'a/b/c', 'a/b/c/file', 'a/near']) await events.until(has(CREATE, name))
  await events.until(has(WRITE, 'a/near'))
  await files.write(`${path}/a/b/c/later`, 'z')
  await events.until(has(WRITE, 'a/b/c/later'))
  await files.remove(`${path}/a`)
  for (const name of ['a/b/c/file', 'a/b/c', 'a/b', 'a']) await events.until(has(REMOVE, name))
  await handle.stop()
})

test('with recursion directories that were there are watched', async () => {
  await files.write(`${dir}/there/x/y/old`, '')
  const { path, events, handle } = await watched('there', { recursive: true })
  await files.write(`${path}/x/y/new`, 'n')
  await events.until(has(WRITE, 'x/y/new'))
  await handle.stop()
})

test('the entry comes along when asked for', async () => {
  const { path, events, handle } = await watched('entries', { includeEntry: true })
  await commands.run('umask 022; printf hello > f; mkdir d; mv f g; rm g', { cwd: path })
  await events.until(has(REMOVE, 'g'))
  const created = events.items.find(({ type, name }) => type === CREATE && name === 'd')
  const { size, modifiedTime, ...entry } = created.entry
  assert.ok(typeof size === 'number' && modifiedTime instanceof Date)
  assert.deepEqual(entry, {
    name: 'd',
    type: 'dir',
    path: `${path}/d`,
    mode: 0o755,
    permissions: 'drwxr-xr-x',
    owner: 'user',
    group: 'user',
    symlinkTarget: undefined,
    metadata: undefined,
  })
  for (const { type, entry } of events.items) {
    if (type === REMOVE || type === RENAME) assert.equal(entry, undefined)
  }
  await handle.stop()
})

test('a written file comes with its entry', async () => {
  const { path, events, handle } = await watched('entry-file', { includeEntry: true })
  await files.write(`${path}/f`, 'hello')
  await events.until((items) => items.some(({ type, entry }) => type === WRITE && entry?.size === 5))
  const { modifiedTime, ...entry } = events.items.findLast(({ type }) => type === WRITE).entry
  assert.ok(modifiedTime instanceof Date)
  assert.deepEqual(entry, {
    name: 'f',
    type: 'file',
    path: `${path}/f`,
    size: 5,
    mode: 0o644,
    permissions: '-rw-r--r--',
    owner: 'user',
    group: 'user',
    symlinkTarget: undefined,
    metadata: undefined,
  })
  await handle.stop()
})

test('no entry comes along unasked', async () => {
  const { path, events, handle } = await watched('no-entries')
  await files.write(`${path}/f`, 'x')
  await events.until(has(WRITE, 'f'))
  assert.ok(events.items.every(({ entry }) => entry === undefined))
  await handle.stop()
})

test('a stopped watch tells nothing more', async () => {
  const { path, events, ends, handle } = await watched('stopped')
  await handle.stop()
  await ends.until((items) => items.length === 1)
  const other = await files.watchDir(path, () => {})
  await files.write(`${path}/f`, 'x')
  await other.stop()
  assert.deepEqual(events.items, [])
})

test('a watch past its time ends with a timeout', async () => {
  const { ends } = await watched('timed', { timeoutMs: 300 })
  await ends.until((items) => items.length === 1)
  assert.ok(ends.items[0] instanceof TimeoutError, `${ends.items[0]}`)
})

test('two watches of one directory are told the same', async () => {
  const first = await watched('shared')
  const second = new Collected()
  const handle = await files.watchDir(first.path, second.push)
  await files.write(`${first.path}/f`, 'x')
  await first.events.until(has(WRITE, 'f'))
  await second.until(has(WRITE, 'f'))
  assert.deepEqual(told(first.events), told(second))
  await first.handle.stop()
  await handle.stop()
})

test('a directory that is not there cannot be watched', async () => {
  await assert.rejects(files.watchDir(`${dir}/missing`, () => {}), FileNotFoundError)
})

test('a file cannot be watched', async () => {
  await files.write(`${dir}/file`, 'x')
  await assert.rejects(files.watchDir(`${dir}/file`, () => {}), InvalidArgumentError)
})

test('network mounts may be allowed where there are none', async () => {
  const { path, events, handle } = await watched('network', { allowNetworkMounts: true })
  await files.write(`${path}/f`, 'x')
  await events.until(has(WRITE, 'f'))
  await handle.stop()
})
