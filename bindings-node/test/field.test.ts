/** Faults that users of other libraries have reported: the same kinds are tried here. `FIELD_SCALE` multiplies the rounds. */
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { test, type TestContext } from 'node:test'
import { Worker } from 'node:worker_threads'
import * as sandhold from 'sandhold'
import { all, home, host, newKey, newSandbox } from './support'

const scale = Number(process.env['FIELD_SCALE'] ?? 1)

/** An E2B that gives this answer to everything. */
async function answering(t: TestContext, status: number, body: string, type = 'application/json'): Promise<sandhold.Sandboxes> {
  const server = createServer((_, response) => response.writeHead(status, { 'content-type': type }).end(body))
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.after(() => server.close())
  const apiUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return new sandhold.Sandboxes(new sandhold.E2bProvider({ apiKey: 'e2b_0', apiUrl, requestTimeout: 2000, retry: { maxRetries: 0 } }))
}

test('only the provider itself says that a sandbox is not there', async t => {
  const refusals: [number, string, string][] = [
    [401, 'unauthenticated', 'the sandbox was not found'],
    [403, 'permission_denied', 'not found'],
    [429, 'rate_limited', ''],
    [500, 'unexpected', 'sandbox not found'],
    [503, 'unavailable', '']
  ]
  for (const [status, kind, message] of refusals) {
    const sandboxes = await answering(t, status, JSON.stringify({ code: status, message }))
    await assert.rejects(sandboxes.provider.find('some-id'), (error: unknown) => {
      assert.ok(error instanceof sandhold.SandboxError)
      assert.equal(error.kind, kind, `${status}`)
      return true
    })
  }
  for (const message of ['', 'sandbox "x" does not exist', 'nope', 'The sandbox is running but port is not open']) {
    const sandboxes = await answering(t, 404, JSON.stringify({ code: 404, message }))
    assert.equal(await sandboxes.provider.find('some-id'), null)
  }
  const foreign = await answering(t, 404, '<html>not found</html>', 'text/html')
  await assert.rejects(foreign.provider.find('some-id'), sandhold.SandboxError)
})

test('words in the output of a command mean nothing', async t => {
  const sandbox = await newSandbox(t)
  const { exit, stderr } = await sandbox.shell('echo "sandbox not found" >&2; exit 44')
  assert.deepEqual([exit.code, stderr.text()], [44, 'sandbox not found\n'])
  assert.ok((await sandbox.shell('true')).exit.success)
})

test('bytes come as they are, however characters are split', async t => {
  const sandbox = await newSandbox(t)
  const rounds = 2000 * scale
  const script = `for i in $(seq ${rounds}); do printf '\\303'; printf '\\251\\346'; printf '\\274\\242\\360\\237\\230'; printf '\\200'; done; printf '\\377'`
  const pieces: Buffer[] = []
  const { stdout } = await sandbox.exec(script, { onOutput: (_, data) => void pieces.push(data), outputLimit: 64 << 20, timeout: 300_000 })
  const expected = Buffer.concat([Buffer.from('é漢😀'.repeat(rounds)), Buffer.from([0xff])])
  assert.ok(Buffer.concat(pieces).equals(expected))
  assert.ok(stdout.bytes.equals(expected))
  assert.ok(stdout.text().endsWith('😀\ufffd'))
  const decoder = new TextDecoder()
  const text = pieces.map(piece => decoder.decode(piece, { stream: true })).join('') + decoder.decode()
  assert.equal(text, stdout.text())
})

test('a long body goes through little memory in both directions', async t => {
  const sandbox = await newSandbox(t)
  const megabytes = 256 * scale
  const piece = Buffer.alloc(1 << 20, 7)
  async function* pieces() {
    for (let number = 0; number < megabytes; number++) yield piece
  }
  globalThis.gc?.()
  const before = process.memoryUsage().rss
  let most = 0
  const timer = setInterval(() => (most = Math.max(most, process.memoryUsage().rss)), 20)
  await sandbox.write('long', pieces(), { size: megabytes << 20 })
  const hash = createHash('sha256')
  for await (const piece of await sandbox.read('long')) hash.update(piece)
  clearInterval(timer)
  const expected = createHash('sha256')
  for (let number = 0; number < megabytes; number++) expected.update(piece)
  assert.equal(hash.digest('hex'), expected.digest('hex'))
  assert.ok(most - before < 96 << 20, `${(most - before) >> 20} MiB more`)
})

const open = () => readdirSync('/proc/self/fd').length

test('watches and commands that end leave nothing open', async t => {
  const sandbox = await newSandbox(t)
  await sandbox.makeDir('seen')
  const round = async () => {
    const watch = await sandbox.watch('seen')
    watch.close()
    await sandbox.exec(['true'])
  }
  for (let number = 0; number < 5; number++) await round()
  const before = open()
  for (let number = 0; number < 100 * scale; number++) await round()
  // What was closed is let go of by tasks of its own.
  for (let tries = 0; open() > before + 5 && tries < 1000; tries++) await new Promise(setImmediate)
  assert.ok(open() <= before + 5, `${open()} of ${before}`)
})

test('many calls and callbacks grow memory by little', async t => {
  const sandbox = await newSandbox(t)
  const calls = 5000 * scale
  const round = async (times: number) => {
    for (let number = 0; number < times; number += 100) {
      // Refused by this side: what is counted is the way there and back.
      await Promise.all(Array.from({ length: 100 }, () => sandbox.exec([]).catch(() => {})))
    }
  }
  await round(calls / 10)
  globalThis.gc?.()
  const before = process.memoryUsage().rss
  await round(calls)
  globalThis.gc?.()
  const grown = process.memoryUsage().rss - before
  assert.ok(grown < 20 << 20, `${grown >> 20} MiB more`)
  let heard = 0
  await sandbox.exec('seq 100000', { onOutput: (_, data) => void (heard += data.length), outputLimit: 1024 })
  assert.equal(heard, 588_895)
})

test('a program with hooks and listeners ends by itself', async t => {
  const program = `
    const { LocalProvider, Sandboxes } = require('sandhold')
    async function main() {
      const sandboxes = new Sandboxes(new LocalProvider({ home: process.argv[1] }), { onStart() {}, onResume() {}, onStop() {}, onDestroy() {}, onEvent() {} })
      const sandbox = await sandboxes.acquire(process.argv[2])
      await sandbox.exec('echo x', { onOutput() {} })
      globalThis.kept = [sandboxes, sandbox, await sandboxes.events()]
      console.log(Date.now())
    }
    main()`
  const child = spawn(process.execPath, ['-e', program, home, newKey(t)], { stdio: ['ignore', 'pipe', 'inherit'] })
  let said = ''
  child.stdout.on('data', data => (said += data))
  const [code] = await once(child, 'close')
  assert.equal(code, 0)
  assert.match(said, /^\d+\n$/)
})

test('workers that are terminated in the middle of a command crash nobody', async t => {
  const key = newKey(t)
  const sandbox = await host().acquire(key)
  const program = `
    const { parentPort, workerData } = require('node:worker_threads')
    const { LocalProvider, Sandboxes } = require('sandhold')
    async function main() {
      const sandbox = await new Sandboxes(new LocalProvider({ home: workerData.home }), { onEvent() {} }).acquire(workerData.key)
      await sandbox.exec('echo begun; exec sleep 31313', { timeout: 0, onOutput() { parentPort.postMessage('begun') } })
    }
    main()`
  for (let round = 0; round < 5 * scale; round++) {
    const workers = Array.from({ length: 2 }, () => new Worker(program, { eval: true, workerData: { home, key } }))
    await Promise.all(workers.map(worker => once(worker, 'message')))
    await Promise.all(workers.map(worker => worker.terminate()))
  }
  while ((await sandbox.exec("pgrep -f 'sleep [3]1313'")).exit.success) await new Promise(setImmediate)
})

test('a callback that blocks its thread, or is nowhere else, hurts nobody', async t => {
  const sandbox = await newSandbox(t)
  const blocks = () => {
    const end = Date.now() + 300 * scale
    while (Date.now() < end);
  }
  const output = await sandbox.exec('echo a; echo b', { onOutput: blocks })
  assert.equal(output.stdout.text(), 'a\nb\n')
  const lost = sandbox.exec('sleep 0.2; echo late', { onOutput: () => {} })
  globalThis.gc?.()
  assert.equal((await lost).stdout.text(), 'late\n')
})

test('every argument of a wrong type is refused by its name, whatever the call', async t => {
  const sandbox = await newSandbox(t)
  const sandboxes = host()
  const vault = new sandhold.Vault('/nowhere', 'tests')
  const calls: Record<string, [(...args: never[]) => unknown, ...string[]]> = {
    acquire: [sandboxes.acquire.bind(sandboxes), 'key'],
    lazy: [sandboxes.lazy.bind(sandboxes), 'key'],
    find: [sandboxes.find.bind(sandboxes), 'key'],
    confirmMove: [sandboxes.confirmMove.bind(sandboxes), 'key'],
    stop: [sandboxes.stop.bind(sandboxes), 'key'],
    destroy: [sandboxes.destroy.bind(sandboxes), 'key'],
    exec: [sandbox.exec.bind(sandbox), 'command'],
    start: [sandbox.start.bind(sandbox), 'command'],
    attach: [sandbox.attach.bind(sandbox), 'process'],
    release: [sandbox.release.bind(sandbox), 'process'],
    read: [sandbox.read.bind(sandbox), 'path'],
    readBytes: [sandbox.readBytes.bind(sandbox), 'path'],
    readText: [sandbox.readText.bind(sandbox), 'path'],
    stat: [sandbox.stat.bind(sandbox), 'path'],
    exists: [sandbox.exists.bind(sandbox), 'path'],
    list: [sandbox.list.bind(sandbox), 'path'],
    makeDir: [sandbox.makeDir.bind(sandbox), 'path'],
    rename: [sandbox.rename.bind(sandbox), 'source', 'destination'],
    remove: [sandbox.remove.bind(sandbox), 'path'],
    watch: [sandbox.watch.bind(sandbox), 'path'],
    setLease: [sandbox.setLease.bind(sandbox), 'lease'],
    capture: [vault.capture.bind(vault), 'workspace'],
    restore: [vault.restore.bind(vault), 'id'],
    findById: [sandboxes.provider.find.bind(sandboxes.provider), 'id'],
    destroyById: [sandboxes.provider.destroy.bind(sandboxes.provider), 'id'],
    findKey: [sandboxes.provider.findKey.bind(sandboxes.provider), 'owner', 'key']
  }
  const wrong = [undefined, null, true, {}, Symbol('s'), () => {}, 1n, [[]], NaN]
  for (const [call, [run, ...names]] of Object.entries(calls)) {
    for (const [place, name] of names.entries()) {
      for (const value of wrong) {
        const args = names.map((_, other) => (other < place ? 'fine' : value))
        await assert.rejects(
          Promise.resolve().then(() => run(...(args as never[]))),
          (error: Error) => {
            assert.ok(error instanceof TypeError || error instanceof sandhold.InvalidArgumentError, `${call}: ${error}`)
            assert.match(error.message, new RegExp(`\\b${name}\\b`), `${call}(${String(value)})`)
            return true
          }
        )
      }
      const options = { nonsense: 1 }
      const noOptions = ['find', 'confirmMove', 'stop', 'destroy', 'release', 'readBytes', 'readText', 'exists', 'setLease', 'findById', 'destroyById', 'findKey']
      if (place > 0 || noOptions.includes(call)) continue
      const fine = names.map(() => 'fine')
      if (call === 'restore') continue
      await assert.rejects(Promise.resolve().then(() => run(...([...fine, options] as never[]))), { name: 'TypeError', message: /nonsense/ }, call)
    }
  }
  assert.deepEqual(await all(await sandboxes.provider.list({ key: 'fine' })), [])
})
