/** The package as others get it: its native part, its helper, its README, both kinds of modules, threads. */
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, cpSync, existsSync, mkdirSync, readFileSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { Worker } from 'node:worker_threads'
import * as sandhold from 'sandhold'
import { directory, home, host, newKey } from './support'

const installed = dirname(require.resolve('sandhold/package.json'))
const native = require(join(installed, 'sandhold.node'))
const errors = require(join(installed, 'dist/errors.js'))

test('the native part has what the face was written for, and nothing else', () => {
  const declared = readFileSync(join(installed, 'dist/native.d.ts'), 'utf8')
  const wanted: Record<string, string[]> = {}
  for (const [, name, base, body] of declared.matchAll(/^export interface (\w+)(?:<T>)?(?: extends (\w+)[^{]*)? \{\n(.*?)^\}/gms)) {
    const members = [...(body ?? '').matchAll(/^ {4}(?:readonly )?(\w+)[(:]/gm)].map(member => member[1] ?? '')
    wanted[name ?? ''] = [...members, ...(base ? wanted[base] ?? [] : [])].sort()
  }
  // These are one interface in the face.
  const streams = ['Watch', 'Infos', 'Snapshots', 'Log', 'TemplateList', 'SecretList', 'Bytes', 'Records']
  for (const name of streams) wanted[`Native${name}`] = wanted['NativeStream'] ?? []
  const found = Object.keys(native).filter(name => name.startsWith('Native'))
  assert.ok(found.length > 10)
  for (const name of found) {
    const members = Object.getOwnPropertyNames(native[name].prototype).filter(member => member !== 'constructor')
    assert.deepEqual(members.sort(), wanted[name], name)
  }
})

test('every kind of error has a class of its own', () => {
  assert.deepEqual(Object.keys(errors.byKind).sort(), native.errorKinds().sort())
  for (const [kind, made] of Object.entries<typeof sandhold.SandboxError>(errors.byKind)) {
    const name = kind.split('_').map(word => word[0]?.toUpperCase() + word.slice(1)).join('') + 'Error'
    assert.equal(made.name, name)
    assert.equal((sandhold as Record<string, unknown>)[name], made)
    const error = new made('m')
    assert.ok(error instanceof sandhold.SandboxError && error.kind === kind && error.name === name)
  }
})

test('the examples of the README run as they are pasted', async () => {
  const readme = readFileSync(join(installed, 'README.md'), 'utf8')
  const examples = [...readme.matchAll(/```js\n(.*?)```/gs)].map(example => example[1] ?? '')
  const place = directory()
  mkdirSync(join(place, 'node_modules'))
  symlinkSync(installed, join(place, 'node_modules/sandhold'))
  const said = examples.slice(0, 2).map((example, number) => {
    writeFileSync(join(place, `${number}.mjs`), example)
    const env = { PATH: process.env['PATH'], HOME: place }
    return execFileSync(process.execPath, [join(place, `${number}.mjs`)], { encoding: 'utf8', env })
  })
  assert.equal(said[0], 'created\n1 notes.md\n\n')
  assert.match(said[1] ?? '', /^1\n2\n3\n0\n$/)
  const provider = new sandhold.LocalProvider({ home: join(place, '.local/state/sandhold') })
  await new sandhold.Sandboxes(provider).destroy('session-42')
})

test('the native part is found in the package for this platform too', () => {
  const place = directory()
  const [face, platform] = ['node_modules/sandhold', `node_modules/@sandhold/node-linux-${process.arch}-gnu`].map(name => join(place, name)) as [string, string]
  mkdirSync(face, { recursive: true })
  mkdirSync(platform, { recursive: true })
  for (const name of ['dist', 'package.json']) cpSync(join(installed, name), join(face, name), { recursive: true })
  const program = ['-e', "console.log(new (require('sandhold').LocalProvider)().name)"]
  const env = { PATH: process.env['PATH'], HOME: place }
  const run = () => execFileSync(process.execPath, program, { encoding: 'utf8', env, cwd: place, stdio: ['ignore', 'pipe', 'pipe'] })
  assert.throws(run, /the package @sandhold\/node-linux-\w+-gnu is not installed/)
  writeFileSync(join(platform, 'package.json'), '{}')
  for (const name of ['sandhold.node', 'bin']) symlinkSync(join(installed, name), join(platform, name))
  assert.equal(run(), 'local\n')
})

test('both kinds of modules get the same classes', async () => {
  const modern = (await import('sandhold')) as typeof sandhold
  for (const name of Object.keys(sandhold)) {
    assert.equal((modern as Record<string, unknown>)[name], (sandhold as Record<string, unknown>)[name], name)
  }
  const program = "import { Sandboxes, LocalProvider, SandboxError } from 'sandhold'; console.log(typeof Sandboxes, typeof LocalProvider, typeof SandboxError)"
  const said = execFileSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8' })
  assert.equal(said, 'function function function\n')
})

test('a helper that lost its executable bit runs as a copy', async () => {
  const place = directory()
  mkdirSync(join(place, 'node_modules'))
  const large = (path: string) => path.endsWith('.node')
  cpSync(installed, join(place, 'node_modules/sandhold'), { recursive: true, filter: path => !large(path) })
  symlinkSync(join(installed, 'sandhold.node'), join(place, 'node_modules/sandhold/sandhold.node'))
  chmodSync(join(place, 'node_modules/sandhold/bin/sandhold-helper'), 0o644)
  writeFileSync(
    join(place, 'program.cjs'),
    `const { LocalProvider, Sandboxes } = require('sandhold')
    async function main() {
      const host = new Sandboxes(new LocalProvider({ home: ${JSON.stringify(join(place, 'state'))} }))
      console.log((await (await host.acquire('k')).shell('echo runs')).stdout.text())
      await host.destroy('k')
    }
    main()`
  )
  const env = { PATH: process.env['PATH'] }
  assert.equal(execFileSync(process.execPath, [join(place, 'program.cjs')], { encoding: 'utf8', env }), 'runs\n\n')
  assert.deepEqual(readdirSync(join(place, 'state/helpers')).map(name => name.slice(0, 16)), ['sandhold-helper-'])
  assert.ok(existsSync(join(installed, 'bin/sandhold-helper')))
})

test('workers use the package at once, and one that is terminated takes its commands along', async t => {
  const key = newKey(t)
  const program = `
    const { parentPort, workerData } = require('node:worker_threads')
    const { LocalProvider, Sandboxes } = require('sandhold')
    async function main() {
      const host = new Sandboxes(new LocalProvider({ home: workerData.home }), { onStart() {}, onEvent() {} })
      const sandbox = await host.acquire(workerData.key)
      parentPort.postMessage([sandbox.providerId, (await sandbox.shell('echo $((6 * 7))')).stdout.text()])
      if (workerData.stays) await sandbox.exec('echo begun; exec sleep 98765', { timeout: 0, onOutput() { parentPort.postMessage('begun') } })
    }
    main()`
  const start = async (stays: boolean) => {
    const worker = new Worker(program, { eval: true, workerData: { home, key, stays } })
    const [message] = (await once(worker, 'message')) as [[string, string]]
    if (stays) await once(worker, 'message')
    return { worker, message }
  }
  const workers = await Promise.all([start(false), start(true), start(true), start(false)])
  const sandbox = await host().acquire(key)
  for (const { message } of workers) assert.deepEqual(message, [sandbox.providerId, '42\n'])
  await Promise.all(workers.map(({ worker }) => worker.terminate()))
  while ((await sandbox.exec("pgrep -f 'sleep [9]8765'")).exit.success) await new Promise(setImmediate)
})

test('an E2B provider is made of options or the environment', () => {
  delete process.env['E2B_API_KEY']
  assert.throws(() => new sandhold.E2bProvider(), sandhold.UnauthenticatedError)
  const headers = { a: 'b' }
  const provider = new sandhold.E2bProvider({ apiKey: 'hush', domain: 'own.example', requestTimeout: 1500, headers })
  assert.equal(provider.name, 'e2b')
  assert.throws(() => new sandhold.E2bProvider({ apiKey: 'k', publicTraffic: 'some' as never }), {
    name: 'InvalidArgumentError',
    message: /publicTraffic/
  })
})

test('an unreachable provider is never read as gone', async () => {
  const options = { apiKey: 'e2b_0', apiUrl: 'http://127.0.0.1:1', requestTimeout: 200 }
  const sandboxes = new sandhold.Sandboxes(new sandhold.E2bProvider(options))
  await assert.rejects(sandboxes.find('key'), (error: unknown) => {
    assert.ok(error instanceof sandhold.UnavailableError)
    return error.retryable && error.cause instanceof Error
  })
})
