import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, test } from 'node:test'

import {
  BuildError,
  Template,
  waitForFile,
  waitForPort,
  waitForProcess,
  waitForTimeout,
  waitForURL,
} from 'e2b'

import { api, created, eventually, fails, mark } from './support.mjs'

const context = mkdtempSync(join(tmpdir(), 'sandhold-context-'))
const folder = join(context, 'folder')
mkdirSync(join(folder, 'sub'), { recursive: true })
writeFileSync(join(folder, 'test.txt'), 'This is a test file.')
writeFileSync(join(folder, 'sub/deep.txt'), 'deep')
symlinkSync('test.txt', join(folder, 'symlink.txt'))
symlinkSync('12345test.txt', join(folder, 'broken.txt'))
after(() => rmSync(context, { recursive: true }))

const templates = new Set()
after(async () => {
  for (const id of templates) await api('DELETE', `/templates/${id}`)
})

/** Builds a template that is deleted after the tests of this file; returns what was built and its log. */
async function built(template, { name = `${mark}-${randomUUID()}`, ...options } = {}) {
  const log = []
  const info = await Template.build(template, name, { ...options, onBuildLogs: (entry) => log.push(entry) })
  templates.add(info.templateId)
  return { ...info, name, log: log.map(({ level, message }) => ({ level, message })) }
}

const said = (log) => log.map(({ message }) => message)
const cached = (log) => said(log).filter((message) => message.startsWith('CACHED'))

test('steps make what sandboxes start with', async () => {
  const template = Template({ fileContextPath: context })
    .fromBaseImage()
    .copy('folder/*', 'folder', { forceUpload: true })
    .setEnvs({ ENV_1: 'value1', ENV_2: 'with $ENV_1 and `not run` $(nor this)' })
    .runCmd('cat folder/test.txt && cat folder/symlink.txt && echo "$ENV_1" > env.txt')
    .setWorkdir('/app/inner')
    .runCmd(['pwd', 'echo made > here.txt'])
    .copy('folder/test.txt', 'copied/renamed.txt', { mode: 0o600 })
    .copy('folder/sub', '/data/', { user: 'root' })
  const { name, log } = await built(template, { cpuCount: 1, memoryMB: 1024 })
  assert.ok(said(log).some((message) => message.includes('[stdout]: This is a test file.')), said(log).join('\n'))
  const sandbox = await created({ template: name })
  const run = async (command) => (await sandbox.commands.run(command)).stdout
  assert.equal(await run('pwd'), '/app/inner\n')
  assert.equal(await run('echo "$ENV_1|$ENV_2"'), 'value1|with value1 and `not run` $(nor this)\n')
  assert.equal(await run('cat /home/user/env.txt here.txt'), 'value1\nmade\n')
  assert.equal(await run('whoami && stat -c %U:%a here.txt copied/renamed.txt'), 'user\nuser:644\nuser:600\n')
  assert.equal(await run('ls -A /home/user/folder'), 'broken.txt\nsub\nsymlink.txt\ntest.txt\n')
  assert.equal(await run('readlink /home/user/folder/symlink.txt && cat /data/deep.txt'), 'test.txt\ndeep')
  // Where there is one id for all, a file's owner is whoever asks.
  const root = (await run('stat -c %U /etc')).trim()
  assert.equal(await run('stat -c %U /data /data/deep.txt'), `${root}\n${root}\n`)
  assert.equal(await run('ls -A /tmp | grep sandhold || true'), '')
  // The variables of a create stand before those of the template.
  const other = await created({ template: name, envs: { ENV_1: 'mine' } })
  assert.equal((await other.commands.run('echo $ENV_1')).stdout, 'mine\n')
})

test('links are copied as links unless they are to be resolved', async () => {
  const template = Template({ fileContextPath: context })
    .fromBaseImage()
    .copy('folder/symlink.txt', 'kept.txt')
    .copy('folder/symlink.txt', 'resolved.txt', { resolveSymlinks: true })
  const sandbox = await created({ template: (await built(template)).name })
  const kinds = await sandbox.commands.run('stat -c %F kept.txt resolved.txt; cat resolved.txt')
  assert.equal(kinds.stdout, 'symbolic link\nregular file\nThis is a test file.')
})

test('an unchanged beginning is not built again, and a skipped cache is', async () => {
  const base = () => Template().fromImage('ubuntu:22.04').runCmd(`echo ${mark} > one.txt`)
  const first = await built(base().runCmd('date +%s%N > two.txt'))
  assert.deepEqual(cached(first.log), [])
  assert.ok(first.log.some(({ level, message }) => level === 'warn' && message.includes('stands in')), said(first.log))
  const again = await built(base().runCmd('date +%s%N > two.txt').runCmd('true'))
  assert.equal(cached(again.log).length, 2)
  const stamp = async (name) => {
    const sandbox = await created({ template: name })
    return sandbox.files.read('two.txt')
  }
  assert.equal(await stamp(first.name), await stamp(again.name))
  const skipped = await built(base().skipCache().runCmd('date +%s%N > two.txt'))
  assert.equal(cached(skipped.log).length, 1)
  assert.notEqual(await stamp(skipped.name), await stamp(first.name))
  const forced = await built(base().runCmd('date +%s%N > two.txt'), { skipCache: true })
  assert.deepEqual(cached(forced.log), [])
})

test('a step that fails says why, and where it was written', async () => {
  const failing = Template().fromBaseImage().runCmd('true').runCmd('echo broken >&2; exit 3')
  const error = await fails(built(failing), BuildError)
  assert.match(error.message, /failed to run command 'echo broken >&2; exit 3': exit status 3: broken/)
  assert.match(error.stack, /templates\.test\.mjs/)
  const unknown = Template().fromImage('ubuntu:22.04').skipCache().runCmd('whoami', { user: 'root123' })
  const text = "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"
  assert.ok((await fails(built(unknown), BuildError)).message.includes(text))
  const missing = await fails(built(Template().fromImage('example.test/none:1')), BuildError)
  assert.match(missing.message, /image example\.test\/none:1 is not here; .*--image-alias/)
  const registry = Template().fromImage('example.test/none:1', { username: 'u', password: 'hush-hush' })
  const refused = await fails(built(registry), BuildError)
  assert.ok(!refused.message.includes('hush-hush'))
})

test('users are made and changed to', async () => {
  const template = Template().fromBaseImage().runCmd('test "$(whoami)" = "root"', { user: 'root' }).setUser('root')
  const { name } = await built(template.setWorkdir('/'))
  const sandbox = await created({ template: name })
  assert.equal((await sandbox.commands.run('whoami; pwd')).stdout, 'root\n/\n')
  assert.equal((await sandbox.commands.run('whoami', { user: 'user' })).stdout, 'user\n')
})

test('links are made, also in place of others', async () => {
  const link = () => Template().fromImage('ubuntu:22.04').makeSymlink('.bashrc', '.bashrc.local')
  await built(link().skipCache().makeSymlink('.bashrc', '.bashrc.local', { force: true })
    .runCmd('test "$(readlink .bashrc.local)" = ".bashrc"'))
})

test('a start command runs in each new sandbox, which is handed out when it is ready', async () => {
  const template = Template()
    .fromBaseImage()
    .runCmd('mkdir site && echo hello > site/index.html')
    .setStartCmd('cd site && exec python3 -m http.server 8123', waitForPort(8123))
  const { name, log } = await built(template)
  assert.ok(said(log).some((message) => message.includes('the start command runs in each new sandbox')))
  for (const sandbox of [await created({ template: name }), await created({ template: name })]) {
    assert.equal((await sandbox.commands.run('curl -s 127.0.0.1:8123/index.html')).stdout, 'hello\n')
  }
  const error = await fails(built(Template().fromBaseImage().setStartCmd('exit 7', waitForFile('/never'))), BuildError)
  assert.match(error.message, /start command failed: exit code 7/)
})

test('a template says when it is ready in every way that there is', async () => {
  const serving = 'cd /tmp && exec python3 -m http.server 8124'
  for (const ready of [waitForURL('http://127.0.0.1:8124/'), waitForProcess('python3'), waitForTimeout(100)]) {
    const { name } = await built(Template().fromBaseImage().setStartCmd(serving, ready))
    const sandbox = await created({ template: name })
    assert.match((await sandbox.commands.run('pgrep -f http.server')).stdout, /^\d+\n/)
  }
  // A command that has done its work needs none that starts anything.
  const { name } = await built(Template().fromBaseImage().runCmd('touch /tmp/done').setReadyCmd(waitForFile('/tmp/done')))
  assert.equal(await (await created({ template: name })).files.exists('/tmp/done'), true)
})

test('what a start command left behind is started again when a sandbox keeps only its files', async () => {
  const start = 'echo run >> /home/user/runs; exec sleep 1000'
  const { name } = await built(Template().fromBaseImage().setStartCmd(start, waitForFile('/home/user/runs')))
  const sandbox = await created({ template: name })
  const runs = () => sandbox.files.read('/home/user/runs')
  assert.equal(await runs(), 'run\n')
  await sandbox.pause()
  await sandbox.connect()
  assert.equal(await runs(), 'run\n')
  await sandbox.pause({ keepMemory: false })
  await sandbox.connect()
  await eventually('it runs again', async () => (await runs()) === 'run\nrun\n')
})

test('a Dockerfile is a template', async () => {
  const dockerfile = `FROM ubuntu:22.04
ENV PLACE=here
WORKDIR /work
COPY folder/test.txt copied.txt
RUN echo "$PLACE" > made.txt && chown user made.txt
USER user
`
  const template = Template({ fileContextPath: context }).fromDockerfile(dockerfile)
  const { name } = await built(template)
  const sandbox = await created({ template: name })
  assert.equal((await sandbox.commands.run('pwd; whoami; cat made.txt copied.txt')).stdout, '/work\nuser\nhere\nThis is a test file.')
  const written = Template.toDockerfile(template)
  for (const line of ['FROM ubuntu:22.04', 'WORKDIR /work']) assert.ok(written.split('\n').includes(line), written)
  assert.equal(JSON.parse(await Template.toJSON(template)).fromImage, 'ubuntu:22.04')
})

test('several files are copied at once, moved, removed and cloned', async () => {
  const { name } = await built(
    Template({ fileContextPath: context })
      .fromBaseImage()
      .copyItems([
        { src: 'folder/test.txt', dest: 'one/', mode: 0o600 },
        { src: 'folder/sub', dest: 'two' },
      ])
      .makeDir('made/deep')
      .rename('one/test.txt', 'made/renamed.txt', { user: 'root' })
      .remove('two/deep.txt', { user: 'root' })
      .runCmd('git init -q -b main origin && cd origin && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first')
      .gitClone('/home/user/origin', 'clone', { branch: 'main' })
  )
  const sandbox = await created({ template: name })
  const { stdout } = await sandbox.commands.run('ls one two; stat -c %a made/renamed.txt; git -C clone log --format=%s')
  assert.equal(stdout, 'one:\n\ntwo:\n600\nfirst\n')
})

test('what needs another registry or the network is refused, and no credentials are told', async () => {
  const secret = 'hush-hush'
  const aws = { accessKeyId: 'AKIA', secretAccessKey: secret, region: 'eu-west-1' }
  const gcp = { serviceAccountJSON: { private_key: secret } }
  for (const template of [
    Template().fromAWSRegistry('1.dkr.ecr.eu-west-1.amazonaws.com/none:1', aws),
    Template().fromGCPRegistry('gcr.io/none/none:1', gcp),
  ]) {
    const error = await fails(built(template), BuildError)
    assert.match(error.message, /none:1 is not here/)
    assert.ok(!error.message.includes(secret))
  }
  // Of the shorthands for images and package managers only what they send can be told without a network.
  const sent = async (template) => JSON.parse(await Template.toJSON(template, false))
  for (const [template, image] of [
    [Template().fromDebianImage('stable'), 'debian:stable'],
    [Template().fromUbuntuImage('22.04'), 'ubuntu:22.04'],
    [Template().fromPythonImage('3'), 'python:3'],
    [Template().fromNodeImage('lts'), 'node:lts'],
    [Template().fromBunImage('latest'), 'oven/bun:latest'],
  ]) {
    assert.equal((await sent(template)).fromImage, image)
  }
  const steps = (await sent(Template().fromBaseImage().aptInstall('vim').pipInstall('six').npmInstall('left-pad'))).steps
  assert.deepEqual(steps.map(({ type }) => type), ['RUN', 'RUN', 'RUN'])
})

test('a template is built on another, with its commands and environment', async () => {
  const parent = await built(Template().fromBaseImage().setEnvs({ PARENT: 'yes' }).runCmd('echo parent > parent.txt'))
  const child = await built(Template().fromTemplate(parent.name).runCmd('cat parent.txt > child.txt'))
  const sandbox = await created({ template: child.name })
  assert.equal((await sandbox.commands.run('cat child.txt; echo $PARENT')).stdout, 'parent\nyes\n')
  await built(Template().fromTemplate('base'), { skipCache: true })
  const error = await fails(built(Template().fromTemplate(`${mark}-none`)))
  assert.match(error.message, /template '.*-none' not found/)
})

test('templates exist by name, and are told apart by tags', async () => {
  assert.equal(await Template.exists('base'), true)
  assert.equal(await Template.aliasExists('base'), true)
  assert.equal(await Template.exists(`nonexistent-${randomUUID()}`), false)
  const name = `${mark}-tags`
  const build = (text, tag) => built(Template().fromBaseImage().runCmd(`echo ${text} > which.txt`), { name: `${name}:${tag}` })
  const one = await build('one', 'v1')
  const two = await build('two', 'v2')
  assert.equal(one.templateId, two.templateId)
  assert.equal(await Template.exists(name), true)
  const which = async (template) => (await created({ template })).files.read('which.txt')
  assert.deepEqual([await which(`${name}:v1`), await which(`${name}:v2`)], ['one\n', 'two\n'])
  // No build was made without a tag.
  await fails(created({ template: name }))
  const assigned = await Template.assignTags(`${name}:v1`, ['production', 'default'])
  assert.deepEqual(assigned, { buildId: one.buildId, tags: ['production', 'default'] })
  assert.equal(await which(name), 'one\n')
  assert.equal(await which(`sandhold/${name}:production`), 'one\n')
  const tags = await Template.getTags(one.templateId)
  assert.deepEqual(tags.map(({ tag }) => tag).sort(), ['default', 'production', 'v1', 'v2'])
  await Template.removeTags(name, ['production', 'v2'])
  await fails(created({ template: `${name}:production` }))
  await fails(Template.removeTags(name, 'default'))
  await fails(Template.removeTags(`${mark}-none`, 'tag'))
  for (const bad of [':invalid-tag', `${name}:`]) await fails(Template.assignTags(`${name}:v1`, bad))
})

test('a build goes on in the background, and its log is read from where one left off', async () => {
  const template = Template().fromImage('ubuntu:22.04').skipCache().runCmd('for i in $(seq 250); do echo line $i; done; sleep 1')
  const info = await Template.buildInBackground(template, `${mark}-background`, { cpuCount: 1, memoryMB: 1024 })
  templates.add(info.templateId)
  const first = await Template.getBuildStatus(info)
  assert.ok(['building', 'ready'].includes(first.status), first.status)
  const lines = []
  for (let offset = 0, status = 'building'; ; ) {
    const page = await Template.getBuildStatus(info, { logsOffset: offset })
    assert.ok(page.logEntries.length <= 100)
    lines.push(...page.logEntries.map(({ message }) => message))
    offset += page.logEntries.length
    if (status !== 'building' && page.logEntries.length === 0) break
    status = page.status
  }
  assert.equal(lines.filter((line) => /\[stdout\]: line \d+$/.test(line)).length, 250)
  assert.equal(new Set(lines.filter((line) => line.includes('[stdout]'))).size, 250)
})

test('builds of one template at the same time both end well', async () => {
  const name = `${mark}-racing`
  const build = (tag) =>
    built(Template().fromBaseImage().skipCache().runCmd(`echo ${tag} > which.txt`), { name: `${name}:${tag}` })
  const [a, b] = await Promise.all([build('a'), build('b')])
  assert.equal(a.templateId, b.templateId)
  const read = async (tag) => (await created({ template: `${name}:${tag}` })).files.read('which.txt')
  assert.deepEqual(await Promise.all([read('a'), read('b')]), ['a\n', 'b\n'])
})

test('a template in use is not deleted', async () => {
  const { templateId, name } = await built(Template().fromBaseImage().runCmd(`echo ${mark} > used.txt`))
  const sandbox = await created({ template: name })
  assert.equal((await sandbox.getInfo()).templateId, templateId)
  const refused = await api('DELETE', `/templates/${templateId}`)
  assert.equal(refused.status, 400)
  assert.match(refused.json.message, /there are sandboxes using it/)
  await sandbox.kill()
  assert.equal((await api('DELETE', `/templates/${templateId}`)).status, 204)
  assert.equal((await api('DELETE', `/templates/${templateId}`)).status, 404)
  assert.equal(await Template.exists(name), false)
})
