import assert from 'node:assert/strict'
import { test } from 'node:test'

import { Sandbox } from 'e2b'

import { api, created, eventually } from './support.mjs'

test('metrics come, within bounds, for the time that is asked for', async () => {
  const sandbox = await created()
  const metrics = await eventually('a measurement', async () => {
    const metrics = await sandbox.getMetrics()
    return metrics.length > 0 && metrics
  })
  for (const one of metrics) {
    const { timestamp, cpuCount, cpuUsedPct, memUsed, memTotal, memCache, diskUsed, diskTotal } = one
    assert.ok(timestamp instanceof Date && Math.abs(Date.now() - timestamp) < 60_000)
    assert.ok(cpuCount >= 1 && cpuUsedPct >= 0)
    assert.ok(memTotal > 0 && memUsed >= 0 && memUsed <= memTotal && memCache >= 0)
    assert.ok(diskTotal > 0 && diskUsed >= 0 && diskUsed <= diskTotal)
  }
  const start = new Date(Date.now() - 300_000)
  assert.ok((await Sandbox.getMetrics(sandbox.sandboxId, { start, end: new Date() })).length > 0)
  const early = { start: new Date(0), end: new Date(5000) }
  assert.deepEqual(await sandbox.getMetrics(early), [])
})

test('metrics of several are told in one answer', async () => {
  const [one, two] = [await created(), await created()]
  const both = `${one.sandboxId},${two.sandboxId}`
  const { sandboxes } = await eventually('both are measured', async () => {
    const { status, json } = await api('GET', `/sandboxes/metrics?sandbox_ids=${both}`)
    assert.equal(status, 200)
    return Object.keys(json.sandboxes).length === 2 && json
  })
  assert.deepEqual(Object.keys(sandboxes).sort(), [one.sandboxId, two.sandboxId].sort())
  const many = Array.from({ length: 101 }, (_, at) => `i${String(at).padStart(20, '0')}`).join(',')
  assert.equal((await api('GET', `/sandboxes/metrics?sandbox_ids=${many}`)).status, 400)
})

test('logs are told in both generations', async () => {
  const sandbox = await created()
  const first = await api('GET', `/sandboxes/${sandbox.sandboxId}/logs`)
  assert.ok(first.status === 200 && Array.isArray(first.json.logs) && Array.isArray(first.json.logEntries), first.text)
  const second = await api('GET', `/v2/sandboxes/${sandbox.sandboxId}/logs?direction=forward&limit=10`)
  assert.ok(second.status === 200 && Array.isArray(second.json.logs), second.text)
  assert.equal((await api('GET', '/sandboxes/izzzzzzzzzzzzzzzzzzzz/logs')).status, 404)
  assert.equal((await api('GET', '/v2/sandboxes/izzzzzzzzzzzzzzzzzzzz/logs')).status, 404)
})
