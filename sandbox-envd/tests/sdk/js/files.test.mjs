import assert from 'node:assert/strict'
import { test } from 'node:test'

import { AuthenticationError, FileNotFoundError, InvalidArgumentError, SandboxError } from 'e2b'

import { ENVD, oneId, ownDirectory, routing, sandbox } from './support.mjs'

const dir = ownDirectory()
const { commands, files } = sandbox

/** What the SDK makes of an entry that nothing special is known of. */
const plain = { symlinkTarget: undefined, metadata: undefined }

/** Asks for a file as any HTTP client would. */
const fetched = (path, headers) =>
  fetch(`${ENVD}/files?${new URLSearchParams({ path })}`, { headers: { ...routing, ...headers } })

/** Splits a stream into what it brought. */
async function drained(stream) {
  const chunks = []
  for await (const chunk of stream) chunks.push(chunk)
  return Buffer.concat(chunks)
}

test('a written file is told, and read back in every format', async () => {
  const path = `${dir}/formats/text.txt`
  const text = 'línea\r\n世界 🌍\n'
  const told = await files.write(path, text)
  assert.deepEqual(told, { name: 'text.txt', path, type: 'file', metadata: undefined })
  assert.equal(await files.read(path), text)
  assert.deepEqual(await files.read(path, { format: 'bytes' }), new Uint8Array(Buffer.from(text)))
  assert.equal(await (await files.read(path, { format: 'blob' })).text(), text)
  assert.equal((await drained(await files.read(path, { format: 'stream' }))).toString(), text)
})

test('an empty file is empty in every format', async () => {
  const path = `${dir}/empty`
  await files.write(path, '')
  for (const gzip of [false, true]) {
    assert.equal(await files.read(path, { gzip }), '')
    assert.deepEqual(await files.read(path, { gzip, format: 'bytes' }), new Uint8Array(0))
    assert.equal((await files.read(path, { gzip, format: 'blob' })).size, 0)
    assert.equal((await drained(await files.read(path, { gzip, format: 'stream' }))).length, 0)
  }
})

test('every kind of data can be written either way', async () => {
  const bytes = Uint8Array.from({ length: 256 }, (_, at) => at)
  const kinds = {
    buffer: () => bytes.buffer,
    blob: () => new Blob([bytes]),
    stream: () => new Blob([bytes]).stream(),
  }
  for (const [kind, data] of Object.entries(kinds)) {
    for (const useOctetStream of [false, true]) {
      const path = `${dir}/kinds/${kind}-${useOctetStream}`
      await files.write(path, data(), { useOctetStream })
      assert.deepEqual(await files.read(path, { format: 'bytes' }), bytes, path)
    }
  }
})

test('a large file goes up and down as a stream', async () => {
  const [path, block, blocks] = [`${dir}/large`, new Uint8Array(1 << 20), 24]
  block.forEach((_, at) => (block[at] = (at * 31) >> 3))
  let left = blocks
  const data = new ReadableStream({
    pull(controller) {
      if (left-- > 0) controller.enqueue(block)
      else controller.close()
    },
  })
  await files.write(path, data)
  const { stdout } = await commands.run(`stat -c %s ${path}`)
  assert.equal(stdout, `${blocks * block.length}\n`)
  const back = await drained(await files.read(path, { format: 'stream' }))
  assert.equal(back.length, blocks * block.length)
  for (let at = 0; at < back.length; at += block.length) {
    assert.ok(back.subarray(at, at + block.length).equals(block), `the block at ${at}`)
  }
})

test('writing again replaces the content', async () => {
  const path = `${dir}/twice`
  await files.write(path, 'a long first text')
  await files.write(path, 'short')
  assert.equal(await files.read(path), 'short')
})

test('a relative path lies in the home of the user', async () => {
  const name = `${dir.split('/').at(-1)}/relative.txt`
  assert.equal((await files.write(name, 'x')).path, `${dir}/relative.txt`)
  assert.equal(await files.read(`~/${name}`), 'x')
  const rooted = await files.write(name, 'y', { user: 'root' })
  assert.equal(rooted.path, `/root/${name}`)
  assert.equal(await files.read(name, { user: 'root' }), 'y')
  assert.equal(await files.read(name), 'x')
  await files.remove(`/root/${dir.split('/').at(-1)}`)
})

test('many files are written at once, in the root directory too', async () => {
  const mark = dir.split('-').at(-1)
  const entries = [
    { path: `${dir}/many/one.txt`, data: 'one' },
    { path: `/many-${mark}.txt`, data: new Blob(['two']) },
    { path: `${dir}/many/ünï cödé/three.txt`, data: new TextEncoder().encode('three').buffer },
    { path: `js-${mark}/many/four.txt`, data: 'four' },
  ]
  for (const useOctetStream of [false, true]) {
    const told = await files.write(entries, { useOctetStream })
    const at = (path, name) => ({ name, path, type: 'file', metadata: undefined })
    assert.deepEqual(told, [
      at(`${dir}/many/one.txt`, 'one.txt'),
      at(`/many-${mark}.txt`, `many-${mark}.txt`),
      at(`${dir}/many/ünï cödé/three.txt`, 'three.txt'),
      at(`${dir}/many/four.txt`, 'four.txt'),
    ])
    const read = await Promise.all(told.map(({ path }) => files.read(path)))
    assert.deepEqual(read, ['one', 'two', 'three', 'four'])
    assert.equal((await files.getInfo(`/many-${mark}.txt`)).owner, 'user')
    await files.remove(`/many-${mark}.txt`)
    await files.remove(`${dir}/many`)
  }
})

test('writing no files is nothing', async () => {
  assert.deepEqual(await files.write([]), [])
})

test('the same file twice in one upload is refused', async () => {
  const entry = { path: `${dir}/same`, data: 'x' }
  await assert.rejects(files.write([entry, entry]), InvalidArgumentError)
})

test('a directory is no file', async () => {
  await assert.rejects(files.write(dir, 'x'), InvalidArgumentError)
  await assert.rejects(files.read(dir), InvalidArgumentError)
})

test('a file that is not there is not found', async () => {
  const path = `${dir}/missing`
  for (const format of ['text', 'bytes', 'blob', 'stream']) {
    await assert.rejects(files.read(path, { format }), FileNotFoundError)
  }
  await assert.rejects(files.getInfo(path), FileNotFoundError)
  await assert.rejects(files.list(path), FileNotFoundError)
  await assert.rejects(files.rename(path, `${path}2`), FileNotFoundError)
  assert.equal(await files.exists(path), false)
})

test('a user that does not exist is refused', async () => {
  const opts = { user: 'nobody-of-that-name' }
  await assert.rejects(files.write(`${dir}/x`, 'x', opts), AuthenticationError)
  await assert.rejects(files.read(`${dir}/x`, opts), AuthenticationError)
  await assert.rejects(files.list(dir, opts), AuthenticationError)
})

test('all that is known of a file', async () => {
  const path = `${dir}/info.txt`
  await files.write(path, 'hello')
  await commands.run(`touch -d @1700000000.123456789 ${path}`)
  assert.deepEqual(await files.getInfo(path), {
    name: 'info.txt',
    type: 'file',
    path,
    size: 5,
    mode: 0o644,
    permissions: '-rw-r--r--',
    owner: 'user',
    group: 'user',
    modifiedTime: new Date(1700000000123),
    ...plain,
  })
})

test('all that is known of a directory', async () => {
  const path = `${dir}/info-dir`
  assert.equal(await files.makeDir(path), true)
  await commands.run(`touch -d @1700000000 ${path}`)
  const { size, ...info } = await files.getInfo(path)
  assert.equal(typeof size, 'number')
  assert.deepEqual(info, {
    name: 'info-dir',
    type: 'dir',
    path,
    mode: 0o755,
    permissions: 'drwxr-xr-x',
    owner: 'user',
    group: 'user',
    modifiedTime: new Date(1700000000000),
    ...plain,
  })
})

test('modes are told as bits and as text', async () => {
  const path = `${dir}/modes`
  await commands.run(`mkdir -m 1777 ${path}; touch ${path}/a ${path}/b; chmod 4755 ${path}/a; chmod 600 ${path}/b`)
  const told = async (path) => (({ mode, permissions }) => [mode, permissions])(await files.getInfo(path))
  assert.deepEqual(await told(path), [0o777, 'dtrwxrwxrwx'])
  assert.deepEqual(await told(`${path}/a`), [0o755, 'urwxr-xr-x'])
  assert.deepEqual(await told(`${path}/b`), [0o600, '-rw-------'])
})

test('what root writes is root\'s', { skip: oneId }, async () => {
  const path = `${dir}/rooted/deep/file`
  await files.write(path, 'x', { user: 'root' })
  for (const made of [path, `${dir}/rooted/deep`, `${dir}/rooted`]) {
    const { owner, group } = await files.getInfo(made)
    assert.deepEqual([owner, group], ['root', 'root'], made)
  }
  await assert.rejects(commands.run(`touch ${dir}/rooted/deep/mine`))
  await files.remove(`${dir}/rooted`, { user: 'root' })
})

test('directories made on the way belong to the user', async () => {
  await files.write(`${dir}/way/to/it/file`, 'x')
  for (const made of ['way', 'way/to', 'way/to/it']) {
    const { owner, mode } = await files.getInfo(`${dir}/${made}`)
    assert.deepEqual([owner, mode], ['user', 0o755], made)
  }
})

test('a link tells of its target and where it is', async () => {
  const path = `${dir}/links`
  await files.write(`${path}/real.txt`, 'hello')
  await commands.run(`cd ${path}; ln -s real.txt link; ln -s . here; ln -s nowhere broken; ln -s loop loop`)
  const { modifiedTime, ...link } = await files.getInfo(`${path}/link`)
  assert.ok(modifiedTime instanceof Date)
  assert.deepEqual(link, {
    name: 'link',
    type: 'file',
    path: `${path}/link`,
    size: 'real.txt'.length,
    mode: 0o644,
    permissions: 'Lrwxrwxrwx',
    owner: 'user',
    group: 'user',
    symlinkTarget: `${path}/real.txt`,
    metadata: undefined,
  })
  const here = await files.getInfo(`${path}/here`)
  assert.deepEqual([here.type, here.symlinkTarget], ['dir', path])
  for (const name of ['broken', 'loop']) {
    const dangling = await files.getInfo(`${path}/${name}`)
    assert.deepEqual([dangling.type, dangling.symlinkTarget], [undefined, `${path}/${name}`], name)
  }
  // The SDK shows no entries of unknown type.
  assert.deepEqual((await files.list(path)).map(({ name }) => name), ['here', 'link', 'real.txt'])
})

test('a list is in order and as deep as asked', async () => {
  const path = `${dir}/tree`
  await commands.run(`mkdir -p ${path}/b/c/d ${path}/e; cd ${path}; touch a.txt b/z.txt b/c/d/f.txt b-after B`)
  const listed = async (opts) => (await files.list(path, opts)).map(({ path: at, type }) => [at.slice(path.length + 1), type])
  const one = [['B', 'file'], ['a.txt', 'file'], ['b', 'dir'], ['b-after', 'file'], ['e', 'dir']]
  assert.deepEqual(await listed(), one)
  assert.deepEqual(await listed({ depth: 1 }), one)
  assert.deepEqual(await listed({ depth: 2 }), one.toSpliced(3, 0, ['b/c', 'dir'], ['b/z.txt', 'file']))
  const all = [['b/c', 'dir'], ['b/c/d', 'dir'], ['b/c/d/f.txt', 'file'], ['b/z.txt', 'file']]
  assert.deepEqual(await listed({ depth: 9 }), one.toSpliced(3, 0, ...all))
  await assert.rejects(files.list(path, { depth: 0 }), InvalidArgumentError)
  await assert.rejects(files.list(`${path}/a.txt`), InvalidArgumentError)
  assert.deepEqual(await files.list(`${path}/e`), [])
})

test('an entry of a list is as complete as its info', async () => {
  const path = `${dir}/complete`
  await files.write(`${path}/a`, 'abc', { metadata: { k: 'v' } })
  await commands.run(`ln -s a ${path}/b`)
  assert.deepEqual(await files.list(path), [await files.getInfo(`${path}/a`), await files.getInfo(`${path}/b`)])
})

test('a directory is made once, with its parents', async () => {
  const path = `${dir}/made/with/parents`
  assert.equal(await files.makeDir(path), true)
  assert.equal(await files.makeDir(path), false)
  assert.equal(await files.exists(path), true)
  await files.write(`${dir}/made/file`, '')
  await assert.rejects(files.makeDir(`${dir}/made/file`), InvalidArgumentError)
  await assert.rejects(files.makeDir(`${dir}/made/file/below`), SandboxError)
})

test('a rename tells the entry at its new place', async () => {
  const [from, to] = [`${dir}/rename/from.txt`, `${dir}/rename/new/to.txt`]
  await files.write(from, 'moved', { metadata: { kept: 'yes' } })
  const moved = await files.rename(from, to)
  assert.deepEqual([moved.name, moved.path, moved.type, moved.size], ['to.txt', to, 'file', 5])
  assert.deepEqual(moved.metadata, { kept: 'yes' })
  assert.deepEqual(moved, await files.getInfo(to))
  assert.equal(await files.exists(from), false)
  assert.equal(await files.read(to), 'moved')
})

test('a rename replaces a file and moves a directory', async () => {
  const path = `${dir}/replace`
  await files.write([{ path: `${path}/a`, data: 'a' }, { path: `${path}/b`, data: 'b' }])
  await files.rename(`${path}/a`, `${path}/b`)
  assert.equal(await files.read(`${path}/b`), 'a')
  await files.rename(path, `${path}-moved`)
  assert.equal(await files.read(`${path}-moved/b`), 'a')
})

test('what is removed is gone, a whole tree too, and again is nothing', async () => {
  const path = `${dir}/remove`
  await files.write(`${path}/a/b/c`, 'x')
  await files.remove(`${path}/a/b/c`)
  assert.equal(await files.exists(`${path}/a/b/c`), false)
  await files.remove(path)
  assert.equal(await files.exists(path), false)
  await files.remove(path)
})

test('removing a link leaves its target', async () => {
  await files.write(`${dir}/target`, 'x')
  await commands.run(`ln -s target ${dir}/to-target`)
  await files.remove(`${dir}/to-target`)
  assert.deepEqual([await files.exists(`${dir}/to-target`), await files.exists(`${dir}/target`)], [false, true])
})

test('metadata is kept with the file until it is written again', async () => {
  const path = `${dir}/metadata.txt`
  const metadata = { Author: 'me', 'x-Long.Key_1': 'a value; with "all" of it ~' }
  const lower = { author: 'me', 'x-long.key_1': 'a value; with "all" of it ~' }
  const told = await files.write(path, '1', { metadata })
  assert.deepEqual(told, { name: 'metadata.txt', path, type: 'file', metadata: lower })
  assert.deepEqual((await files.getInfo(path)).metadata, lower)
  await files.write(path, '2', { metadata: { other: '' }, useOctetStream: true })
  assert.deepEqual((await files.getInfo(path)).metadata, { other: '' })
  await files.write(path, '3')
  assert.equal((await files.getInfo(path)).metadata, undefined)
})

test('metadata of one upload is every file\'s', async () => {
  const [a, b] = [`${dir}/meta/a`, `${dir}/meta/b`]
  await files.write([{ path: a, data: 'a' }, { path: b, data: 'b' }], { metadata: { batch: '7' } })
  assert.deepEqual((await files.list(`${dir}/meta`)).map(({ metadata }) => metadata), [{ batch: '7' }, { batch: '7' }])
})

test('attributes set inside the sandbox are metadata', async () => {
  const path = `${dir}/xattr`
  await files.write(path, 'x')
  const set = `import os; os.setxattr("${path}", "user.e2b.late", b"1"); os.setxattr("${path}", "user.else", b"2")`
  await commands.run(`/usr/bin/python3 -c '${set}'`)
  assert.deepEqual((await files.getInfo(path)).metadata, { late: '1' })
  await files.write(`${dir}/xattr2`, 'x', { metadata: { seen: 'inside' } })
  const get = `import os; print(os.getxattr("${dir}/xattr2", "user.e2b.seen"))`
  assert.equal((await commands.run(`/usr/bin/python3 -c '${get}'`)).stdout, `b'inside'\n`)
})

test('metadata that does not fit is refused', async () => {
  const metadata = { big: 'x'.repeat(5000) }
  await assert.rejects(files.write(`${dir}/big-metadata`, 'x', { metadata }), InvalidArgumentError)
  const key = { ['k'.repeat(300)]: 'x' }
  await assert.rejects(files.write(`${dir}/big-metadata`, 'x', { metadata: key }), InvalidArgumentError)
})

test('gzip is understood both ways', async () => {
  const [path, text] = [`${dir}/zipped`, 'compress me. '.repeat(10_000)]
  await files.write(path, text, { gzip: true })
  assert.equal((await files.getInfo(path)).size, text.length)
  assert.equal(await files.read(path, { gzip: true }), text)
  assert.equal(await files.read(path), text)
  assert.equal((await drained(await files.read(path, { gzip: true, format: 'stream' }))).toString(), text)
  const told = await files.write([{ path: `${path}-1`, data: 'one' }, { path: `${path}-2`, data: 'two' }], { gzip: true })
  assert.deepEqual(told.map(({ path }) => path), [`${path}-1`, `${path}-2`])
  assert.equal(await files.read(`${path}-2`), 'two')
})

test('a download is compressed exactly when it is asked for', async () => {
  const [path, text] = [`${dir}/negotiated.txt`, 'compress me. '.repeat(1000)]
  await files.write(path, text)
  const zipped = await fetched(path, { 'Accept-Encoding': 'gzip' })
  assert.equal(zipped.headers.get('content-encoding'), 'gzip')
  assert.equal(zipped.headers.get('vary'), 'Accept-Encoding')
  assert.equal(await zipped.text(), text)
  const whole = await fetched(path, { 'Accept-Encoding': 'identity' })
  assert.equal(whole.headers.get('content-encoding'), null)
  assert.equal(whole.headers.get('content-length'), `${text.length}`)
  assert.match(whole.headers.get('content-type'), /^text\/plain/)
  assert.equal(whole.headers.get('content-disposition'), 'inline; filename=negotiated.txt')
  assert.equal(await whole.text(), text)
})

test('a part of a file can be asked for', async () => {
  const path = `${dir}/ranged`
  await files.write(path, '0123456789')
  const part = await fetched(path, { Range: 'bytes=2-4' })
  assert.equal(part.status, 206)
  assert.equal(part.headers.get('content-range'), 'bytes 2-4/10')
  assert.equal(await part.text(), '234')
  const past = await fetched(path, { Range: 'bytes=10-' })
  assert.equal(past.status, 416)
  await past.arrayBuffer()
})

test('a body that is no gzip is refused and leaves nothing', async () => {
  const path = `${dir}/not-gzip`
  const headers = { ...routing, 'Content-Type': 'application/octet-stream', 'Content-Encoding': 'gzip' }
  const answer = await fetch(`${ENVD}/files?path=${path}`, { method: 'POST', headers, body: 'plain' })
  assert.equal(answer.status, 400)
  assert.equal((await answer.json()).code, 400)
  assert.equal(await files.exists(path), false)
})

test('a full set of names survives the round trip', async () => {
  for (const name of ['with space', `quo'te`, 'per%cent', 'hash#', 'plus+', 'ques?tion', 'am&per', 'semi;colon', '日本']) {
    const path = `${dir}/names/${name}`
    const told = await files.write(path, name)
    assert.deepEqual([told.path, told.name], [path, name])
    assert.equal(await files.read(path), name)
  }
  const names = (await files.list(`${dir}/names`)).map(({ name }) => name)
  assert.equal(names.length, 9)
})

test('files of the kernel are read to their end', async () => {
  assert.match(await files.read('/proc/self/status'), /^Name:\t/)
})
