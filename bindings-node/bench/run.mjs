/**
 * Measures the npm package against its bounds: what a call costs over Rust, what of Rust's rate of output is left, and how it
 * stands beside the official SDK on one server. Everything in one run; values are medians. `run.sh` builds and starts it.
 */
import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { E2bProvider, LocalProvider, Sandboxes } from 'sandhold'

const { values: given } = parseArgs({
  options: {
    local: { type: 'string' },
    server: { type: 'string' },
    helper: { type: 'string' },
    json: { type: 'string' },
    quick: { type: 'boolean', default: false }
  }
})
const KEY = 'e2b_' + '0'.repeat(40)
const [mebibytes, rounds, calls] = given.quick ? [64, 3, 2000] : [1024, 5, 20_000]
const rows = []
const homes = []

function home() {
  const path = mkdtempSync(join(tmpdir(), 'sandhold-bench-'))
  homes.push(path)
  return path
}

function row(name, value, unit, bound = {}) {
  const { atLeast, atMost } = bound
  const met = atLeast !== undefined ? value >= atLeast : atMost !== undefined ? value <= atMost : null
  rows.push({ name, value, unit, ...bound, met })
  const sign = atLeast !== undefined ? `>= ${atLeast}` : atMost !== undefined ? `<= ${atMost}` : ''
  console.log(`${name.padEnd(44)} ${value.toFixed(3).padStart(10)} ${unit.padEnd(6)} ${sign.padStart(9)}  ${met === null ? '' : met ? 'yes' : 'NO'}`)
}

const median = values => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]

async function seconds(work) {
  const begin = performance.now()
  await work()
  return (performance.now() - begin) / 1000
}

async function times(count, work) {
  const found = []
  for (let number = 0; number < count; number++) found.push(await work())
  return found
}

/** A watch that is closed answers at once: what is left is the way into Rust and back. */
async function overhead(sandbox) {
  const watch = await sandbox.watch('.')
  watch.close()
  const through = async () => {
    for (let call = 0; call < calls; call++) await watch.next()
  }
  const around = async () => {
    const nothing = { next: async () => ({ done: true }) }
    for (let call = 0; call < calls; call++) await nothing.next()
  }
  const found = await times(7, async () => (((await seconds(through)) - (await seconds(around))) / calls) * 1e6)
  row('a call that does nothing, over Rust', median(found), 'us', { atMost: 15 })
}

/** The rate of the library itself, in MiB/s. */
function rust(place) {
  const said = execFileSync(given.local, ['--json', '--only', 'stdout', '--home', place], { encoding: 'utf8' })
  return JSON.parse(said).rows.find(row => row.name === '1 GiB of stdout').value
}

async function stdout(sandbox, place) {
  const read = async () => {
    let received = 0
    for await (const { data } of await sandbox.start(['head', '-c', String(mebibytes * 2 ** 20), '/dev/zero'])) received += data.length
    assert.equal(received, mebibytes * 2 ** 20)
  }
  // Rust before and after, so that what else the machine does hits both.
  const rates = [rust(place)]
  const ours = mebibytes / median(await times(rounds, () => seconds(read)))
  rates.push(rust(place))
  const theirs = (rates[0] + rates[1]) / 2
  row('stdout in Rust', theirs, 'MiB/s')
  row('stdout in Node.js', ours, 'MiB/s')
  row('stdout, Node.js / Rust', ours / theirs, 'x', { atLeast: 0.7 })
}

async function besideTheSdk() {
  for (const name of Object.keys(process.env)) {
    if (/^e2b_|_proxy$/i.test(name)) delete process.env[name]
  }
  const env = { ...process.env, SANDHOLD_API_KEY: KEY, SANDHOLD_LOG: 'warn', ...(given.helper ? { SANDHOLD_HELPER: given.helper } : {}) }
  const server = spawn(given.server, ['--listen', '127.0.0.1:0', '--home', home()], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  const [line] = await once(server.stdout, 'data')
  const url = String(line).trim().replace('listening on ', '')
  Object.assign(process.env, { E2B_API_KEY: KEY, E2B_API_URL: url, E2B_SANDBOX_URL: url })
  try {
    const { Sandbox } = await import('e2b')
    const ours = await new Sandboxes(new E2bProvider({ publicTraffic: 'everybody' })).acquire('bench', { lease: 3600_000 })
    const theirs = await Sandbox.connect(ours.providerId)
    const size = Math.min(mebibytes, 256) * 2 ** 20
    await ours.shell(`head -c ${size} /dev/urandom > noise`)
    const dd = `dd if=/dev/zero bs=1M count=${size / 2 ** 20} status=none`
    const exactly = received => assert.equal(received, size)
    const commands = given.quick ? 20 : 100
    const gathered = async pieces => {
      let received = 0
      for await (const piece of pieces) received += piece.length
      exactly(received)
    }
    const piece = new Uint8Array(1 << 20).fill(0x5a)
    function* pieces() {
      for (let number = 0; number < size / piece.length; number++) yield piece
    }
    const orders = {
      'exec round trip': [
        () => times(commands, () => ours.exec(['/bin/bash', '-l', '-c', 'true'])),
        () => times(commands, () => theirs.commands.run('true')),
        1000 / commands
      ],
      stdout: [
        async () => {
          let received = 0
          for await (const { data } of await ours.start(dd)) received += data.length
          exactly(received)
        },
        async () => {
          let received = 0
          await theirs.commands.run(dd, { onStdout: data => void (received += data.length), timeoutMs: 0, requestTimeoutMs: 0 })
          exactly(received)
        }
      ],
      download: [
        async () => gathered(await ours.read('noise')),
        async () => gathered(await theirs.files.read('noise', { format: 'stream', requestTimeoutMs: 0 }))
      ],
      upload: [
        async () => exactly((await ours.write('big', pieces(), { size })).size),
        async () => void (await theirs.files.write('big', new Blob([...pieces()]), { requestTimeoutMs: 0 }))
      ]
    }
    for (const [name, [our, their, factor]] of Object.entries(orders)) {
      // By turns, so that what else the machine does hits both.
      const [mine, other] = [[], []]
      for (let round = 0; round < rounds; round++) {
        mine.push(await seconds(our))
        other.push(await seconds(their))
      }
      const [a, b] = [median(mine), median(other)]
      if (factor) {
        row(`${name}, sandhold`, a * factor, 'ms')
        row(`${name}, e2b`, b * factor, 'ms')
      } else {
        row(`${name}, sandhold`, size / 2 ** 20 / a, 'MiB/s')
        row(`${name}, e2b`, size / 2 ** 20 / b, 'MiB/s')
      }
      row(`${name}, e2b's time / ours`, b / a, 'x', { atLeast: 2 })
    }
    await ours.destroy()
  } finally {
    server.kill()
    await once(server, 'exit')
  }
}

try {
  const place = home()
  const sandboxes = new Sandboxes(new LocalProvider({ home: place, helper: given.helper }))
  const sandbox = await sandboxes.acquire('bench')
  await overhead(sandbox)
  if (given.local) await stdout(sandbox, place)
  await sandbox.destroy()
  if (given.server) await besideTheSdk()
} finally {
  for (const path of homes) rmSync(path, { recursive: true, force: true })
}
if (given.json) writeFileSync(given.json, JSON.stringify(rows, null, 2))
process.exitCode = rows.some(row => row.met === false) ? 1 : 0
