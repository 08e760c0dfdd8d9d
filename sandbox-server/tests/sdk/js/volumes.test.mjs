import assert from 'node:assert/strict'
import { after, test } from 'node:test'

import { Secret, SecretNotFoundError, Volume, VolumeError, VolumeNotFoundError, VolumePathNotFoundError } from 'e2b'

import { all, api, created, fails, mark } from './support.mjs'

// The content of volumes is at the same address as everything else.
process.env.E2B_VOLUME_API_URL = process.env.E2B_API_URL

const volumes = []
after(async () => {
  for (const id of volumes) await Volume.destroy(id)
})

async function volume(name) {
  const made = await Volume.create(`${mark}-${name}`)
  volumes.push(made.volumeId)
  return made
}

test('volumes are made, found, listed and destroyed', async () => {
  const made = await volume('life')
  assert.equal(made.name, `${mark}-life`)
  const found = await Volume.connect(made.volumeId)
  assert.deepEqual([found.name, found.token], [made.name, made.token])
  const listed = await Volume.list()
  assert.deepEqual(listed.filter(({ name }) => name.startsWith(mark)), [{ volumeId: made.volumeId, name: made.name }])
  await fails(Volume.create(made.name), VolumeError)
  for (const bad of ['', 'a/b', '..', 'x'.repeat(200)]) await fails(Volume.create(bad), VolumeError)
  assert.equal(await Volume.destroy(made.volumeId), true)
  assert.equal(await Volume.destroy(made.volumeId), false)
  await fails(Volume.getInfo(made.volumeId), VolumeNotFoundError)
})

test('the content of a volume is read and written without a sandbox', async () => {
  const made = await volume('content')
  const written = await made.writeFile('/notes/first.txt', 'hello', { mode: 0o640 })
  assert.deepEqual([written.name, written.type, written.path, written.size, written.mode], ['first.txt', 'file', '/notes/first.txt', 5, 0o640])
  assert.equal(await made.readFile('/notes/first.txt'), 'hello')
  await made.writeFile('/notes/first.txt', new Uint8Array([0, 255]).buffer)
  assert.deepEqual([...(await made.readFile('/notes/first.txt', { format: 'bytes' }))], [0, 255])
  await made.writeFile('/empty', '')
  assert.equal(await made.readFile('/empty'), '')
  const large = 'x'.repeat(3_000_000)
  await made.writeFile('/large', large)
  assert.equal((await made.readFile('/large')).length, large.length)
  await made.makeDir('/a/b/c', { force: true })
  await fails(made.makeDir('/no/parent'), VolumePathNotFoundError)
  await fails(made.makeDir('/a'), VolumeError)
  const names = async (path, options) => (await made.list(path, options)).map((entry) => entry.path)
  assert.deepEqual(await names('/'), ['/a', '/empty', '/large', '/notes'])
  assert.deepEqual(await names('/', { depth: 3 }), ['/a', '/a/b', '/a/b/c', '/empty', '/large', '/notes', '/notes/first.txt'])
  assert.equal((await made.updateMetadata('/notes/first.txt', { mode: 0o600 })).mode, 0o600)
  assert.equal(await made.exists('/notes'), true)
  await made.remove('/notes')
  assert.equal(await made.exists('/notes/first.txt'), false)
  await fails(made.remove('/notes'), VolumePathNotFoundError)
  await fails(made.readFile('/none'), VolumePathNotFoundError)
  for (const path of ['../up', '/a/../../up', '/..']) await fails(made.readFile(path), VolumeError)
})

test('a volume opens by its own token alone', async () => {
  const [one, other] = [await volume('one'), await volume('other')]
  await one.writeFile('/secret.txt', 'one')
  for (const token of [other.token, '', 'x', `${one.token}x`]) {
    const answer = await api('GET', `/volumecontent/${one.volumeId}/file?path=/secret.txt`, {
      key: null,
      headers: { Authorization: `Bearer ${token}` },
    })
    assert.equal(answer.status, 401, token)
    assert.equal(typeof answer.json.code, 'string')
  }
})

test('sandboxes share a volume, and it outlives them', async () => {
  const made = await volume('shared')
  await made.writeFile('/from-outside.txt', 'outside')
  const mounts = { volumeMounts: { '/mnt/data': made.name } }
  const [one, other] = [await created(mounts), await created(mounts)]
  assert.equal(await one.files.read('/mnt/data/from-outside.txt'), 'outside')
  await one.commands.run('mkdir /mnt/data/inside && echo one > /mnt/data/inside/one.txt')
  assert.equal(await other.files.read('/mnt/data/inside/one.txt'), 'one\n')
  await other.commands.run('echo other >> /mnt/data/inside/one.txt && echo more >> /mnt/data/from-outside.txt')
  assert.equal((await one.commands.run('stat -c %U /mnt/data/inside/one.txt')).stdout, 'user\n')
  assert.equal(await made.readFile('/inside/one.txt'), 'one\nother\n')
  assert.equal(await made.readFile('/from-outside.txt'), 'outsidemore\n')
  await fails(Volume.destroy(made.volumeId), VolumeError)
  // What a sandbox makes of links stays in the volume.
  await one.commands.run('ln -s /etc/passwd /mnt/data/passwd && ln -s ../../../../etc/hostname /mnt/data/up')
  for (const path of ['/passwd', '/up']) await fails(made.readFile(path), VolumePathNotFoundError)
  await one.kill()
  await other.kill()
  const later = await created(mounts)
  assert.equal(await later.files.read('/mnt/data/inside/one.txt'), 'one\nother\n')
  await later.kill()
  await made.remove('/inside')
  await fails(created({ volumeMounts: { '/mnt/x': `${mark}-none` } }))
})

test('secrets are kept, listed in pages, and never shown', async () => {
  const names = ['a', 'b', 'c'].map((name) => `${mark}-${name}`)
  for (const name of names) await Secret.create(name, `value-of-${name}`, { metadata: { for: name } })
  const info = await Secret.getInfo(names[0])
  assert.deepEqual([info.name, info.version, info.metadata], [names[0], 1, { for: names[0] }])
  const ours = (await all(Secret.list({ limit: 1 }))).filter(({ name }) => names.includes(name))
  assert.deepEqual(ours.map(({ name }) => name).sort(), names)
  const updated = await Secret.update(info.secretId, 'another')
  assert.deepEqual([updated.version, updated.metadata], [2, { for: names[0] }])
  const raw = await api('GET', `/secrets/${info.secretId}`)
  assert.ok(!raw.text.includes('another') && !raw.text.includes('value-of'), raw.text)
  await fails(Secret.create(names[0], 'again'))
  for (const name of names) assert.equal(await Secret.destroy(name), true)
  assert.equal(await Secret.destroy(names[0]), false)
  assert.equal(await Secret.exists(names[1]), false)
  await fails(Secret.update(names[2], 'x'), SecretNotFoundError)
})
