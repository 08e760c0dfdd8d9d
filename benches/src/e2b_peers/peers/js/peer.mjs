// The JavaScript SDK as a peer: reads one order a line, carries it out, and says in seconds how long it took.

import { createInterface } from 'node:readline'

const begun = performance.now()
const { Sandbox } = await import('e2b')
const loaded = performance.now()

const since = (begin) => (performance.now() - begin) / 1000
const held = []
let sandbox

const orders = {
  connect: async ({ id }) => {
    sandbox = await Sandbox.connect(id)
  },
  exec: async ({ count }) => {
    for (let at = 0; at < count; at += 1) await sandbox.commands.run('true')
  },
  write: async ({ count }) => {
    for (let at = 0; at < count; at += 1) await sandbox.files.write(`small/${at}`, 'x'.repeat(1024))
  },
  read: async ({ count }) => {
    for (let at = 0; at < count; at += 1) await sandbox.files.read(`small/${at}`)
  },
  upload: async ({ bytes }) => {
    const piece = new Uint8Array(1 << 20).fill(0x5a)
    let left = bytes / piece.length
    const pull = (controller) => (left > 0 ? (left--, controller.enqueue(piece)) : controller.close())
    await sandbox.files.write('big', new ReadableStream({ pull }), { useOctetStream: true, requestTimeoutMs: 0 })
  },
  download: async ({ bytes }) => {
    let received = 0
    const options = { format: 'stream', requestTimeoutMs: 0 }
    for await (const piece of await sandbox.files.read('noise', options)) received += piece.length
    if (received !== bytes) throw new Error(`${received} of ${bytes} bytes`)
  },
  stdout: async ({ bytes }) => {
    let received = 0
    const onStdout = (data) => (received += data.length)
    await sandbox.commands.run(`dd if=/dev/zero bs=1M count=${bytes >> 20} status=none`, { onStdout, timeoutMs: 0, requestTimeoutMs: 0 })
    if (received !== bytes) throw new Error(`${received} of ${bytes} bytes`)
  },
  list: async ({ count }) => {
    let listed = 0
    for (const pages = Sandbox.list(); pages.hasNext; ) listed += (await pages.nextItems()).length
    if (listed !== count) throw new Error(`${listed} of ${count} sandboxes`)
  },
  hold: async ({ ids }) => {
    for (const id of ids) held.push(await Sandbox.connect(id))
  },
  reattach: async ({ id }) => {
    await (await Sandbox.connect(id)).commands.run('true')
  },
}

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line)
  const begin = performance.now()
  try {
    await orders[order.do](order)
    console.log(JSON.stringify({ seconds: since(begin), loading: (loaded - begun) / 1000 }))
  } catch (error) {
    console.log(JSON.stringify({ failed: String(error) }))
  }
}
