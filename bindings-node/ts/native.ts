/**
 * The native part, as `src` has it. Its names begin with `Native` and are not for users; a test compares this list with what
 * was built.
 *
 * @internal
 */
import { existsSync } from 'node:fs'
import { dirname, join } from 'node:path'
import type { CloneOptions, Retention } from './options'
import type { Finding, Kept, Record as Remembered, Step } from './records'
import type {
  AssignedTags,
  Bundle,
  BundleHeader,
  Capabilities,
  Collected,
  DestroyOutcome,
  EntryInfo,
  Event,
  Examined,
  ExitStatus,
  Facts,
  LogLine,
  Metrics,
  MirroredRepo,
  Output,
  OutputStream,
  PauseOutcome,
  PortAccess,
  ProcessInfo,
  Pruned,
  Repaired,
  RepositoryRepaired,
  Restored,
  RestoredBranch,
  SandboxInfo,
  SettingsChange,
  SnapshotInfo,
  StopOutcome,
  Unfinished,
  Verified,
  Volume,
  WatchEvent
} from './values'

/** What surrounds a call where it may be aborted, or comes from a hook. */
export interface NativeCall {
  abort(): void
}

/** The hooks that a call comes from. */
export interface NativeScope {
  readonly [opaque]: 'scope'
}

/** Facts as JSON; `facts` makes values of JavaScript of them. */
export type Told = Record<string, unknown>

declare const opaque: unique symbol

type Around = NativeCall | undefined

/** An error of the library. */
export interface NativeFailure {
  readonly kind: string
  readonly text: string
  readonly message: string
  readonly reason: string | null
  readonly retryable: boolean
  readonly retryAfter: number | null
  readonly outcome: 'not_started' | 'done' | 'unknown'
  readonly provider: string | null
  readonly operation: string | null
  readonly context: Record<string, string>
  readonly cause: NativeFailure | NativeThrown | string[] | null
}

/** What JavaScript threw, on its way through the library. */
export interface NativeThrown {
  readonly value: unknown
}

export interface NativeProvider {
  readonly name: string
  readonly capabilities: Capabilities
  readonly fingerprint: string
  find(around: Around, id: string): Promise<SandboxInfo | null>
  findKey(around: Around, owner: string, key: string): Promise<SandboxInfo[]>
  list(around: Around, filter: object): Promise<NativeStream<SandboxInfo>>
  pause(around: Around, id: string, options: object): Promise<PauseOutcome>
  destroy(around: Around, id: string): Promise<DestroyOutcome>
  setLease(around: Around, id: string, lease: number): Promise<void>
  snapshot(around: Around, id: string, options: object): Promise<SnapshotInfo>
  listSnapshots(around: Around, filter: object): Promise<NativeStream<SnapshotInfo>>
  deleteSnapshot(around: Around, snapshot: string): Promise<DestroyOutcome>
  fork(around: Around, id: string, options: object): Promise<string>
  logs(around: Around, id: string, options: object): Promise<NativeStream<LogLine>>
  metrics(around: Around, id: string): Promise<Metrics>
  updateNetwork(around: Around, id: string, network: string): Promise<void>
}

export interface NativeLocalProvider {
  readonly provider: NativeProvider
  readonly home: string
  probe(around: Around): Promise<Record<string, unknown>>
  importTemplate(around: Around, directory: string, names: readonly string[]): Promise<SnapshotInfo>
}

export interface NativeE2BProvider {
  readonly provider: NativeProvider
  readonly templates: NativeTemplates
  readonly volumes: NativeVolumes
  readonly secrets: NativeSecrets
  access(around: Around, id: string): Promise<NativeAccess>
  updateNetworkPolicy(around: Around, id: string, policy: object): Promise<void>
  detail(around: Around, id: string): Promise<Record<string, unknown>>
}

/** The providers of a program, by name. */
export interface NativeProviders {
  names(): string[]
  fromName(name: string): NativeProvider
  fromEnv(): NativeProvider
}

export interface NativeAccess {
  readonly trafficToken: string | null
  readonly envdToken: string | null
  host(port: number): string
  port(port: number): PortAccess
  downloadUrl(path: string, options: object): string
  uploadUrl(path: string, options: object): string
}

export interface NativeVolumes {
  create(around: Around, name: string): Promise<NativeVolumeContent>
  open(around: Around, id: string): Promise<NativeVolumeContent>
  list(around: Around): Promise<Volume[]>
  delete(around: Around, id: string): Promise<DestroyOutcome>
}

export interface NativeVolumeContent {
  readonly id: string
  readonly name: string
  stat(around: Around, path: string): Promise<Told>
  change(around: Around, path: string, options: object): Promise<Told>
  remove(around: Around, path: string): Promise<void>
  list(around: Around, path: string, options: object): Promise<Told[]>
  makeDir(around: Around, path: string, options: object): Promise<Told>
  read(around: Around, path: string): Promise<NativeStream<Buffer>>
  write(around: Around, path: string, body: NativeUpload | string | Uint8Array, options: object): Promise<Told>
}

export interface NativeSecrets {
  create(around: Around, name: string, value: string, options: object): Promise<Told>
  update(around: Around, secret: string, value: string, options: object): Promise<Told>
  get(around: Around, secret: string): Promise<Told>
  list(): NativeStream<Told>
  delete(around: Around, secret: string): Promise<DestroyOutcome>
}

/** Every call returns another one. */
export interface NativeRecipe {
  withRegistry(registry: object): NativeRecipe
  withContext(directory: string): NativeRecipe
  copy(source: string, target: string, options: object): NativeRecipe
  run(command: string, options: object): NativeRecipe
  env(name: string, value: string): NativeRecipe
  workdir(path: string): NativeRecipe
  user(name: string): NativeRecipe
  startCommand(command: string): NativeRecipe
  readyCommand(command: string): NativeRecipe
}

export interface NativeTemplates {
  exists(around: Around, name: string): Promise<boolean>
  start(around: Around, recipe: NativeRecipe, options: object): Promise<NativeTemplateBuild>
  build(around: Around, recipe: NativeRecipe, options: object): Promise<NativeTemplateBuild>
  list(): NativeStream<Told>
  get(around: Around, name: string): Promise<Told>
  delete(around: Around, name: string): Promise<DestroyOutcome>
  setPublic(around: Around, name: string, isPublic: boolean): Promise<void>
  tags(around: Around, name: string): Promise<Told[]>
  assignTags(around: Around, target: string, tags: readonly string[]): Promise<AssignedTags>
  removeTags(around: Around, name: string, tags: readonly string[]): Promise<void>
}

export interface NativeTemplateBuild {
  readonly templateId: string
  readonly buildId: string
  readonly names: string[]
  status(around: Around, logsOffset: number): Promise<Told>
  logs(): NativeStream<LogLine>
  wait(around: Around): Promise<void>
}

export interface NativeRegistry {
  scope(around: Around): Promise<'process' | 'machine' | 'cluster'>
  load(around: Around, owner: string, key: string): Promise<Remembered | null>
  list(around: Around, filter: object): Promise<NativeStream<Remembered>>
}

export interface NativeReconciler {
  orphans(around: Around): Promise<NativeOrphanReport>
}

export interface NativeOrphanReport {
  readonly findings: Finding[]
  readonly sandboxes: number
  readonly records: number
  plan(policy: object): NativeReconcilePlan
}

export interface NativeReconcilePlan {
  readonly steps: Step[]
  readonly kept: Kept[]
  retain(keep: boolean[]): NativeReconcilePlan
  apply(around: Around): Promise<NativeStepOutcome[]>
}

export interface NativeStepOutcome {
  readonly step: Step
  readonly outcome: 'done' | 'held' | 'changed' | 'failed'
  readonly error: NativeFailure | null
}

export interface NativeVault {
  readonly key: string
  gitDir(around: Around): Promise<string>
  capture(around: Around, workspace: string, options: object): Promise<Told>
  captureSandbox(around: Around, sandbox: NativeSandbox, path: string, options: object): Promise<Told | null>
  captureBaseline(around: Around, workspace: string, options: object): Promise<Told | null>
  begin(around: Around, workspace: string, options: object): Promise<NativeSession>
  resume(around: Around, id: string, options: object): Promise<NativeSession>
  restore(around: Around, id: string, target: string, options: object): Promise<Restored>
  restoreSandbox(around: Around, sandbox: NativeSandbox, path: string, id: string, options: object): Promise<Restored>
  restoreBranch(around: Around, id: string, workspace: string, options: object): Promise<RestoredBranch>
  restorePatch(around: Around, id: string, file: string): Promise<number>
  unfinishedRestores(around: Around): Promise<Unfinished[]>
  snapshots(around: Around): Promise<Told[]>
  snapshot(around: Around, id: string): Promise<Told>
  newestOfSandbox(around: Around, key: string, path: string): Promise<Told | null>
  sideManifest(around: Around, id: string): Promise<Told>
  verify(around: Around, id: string, options: object): Promise<Examined>
  verifyAll(around: Around, options: object): Promise<Examined[]>
  repairRepository(around: Around, workspace: string, options: object): Promise<RepositoryRepaired>
  gc(around: Around, options: object): Promise<Collected>
  repair(around: Around, options: object): Promise<Repaired>
  prune(around: Around, retention: object): Promise<Pruned>
  setRetention(around: Around, id: string, retention: string | null): Promise<Told>
  writeBundle(around: Around, id: string, path: string, options: object): Promise<Bundle>
  importBundle(around: Around, path: string, options: object): Promise<Told>
  adoptBundle(around: Around, path: string, options: object): Promise<Told>
}

export interface NativeSession {
  readonly id: string | null
  capture(around: Around): Promise<Told | null>
  end(around: Around, outcome: string, exitCode: number | null | undefined): Promise<Told | null>
}

export interface NativeMirror {
  check(around: Around): Promise<void>
  repos(around: Around): Promise<MirroredRepo[]>
  snapshots(around: Around, repo: string): Promise<Told>
  orphans(around: Around, repo: string): Promise<Told[]>
  deleteOrphan(around: Around, orphan: object): Promise<void>
  upload(around: Around, vault: NativeVault, id: string, options: object): Promise<Told>
  resume(around: Around, vault: NativeVault): Promise<NativeUploaded[]>
  queued(around: Around, vault: NativeVault): Promise<string[]>
  fetch(around: Around, vault: NativeVault, id: string, options: object): Promise<Told>
  restore(around: Around, vault: NativeVault, id: string, target: string, options: object): Promise<Restored>
  verify(around: Around, vault: NativeVault, id: string, options: object): Promise<Verified>
}

/** What became of an upload that was in the queue. */
export interface NativeUploaded {
  readonly id: string
  readonly snapshot: Told | null
  readonly error: NativeFailure | null
}

export interface NativeVaultHook {
  save(around: Around, sandbox: NativeSandbox): Promise<Told | null>
  load(around: Around, sandbox: NativeSandbox): Promise<Told | null>
  apply(around: Around, config: NativePersistConfig): Promise<void>
}

export interface NativePersistConfig {
  readonly interval: number | null
  readonly retention: Retention
  readonly rules: Told
  readonly mirror: object | null
  withUserFile(text: string | Uint8Array): NativePersistConfig
  withProjectFile(text: string | Uint8Array): NativePersistConfig
}

export interface NativePersistSettings {
  withHost(text: string | Uint8Array): NativePersistSettings
  resolve(): NativePersistConfig
  pinned(): string[]
  update(change: string | Uint8Array): SettingsChange
  save(around: Around, chosen: string): Promise<void>
}

export interface NativeSandboxes {
  acquire(around: Around, key: string, options: object): Promise<NativeSandbox>
  lazy(around: Around, key: string, options: object): Promise<NativeSandbox>
  find(around: Around, key: string): Promise<SandboxInfo | null>
  confirmMove(around: Around, key: string): Promise<boolean>
  stop(around: Around, key: string): Promise<StopOutcome>
  destroy(around: Around, key: string): Promise<DestroyOutcome>
  events(around: Around): Promise<NativeEvents>
}

export interface NativeStream<T> {
  next(around: Around): Promise<T | null>
  close(): void
}

/** Whoever waits for these alone does not keep the process alive. */
export interface NativeEvents {
  pull(around: Around, heard: (event: Event | null) => void): void
  close(): void
}

export interface NativeDownload extends NativeStream<Buffer> {
  readonly size: number | null
}

export interface NativeCaptured {
  readonly bytes: Buffer
  readonly dropped: number
}

export interface NativeExecOutput {
  readonly exit: ExitStatus
  readonly stdout: NativeCaptured
  readonly stderr: NativeCaptured
}

export interface NativeProcess {
  readonly pid: number
  readonly tag: string | null
  readonly exit: ExitStatus | null
  next(around: Around): Promise<Output | null>
  wait(around: Around): Promise<ExitStatus>
  write(around: Around, data: string | Uint8Array): Promise<void>
  closeStdin(around: Around): Promise<void>
  resize(around: Around, cols: number, rows: number): Promise<void>
  signal(around: Around, signal: number): Promise<boolean>
}

/** A body that is fed while a write reads it. */
export interface NativeUpload {
  push(piece: string | Uint8Array): Promise<boolean>
  end(): void
  fail(thrown: unknown, origin: NativeFailure | undefined): Promise<void>
}

export interface NativeSandbox {
  readonly key: string
  readonly owner: string
  readonly providerId: string | null
  readonly provider: string
  readonly generation: string | null
  readonly outcome: 'created' | 'connected' | null
  readonly facts: Facts | null
  readonly instructions: string
  detach(): void
  cloneWith(options: CloneOptions): NativeSandbox
  exec(around: Around, command: string | readonly string[], options: object): Promise<NativeExecOutput>
  start(around: Around, command: string | readonly string[], options: object): Promise<NativeProcess>
  attach(around: Around, process: number | string, options: object): Promise<NativeProcess>
  processes(around: Around): Promise<ProcessInfo[]>
  signal(around: Around, process: number | string, signal: number): Promise<boolean>
  release(around: Around, process: number | string): Promise<boolean>
  read(around: Around, path: string, options: object): Promise<NativeDownload>
  readBytes(around: Around, path: string): Promise<Buffer>
  readText(around: Around, path: string): Promise<string>
  write(around: Around, path: string, body: NativeUpload | string | Uint8Array, options: object): Promise<EntryInfo>
  stat(around: Around, path: string, options: object): Promise<EntryInfo>
  exists(around: Around, path: string): Promise<boolean>
  list(around: Around, path: string, options: object): Promise<EntryInfo[]>
  makeDir(around: Around, path: string, options: object): Promise<EntryInfo>
  rename(around: Around, source: string, destination: string, options: object): Promise<EntryInfo>
  remove(around: Around, path: string, options: object): Promise<void>
  watch(around: Around, path: string, options: object): Promise<NativeStream<WatchEvent>>
  info(around: Around): Promise<SandboxInfo>
  pause(around: Around): Promise<PauseOutcome>
  save(around: Around): Promise<void>
  resume(around: Around): Promise<void>
  stop(around: Around): Promise<StopOutcome>
  destroy(around: Around): Promise<DestroyOutcome>
  setLease(around: Around, lease: number): Promise<void>
}

/** One call of a hook. */
export interface NativeHookCall {
  readonly sandbox: NativeSandbox
  readonly outcome: 'created' | 'connected' | null
  readonly setup: 'needed' | 'done' | null
  readonly facts: Facts | null
  readonly memory: 'kept' | 'lost' | null
  readonly scope: NativeScope
  resolve(files: unknown): void
  reject(thrown: unknown, origin: NativeFailure | undefined): void
}

/** What a foreground command writes, as it comes; an empty piece is none. */
export type NativeListener = (stream: OutputStream, data: Buffer) => void

export interface Native {
  NativeCall: new (scope: NativeScope | undefined) => NativeCall
  NativeFailure: new () => NativeFailure
  NativeThrown: new () => NativeThrown
  NativeLocalProvider: new (options: object, packagedHelper: string | undefined) => NativeLocalProvider
  NativeE2BProvider: new (options: object, recipe: NativeRecipe | undefined) => NativeE2BProvider
  NativeProviders: new (
    options: object,
    packagedHelper: string | undefined,
    recipe: NativeRecipe | undefined
  ) => NativeProviders
  NativeRecipe: {
    fromImage(image: string): NativeRecipe
    fromTemplate(template: string): NativeRecipe
    fromDockerfileText(text: string, context: string, args: Record<string, string>): NativeRecipe
  }
  NativeRegistry: new (url: string) => NativeRegistry
  NativeReconciler: new (provider: NativeProvider, registry: NativeRegistry, options: object) => NativeReconciler
  NativeVault: new (home: string, key: string, inRepo: boolean) => NativeVault
  NativeMirror: new (config: object) => NativeMirror
  NativeVaultHook: new (
    vault: NativeVault,
    path: string,
    mirror: NativeMirror | undefined,
    options: object
  ) => NativeVaultHook
  NativeSandboxes: new (
    provider: NativeProvider,
    persist: NativeVaultHook | undefined,
    providers: NativeProviders | undefined,
    options: object
  ) => NativeSandboxes
  NativeUpload: new () => NativeUpload
  errorKinds(): string[]
  recipeFromDockerfile(around: Around, path: string, args: Record<string, string>): Promise<NativeRecipe>
  NativePersistConfig: new () => NativePersistConfig
  NativePersistSettings: new () => NativePersistSettings
  loadPersistConfig(around: Around, user?: string | null, project?: string | null): Promise<NativePersistConfig>
  loadPersistSettings(around: Around, user?: string | null, chosen?: string | null): Promise<NativePersistSettings>
  bundleHeader(around: Around, path: string): Promise<BundleHeader>
  repoKeyOf(around: Around, workspace: string): Promise<string>
}

/** Where the native part is: in this package, or in the one for this platform. */
function place(): string {
  const root = join(__dirname, '..')
  if (existsSync(join(root, 'sandhold.node'))) return root
  const header = (process.report?.getReport() as { header?: { glibcVersionRuntime?: string } } | undefined)?.header
  const libc = process.platform !== 'linux' ? '' : header?.glibcVersionRuntime ? '-gnu' : '-musl'
  const name = `@sandhold/node-${process.platform}-${process.arch}${libc}`
  try {
    return dirname(require.resolve(`${name}/package.json`))
  } catch (cause) {
    throw new Error(`sandhold has no native part here: the package ${name} is not installed, or there is none for this platform`, { cause })
  }
}

const root = place()

export const native: Native = require(join(root, 'sandhold.node'))

const helper = join(root, 'bin', 'sandhold-helper')

/** The helper program that lies in this package, where it was built with one. */
export const packagedHelper: string | undefined = existsSync(helper) ? helper : undefined
