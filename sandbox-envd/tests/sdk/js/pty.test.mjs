import assert from 'node:assert/strict'
import { test } from 'node:test'

import { CommandExitError, NotFoundError, SandboxError, TimeoutError } from 'e2b'

import { Collected, gone, ownDirectory, sandbox } from './support.mjs'

const dir = ownDirectory()
const { commands, pty } = sandbox

/** Starts a terminal of 80 columns and 24 rows; what it prints is collected. */
async function terminal(opts = {}) {
  const screen = new Collected()
  const handle = await pty.create({ cols: 80, rows: 24, onData: screen.push, ...opts })
  return { handle, screen, type: (text) => pty.sendInput(handle.pid, new TextEncoder().encode(text)) }
}

test('a terminal is a login shell of the default user', async () => {
  const { handle, screen, type } = await terminal()
  await type('echo "[$(id -un) $TERM $LANG $LC_ALL $(tty | cut -c1-9)]"\n')
  await screen.text('[user xterm-256color C.UTF-8 C.UTF-8 /dev/pts/]\r\n')
  await type('exit\n')
  const { exitCode, stdout, stderr, error } = await handle.wait()
  assert.deepEqual({ exitCode, stdout, stderr, error }, { exitCode: 0, stdout: '', stderr: '', error: undefined })
})

test('a terminal takes its variables, user and directory', async () => {
  const { handle, screen, type } = await terminal({ envs: { TERM: 'dumb', MARK: 'x y' }, user: 'root', cwd: dir })
  await type('echo "[$(id -un) $TERM $MARK $PWD]"\n')
  await screen.text(`[root dumb x y ${dir}]\r\n`)
  await handle.kill()
})

test('a terminal has the size it was given and takes another', async () => {
  const { handle, screen, type } = await terminal()
  await type('echo "[$(tput cols) $(tput lines)]"\n')
  await screen.text('[80 24]\r\n')
  await pty.resize(handle.pid, { cols: 100, rows: 30 })
  await type('echo "[$(tput cols) $(tput lines)]"\n')
  await screen.text('[100 30]\r\n')
  await handle.kill()
})

test('the exit code of a terminal is its shell\'s', async () => {
  const { handle, type } = await terminal()
  await type('exit 5\n')
  const error = await handle.wait().catch((error) => error)
  assert.ok(error instanceof CommandExitError)
  assert.deepEqual([error.exitCode, error.error], [5, 'exit status 5'])
})

test('an end of transmission ends the shell', async () => {
  const { handle, screen, type } = await terminal()
  // Before the prompt the terminal is not the shell's editor's yet, and the key would be lost between the two.
  await screen.until(() => screen.joined().endsWith('$ '))
  await type('\x04')
  assert.equal((await handle.wait()).exitCode, 0)
})

test('an interrupt reaches the foreground job and not the shell', async () => {
  const { handle, screen, type } = await terminal()
  // The job itself says that it runs: before that, the shell would take the interrupt.
  await type(`sh -c 'echo st""arted; exec sleep 300'\n`)
  await screen.text('started\r\n')
  await type('\x03')
  await screen.until(() => /\^C[^]*\$ $/.test(screen.joined()))
  await type('echo "[$?]"\n')
  await screen.text('[130]\r\n')
  await type('exit 0\n')
  assert.equal((await handle.wait()).exitCode, 0)
})

test('a second client follows a terminal', async () => {
  const { handle, screen, type } = await terminal()
  const second = new Collected()
  const other = await pty.connect(handle.pid, { onData: second.push })
  assert.equal(other.pid, handle.pid)
  await type('echo bo""th\n')
  await screen.text('both\r\n')
  await second.text('both\r\n')
  await handle.disconnect()
  await type('exit 4\n')
  const error = await other.wait().catch((error) => error)
  assert.equal(error.exitCode, 4)
})

test('a terminal is listed until it is killed', async () => {
  const { handle } = await terminal({ envs: { TERM: 'dumb' } })
  const listed = (await commands.list()).find(({ pid }) => pid === handle.pid)
  assert.deepEqual(listed, {
    pid: handle.pid,
    cmd: '/bin/bash',
    args: ['-i', '-l'],
    envs: { LANG: 'C.UTF-8', LC_ALL: 'C.UTF-8', TERM: 'dumb' },
  })
  assert.equal(await pty.kill(handle.pid), true)
  const error = await handle.wait().catch((error) => error)
  assert.ok(error instanceof CommandExitError)
  assert.deepEqual([error.exitCode, error.error], [-1, 'signal: killed'])
  await gone(handle.pid)
  assert.equal(await pty.kill(handle.pid), false)
})

test('a terminal past its time is a timeout, and the shell is dead', async () => {
  const { handle } = await terminal({ timeoutMs: 700 })
  await assert.rejects(handle.wait(), TimeoutError)
  await gone(handle.pid)
})

test('what is no terminal has no size and takes no keys', async () => {
  const handle = await commands.run('sleep 300', { background: true, stdin: true })
  await assert.rejects(pty.resize(handle.pid, { cols: 10, rows: 10 }), SandboxError)
  await assert.rejects(pty.sendInput(handle.pid, new Uint8Array([0x61])), SandboxError)
  await handle.kill()
})

test('a terminal that is not there is not found', async () => {
  await assert.rejects(pty.connect(4_194_300, { onData() {} }), NotFoundError)
  await assert.rejects(pty.resize(4_194_300, { cols: 10, rows: 10 }), NotFoundError)
  await assert.rejects(pty.sendInput(4_194_300, new Uint8Array([0x61])), NotFoundError)
})
