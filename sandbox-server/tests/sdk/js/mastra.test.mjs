// Mastra's sandbox, whose logical id finds the same sandbox again.

import assert from 'node:assert/strict'
import { after, test } from 'node:test'

import { E2BSandbox } from '@mastra/e2b'
import { Sandbox } from 'e2b'

import { listed, mark } from './support.mjs'

const id = `${mark}-mastra`
const options = { id, template: 'base', timeout: 120_000, env: { FROM: 'mastra' }, metadata: { mark } }
const found = () => listed({ 'mastra-sandbox-id': id })

after(async () => {
  for (const one of await found()) await Sandbox.kill(one)
})

test('a logical id is one sandbox, from start over stop to destroy', async () => {
  const first = new E2BSandbox(options)
  await first._start()
  assert.equal(first.status, 'running')
  const [sandboxId] = await found()
  assert.equal(first.e2b.sandboxId, sandboxId)
  const result = await first.executeCommand('sh', ['-c', 'echo "$FROM" | tee kept.txt'])
  assert.deepEqual([result.exitCode, result.stdout, result.success], [0, 'mastra\n', true])
  assert.equal((await first.executeCommand('sh', ['-c', 'exit 3'])).exitCode, 3)
  const again = new E2BSandbox(options)
  await again._start()
  assert.equal(again.e2b.sandboxId, sandboxId)
  assert.equal(await again.e2b.files.read('kept.txt'), 'mastra\n')
  await again._stop()
  assert.equal((await Sandbox.getInfo(sandboxId)).state, 'paused')
  const resumed = new E2BSandbox(options)
  await resumed._start()
  assert.equal(resumed.e2b.sandboxId, sandboxId)
  assert.equal(await resumed.e2b.files.read('kept.txt'), 'mastra\n')
  assert.deepEqual(await found(), [sandboxId])
  await resumed._destroy()
  assert.deepEqual(await found(), [])
})

test('a process of it is spawned, followed and killed', async () => {
  const sandbox = new E2BSandbox({ ...options, id: `${id}-process` })
  await sandbox._start()
  const process = await sandbox.processes.spawn('echo up; sleep 300')
  assert.equal(await process.kill(), true)
  const { exitCode } = await process.wait()
  assert.notEqual(exitCode, 0)
  await sandbox._destroy()
})
