/** The sandbox for Mastra, held against the published package of Mastra: its types at compile time, its behaviour here. */
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { test } from 'node:test'
import { Workspace, type SandboxProcessManager, type WorkspaceSandbox } from '@mastra/core/workspace'
import * as sandhold from 'sandhold'
import { SandholdSandbox, type SandholdSandboxOptions } from 'sandhold/mastra'
import { host, newKey } from './support.js'

const { version, engines } = createRequire(import.meta.url)('@mastra/core/package.json')
console.log(`checked against @mastra/core ${version}, which asks for Node.js ${engines.node}, on ${process.version}`)

function made(t: test.TestContext, options: Partial<SandholdSandboxOptions> = {}): SandholdSandbox {
  const id = options.id ?? newKey(t)
  return new SandholdSandbox({ sandboxes: host(), ...options, id })
}

test("it is a sandbox of Mastra's by its type", t => {
  const sandbox: WorkspaceSandbox & { processes: SandboxProcessManager } = made(t)
  assert.equal(sandbox.provider, 'sandhold-local')
  assert.equal(sandbox.status, 'pending')
  assert.equal(sandbox.networking, undefined)
})

test('the first start creates, the next one gets the same sandbox back', async t => {
  const outcomes: unknown[] = []
  const onStart = ({ outcome }: { outcome?: string }) => void outcomes.push(outcome)
  const first = made(t, { onStart })
  await Promise.all([first._start(), first._start()])
  assert.equal(first.status, 'running')
  await first.executeCommand?.('echo kept > file')
  const other = made(t, { id: first.id, onStart })
  await other._start()
  assert.equal(other.sandbox.providerId, first.sandbox.providerId)
  assert.equal((await other.executeCommand?.('cat', ['file']))?.stdout, 'kept\n')
  assert.deepEqual(outcomes, ['created', 'connected'])
  assert.equal((await other.getInfo()).metadata?.['providerId'], other.sandbox.providerId)
})

test('commands start it, and tell what Mastra wants to know', async t => {
  const sandbox = made(t, { env: { GREETING: 'hello' }, workingDirectory: '/tmp' })
  const heard: string[] = []
  const result = await sandbox.executeCommand?.('sh', ['-c', 'echo "$GREETING $1"; pwd; echo no >&2; exit 3', 'sh', "it's"], {
    onStdout: data => void heard.push(data)
  })
  assert.deepEqual(
    [result?.stdout, result?.stderr, result?.exitCode, result?.success, result?.timedOut],
    ["hello it's\n/tmp\n", 'no\n', 3, false, false]
  )
  assert.equal(heard.join(''), "hello it's\n/tmp\n")
  sandbox.setEnv(env => ({ ...env, GREETING: 'goodbye' }))
  assert.equal((await sandbox.executeCommand?.('echo $GREETING'))?.stdout, 'goodbye\n')
  const late = await sandbox.executeCommand?.('echo begun; sleep 1000', [], { timeout: 500 })
  assert.deepEqual([late?.stdout, late?.exitCode, late?.timedOut], ['begun\n', 124, true])
  // A command that reads gets the end at once.
  assert.equal((await sandbox.executeCommand?.('cat'))?.exitCode, 0)
})

test('an aborted command is killed', async t => {
  const sandbox = made(t)
  const controller = new AbortController()
  const options = { abortSignal: controller.signal, onStdout: () => controller.abort() }
  const result = await sandbox.executeCommand?.('echo begun; exec sleep 45454', [], options)
  assert.equal(result?.killed, true)
  assert.notEqual((await sandbox.executeCommand?.("pgrep -f 'sleep [4]5454'"))?.exitCode, 0)
})

test('characters come whole, however they are split', async t => {
  const sandbox = made(t)
  const script = 'for i in $(seq 200); do printf "\\303"; printf "\\251"; printf "\\360\\237"; printf "\\230\\200"; done; printf "\\377"'
  const heard: string[] = []
  const result = await sandbox.executeCommand?.(script, [], { onStdout: data => void heard.push(data) })
  assert.equal(result?.stdout, 'é😀'.repeat(200) + '\ufffd')
  assert.equal(heard.join(''), result?.stdout)
})

test('background processes are written to, listed, found by another program and killed', async t => {
  const sandbox = made(t)
  const handle = await sandbox.processes.spawn('read line; echo got $line; exec sleep 1000')
  await handle.sendStdin('this\n')
  while (!handle.stdout.includes('got this')) await new Promise(setImmediate)
  const info = (await sandbox.processes.list()).find(info => info.pid === handle.pid)
  assert.equal(info?.running, true)
  const other = made(t, { id: sandbox.id })
  const again = await other.processes.get(handle.pid)
  while (!again?.stdout.includes('got this')) await new Promise(setImmediate)
  assert.equal(await other.processes.kill(handle.pid), true)
  const result = await handle.wait()
  assert.deepEqual([result.success, result.killed, result.exitCode], [false, true, 137])
  assert.equal(await other.processes.get('999999'), undefined)
})

test('stop keeps its work and its processes, destroy does not', async t => {
  const sandbox = made(t)
  const handle = await sandbox.processes.spawn('exec sleep 1000')
  await sandbox.writeFiles([{ path: 'notes/a', content: 'kept', mode: 0o600 }])
  await sandbox._stop()
  assert.equal(sandbox.status, 'stopped')
  assert.equal((await host().find(sandbox.id))?.state, 'paused')
  const next = made(t, { id: sandbox.id })
  assert.equal((await next.executeCommand?.('cat notes/a; stat -c %a notes/a'))?.stdout, 'kept600\n')
  assert.ok((await next.processes.list()).some(info => info.pid === handle.pid && info.running))
  await next.snapshot()
  await next._destroy()
  assert.equal(next.status, 'destroyed')
  assert.equal(await host().find(sandbox.id), null)
})

test('one that was never started is stopped and destroyed by its id', async t => {
  const key = newKey(t)
  await host().acquire(key)
  await made(t, { id: key }).stop()
  assert.equal((await host().find(key))?.state, 'paused')
  await made(t, { id: key }).destroy()
  assert.equal(await host().find(key), null)
})

test('a start hook that throws fails the start, and the next one runs it again', async t => {
  let fails = true
  const onStart = () => {
    if (fails) throw new Error('no network')
  }
  const sandbox = made(t, { onStart })
  await assert.rejects(sandbox._start(), /no network/)
  assert.equal(sandbox.status, 'error')
  fails = false
  await sandbox._start()
  assert.equal(sandbox.status, 'running')
})

test('a clone is another sandbox of the same kind', async t => {
  const sandbox = made(t, { acquire: { env: { A: '1', B: '1' } } })
  const clone = sandbox.clone({ id: newKey(t), env: { B: '2' }, workingDirectory: '/tmp', idleTimeoutMinutes: 90 })
  assert.equal((await clone.executeCommand?.('echo $A $B $PWD'))?.stdout, '1 2 /tmp\n')
  const expires = (await clone.getInfo()).timeoutAt
  assert.ok(expires && Math.abs(expires.getTime() - Date.now() - 90 * 60_000) < 60_000)
})

test("a failure of the provider is this library's error", async () => {
  const provider = new sandhold.E2bProvider({ apiKey: 'e2b_0', apiUrl: 'http://127.0.0.1:1', requestTimeout: 200 })
  const sandbox = new SandholdSandbox({ sandboxes: new sandhold.Sandboxes(provider), id: 'key' })
  await assert.rejects(sandbox._start(), sandhold.UnavailableError)
  assert.equal(sandbox.status, 'error')
  assert.ok(sandbox.networking)
})

test("a workspace of Mastra's works in it", async t => {
  const sandbox = made(t)
  const workspace = new Workspace({ sandbox })
  await workspace.init()
  const result = await workspace.sandbox?.executeCommand?.('echo', ['from a workspace'])
  assert.equal(result?.stdout, 'from a workspace\n')
  assert.match(sandbox.getInstructions(), /home/)
  await workspace.destroy()
  assert.equal(await host().find(sandbox.id), null)
})
