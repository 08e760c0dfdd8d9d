import assert from 'node:assert/strict'
import { connect } from 'node:net'
import { test } from 'node:test'

import { ENVD, created, eventually, hosted } from './support.mjs'

const server = `
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.answer(f'{self.command} {self.path} {self.headers["Host"]} {len(body)}'.encode())
    def do_GET(self):
        if self.headers.get('Upgrade') == 'echo':
            self.wfile.write(b'HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n')
            while data := self.connection.recv(65536):
                self.connection.sendall(data)
            return
        self.answer(f'{self.command} {self.path} {self.headers["Host"]}'.encode())
    def answer(self, body):
        self.send_response(203)
        self.send_header('X-Own', 'kept')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(('127.0.0.1', 3000), Handler).serve_forever()
`

async function serving() {
  const sandbox = await created()
  await sandbox.files.write('server.py', server)
  await sandbox.commands.run('python3 server.py', { background: true, timeoutMs: 0 })
  const host = `3000-${sandbox.sandboxId}.localhost`
  await eventually('the server answers', async () => (await hosted(host)).status === 203)
  return { sandbox, host }
}

test('a host names a port of a sandbox, and everything passes through', async () => {
  const { sandbox, host } = await serving()
  const got = await hosted(host, { path: '/a%20b?c=d' })
  assert.deepEqual([got.status, got.headers['x-own'], got.text], [203, 'kept', `GET /a%20b?c=d ${host}`])
  const posted = await hosted(host, { method: 'POST', path: '/up', body: 'x'.repeat(300_000), headers: { 'Content-Length': '300000' } })
  assert.equal(posted.text, `POST /up ${host} 300000`)
  assert.equal(sandbox.getHost(3000), `3000-${sandbox.sandboxId}.${sandbox.sandboxDomain}`)
})

test('headers name a port where the host does not', async () => {
  const { sandbox } = await serving()
  const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '3000' }
  const answer = await fetch(`${ENVD}/by-header`, { headers })
  assert.equal(answer.status, 203)
  assert.match(await answer.text(), /^GET \/by-header /)
})

test('an upgraded connection carries bytes both ways', async () => {
  const { host } = await serving()
  const { hostname, port } = new URL(ENVD)
  const socket = connect(Number(port), hostname)
  const seen = []
  socket.on('data', (chunk) => seen.push(chunk))
  const text = () => Buffer.concat(seen).toString()
  socket.write(`GET /ws HTTP/1.1\r\nHost: ${host}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n`)
  await eventually('the upgrade is agreed', () => text().includes('\r\n\r\n'))
  assert.match(text(), /^HTTP\/1\.1 101 /)
  socket.write('over and back')
  await eventually('the echo comes', () => text().endsWith('over and back'))
  socket.destroy()
})

test('an address that makes no sense is refused as E2B does', async () => {
  for (const [host, headers] of [
    ['localhost', { 'E2b-Sandbox-Id': 'iabc' }],
    ['localhost', { 'E2b-Sandbox-Port': '3000' }],
    ['localhost', { 'E2b-Sandbox-Id': 'i../etc', 'E2b-Sandbox-Port': '3000' }],
    ['localhost', { 'E2b-Sandbox-Id': 'iabc', 'E2b-Sandbox-Port': '99999' }],
    ['localhost', { 'E2b-Sandbox-Id': 'iabc', 'E2b-Sandbox-Port': 'x' }],
  ]) {
    const { status, text } = await hosted(host, { headers, path: '/health' })
    assert.equal(status, 400, JSON.stringify(headers))
    assert.ok(!text.startsWith('{'), text)
  }
})
