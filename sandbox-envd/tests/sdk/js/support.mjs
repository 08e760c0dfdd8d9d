// What every suite starts with: a sandbox, and a directory of its own in it.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { after, before } from 'node:test'

import { Sandbox } from 'e2b'

/** Where the SDK looks for the daemon: in debug mode an address of its own, else a server of many sandboxes. */
export const ENVD = process.env.E2B_SANDBOX_URL ?? 'http://localhost:49983'

export const sandbox = await Sandbox.create()

/** What tells a server of many sandboxes which one is meant. */
export const routing = process.env.E2B_SANDBOX_URL
  ? { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': sandbox.envdAccessToken }
  : {}

/** Why tests that need `root` and `user` to own different files are left out, where they are. */
export const oneId = process.env.SANDHOLD_SDK_USERS === 'single' && 'root and user are two names of one id here'

/** Makes a directory of its own under the user's home before the tests of a file, and removes it after them. */
export function ownDirectory() {
  const path = `/home/user/js-${randomBytes(6).toString('hex')}`
  before(async () => assert.equal(await sandbox.files.makeDir(path), true))
  after(async () => {
    await sandbox.files.remove(path)
    assert.equal(await sandbox.kill(), true)
  })
  return path
}

/** Waits inside the sandbox until a process is gone, for ten seconds at most. */
export async function gone(pid) {
  await sandbox.commands.run(`for i in $(seq 200); do [ -d /proc/${pid} ] || exit 0; sleep 0.05; done; exit 1`)
}

/** Collects what a callback is given, and lets a test wait until it is enough. */
export class Collected {
  items = []
  #waiting = []

  push = (item) => {
    this.items.push(item)
    this.#waiting = this.#waiting.filter(({ enough, done }) => !(enough(this.items) && (done(), true)))
  }

  /** Resolves once `enough(items)` holds. */
  async until(enough) {
    if (enough(this.items)) return
    const timer = setTimeout(() => fail(new Error(`not enough: ${JSON.stringify(this.items)}`)), 15_000)
    let fail
    await new Promise((done, reject) => {
      fail = reject
      this.#waiting.push({ enough, done })
    }).finally(() => clearTimeout(timer))
  }

  /** Resolves once the joined chunks contain `part`; bytes are read as UTF-8. */
  async text(part) {
    await this.until(() => this.joined().includes(part))
  }

  joined() {
    return this.items.map((item) => (typeof item === 'string' ? item : Buffer.from(item).toString())).join('')
  }
}
