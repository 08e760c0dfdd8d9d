// The code interpreter's sandbox, as far as it needs no kernel inside.

import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Sandbox } from '@e2b/code-interpreter'

import { owned } from './support.mjs'

test('the interpreter\'s sandbox is a sandbox', async () => {
  const sandbox = owned(await Sandbox.create('base', { metadata: { kind: 'interpreter' } }))
  assert.equal((await sandbox.commands.run('echo $((6*7))')).stdout, '42\n')
  await sandbox.files.write('f.txt', 'x')
  const same = await Sandbox.connect(sandbox.sandboxId)
  assert.equal(await same.files.read('f.txt'), 'x')
  assert.deepEqual((await same.getInfo()).metadata, { kind: 'interpreter' })
  assert.equal(await same.kill(), true)
})
