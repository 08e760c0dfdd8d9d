/** Hooks, and what they may do. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { test } from 'node:test'
import * as sandhold from 'sandhold'
import { all, host, newKey, newSandbox, stayAlive } from './support'

test('a start hook sets a new sandbox up before anybody gets it', async t => {
  const key = newKey(t)
  const told: sandhold.Start[] = []
  const sandboxes = host({
    onStart: async start => {
      told.push(start)
      await start.sandbox.write('setup', 'done')
    }
  })
  assert.equal(await (await sandboxes.acquire(key)).readText('setup'), 'done')
  assert.equal((await sandboxes.acquire(key)).outcome, 'connected')
  const facts = told.map(start => [start.outcome, start.setup, start.facts.how])
  assert.deepEqual(facts, [['created', 'needed', 'fresh']])
})

test('a hook that throws is the cause and runs again', async t => {
  const key = newKey(t)
  for (const thrown of [new RangeError('no network'), 'a text', undefined, null, { a: 1 }]) {
    const onStart = () => Promise.reject(thrown)
    await assert.rejects(host().acquire(key, { onStart }), (error: unknown) => {
      assert.ok(error instanceof sandhold.UnexpectedError)
      assert.deepEqual([error.reason, error.context['hook']], ['hook', 'on_start'])
      assert.ok('cause' in error)
      return error.cause === thrown
    })
  }
  const onStart = ({ sandbox }: sandhold.Start) => sandbox.write('setup', 'done')
  const sandbox = await host().acquire(key, { onStart })
  assert.equal(sandbox.facts?.how, 'unfinished')
  assert.equal(await sandbox.readText('setup'), 'done')
})

test('an error of a sandbox goes through its hook as it is', async t => {
  const onStart = ({ sandbox }: sandhold.Start) => sandbox.readText('missing')
  await assert.rejects(host().acquire(newKey(t), { onStart }), { name: 'NotFoundError', message: /missing/ })
})

test('a hook that acquires its own key is refused at once', async t => {
  const key = newKey(t)
  const sandboxes = host()
  const onStart = async () => {
    await new Promise(setImmediate)
    await sandboxes.acquire(key)
  }
  await assert.rejects(sandboxes.acquire(key, { onStart }), (error: unknown) => {
    assert.ok(error instanceof sandhold.ConflictError)
    return error.reason === 'reentrant'
  })
  const other = newKey(t)
  const fine = await sandboxes.acquire(key, { onStart: () => sandboxes.acquire(other) })
  assert.equal(fine.facts?.how, 'unfinished')
})

test('a hook that overruns its deadline is left behind and told so', async t => {
  const key = newKey(t)
  let aborted: Promise<unknown> | undefined
  const onStart = async (_: sandhold.Start, { signal }: sandhold.HookContext) => {
    aborted = once(signal, 'abort')
    await new Promise(() => {})
  }
  await assert.rejects(host().acquire(key, { onStart, hookDeadline: 100 }), (error: unknown) => {
    assert.ok(error instanceof sandhold.TimeoutError)
    return error.reason === 'hook' && error.context['hook'] === 'on_start'
  })
  await aborted
})

test('a hook that blocks its thread past its deadline hurts nobody', async t => {
  const key = newKey(t)
  const onStart = () => {
    const end = Date.now() + 400
    while (Date.now() < end);
  }
  await assert.rejects(host().acquire(key, { onStart, hookDeadline: 100 }), sandhold.TimeoutError)
  assert.equal((await host().acquire(key)).facts?.how, 'unfinished')
})

test('a resume hook refreshes files', async t => {
  const memories: string[] = []
  const sandbox = await newSandbox(t, {
    onResume: (_, memory) => {
      memories.push(memory)
      return [{ path: '/home/user/token', content: 'new', mode: 0o640 }]
    }
  })
  await sandbox.pause()
  assert.equal((await sandbox.shell('cat token; stat -c %a token')).stdout.text(), 'new640\n')
  assert.deepEqual(memories, ['kept'])
})

test('files with secrets are in place before the start hook runs', async t => {
  const key = newKey(t)
  let seen = ''
  await host().acquire(key, {
    secrets: async sandbox => [{ path: '/home/user/token', content: `of ${sandbox.key}` }],
    onStart: async ({ sandbox }) => {
      seen = (await sandbox.shell('cat token; stat -c %a token')).stdout.text()
    }
  })
  assert.equal(seen, `of ${key}600\n`)
  const other = newKey(t)
  await assert.rejects(host().acquire(other, { secrets: (() => [{}]) as never }), (error: unknown) => {
    assert.ok(error instanceof sandhold.UnexpectedError)
    return error.cause instanceof TypeError && /secrets\(\)/.test(error.cause.message)
  })
})

test('a resume hook that returns something else is told so', async t => {
  const sandbox = await newSandbox(t, { onResume: (() => [{ path: 3 }]) as never })
  await sandbox.pause()
  await assert.rejects(sandbox.shell('true'), (error: unknown) => {
    assert.ok(error instanceof sandhold.UnexpectedError)
    return error.cause instanceof TypeError && /path/.test(error.cause.message)
  })
})

test('every verb has its hook', async t => {
  const seen: string[] = []
  const sandbox = await newSandbox(t, {
    onStop: async sandbox => seen.push(`stop${await sandbox.readText('x')}`),
    onDestroy: async sandbox => seen.push(`destroy${await sandbox.readText('x')}`)
  })
  await sandbox.write('x', '!')
  await sandbox.stop()
  await sandbox.destroy()
  assert.deepEqual(seen, ['stop!', 'destroy!'])
})

test('the events of a host are told in order', async t => {
  stayAlive(t)
  const key = newKey(t)
  const seen: string[] = []
  let heard = () => {}
  const all = new Promise<void>(resolve => (heard = resolve))
  const sandboxes = host({
    onEvent: event => {
      seen.push(event.kind)
      if (event.kind === 'destroyed') heard()
    }
  })
  await using events = await sandboxes.events()
  const sandbox = await sandboxes.acquire(key)
  await sandbox.stop()
  await sandbox.destroy()
  const told: sandhold.Event[] = []
  for await (const event of events) {
    assert.deepEqual([event.key, event.owner], [key, 'default'])
    assert.ok(event.at instanceof Date)
    told.push(event)
    if (event.kind === 'destroyed') break
  }
  const kinds = ['starting', 'started', 'paused', 'stopped', 'destroyed']
  assert.deepEqual(told.map(event => event.kind), kinds)
  assert.deepEqual(told[1]?.details, { outcome: 'created', how: 'fresh' })
  assert.deepEqual(told[3]?.details, { outcome: 'paused' })
  assert.equal(told[1]?.id, sandbox.providerId)
  await all
  assert.deepEqual(seen, kinds)
})

test('a listener that is too slow is told so', async t => {
  stayAlive(t)
  const key = newKey(t)
  const sandboxes = host({ eventCapacity: 2 })
  const events = await sandboxes.events()
  for (let number = 0; number < 3; number++) await sandboxes.acquire(key)
  const first = await events.next()
  assert.deepEqual([first.value?.kind, first.value?.details], ['lagged', { missed: 4 }])
  assert.equal((await events.next()).value?.kind, 'starting')
  events.close()
  assert.deepEqual(await all(events), [])
})

test('a listener that throws is a warning, and nothing else', async t => {
  stayAlive(t)
  const thrown = new Error('no')
  const warned = once(process, 'warning')
  const sandbox = await host({
    onEvent: () => {
      throw thrown
    }
  }).acquire(newKey(t))
  const [warning] = (await warned) as [Error]
  assert.equal(warning.cause, thrown)
  assert.ok((await sandbox.shell('true')).exit.success)
})
