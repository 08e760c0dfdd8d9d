// What every suite starts with: sandboxes that are killed at the end, and plain requests beside the SDK's.

import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { request } from 'node:http'
import { after } from 'node:test'

import { Sandbox } from 'e2b'

export const API = process.env.E2B_API_URL
export const ENVD = process.env.E2B_SANDBOX_URL
export const KEY = process.env.E2B_API_KEY

/** Marks what this file makes: others make theirs at the same time. */
export const mark = `js-${randomBytes(6).toString('hex')}`

const made = new Map()

after(async () => {
  for (const id of made.keys()) await Sandbox.kill(id)
})

/** Has a sandbox killed after the tests of this file. */
export function owned(sandbox) {
  made.set(sandbox.sandboxId, sandbox)
  return sandbox
}

/** Creates a sandbox that is killed after the tests of this file. */
export async function created(options = {}) {
  return owned(await Sandbox.create(options))
}

/** Reads all pages. */
export async function all(paginator) {
  const items = []
  while (paginator.hasNext) items.push(...(await paginator.nextItems()))
  return items
}

/** Lists the ids of this file's sandboxes with a marker. */
export async function listed(metadata, query = {}, options = {}) {
  const items = await all(Sandbox.list({ query: { metadata, ...query }, ...options }))
  return items.map(({ sandboxId }) => sandboxId)
}

/** Fails and returns the error. */
export async function fails(promise, kind) {
  const error = await promise.then(
    (value) => assert.fail(`it gave ${JSON.stringify(value)}`),
    (error) => error
  )
  if (kind) assert.ok(error instanceof kind, `${error?.constructor?.name} is not ${kind.name}: ${error}`)
  return error
}

/** Asks the control plane as any HTTP client would. */
export async function api(method, path, { body, headers = {}, key = KEY } = {}) {
  const auth = key === null ? {} : { 'X-API-KEY': key }
  const answer = await fetch(`${API}${path}`, {
    method,
    headers: { ...auth, ...(body === undefined ? {} : { 'Content-Type': 'application/json' }), ...headers },
    body: body === undefined || typeof body === 'string' ? body : JSON.stringify(body),
  })
  const text = await answer.text()
  let json
  try {
    json = JSON.parse(text)
  } catch {
    json = undefined
  }
  return { status: answer.status, headers: answer.headers, text, json }
}

/** Sends a request to the sandboxes' address with any `Host`, which `fetch` does not allow. */
export function hosted(host, { method = 'GET', path = '/', headers = {}, body } = {}) {
  const { hostname, port } = new URL(ENVD)
  return new Promise((resolve, reject) => {
    const asked = request({ hostname, port, method, path, headers: { Host: host, ...headers } }, (answer) => {
      const chunks = []
      answer.on('data', (chunk) => chunks.push(chunk))
      answer.on('error', reject)
      answer.on('end', () =>
        resolve({ status: answer.statusCode, headers: answer.headers, text: Buffer.concat(chunks).toString() })
      )
    })
    asked.on('error', reject)
    asked.end(body)
  })
}

/** Asks until there is an answer; the bound is a net for what never comes. */
export async function eventually(what, ask) {
  for (const end = Date.now() + 30_000; ; ) {
    const answer = await ask()
    if (answer) return answer
    assert.ok(Date.now() < end, `this did not happen within 30 s: ${what}`)
    await new Promise((done) => setTimeout(done, 100))
  }
}
