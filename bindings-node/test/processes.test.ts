/** Commands and processes. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { spawn } from 'node:child_process'
import { constants } from 'node:os'
import { test } from 'node:test'
import * as sandhold from 'sandhold'
import { all, home, host, newKey, newSandbox } from './support'

const { SIGINT, SIGKILL } = constants.signals

function text(pieces: sandhold.Output[], stream: sandhold.OutputStream = 'stdout'): string {
  return Buffer.concat(pieces.filter(piece => piece.stream === stream).map(piece => piece.data)).toString()
}

test('a command tells its output byte for byte and its exit', async t => {
  const sandbox = await newSandbox(t)
  const output = await sandbox.exec(['sh', '-c', "printf 'a\\377'; echo no >&2; exit 3"])
  assert.deepEqual(output.stdout.bytes, Buffer.from([0x61, 0xff]))
  assert.equal(output.stdout.text(), 'a\ufffd')
  assert.equal(`${output.stderr}`, 'no\n')
  assert.deepEqual(output.exit, { code: 3, signal: null, timedOut: false, oomKilled: false, success: false })
})

test('an array is no line of shell', async t => {
  const sandbox = await newSandbox(t)
  assert.equal(String((await sandbox.exec(['echo', '$HOME; exit 1'])).stdout), '$HOME; exit 1\n')
  assert.equal((await sandbox.exec('exit 4')).exit.code, 4)
  assert.equal((await sandbox.shell('exit 4')).exit.code, 4)
  await assert.rejects(sandbox.exec([]), (error: unknown) => {
    assert.ok(error instanceof sandhold.InvalidArgumentError)
    return error.context['argument'] === 'command'
  })
})

test('a command gets its surroundings and input', async t => {
  const sandbox = await newSandbox(t)
  const options = { env: { NAME: 'value' }, cwd: '/tmp', stdin: 'typed é' }
  assert.equal((await sandbox.exec('echo $NAME; pwd; cat', options)).stdout.text(), 'value\n/tmp\ntyped é')
  assert.equal((await sandbox.exec('cat', { stdin: Buffer.from('bytes').subarray(1, 3) })).stdout.text(), 'yt')
  assert.equal((await sandbox.exec(['id', '-un'], { user: 'root' })).stdout.text(), 'root\n')
})

test('a command that takes too long is ended and its output kept', async t => {
  const sandbox = await newSandbox(t)
  const output = await sandbox.exec('echo begun; sleep 1000', { timeout: 500, grace: 100 })
  assert.ok(output.exit.timedOut)
  assert.equal(output.stdout.text(), 'begun\n')
})

test('an output above the limit keeps its tail', async t => {
  const sandbox = await newSandbox(t)
  const { stdout } = await sandbox.exec('printf 0123456789', { outputLimit: 4 })
  assert.deepEqual([stdout.text(), stdout.dropped], ['6789', 6])
})

test('a callback has heard the whole output when the command has ended', async t => {
  const sandbox = await newSandbox(t)
  const pieces: sandhold.Output[] = []
  const onOutput = (stream: sandhold.OutputStream, data: Buffer) => {
    pieces.push({ stream, data, offset: 0, dropped: 0 })
  }
  const output = await sandbox.exec('seq 200000; echo two >&2', { onOutput, outputLimit: 4 << 20 })
  assert.equal(text(pieces), output.stdout.text())
  assert.equal(text(pieces, 'stderr'), 'two\n')
  assert.equal(output.stdout.bytes.length, 1_288_895)
})

test('a callback that throws or rejects ends its command and is the cause', async t => {
  const sandbox = await newSandbox(t)
  const thrown = new RangeError('enough')
  const callbacks = [
    () => {
      throw thrown
    },
    () => Promise.reject(thrown)
  ]
  for (const onOutput of callbacks) {
    await assert.rejects(sandbox.exec('echo x; sleep 1000', { onOutput, timeout: 0 }), (error: unknown) => {
      assert.ok(error instanceof sandhold.UnexpectedError)
      return error.cause === thrown
    })
  }
  assert.ok((await sandbox.shell('true')).exit.success)
})

test('the output of a process is iterated, and then its exit is known', async t => {
  const sandbox = await newSandbox(t)
  const process = await sandbox.start(['sh', '-c', 'echo out; echo err >&2; exit 5'])
  assert.deepEqual([process.exit], [null])
  const pieces = await all(process)
  assert.equal(text(pieces), 'out\n')
  assert.equal(text(pieces, 'stderr'), 'err\n')
  assert.equal(process.exit?.code, 5)
  assert.equal((await process.wait()).code, 5)
  assert.deepEqual(await all(process), [])
})

test('a loop that is left can be gone on with', async t => {
  const sandbox = await newSandbox(t)
  const process = await sandbox.start('echo one; read line; echo two', { stdin: 'open' })
  for await (const piece of process) {
    assert.equal(String(piece.data), 'one\n')
    break
  }
  await process.write('go\n')
  assert.equal(text(await all(process)), 'two\n')
})

test('whoever does not read holds the writer back, and loses nothing', async t => {
  const sandbox = await newSandbox(t)
  const process = await sandbox.start('head -c 50000000 /dev/zero; echo done >/tmp/done')
  const before = globalThis.process.memoryUsage().rss
  await new Promise(resolve => setTimeout(resolve, 200))
  assert.equal(await sandbox.exists('/tmp/done'), false)
  assert.ok(globalThis.process.memoryUsage().rss - before < 40_000_000)
  let seen = 0
  for await (const piece of process) {
    assert.equal(piece.offset, seen)
    seen += piece.data.length
  }
  assert.equal(seen, 50_000_000)
  assert.equal(process.exit?.code, 0)
})

test('an open input takes what is written until it is closed', async t => {
  const sandbox = await newSandbox(t)
  const process = await sandbox.start(['cat'], { stdin: 'open' })
  await process.write(Buffer.from('bytes '))
  await process.write('text é')
  await process.closeStdin()
  assert.equal(text(await all(process)), 'bytes text é')
  assert.ok((await process.wait()).success)
})

test('a killed process tells its signal', async t => {
  const sandbox = await newSandbox(t)
  const process = await sandbox.start('sleep 1000')
  assert.equal(await process.kill(), true)
  assert.equal((await process.wait()).signal, SIGKILL)
  assert.equal(await process.kill(), false)
  const other = await sandbox.start(['sleep', '1000'], { tag: 'other' })
  assert.equal(await sandbox.signal('other', 'SIGINT'), true)
  assert.equal((await other.wait()).signal, SIGINT)
  await assert.rejects(process.signal('SIGWHAT' as 'SIGINT'), { name: 'TypeError', message: /SIGWHAT/ })
})

test('a terminal has its size and takes keys', async t => {
  const sandbox = await newSandbox(t)
  const process = await sandbox.start(['sh'], { pty: { cols: 132, rows: 43 } })
  await process.write('stty size\n')
  let seen = ''
  for await (const piece of process) {
    assert.equal(piece.stream, 'pty')
    seen += piece.data
    if (seen.includes('43 132')) break
  }
  await process.resize(80, 24)
  await process.write('stty size; exit 6\n')
  for await (const piece of process) seen += piece.data
  assert.ok(seen.includes('24 80'))
  assert.equal(process.exit?.code, 6)
  await assert.rejects(process.resize(80, 0), { name: 'InvalidArgumentError', message: /rows/ })
})

test('a process is found again by pid and tag, with its output from the start', async t => {
  const sandbox = await newSandbox(t)
  const { pid } = await sandbox.start('echo kept; read line; echo got $line', { tag: 'job', retain: 1 << 20, stdin: 'open' })
  const again = await sandbox.attach('job', { replay: true })
  assert.deepEqual([again.pid, again.tag], [pid, 'job'])
  const first = await again.next()
  assert.equal(first.done, false)
  assert.deepEqual([String(first.value?.data), first.value?.offset], ['kept\n', 0])
  await (await sandbox.attach(pid)).write('it\n')
  assert.equal(text(await all(again)), 'got it\n')
  assert.ok((await (await sandbox.attach(pid, { stdout: 5 })).wait()).success)
  assert.equal(await sandbox.release('job'), true)
  assert.equal(await sandbox.release('job'), false)
  await assert.rejects(sandbox.attach('job'), sandhold.NotFoundError)
})

test('an aborted command is killed, and the sandbox stays', async t => {
  const sandbox = await newSandbox(t)
  const controller = new AbortController()
  const reason = new Error('no more')
  const command = sandbox.exec('echo begun; exec sleep 54321', {
    timeout: 0,
    signal: controller.signal,
    onOutput: () => controller.abort(reason)
  })
  await assert.rejects(command, reason)
  while ((await sandbox.exec("pgrep -f 'sleep [5]4321'")).exit.success) await new Promise(setImmediate)
})

test('an aborted wait leaves its process alone', async t => {
  const sandbox = await newSandbox(t)
  const process = await sandbox.start('read line; exit 7', { stdin: 'open' })
  await assert.rejects(process.wait({ signal: AbortSignal.timeout(50) }), { name: 'TimeoutError', code: 23 })
  await assert.rejects(process.next(AbortSignal.timeout(50)), { name: 'TimeoutError', code: 23 })
  await process.write('go\n')
  assert.equal((await process.wait()).code, 7)
})

test('many processes at once keep their outputs apart', async t => {
  const sandbox = await newSandbox(t)
  const lines = async (number: number) => {
    const pieces = await all(await sandbox.start(['seq', String(number)]))
    return text(pieces).split('\n').length - 1
  }
  const numbers = Array.from({ length: 8 }, (_, index) => 1000 * (index + 1))
  assert.deepEqual(await Promise.all(numbers.map(lines)), numbers)
})

test('a program ends with idle handles open, and a command that it does not wait for goes on', async t => {
  const key = newKey(t)
  const program = `
    const { LocalProvider, Sandboxes } = require('sandhold')
    async function main() {
      const host = new Sandboxes(new LocalProvider({ home: process.argv[1] }), { onEvent() {}, onStart() {} })
      const events = await host.events()
      const sandbox = await host.acquire(process.argv[2])
      globalThis.held = [host, events, sandbox, await sandbox.watch('.'), await sandbox.start('sleep 1000', { tag: 'left' })]
      void (async () => { for await (const event of events) globalThis.last = event })()
      process.stdout.write('ends')
    }
    main()`
  const child = spawn(process.execPath, ['-e', program, home, key], { stdio: ['ignore', 'pipe', 'inherit'] })
  let said = ''
  child.stdout.on('data', data => (said += data))
  const [code] = await once(child, 'close')
  assert.deepEqual([code, said], [0, 'ends'])
  const left = await (await host().acquire(key)).processes()
  assert.deepEqual(left.map(process => process.tag), ['left'])
})

test('an argument of a wrong type is named', async t => {
  const sandbox = await newSandbox(t)
  const wrong: [Promise<unknown>, RegExp][] = [
    [sandbox.exec(3 as never), /command/],
    [sandbox.shell(['x'] as never), /line/],
    [sandbox.exec('true', { stdin: 3 as never }), /stdin/],
    [sandbox.exec('true', { onOutput: 3 as never }), /onOutput/],
    [sandbox.exec('true', { timout: 3 } as never), /timout/],
    [sandbox.start('true', { pty: { cols: 80 } as never }), /pty/],
    [sandbox.attach(null as never), /process/],
    [sandbox.readText(3 as never), /path/],
    [sandbox.rename('a', undefined as never), /destination/],
    [sandbox.setLease('1s' as never), /lease/],
    [host().find({} as never), /key/],
    [host().acquire(undefined as never), /key/]
  ]
  for (const [refused, message] of wrong) await assert.rejects(refused, { name: 'TypeError', message })
})
