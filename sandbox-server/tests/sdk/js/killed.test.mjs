import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Sandbox, SandboxError, SandboxNotFoundError, TimeoutError } from 'e2b'

import { ENVD, created, fails, hosted } from './support.mjs'

/** Starts something that goes on until the sandbox ends, and returns what it then fails with. */
async function interrupted(how, end) {
  const sandbox = await created()
  const running = fails(how(sandbox))
  await sandbox.commands.run('for i in $(seq 200); do [ -e /tmp/started ] && exit 0; sleep 0.05; done; exit 1')
  await end(sandbox)
  return running
}
const sleeper = (sandbox) => sandbox.commands.run('touch /tmp/started; sleep 300', { timeoutMs: 0 })

test('a command that runs when its sandbox is killed says that it reached its end of life', async () => {
  const error = await interrupted(sleeper, (sandbox) => sandbox.kill())
  assert.ok(error instanceof TimeoutError, String(error))
  assert.match(error.message, /killed or reached its end of life/)
})

test('a command that runs when its sandbox expires says the same', async () => {
  const error = await interrupted(sleeper, (sandbox) => sandbox.setTimeout(0))
  assert.ok(error instanceof TimeoutError, String(error))
  assert.match(error.message, /killed or reached its end of life/)
})

test('a command that runs when its sandbox is paused is interrupted', async () => {
  const error = await interrupted(sleeper, (sandbox) => sandbox.pause())
  assert.ok(error instanceof TimeoutError, String(error))
})

test('a handle that waits and a watch hear of the kill', async () => {
  const sandbox = await created()
  const handle = await sandbox.commands.run('sleep 300', { background: true, timeoutMs: 0 })
  let exited
  const exit = new Promise((done) => (exited = done))
  await sandbox.files.watchDir('/home/user', () => {}, { onExit: exited, timeoutMs: 0 })
  const waiting = fails(handle.wait())
  await sandbox.kill()
  assert.ok((await waiting) instanceof SandboxError)
  assert.ok((await exit) instanceof Error)
})

test('calls after the kill fail as what they are', async () => {
  const sandbox = await created()
  await sandbox.kill()
  await fails(sandbox.commands.run('true'), SandboxNotFoundError)
  await fails(sandbox.files.read('x'), TimeoutError)
  await fails(sandbox.files.write('x', 'y'), TimeoutError)
  await fails(sandbox.files.list('/'), TimeoutError)
  await fails(sandbox.commands.list(), TimeoutError)
  await fails(sandbox.pty.create({ cols: 80, rows: 24, onData: () => {} }), SandboxNotFoundError)
  await fails(sandbox.files.watchDir('/', () => {}), SandboxNotFoundError)
  await fails(Sandbox.connect(sandbox.sandboxId), SandboxNotFoundError)
})

test('the answer for a sandbox that is not there is E2B\'s own', async () => {
  const sandbox = await created()
  await sandbox.kill()
  const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49983' }
  const answer = await fetch(`${ENVD}/health`, { headers })
  assert.equal(answer.headers.get('content-type'), 'application/json; charset=utf-8')
  const message = 'The sandbox was not found'
  assert.deepEqual([answer.status, await answer.json()], [502, { sandboxId: sandbox.sandboxId, message, code: 502 }])
  const byHost = await hosted(`3000-${sandbox.sandboxId}.localhost`)
  assert.deepEqual([byHost.status, JSON.parse(byHost.text)], [502, { sandboxId: sandbox.sandboxId, message, code: 502 }])
})

test('a port that nothing listens on is told apart', async () => {
  const sandbox = await created()
  const { status, text } = await hosted(`4321-${sandbox.sandboxId}.localhost`)
  const message = 'The sandbox is running but port is not open'
  assert.deepEqual([status, JSON.parse(text)], [502, { sandboxId: sandbox.sandboxId, message, port: 4321, code: 502 }])
})

test('a browser is shown a page', async () => {
  const sandbox = await created()
  const headers = { 'User-Agent': 'Mozilla/5.0 (X11) Firefox/140.0', Accept: 'text/html' }
  const { status, headers: told, text } = await hosted(`4321-${sandbox.sandboxId}.localhost`, { headers })
  assert.equal(status, 502)
  assert.match(told['content-type'], /^text\/html/)
  assert.match(text, /<html/i)
})
