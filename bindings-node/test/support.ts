/** Sandboxes on this machine for every test, each with a key of its own. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, type TestContext } from 'node:test'
import { LocalProvider, Sandboxes, type AcquireOptions, type HostOptions, type Sandbox } from 'sandhold'

/** A directory that goes with this program. */
export function directory(): string {
  const path = mkdtempSync(join(tmpdir(), 'sandhold-node-'))
  after(() => rmSync(path, { recursive: true, force: true }))
  return path
}

// One for all test programs, which are quicker with it.
export const home = process.env['SANDHOLD_TEST_HOME'] ?? directory()
export const provider = new LocalProvider({ home })

let keys = 0

/** A key whose sandbox goes with its test. */
export function newKey(t: TestContext): string {
  const key = `key-${process.pid}-${keys++}`
  t.after(() => new Sandboxes(provider).destroy(key))
  return key
}

export function host(options?: HostOptions): Sandboxes {
  return new Sandboxes(provider, options)
}

/** A sandbox that goes with its test. */
export function newSandbox(t: TestContext, options?: AcquireOptions): Promise<Sandbox> {
  return host().acquire(newKey(t), options)
}

/** Keeps the program alive during a test that waits for events alone, which do not. */
export function stayAlive(t: TestContext): void {
  const timer = setInterval(() => {}, 1000)
  t.after(() => clearInterval(timer))
}

/** Everything of an iterable. */
export async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const found = []
  for await (const item of items) found.push(item)
  return found
}
