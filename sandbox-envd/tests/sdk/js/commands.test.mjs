import assert from 'node:assert/strict'
import { test } from 'node:test'

import {
  AuthenticationError,
  CommandExitError,
  InvalidArgumentError,
  NotFoundError,
  SandboxError,
  TimeoutError,
} from 'e2b'

import { Collected, gone, ownDirectory, sandbox } from './support.mjs'

const dir = ownDirectory()
const { commands } = sandbox

/** A process id that no kernel gives out by default. */
const NO_PID = 4_194_300

test('a foreground command gives its output and exit code', async () => {
  const result = await commands.run('echo out; echo err >&2')
  assert.deepEqual(result, { exitCode: 0, error: undefined, stdout: 'out\n', stderr: 'err\n' })
})

test('a failing command throws all that is known of it', async () => {
  const error = await commands.run('echo out; echo err >&2; exit 42').catch((error) => error)
  assert.ok(error instanceof CommandExitError)
  const { name, message, exitCode, stdout, stderr } = error
  assert.deepEqual(
    { name, message, error: error.error, exitCode, stdout, stderr },
    {
      name: 'CommandExitError',
      message: 'exit status 42',
      error: 'exit status 42',
      exitCode: 42,
      stdout: 'out\n',
      stderr: 'err\n',
    }
  )
})

test('a command that does not exist exits with 127', async () => {
  const error = await commands.run('no-such-command-here').catch((error) => error)
  assert.ok(error instanceof CommandExitError)
  assert.deepEqual([error.exitCode, error.error], [127, 'exit status 127'])
  assert.match(error.stderr, /no-such-command-here: command not found\n$/)
})

test('a command that kills itself shows the signal', async () => {
  const error = await commands.run('kill -SEGV $$').catch((error) => error)
  assert.ok(error instanceof CommandExitError)
  assert.equal(error.exitCode, -1)
  assert.match(error.error, /^signal: segmentation fault/)
})

test('callbacks are given the output as it comes', async () => {
  const [out, err] = [new Collected(), new Collected()]
  const result = await commands.run('echo 1; echo 2 >&2; echo 3', { onStdout: out.push, onStderr: err.push })
  assert.deepEqual([out.joined(), err.joined()], ['1\n3\n', '2\n'])
  assert.deepEqual([result.stdout, result.stderr], ['1\n3\n', '2\n'])
})

test('special characters reach the command as they are', async () => {
  const text = `!@#$%^&*()_+{}|:<>?-=[]\\;',./~\``
  const { stdout } = await commands.run(`cat <<'END'\n${text}\n"two  spaces"\nEND`)
  assert.equal(stdout, `${text}\n"two  spaces"\n`)
})

test('text outside ASCII comes back as it was', async () => {
  const text = 'Čau, 世界 🌍 é'
  const { stdout, stderr } = await commands.run(`echo '${text}'; echo '${text}' >&2`)
  assert.deepEqual([stdout, stderr], [`${text}\n`, `${text}\n`])
})

test('a broken byte after 8191 good ones is one replacement character', async () => {
  const { stdout } = await commands.run(`head -c 8191 /dev/zero | tr '\\0' a; printf '\\xe2'`)
  assert.equal(stdout, `${'a'.repeat(8191)}\u{fffd}`)
})

test('characters that lie across chunks are whole', async () => {
  // Three bytes each: no power of two is a border of characters.
  const { stdout } = await commands.run(`head -c 100000 /dev/zero | sed 's/\\x00/世/g'`)
  assert.equal(stdout.length, 100_000)
  assert.equal(stdout, '世'.repeat(100_000))
})

test('large output is complete and in order', async () => {
  const { stdout } = await commands.run('seq 1 300000')
  const expected = Array.from({ length: 300_000 }, (_, at) => `${at + 1}\n`).join('')
  assert.ok(stdout === expected, `${stdout.length} of ${expected.length} characters`)
})

test('a command runs as the default user in its home', async () => {
  const { stdout } = await commands.run('id -un; id -u; id -gn; pwd; echo "$HOME $USER $LOGNAME"')
  assert.equal(stdout, 'user\n1000\nuser\n/home/user\n/home/user user user\n')
})

test('a command runs as root when asked', async () => {
  const { stdout } = await commands.run('id -un; id -u; pwd; echo "$HOME $USER $LOGNAME"', { user: 'root' })
  assert.equal(stdout, 'root\n0\n/root\n/root root root\n')
})

test('a command of a user that does not exist is refused', async () => {
  await assert.rejects(commands.run('true', { user: 'nobody-of-that-name' }), AuthenticationError)
})

test('a command runs where it is told', async () => {
  assert.equal((await commands.run('pwd', { cwd: dir })).stdout, `${dir}\n`)
  assert.equal((await commands.run('pwd', { cwd: '/' })).stdout, '/\n')
})

test('a directory that is not there is an invalid argument', async () => {
  await assert.rejects(commands.run('pwd', { cwd: `${dir}/missing` }), InvalidArgumentError)
})

test('variables reach what a command starts', async () => {
  const { stdout } = await commands.run(`python3 -c 'import os; print(os.environ["MINE"])'`, { envs: { MINE: 'a b' } })
  assert.equal(stdout, 'a b\n')
})

test('variables of a command are its own', async () => {
  const envs = { FIRST: 'a b', SECOND: '', HOME: '/elsewhere', QUOTE: `"'$HOME` }
  const { stdout } = await commands.run('printf "%s|" "$FIRST" "${SECOND-unset}" "$HOME" "$QUOTE"', { envs })
  assert.equal(stdout, `a b||/elsewhere|"'$HOME|`)
  assert.equal((await commands.run('echo "${FIRST-unset} $HOME"')).stdout, 'unset /home/user\n')
})

test('a background command is listed until it is killed', async () => {
  const cmd = 'echo up; sleep 300'
  const handle = await commands.run(cmd, { background: true, cwd: dir, envs: { MARK: '1' } })
  const listed = (await commands.list()).find(({ pid }) => pid === handle.pid)
  assert.deepEqual(listed, {
    pid: handle.pid,
    cmd: '/bin/bash',
    args: ['-l', '-c', cmd],
    envs: { MARK: '1' },
    cwd: dir,
  })
  assert.equal(await handle.kill(), true)
  const error = await handle.wait().catch((error) => error)
  assert.ok(error instanceof CommandExitError)
  assert.deepEqual([error.exitCode, error.error, error.message], [-1, 'signal: killed', 'signal: killed'])
  await gone(handle.pid)
  assert.equal(await commands.kill(handle.pid), false)
  assert.ok(!(await commands.list()).some(({ pid }) => pid === handle.pid))
})

test('a background command can be waited for', async () => {
  const handle = await commands.run('echo one; echo two >&2; exit 0', { background: true })
  assert.deepEqual(await handle.wait(), { exitCode: 0, error: undefined, stdout: 'one\n', stderr: 'two\n' })
  assert.deepEqual([handle.exitCode, handle.stdout, handle.stderr, handle.error], [0, 'one\n', 'two\n', undefined])
})

test('killing a process that is not there is false', async () => {
  assert.equal(await commands.kill(NO_PID), false)
})

test('connecting to a process that is not there is not found', async () => {
  await assert.rejects(commands.connect(NO_PID), (error) => {
    assert.ok(error instanceof NotFoundError)
    assert.match(error.message, new RegExp(`process with pid ${NO_PID} not found`))
    return true
  })
})

test('stdin takes text and bytes, and ends when it is closed', async () => {
  const out = new Collected()
  const handle = await commands.run('cat', { background: true, stdin: true, onStdout: out.push })
  await handle.sendStdin('héllo\n')
  await out.text('héllo\n')
  await handle.sendStdin(new Uint8Array([0x78, 0xe2, 0x82]))
  await commands.sendStdin(handle.pid, new Uint8Array([0xac, 0x0a]))
  await handle.closeStdin()
  assert.equal((await handle.wait()).stdout, 'héllo\nx€\n')
})

test('special characters and several lines reach the input as they are', async () => {
  const text = `!@#$%^&*()_+{}|:<>?-=[]\\;',./~\`"\nsecond line\n\n\ttabbed\n`
  const handle = await commands.run('cat', { background: true, stdin: true })
  await handle.sendStdin(text)
  await handle.closeStdin()
  assert.equal((await handle.wait()).stdout, text)
})

test('empty input is no end of input', async () => {
  const handle = await commands.run('cat', { background: true, stdin: true })
  await handle.sendStdin('')
  await handle.sendStdin('after')
  await handle.closeStdin()
  assert.equal((await handle.wait()).stdout, 'after')
})

test('stdin may be closed twice', async () => {
  const handle = await commands.run('cat; read -r line < /dev/null; sleep 300', { background: true, stdin: true })
  await handle.closeStdin()
  await handle.closeStdin()
  await handle.kill()
})

test('without stdin a command reads an end at once', async () => {
  assert.equal((await commands.run('cat; echo end')).stdout, 'end\n')
})

test('input for a command without stdin is refused', async () => {
  const handle = await commands.run('sleep 300', { background: true })
  await assert.rejects(handle.sendStdin('lost'), SandboxError)
  await handle.kill()
})

test('input for a process that is not there is not found', async () => {
  await assert.rejects(commands.sendStdin(NO_PID, 'lost'), NotFoundError)
})

test('a megabyte of input arrives whole', async () => {
  const handle = await commands.run('sha256sum', { background: true, stdin: true })
  const block = new Uint8Array(65_536).fill(0x61)
  for (let sent = 0; sent < 16; sent++) await handle.sendStdin(block)
  await handle.closeStdin()
  const expected = '9bc1b2a288b26af7257a36277ae3816a7d4f16e89c1e7e77d0a5c48bad62b360  -\n'
  assert.equal((await handle.wait()).stdout, expected)
})

test('a second client follows a process from the moment it connects', async () => {
  const [first, second] = [new Collected(), new Collected()]
  const handle = await commands.run('cat', { background: true, stdin: true, onStdout: first.push })
  await handle.sendStdin('before\n')
  await first.text('before\n')
  const other = await commands.connect(handle.pid, { onStdout: second.push })
  assert.equal(other.pid, handle.pid)
  await other.sendStdin('after\n')
  await other.closeStdin()
  assert.equal((await handle.wait()).stdout, 'before\nafter\n')
  assert.deepEqual(await other.wait(), { exitCode: 0, error: undefined, stdout: 'after\n', stderr: '' })
})

test('a client that leaves does not end the process', async () => {
  const handle = await commands.run('read -r line; echo "$line"; exit 3', { background: true, stdin: true })
  await handle.disconnect()
  const other = await commands.connect(handle.pid)
  await other.sendStdin('still here\n')
  const error = await other.wait().catch((error) => error)
  assert.deepEqual([error.exitCode, error.stdout], [3, 'still here\n'])
})

test('the exit of a process that just ended is still told', async () => {
  const handle = await commands.run('exit 7', { background: true })
  await assert.rejects(handle.wait(), CommandExitError)
  const late = await commands.connect(handle.pid)
  const error = await late.wait().catch((error) => error)
  assert.ok(error instanceof CommandExitError)
  assert.deepEqual([error.exitCode, error.error, error.stdout], [7, 'exit status 7', ''])
})

test('a command past its time is a timeout, and the process is dead', async () => {
  const handle = await commands.run('echo up; sleep 300', { background: true, timeoutMs: 700 })
  await assert.rejects(handle.wait(), TimeoutError)
  await gone(handle.pid)
})

test('a foreground command past its time is a timeout', async () => {
  await assert.rejects(commands.run('sleep 300', { timeoutMs: 500 }), TimeoutError)
})

test('a connection past its time ends alone', async () => {
  const handle = await commands.run('read -r line; echo "$line"', { background: true, stdin: true })
  const other = await commands.connect(handle.pid, { timeoutMs: 300 })
  await assert.rejects(other.wait(), TimeoutError)
  await handle.sendStdin('alive\n')
  assert.equal((await handle.wait()).stdout, 'alive\n')
})

test('a command without a limit is not cut off', async () => {
  assert.equal((await commands.run('sleep 0.2; echo ok', { timeoutMs: 0 })).stdout, 'ok\n')
})

test('what a command leaves in the background does not hold its end', async () => {
  const { stdout } = await commands.run('sleep 300 & echo $!')
  assert.match(stdout, /^\d+\n$/)
  await commands.run(`kill -9 ${stdout.trim()}`)
})

test('sixteen commands at once keep their outputs apart', async () => {
  const runs = Array.from({ length: 16 }, (_, at) => commands.run(`for i in 1 2 3; do echo ${at}; done; exit 0`))
  const outputs = (await Promise.all(runs)).map(({ stdout }) => stdout)
  assert.deepEqual(outputs, Array.from({ length: 16 }, (_, at) => `${at}\n`.repeat(3)))
})

test('the sandbox is running', async () => {
  assert.equal(await sandbox.isRunning(), true)
})
