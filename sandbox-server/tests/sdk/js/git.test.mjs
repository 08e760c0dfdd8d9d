import assert from 'node:assert/strict'
import { before, test } from 'node:test'

import { CommandExitError, GitUpstreamError, InvalidArgumentError } from 'e2b'

import { created, eventually, fails } from './support.mjs'

let sandbox, git
const repo = '/home/user/repo'
const author = { authorName: 'Ada', authorEmail: 'ada@example.com' }
const sh = async (cmd, options) => (await sandbox.commands.run(cmd, options)).stdout
const on = (cmd) => sh(cmd, { cwd: repo })

before(async () => {
  sandbox = await created({ timeoutMs: 600_000 })
  git = sandbox.git
  await git.init(repo, { initialBranch: 'main' })
  await git.configureUser('Ada', 'ada@example.com', { scope: 'global' })
  await sandbox.files.write(`${repo}/a.txt`, 'one\n')
  await git.add(repo)
  await git.commit(repo, 'first')
  await sh('mkdir -p /home/user/served && git init -q --bare -b main /home/user/served/remote.git')
  await sandbox.commands.run(
    'git daemon --reuseaddr --listen=127.0.0.1 --port=9418 --base-path=/home/user/served --export-all --enable=receive-pack',
    { background: true, timeoutMs: 0 }
  )
  await eventually('the git daemon listens', async () =>
    sandbox.commands.run('git ls-remote git://127.0.0.1/remote.git').then(
      () => true,
      () => false
    )
  )
})

test('the configured user is the author', async () => {
  assert.equal(await on('git log -1 --format="%an %ae %s"'), 'Ada ada@example.com first\n')
  assert.equal(await git.getConfig('user.name', { scope: 'global' }), 'Ada')
  assert.equal(await git.getConfig('no.such', { scope: 'global' }), undefined)
  await git.setConfig('pull.rebase', 'false', { scope: 'local', path: repo })
  assert.equal(await git.getConfig('pull.rebase', { scope: 'local', path: repo }), 'false')
})

test('the status tells branch and files', async () => {
  await sandbox.files.write(`${repo}/b.txt`, 'new\n')
  await sandbox.files.write(`${repo}/a.txt`, 'changed\n')
  const { currentBranch, fileStatus } = await git.status(repo)
  assert.equal(currentBranch, 'main')
  const seen = fileStatus.map(({ name, status, staged }) => [name, status, staged]).sort()
  assert.deepEqual(seen, [['a.txt', 'modified', false], ['b.txt', 'untracked', false]])
  await git.add(repo, { files: ['b.txt'] })
  const added = (await git.status(repo)).fileStatus.find(({ name }) => name === 'b.txt')
  assert.deepEqual([added.status, added.staged], ['added', true])
  await git.reset(repo)
  await git.restore(repo, { paths: ['a.txt'] })
  assert.equal(await sandbox.files.read(`${repo}/a.txt`), 'one\n')
  await sandbox.files.remove(`${repo}/b.txt`)
  assert.deepEqual((await git.status(repo)).fileStatus, [])
})

test('branches are made, left, listed and deleted', async () => {
  await git.createBranch(repo, 'side')
  assert.deepEqual((await git.branches(repo)).currentBranch, 'side')
  await git.checkoutBranch(repo, 'main')
  const { branches, currentBranch } = await git.branches(repo)
  assert.deepEqual([branches.sort(), currentBranch], [['main', 'side'], 'main'])
  await git.deleteBranch(repo, 'side')
  assert.deepEqual((await git.branches(repo)).branches, ['main'])
})

test('commits carry their author and may be empty', async () => {
  await git.commit(repo, 'empty one', { ...author, allowEmpty: true })
  assert.equal(await on('git log -1 --format=%s'), 'empty one\n')
  await fails(git.commit(repo, 'nothing'), CommandExitError)
  await git.reset(repo, { mode: 'hard', target: 'HEAD~1' })
  assert.equal(await on('git log -1 --format=%s'), 'first\n')
})

test('a remote is added, pushed to, cloned and pulled from', async () => {
  const url = 'git://127.0.0.1/remote.git'
  await git.remoteAdd(repo, 'origin', url)
  assert.equal(await git.remoteGet(repo, 'origin'), url)
  assert.equal(await git.remoteGet(repo, 'none'), undefined)
  await git.push(repo, { remote: 'origin', branch: 'main', setUpstream: true })
  await git.clone(url, { path: '/home/user/clone', branch: 'main' })
  assert.equal(await sandbox.files.read('/home/user/clone/a.txt'), 'one\n')
  await sandbox.files.write(`${repo}/c.txt`, 'pushed\n')
  await git.add(repo)
  await git.commit(repo, 'second')
  await git.push(repo)
  await git.pull('/home/user/clone')
  assert.equal(await sandbox.files.read('/home/user/clone/c.txt'), 'pushed\n')
})

test('what cannot be done is an error of its own', async () => {
  await git.createBranch(repo, 'lonely')
  await fails(git.pull(repo), GitUpstreamError)
  await git.checkoutBranch(repo, 'main')
  await fails(git.setConfig('a.b', 'c', { scope: 'local' }), InvalidArgumentError)
})

test('credentials are stored when that is asked for', async () => {
  await git.dangerouslyAuthenticate({ username: 'u', password: 'p', host: 'git.example', protocol: 'https' })
  assert.match(await sh('cat ~/.git-credentials'), /https:\/\/u:p@git\.example/)
})
