/** Work that outlives its sandbox. */
import assert from 'node:assert/strict'
import { readdirSync } from 'node:fs'
import { test } from 'node:test'
import * as sandhold from 'sandhold'
import { directory, host, newKey } from './support'

test('the work of a key comes back after a destroy', async t => {
  const key = newKey(t)
  const persist = new sandhold.VaultHook(directory(), 'tests', '/home/user/project', { interval: 0 })
  const first = await host({ persist }).acquire(key)
  assert.equal(first.facts?.restored, null)
  await first.write('project/file', 'precious')
  await first.destroy()
  const second = await host({ persist }).acquire(key)
  assert.equal(second.outcome, 'created')
  assert.notEqual(second.providerId, first.providerId)
  assert.ok(second.facts?.restored)
  assert.equal(await second.readText('project/file'), 'precious')
})

test('a save on demand needs a hook', async t => {
  const key = newKey(t)
  await assert.rejects((await host().acquire(key)).save(), { name: 'InvalidStateError', reason: 'no_persist' })
  const place = directory()
  const persist = new sandhold.VaultHook(place, 'tests', '/home/user/project')
  const sandbox = await host({ persist }).acquire(key)
  await sandbox.write('project/file', 'precious')
  await sandbox.save()
  assert.ok(readdirSync(place, { recursive: true }).some(name => String(name).endsWith('.pack')))
})

test('a bad vault names its argument', () => {
  const at = (key: string, options?: object) => () => new sandhold.VaultHook('/nowhere', key, '/home/user', options)
  assert.throws(at(''), { name: 'InvalidArgumentError', context: { argument: 'key' } })
  assert.throws(at('tests', { interval: -1 }), { name: 'InvalidArgumentError', message: /interval/ })
  assert.throws(at('tests', { intervall: 1 }), { name: 'TypeError', message: /intervall/ })
})
