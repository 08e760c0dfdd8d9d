/** Files, streams and watches. */
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { createReadStream, createWriteStream, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { test } from 'node:test'
import * as sandhold from 'sandhold'
import { all, directory, newSandbox } from './support'

test('a file comes back as it was written', async t => {
  const sandbox = await newSandbox(t)
  const everything = Buffer.concat(Array(40).fill(Buffer.from(Array.from({ length: 256 }, (_, byte) => byte))))
  const entry = await sandbox.write('deep/down/file.bin', everything, { metadata: { who: 'me' } })
  assert.deepEqual([entry.name, entry.size, entry.fileType, entry.owner], ['file.bin', 10240, 'file', 'user'])
  assert.deepEqual(await sandbox.readBytes('deep/down/file.bin'), everything)
  assert.deepEqual((await sandbox.stat('deep/down/file.bin')).metadata, { who: 'me' })
  await sandbox.write('text', 'é\n')
  assert.equal(await sandbox.readText('text'), 'é\n')
  await sandbox.write('empty', '')
  assert.equal((await sandbox.readBytes('empty')).length, 0)
  await assert.rejects(sandbox.readText('deep/down/file.bin'), { name: 'InvalidArgumentError', message: /UTF-8/ })
})

test('what is read is writable memory of its own', async t => {
  const sandbox = await newSandbox(t)
  await sandbox.write('file', Buffer.alloc(1 << 20, 1))
  const [first, second] = [await sandbox.readBytes('file'), await sandbox.readBytes('file')]
  first.fill(2)
  assert.ok(second.every(byte => byte === 1))
  const body = Buffer.alloc(1 << 20, 3)
  const written = sandbox.write('file', body)
  body.fill(4)
  await written
  assert.ok((await sandbox.readBytes('file')).every(byte => byte === 3))
})

test('a directory is listed, renamed and removed', async t => {
  const sandbox = await newSandbox(t)
  assert.equal((await sandbox.makeDir('d/e')).fileType, 'directory')
  await assert.rejects(sandbox.makeDir('d/e'), sandhold.AlreadyExistsError)
  await sandbox.write('d/f', '')
  assert.deepEqual((await sandbox.list('d')).map(entry => entry.name), ['e', 'f'])
  await sandbox.write('d/e/g', '1')
  const paths = (await sandbox.list('d', { depth: 2 })).map(entry => entry.path)
  assert.deepEqual(paths, ['e', 'e/g', 'f'].map(name => `/home/user/d/${name}`))
  assert.equal((await sandbox.rename('d/f', 'moved/f')).path, '/home/user/moved/f')
  assert.deepEqual([await sandbox.exists('d/f'), await sandbox.exists('moved/f')], [false, true])
  await sandbox.remove('d')
  await sandbox.remove('d')
  assert.equal(await sandbox.exists('d'), false)
  const entry = await sandbox.stat('moved/f')
  assert.equal(entry.mode & 0o777, 0o644)
  assert.ok(entry.modifiedAt && Math.abs(Date.now() - entry.modifiedAt.getTime()) < 60_000)
})

test('a part of a file is read as a stream', async t => {
  const sandbox = await newSandbox(t)
  const content = '0123456789'.repeat(100_000)
  await sandbox.write('long', content)
  await using download = await sandbox.read('long')
  assert.equal(download.size, 1_000_000)
  assert.equal(Buffer.concat(await all(download)).toString(), content)
  const part = await all(await sandbox.read('long', { offset: 5, length: 7 }))
  assert.equal(Buffer.concat(part).toString(), '5678901')
  await assert.rejects(sandbox.read('missing'), sandhold.NotFoundError)
})

test('streams of Node.js and of the web go in and out', async t => {
  const sandbox = await newSandbox(t)
  const place = directory()
  const content = Buffer.alloc(3_000_000, 'x')
  writeFileSync(join(place, 'source'), content)
  assert.equal((await sandbox.write('from-node', createReadStream(join(place, 'source')))).size, content.length)
  await pipeline(Readable.from(await sandbox.read('from-node')), createWriteStream(join(place, 'copy')))
  assert.deepEqual(readFileSync(join(place, 'copy')), content)
  await sandbox.write('from-blob', new Blob(['one ', 'two']))
  assert.equal(await sandbox.readText('from-blob'), 'one two')
  const web = new Response(content).body as ReadableStream<Uint8Array>
  assert.equal((await sandbox.write('from-web', web)).size, content.length)
  await sandbox.write('from-memory', new Uint8Array([104, 105]).buffer)
  assert.equal(await sandbox.readText('from-memory'), 'hi')
})

test('a body comes from iterables of either kind', async t => {
  const sandbox = await newSandbox(t)
  await sandbox.write('sync', [Buffer.from('one '), 'two'])
  assert.equal(await sandbox.readText('sync'), 'one two')
  async function* later() {
    for (const number of [0, 1, 2]) {
      await new Promise(setImmediate)
      yield String(number)
    }
  }
  await sandbox.write('async', later())
  assert.equal(await sandbox.readText('async'), '012')
})

test('a body that breaks is the cause and leaves no file', async t => {
  const sandbox = await newSandbox(t)
  const thrown = new Error('the disk is on fire')
  async function* broken() {
    yield 'half'
    throw thrown
  }
  await assert.rejects(sandbox.write('half', broken()), (error: unknown) => {
    const causes = []
    for (let cause = error; cause instanceof Error; cause = cause.cause) causes.push(cause)
    return error instanceof sandhold.SandboxError && causes.includes(thrown)
  })
  assert.equal(await sandbox.exists('half'), false)
  await assert.rejects(sandbox.write('half', 3 as never), { name: 'TypeError', message: /body/ })
  await assert.rejects(sandbox.write('half', [3] as never), (error: Error) => {
    let cause: unknown = error
    while (cause instanceof sandhold.SandboxError) cause = cause.cause
    return cause instanceof TypeError && /body/.test(cause.message)
  })
})

test('a source is closed when its write ends before it does', async t => {
  const sandbox = await newSandbox(t)
  let closed = false
  async function* endless() {
    try {
      for (;;) yield Buffer.alloc(1 << 16)
    } finally {
      closed = true
    }
  }
  const signal = AbortSignal.timeout(100)
  await assert.rejects(sandbox.write('endless', endless(), { signal }), { name: 'TimeoutError', code: 23 })
  while (!closed) await new Promise(setImmediate)
  assert.equal(await sandbox.exists('endless'), false)
})

test('a long body is not gathered in memory', async t => {
  const sandbox = await newSandbox(t)
  function* pieces() {
    for (let number = 0; number < 128; number++) yield Buffer.alloc(1 << 20, number)
  }
  const before = process.memoryUsage().rss
  assert.equal((await sandbox.write('long', pieces())).size, 128 << 20)
  const hashed = createHash('sha256')
  let most = 0
  for await (const piece of await sandbox.read('long')) {
    hashed.update(piece)
    most = Math.max(most, process.memoryUsage().rss)
  }
  const expected = createHash('sha256')
  for (const piece of pieces()) expected.update(piece)
  assert.equal(hashed.digest('hex'), expected.digest('hex'))
  assert.ok(most - before < 100 << 20, `${(most - before) >> 20} MiB`)
})

test('a watch tells what happens from the moment it is there', async t => {
  const sandbox = await newSandbox(t)
  await sandbox.makeDir('seen/deep')
  const watch = await sandbox.watch('seen', { recursive: true, includeEntry: true })
  await sandbox.write('seen/deep/file', 'x')
  for await (const event of watch) {
    if (event.kind === 'create' && event.name === 'deep/file') {
      assert.equal(event.entry?.fileType, 'file')
      break
    }
  }
  assert.deepEqual(await all(watch), [])
})

test('a closed stream ends for whoever waits', async t => {
  const sandbox = await newSandbox(t)
  const watch = await sandbox.watch('.')
  const waiting = watch.next()
  watch.close()
  assert.deepEqual(await waiting, { done: true, value: undefined })
})
