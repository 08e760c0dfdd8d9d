/** One key, one sandbox. */
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { test } from 'node:test'
import * as sandhold from 'sandhold'
import { directory, home, host, newKey, newSandbox, provider } from './support'

test('a key has one sandbox, whoever asks', async t => {
  const key = newKey(t)
  const first = await host().acquire(key)
  assert.deepEqual([first.outcome, first.key, first.owner, first.provider], ['created', key, 'default', 'local'])
  assert.equal(first.facts?.how, 'fresh')
  assert.equal(first.facts?.attached, false)
  const again = await host().acquire(key)
  assert.equal(again.outcome, 'connected')
  assert.equal(again.providerId, first.providerId)
  assert.equal(again.facts?.how, 'attached')
  assert.equal(again.facts?.attached, true)
})

test('many callers at once get the same sandbox', async t => {
  const key = newKey(t)
  const sandboxes = host()
  const acquired = await Promise.all(Array.from({ length: 8 }, () => sandboxes.acquire(key)))
  assert.equal(new Set(acquired.map(sandbox => sandbox.providerId)).size, 1)
  assert.equal(acquired.filter(sandbox => sandbox.facts?.joined).length, 7)
})

test('a sandbox outlives the program that made it', async t => {
  const key = newKey(t)
  const program = `
    const { LocalProvider, Sandboxes } = require('sandhold')
    async function main() {
      const sandbox = await new Sandboxes(new LocalProvider({ home: process.argv[1] })).acquire(process.argv[2])
      await sandbox.write('work.txt', 'kept')
      process.stdout.write(sandbox.providerId)
    }
    main()`
  const id = execFileSync(process.execPath, ['-e', program, home, key], { encoding: 'utf8' })
  const sandbox = await host().acquire(key)
  assert.equal(sandbox.outcome, 'connected')
  assert.equal(sandbox.providerId, id)
  assert.equal(await sandbox.readText('work.txt'), 'kept')
})

test('a sandbox that is gone is replaced, and the facts name the old one', async t => {
  const key = newKey(t)
  const registry = `sqlite:${directory()}/registry.sqlite`
  const first = await host({ registry }).acquire(key)
  await host().destroy(key)
  await assert.rejects(host({ registry }).acquire(key, { replaceWhenGone: 'fail' }), (error: unknown) => {
    assert.ok(error instanceof sandhold.GoneError)
    assert.equal(error.kind, 'gone')
    return true
  })
  const second = await host({ registry }).acquire(key)
  assert.equal(second.outcome, 'created')
  assert.equal(second.facts?.replaced, first.providerId)
})

for (const registry of ['memory:', 'file:{}/records', 'sqlite:{}/registry.sqlite']) {
  test(`the registry ${registry} remembers its key`, async t => {
    const key = newKey(t)
    const sandboxes = host({ registry: registry.replace('{}', directory()) })
    assert.equal((await sandboxes.acquire(key)).outcome, 'created')
    assert.equal((await sandboxes.acquire(key)).outcome, 'connected')
    const found = await sandboxes.find(key)
    assert.deepEqual([found?.key, found?.state], [key, 'running'])
    assert.ok(found && Math.abs(Date.now() - found.createdAt.getTime()) < 60_000)
  })
}

test('owners do not meet', async t => {
  const key = newKey(t)
  const theirs = host({ owner: 'them' })
  t.after(() => theirs.destroy(key))
  const [mine, other] = [await host().acquire(key), await theirs.acquire(key)]
  assert.equal(other.owner, 'them')
  assert.notEqual(mine.providerId, other.providerId)
  assert.equal(await host({ owner: 'nobody' }).find(key), null)
})

test('a disposed value admits no call and leaves the sandbox alone', async t => {
  const key = newKey(t)
  let kept: sandhold.Sandbox
  {
    await using sandbox = await host().acquire(key)
    await sandbox.write('a', '1')
    kept = sandbox
  }
  await assert.rejects(kept.stat('a'), (error: unknown) => {
    assert.ok(error instanceof sandhold.InvalidStateError)
    assert.equal(error.reason, 'detached')
    return true
  })
  assert.equal(await (await host().acquire(key)).readText('a'), '1')
})

test('a stopped sandbox wakes with its processes when it is used', async t => {
  const sandbox = await newSandbox(t)
  const process = await sandbox.start('sleep 1000', { tag: 'sleeper' })
  assert.equal(await sandbox.stop(), 'paused')
  assert.equal((await sandbox.info()).state, 'paused')
  const found = (await sandbox.processes()).filter(found => found.tag === 'sleeper')
  assert.deepEqual(found.map(found => found.pid), [process.pid])
  assert.equal(await sandbox.pause(), 'paused')
  assert.equal(await sandbox.pause(), 'already_paused')
  await sandbox.resume()
  assert.equal((await sandbox.info()).state, 'running')
})

test('a destroyed sandbox is gone for every caller', async t => {
  const key = newKey(t)
  const sandbox = await host().acquire(key)
  assert.equal(await sandbox.destroy(), 'destroyed')
  await assert.rejects(sandbox.shell('true'), sandhold.SandboxError)
  assert.equal(await host().find(key), null)
  assert.equal(await host().destroy(key), 'already_gone')
  assert.equal(await host().stop(key), 'no_sandbox')
})

test('a lazy value acquires at its first use, and a clone is another sandbox', async t => {
  const key = newKey(t)
  const lazy = await host().lazy(key, { env: { GREETING: 'hello' } })
  assert.deepEqual([lazy.providerId, lazy.outcome, lazy.facts], [null, null, null])
  assert.equal(String((await lazy.shell('echo $GREETING')).stdout), 'hello\n')
  assert.notEqual(lazy.providerId, null)
  const clone = lazy.cloneWith({ env: { GREETING: 'goodbye' } })
  t.after(() => clone.destroy())
  assert.equal(String((await clone.shell('echo $GREETING')).stdout), 'goodbye\n')
  assert.ok(clone.providerId !== null && clone.providerId !== lazy.providerId && clone.key !== key)
})

test('a spec that differs is a conflict', async t => {
  const key = newKey(t)
  const sandboxes = host()
  await sandboxes.acquire(key, { network: 'none', lease: 60_500, resources: { pids: null } })
  await assert.rejects(sandboxes.acquire(key, { network: 'loopback' }), (error: unknown) => {
    assert.ok(error instanceof sandhold.ConflictError)
    assert.deepEqual([error.kind, error.retryable], ['conflict', false])
    return true
  })
  const kept = await sandboxes.acquire(key, { network: 'loopback', onSpecConflict: 'keep' })
  assert.equal(kept.outcome, 'connected')
})

const unacceptable: [object, string][] = [
  [{ network: 'internet' }, 'network'],
  [{ lease: -1 }, 'lease'],
  [{ deadline: NaN }, 'deadline'],
  [{ kind: 'huge' }, 'kind'],
  [{ exclusion: '' }, 'exclusion'],
  [{ onGone: 'panic' }, 'onGone'],
  [{ resources: { pids: -1 } }, 'pids'],
  [{ resources: { pids: 1.5 } }, 'pids']
]
for (const [options, name] of unacceptable) {
  test(`${JSON.stringify(options)} is refused, names ${name} and makes nothing`, async t => {
    const key = newKey(t)
    await assert.rejects(host().acquire(key, options), (error: unknown) => {
      assert.ok(error instanceof sandhold.InvalidArgumentError)
      assert.match(error.message, new RegExp(name))
      assert.equal(error.context['argument'], name)
      return true
    })
    assert.equal(await host().find(key), null)
  })
}

const wrong: [Record<string, unknown>, string][] = [
  [{ env: 1 }, 'env'],
  [{ env: { A: 1 } }, 'env'],
  [{ template: Buffer.from('base') }, 'template'],
  [{ colour: 'red' }, 'colour'],
  [{ onStart: 1 }, 'onStart'],
  [{ onEvent: {} }, 'onEvent'],
  [{ resources: 3 }, 'resources'],
  [{ mounts: [{}] }, 'mounts'],
  [{ kind: { gpu: 'h100', image: 'x' } }, 'kind'],
  [{ hookDeadline: '1s' }, 'hookDeadline']
]
for (const [options, name] of wrong) {
  test(`${JSON.stringify(options)} is a TypeError that names ${name}`, async t => {
    await assert.rejects(host().acquire(newKey(t), options), { name: 'TypeError', message: new RegExp(name) })
  })
}

test('a host is made of a provider', () => {
  assert.throws(() => new sandhold.Sandboxes({} as sandhold.LocalProvider), { name: 'TypeError', message: /provider/ })
  assert.throws(() => host({ owner: '' }), (error: unknown) => {
    assert.ok(error instanceof sandhold.InvalidArgumentError)
    return error.context['argument'] === 'owner'
  })
})

for (const registry of ['redis://u:hush@h', 'sqlite:relative', 'postgres:hush', '']) {
  test(`the registry ${JSON.stringify(registry)} is refused without its secrets`, () => {
    assert.throws(() => host({ registry }), (error: unknown) => {
      assert.ok(error instanceof sandhold.InvalidArgumentError)
      assert.doesNotMatch(error.message, /hush/)
      assert.equal(error.context['argument'], 'registry')
      return true
    })
  })
}

test('an error has its fields', async t => {
  const sandbox = await newSandbox(t)
  await assert.rejects(sandbox.readText('missing'), (error: unknown) => {
    assert.ok(error instanceof sandhold.NotFoundError && error instanceof sandhold.SandboxError)
    assert.deepEqual(
      [error.name, error.kind, error.outcome, error.retryable, error.retryAfter, error.reason],
      ['NotFoundError', 'not_found', 'not_started', false, null, null]
    )
    assert.deepEqual([error.provider, error.operation], ['local', 'read'])
    assert.match(error.detail, /missing/)
    assert.ok(error.message.includes(error.detail) && error.stack?.includes('acquire.test'))
    return true
  })
})

test('an aborted acquire rejects with the reason of its signal', async t => {
  const key = newKey(t)
  const reason = new Error('changed my mind')
  await assert.rejects(host().acquire(key, { signal: AbortSignal.abort(reason) }), reason)
  const controller = new AbortController()
  const acquired = host().acquire(key, {
    signal: controller.signal,
    onStart: () => {
      controller.abort(reason)
      return new Promise(() => {})
    }
  })
  await assert.rejects(acquired, reason)
})

test('the instructions say what the spec says', async () => {
  const options = { user: 'root', home: '/root', workdir: '/srv', network: 'none' } as const
  const { instructions } = await new sandhold.Sandboxes(provider).lazy('never-made', options)
  for (const word of ['root', '/srv', 'no network']) assert.ok(instructions.includes(word), word)
})
