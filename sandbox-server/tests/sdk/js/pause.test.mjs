import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Sandbox, SandboxNotFoundError } from 'e2b'

import { ENVD, created, eventually, fails, hosted, listed, mark } from './support.mjs'

/** Talks to a port of a sandbox as a browser without DNS would. */
const port = (sandbox, number) => hosted(`${number}-${sandbox.sandboxId}.localhost`)

test('files, processes, variables and the id outlive a pause', async () => {
  const sandbox = await created({ envs: { KEPT: 'yes' } })
  const handle = await sandbox.commands.run('echo $$ > pid; while :; do sleep 0.1; done', { background: true, timeoutMs: 0 })
  await sandbox.files.write('kept.txt', 'before')
  assert.equal(await sandbox.pause(), true)
  assert.equal(await sandbox.pause(), false)
  assert.equal(await sandbox.isRunning(), false)
  assert.equal((await sandbox.getInfo()).state, 'paused')
  const same = await Sandbox.connect(sandbox.sandboxId)
  assert.equal(same.sandboxId, sandbox.sandboxId)
  assert.equal((await same.getInfo()).state, 'running')
  assert.equal(await same.files.read('kept.txt'), 'before')
  assert.equal((await same.commands.run('echo $KEPT')).stdout, 'yes\n')
  assert.ok((await same.commands.list()).some(({ pid }) => pid === handle.pid))
  const again = await same.commands.connect(handle.pid, { timeoutMs: 0 })
  assert.equal(await again.kill(), true)
})

test('a command that sleeps over the pause ends after it', async () => {
  const sandbox = await created()
  const { pid } = await sandbox.commands.run('sleep 3; echo done > done', { background: true, timeoutMs: 0 })
  assert.equal(await sandbox.pause(), true)
  await sandbox.connect()
  await eventually('the command ends', async () => !(await sandbox.commands.list()).some((one) => one.pid === pid))
  assert.equal(await sandbox.files.read('done'), 'done\n')
})

test('a server inside answers before and after a pause', async () => {
  const sandbox = await created()
  await sandbox.files.write('site/index.html', 'hello from inside')
  await sandbox.commands.run('python3 -m http.server 8000 --directory site', { background: true, timeoutMs: 0 })
  const answers = async () => (await port(sandbox, 8000)).text === 'hello from inside'
  await eventually('the server answers', answers)
  assert.equal(await sandbox.pause(), true)
  assert.equal((await port(sandbox, 8000)).status, 502)
  await sandbox.connect()
  assert.equal(await answers(), true)
})

test('no round of pause and resume loses a file', async () => {
  const sandbox = await created()
  for (let round = 0; round < 6; round += 1) {
    await sandbox.files.write(`made-${round}`, `round ${round}`)
    await sandbox.files.write('overwritten', `round ${round}`)
    await sandbox.commands.run(`echo ${round} >> appended; mv made-${round} renamed-${round}; chmod 60${round} renamed-${round}`)
    if (round > 1) await sandbox.files.remove(`renamed-${round - 2}`)
    assert.equal(await sandbox.pause(), true)
    const same = await Sandbox.connect(sandbox.sandboxId)
    assert.equal(same.sandboxId, sandbox.sandboxId)
    const kept = round > 0 ? [`renamed-${round - 1}`, `renamed-${round}`] : ['renamed-0']
    const { stdout } = await same.commands.run('ls renamed-*; cat overwritten; echo; cat appended; stat -c %a renamed-' + round)
    const lines = Array.from({ length: round + 1 }, (_, at) => `${at}\n`).join('')
    assert.equal(stdout, `${kept.join('\n')}\nround ${round}\n${lines}60${round}\n`)
  }
})

test('a pause that keeps only the files is a new start', async () => {
  const sandbox = await created({ envs: { KEPT: 'yes' } })
  const boot = async () => (await sandbox.files.read('/proc/sys/kernel/random/boot_id')).trim()
  await sandbox.files.write('kept.txt', 'before')
  const { pid } = await sandbox.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  const first = await boot()
  assert.equal(await sandbox.pause({ keepMemory: false }), true)
  assert.equal((await sandbox.getInfo()).state, 'paused')
  await sandbox.connect()
  assert.equal(await sandbox.files.read('kept.txt'), 'before')
  assert.ok(!(await sandbox.commands.list()).some((one) => one.pid === pid))
  assert.notEqual(await boot(), first)
  assert.equal((await sandbox.commands.run('sleep 0.1; echo $((6*7))')).stdout, '42\n')
})

test('a reboot at resume keeps the files alone', async () => {
  const sandbox = await created()
  await sandbox.files.write('kept.txt', 'before')
  const { pid } = await sandbox.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  assert.equal(await sandbox.pause(), true)
  await Sandbox.connect(sandbox.sandboxId, { onResume: 'reboot' })
  assert.equal(await sandbox.files.read('kept.txt'), 'before')
  assert.ok(!(await sandbox.commands.list()).some((one) => one.pid === pid))
})

test('a resume gives the time that was asked for, or five minutes', async () => {
  const sandbox = await created({ timeoutMs: 3_000_000 })
  const left = async () => (await sandbox.getInfo()).endAt.getTime() - Date.now()
  await sandbox.pause()
  await sandbox.connect({ timeoutMs: 100_000 })
  assert.ok(Math.abs((await left()) - 100_000) < 3000)
  await sandbox.pause()
  await sandbox.connect()
  assert.ok(Math.abs((await left()) - 300_000) < 3000)
})

test('a paused sandbox has no timeout to set, and can be killed', async () => {
  const metadata = { mark: `${mark}-paused` }
  const sandbox = await created({ metadata })
  await sandbox.pause()
  await fails(sandbox.setTimeout(60_000), SandboxNotFoundError)
  await fails(sandbox.updateNetwork({ allowInternetAccess: false }), SandboxNotFoundError)
  assert.equal(await sandbox.kill(), true)
  assert.deepEqual(await listed(metadata), [])
  await fails(sandbox.connect(), SandboxNotFoundError)
})

test('a sandbox that is to pause at its end does, and connecting wakes it', async () => {
  const sandbox = await created({ timeoutMs: 3000, lifecycle: { onTimeout: 'pause' } })
  assert.deepEqual((await sandbox.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: false })
  await sandbox.files.write('kept.txt', 'before')
  await eventually('it pauses', async () => (await sandbox.getInfo()).state === 'paused')
  assert.equal(await sandbox.isRunning(), false)
  await sandbox.connect({ timeoutMs: 60_000 })
  assert.equal((await sandbox.getInfo()).state, 'running')
  assert.equal(await sandbox.files.read('kept.txt'), 'before')
  assert.deepEqual((await sandbox.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: false })
})

test('a sandbox that resumes by itself is woken by any request with its token', async () => {
  const sandbox = await created({ timeoutMs: 60_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  await sandbox.files.write('site/index.html', 'awake')
  // No stream may be open: the SDK asks for the sandbox's health when one breaks, and that wakes it too.
  await sandbox.commands.run('python3 -m http.server 8000 --directory site > /dev/null 2>&1 &')
  await eventually('the server answers', async () => (await port(sandbox, 8000)).text === 'awake')
  assert.deepEqual((await sandbox.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
  await sandbox.setTimeout(0)
  await eventually('it pauses', async () => (await sandbox.getInfo()).state === 'paused')
  const routed = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49983' }
  const denied = await fetch(`${ENVD}/health`, { headers: { ...routed, 'X-Access-Token': 'wrong' } })
  assert.equal(denied.status, 403)
  assert.equal((await sandbox.getInfo()).state, 'paused')
  assert.equal((await sandbox.commands.run('echo woken')).stdout, 'woken\n')
  const { startedAt, endAt, state } = await sandbox.getInfo()
  assert.equal(state, 'running')
  assert.ok(endAt.getTime() - startedAt.getTime() >= 295_000, 'at least five minutes')
  assert.equal(await sandbox.pause(), true)
  assert.equal((await port(sandbox, 8000)).text, 'awake')
})

test('a sandbox that keeps only files at its end does not resume by itself', async () => {
  const sandbox = await created({ timeoutMs: 2000, lifecycle: { onTimeout: { action: 'pause', keepMemory: false } } })
  await sandbox.files.write('kept.txt', 'before')
  await eventually('it pauses', async () => (await sandbox.getInfo()).state === 'paused')
  assert.equal(await sandbox.isRunning(), false)
  await sandbox.connect()
  assert.equal(await sandbox.files.read('kept.txt'), 'before')
})

test('connects at once to a paused sandbox all get it', async () => {
  const sandbox = await created()
  await sandbox.files.write('kept.txt', 'before')
  await sandbox.pause()
  const same = await Promise.all(Array.from({ length: 6 }, () => Sandbox.connect(sandbox.sandboxId)))
  const read = await Promise.all(same.map(({ files }) => files.read('kept.txt')))
  assert.deepEqual(read, Array(6).fill('before'))
})
