/** What shapes calls. Times are milliseconds; `undefined` and `null` are as good as not given. */
import type { CallOptions } from './call'
import type { Hooks } from './hooks'
import type { VaultHook } from './persist'
import type { Providers } from './provider'
import type { Recipe } from './templates'
import type { OutputStream } from './values'
import type { Mirror, MirrorConfig } from './vault'

type Maybe<T> = T | null | undefined

/** Limits of the whole sandbox; default none. */
export interface Resources {
  /** Thousandths of a processor. */
  cpuMillis?: Maybe<number>
  /** Bytes. */
  memory?: Maybe<number>
  pids?: Maybe<number>
  /** Bytes. */
  disk?: Maybe<number>
}

/** What kind of box is asked for: also so many graphics processors of the provider's name, or a container image. */
export type Kind = 'standard' | 'privileged' | { gpu: string; count?: number } | { image: string }

/** A directory that appears inside the sandbox at `path`. */
export type Mount =
  | { path: string; /** A host directory, read-only unless `writable`. */ hostDir: string; writable?: boolean }
  | { path: string; /** A host directory that several sandboxes share, writable from inside. */ sharedDir: string }
  | { path: string; /** A volume of the provider. */ volume: string }

/** How a sandbox is to be made. */
export interface Spec {
  template?: Maybe<string>
  user?: Maybe<string>
  home?: Maybe<string>
  workdir?: Maybe<string>
  env?: Maybe<Record<string, string>>
  metadata?: Maybe<Record<string, string>>
  resources?: Maybe<Resources>
  network?: Maybe<'none' | 'loopback' | 'host'>
  /** How long it lives after its last use, in milliseconds. */
  lease?: Maybe<number>
  onExpiry?: Maybe<'pause' | 'kill'>
  kind?: Maybe<Kind>
  mounts?: Maybe<readonly Mount[]>
}

/** How a sandbox is to be made, and what an acquire may do. */
export interface AcquireOptions extends Spec, Hooks, CallOptions {
  /** The sandbox that the key is to have, where the provider has it already. */
  providerId?: Maybe<string>
  replaceWhenGone?: Maybe<'create' | 'fail'>
  onGone?: Maybe<'fail' | 'reacquire'>
  onDuplicates?: Maybe<'report' | 'reap'>
  onSpecConflict?: Maybe<'error' | 'keep' | 'replace'>
  onSetupFailure?: Maybe<'keep' | 'destroy'>
  /** What becomes of a sandbox that could not be resumed. Default `keep`. */
  onResumeFailure?: Maybe<'keep' | 'destroy'>
  exclusion?: Maybe<'proven' | 'best_effort'>
  /** How long one call to the provider may take, in milliseconds. Default 60 000. */
  callDeadline?: Maybe<number>
  /** How long the whole acquire may take, in milliseconds. Default 180 000. */
  deadline?: Maybe<number>
}

/** What a host is made with. */
export interface HostOptions extends Hooks {
  /** `memory:` (the default), `file:/directory`, `sqlite:/path` or `postgres://...`. */
  registry?: Maybe<string>
  /** Keeps the work of a key. */
  persist?: Maybe<VaultHook>
  /** Leaves the sandboxes of records that name another of these providers with that one. */
  providers?: Maybe<Providers>
  /** The namespace of all keys. Default `default`. */
  owner?: Maybe<string>
  /** How long a call waits for another host that is at work on its key, in milliseconds. */
  waitLimit?: Maybe<number>
  /** How long a lease on a key's record holds without renewal, in milliseconds. Default 90 000. */
  recordLease?: Maybe<number>
  /** How many events wait for a listener. Default 256. */
  eventCapacity?: Maybe<number>
}

/** What differs between a sandbox and a clone of its spec. */
export interface CloneOptions {
  key?: Maybe<string>
  providerId?: Maybe<string>
  env?: Maybe<Record<string, string>>
  lease?: Maybe<number>
  workdir?: Maybe<string>
}

interface Surroundings extends CallOptions {
  env?: Maybe<Record<string, string>>
  cwd?: Maybe<string>
  user?: Maybe<string>
  /** How long a process has between the signal that asks it to end and the one that kills it. */
  grace?: Maybe<number>
}

export interface ExecOptions extends Surroundings {
  /** In milliseconds; 0 is none. Default 60 000. */
  timeout?: Maybe<number>
  /** What it reads; none by default. */
  stdin?: Maybe<string | Uint8Array>
  /** How many bytes of each stream are kept: the tail. Default 1 MiB. */
  outputLimit?: Maybe<number>
  /** Gets the output as it comes. One that throws ends the command. */
  onOutput?: Maybe<(stream: OutputStream, data: Buffer) => unknown>
}

export interface StartOptions extends Surroundings {
  stdin?: Maybe<'closed' | 'open'>
  /** A terminal of this size. */
  pty?: Maybe<{ cols: number; rows: number }>
  /** A name to find it by. */
  tag?: Maybe<string>
  /** How many bytes of its output are kept inside, for those who attach later. */
  retain?: Maybe<number>
  deadline?: Maybe<number>
}

export interface AttachOptions extends CallOptions {
  /** Begins with the output that was kept. */
  replay?: Maybe<boolean>
  /** Begins at these positions of the streams. */
  stdout?: Maybe<number>
  stderr?: Maybe<number>
  pty?: Maybe<number>
}

export interface FileOptions extends CallOptions {
  /** Who does it. Default the sandbox's user. */
  user?: Maybe<string>
}

export interface ReadOptions extends FileOptions {
  offset?: Maybe<number>
  length?: Maybe<number>
}

export interface WriteOptions extends FileOptions {
  /** Pairs to keep with the file. */
  metadata?: Maybe<Record<string, string>>
  /** The size of a body that comes in pieces, where it is known. */
  size?: Maybe<number>
}

export interface ListOptions extends FileOptions {
  /** How many levels. Default 1. */
  depth?: Maybe<number>
}

export interface WatchOptions extends FileOptions {
  recursive?: Maybe<boolean>
  /** Adds facts of the entry to each event. */
  includeEntry?: Maybe<boolean>
}

/** What a file is written from. A Node.js stream and a web stream are asynchronous iterables. */
export type Body =
  | string
  | Uint8Array
  | ArrayBuffer
  | Blob
  | Iterable<string | Uint8Array>
  | AsyncIterable<string | Uint8Array>

export interface LocalOptions {
  /** The state directory. Default `$SANDHOLD_HOME`, else `$XDG_STATE_HOME/sandhold`. */
  home?: Maybe<string>
  /** The program `sandhold-helper`. Default the one of this package. */
  helper?: Maybe<string>
  /** What this machine must be able to do; checked before anything is made. */
  requirements?: Maybe<
    readonly ('several_users' | 'writable_usr' | 'seccomp' | 'limits' | 'kernel_freezer' | 'no_network')[]
  >
  inMemory?: Maybe<boolean>
  startTimeout?: Maybe<number>
}

/** What is not given is read from the environment, as the official SDKs do. */
export interface E2bOptions {
  apiKey?: Maybe<string>
  domain?: Maybe<string>
  apiUrl?: Maybe<string>
  sandboxUrl?: Maybe<string>
  volumeUrl?: Maybe<string>
  debug?: Maybe<boolean>
  allowPlaintext?: Maybe<boolean>
  headers?: Maybe<Record<string, string>>
  requestTimeout?: Maybe<number>
  lease?: Maybe<number>
  maxRun?: Maybe<number>
  listVisibility?: Maybe<number>
  publicTraffic?: Maybe<'token_only' | 'everybody'>
  autoResume?: Maybe<'off' | 'on_traffic'>
  /** The owner of sandboxes that Mastra made, which are attached too. */
  mastraOwner?: Maybe<string>
  retry?: Maybe<Retry>
  /** The network policy of creates, in E2B's own words. */
  network?: Maybe<object>
  /** A template of one's own behind `base`. */
  defaultTemplate?: Maybe<DefaultTemplate>
}

/** When a request is sent again. */
export interface Retry {
  /** Attempts after the first. Default 4. */
  maxRetries?: Maybe<number>
  /** In milliseconds. Default 200. */
  initialBackoff?: Maybe<number>
  /** In milliseconds. Default 10 000. */
  maxBackoff?: Maybe<number>
  /** Of all attempts and waits together, in milliseconds. Default 60 000. */
  budget?: Maybe<number>
}

/** A provider by name, and what it is made with. */
export interface ProvidersOptions {
  local?: Maybe<LocalOptions>
  e2b?: Maybe<E2bOptions>
}

export interface ListFilter extends CallOptions {
  owner?: Maybe<string>
  key?: Maybe<string>
  /** Default all. */
  states?: Maybe<readonly ('running' | 'paused' | 'stopped' | 'transitioning')[]>
  /** Pairs that its metadata has. */
  metadata?: Maybe<Record<string, string>>
}

export interface PauseOptions extends CallOptions {
  /** Whether its memory is kept. Default `kept`. */
  memory?: Maybe<'kept' | 'lost'>
}

export interface SnapshotOptions extends CallOptions {
  name?: Maybe<string>
  /** Whether its memory is kept too. */
  memory?: Maybe<'kept' | 'lost'>
}

export interface SnapshotFilter extends CallOptions {
  /** The id of the sandbox that they were taken of. */
  sandbox?: Maybe<string>
  name?: Maybe<string>
}

export interface ForkOptions extends CallOptions {
  /** The key of the new sandbox. */
  key: string
  /** The namespace of the key. Default `default`. */
  owner?: Maybe<string>
  lease?: Maybe<number>
}

export interface LogOptions extends CallOptions {
  /** Only what was logged since. */
  since?: Maybe<Date | number>
  /** How many lines. */
  limit?: Maybe<number>
}

export interface SignOptions {
  /** Whose file it is. */
  user?: Maybe<string>
  /** How long it holds, in milliseconds. Default for ever. */
  expires?: Maybe<number>
}

export interface CopyOptions {
  /** Who the files belong to. */
  user?: Maybe<string>
  /** Their permission bits. */
  mode?: Maybe<number>
}

/** What a template is to be called, and how large its sandboxes are. */
export interface BuildOptions extends CallOptions {
  name: string
  tags?: Maybe<readonly string[]>
  cpuCount?: Maybe<number>
  memoryMb?: Maybe<number>
  /** Makes every step anew. */
  force?: Maybe<boolean>
}

/** The template behind `base`: built by the first create that needs it. */
export interface DefaultTemplate extends Omit<BuildOptions, 'signal'> {
  recipe: Recipe
}

export interface VolumeOptions extends CallOptions {
  uid?: Maybe<number>
  gid?: Maybe<number>
  /** The permission bits. */
  mode?: Maybe<number>
  /** Makes parents, and overwrites a file that is there. */
  force?: Maybe<boolean>
}

export interface VolumeListOptions extends CallOptions {
  /** How many levels. Default 1. */
  depth?: Maybe<number>
}

export interface MetadataOptions extends CallOptions {
  /** Pairs to keep with it. */
  metadata?: Maybe<Record<string, string>>
}

export interface RecordFilter extends CallOptions {
  owner?: Maybe<string>
  /** The provider's name. */
  provider?: Maybe<string>
  phases?: Maybe<readonly ('creating' | 'ready' | 'pausing' | 'paused' | 'resuming' | 'destroying')[]>
  /** How long it is in its phase at least, in milliseconds. */
  minAge?: Maybe<number>
}

export interface ReconcileOptions {
  /** Only the keys of this owner. */
  owner?: Maybe<string>
  /** Leaves alone what is younger, in milliseconds. Default 3 600 000. */
  minAge?: Maybe<number>
}

/** What a plan may remove beyond what is provably finished. All default to `keep`. */
export interface ReconcilePolicy {
  /** Sandboxes that no record names. */
  unrecorded?: Maybe<'keep' | 'remove'>
  /** Sandboxes beside the one that their key keeps. */
  duplicates?: Maybe<'keep' | 'remove'>
  /** Records whose sandbox is gone. */
  missing?: Maybe<'keep' | 'remove'>
}

/** How far an operation is. */
export interface Progress {
  readonly phase: 'scanning' | 'storing' | 'restoring'
  /** Files that are finished in this phase. */
  readonly files: number
  readonly total: number | null
  readonly bytes: number
}

export interface BudgetOptions extends CallOptions {
  /** How long it may take, in milliseconds. Default without end. */
  budget?: Maybe<number>
}

/** How a workspace is captured. */
export interface CaptureOptions extends BudgetOptions {
  /** A name for people. */
  label?: Maybe<string>
  /** The agent that works in it. */
  agent?: Maybe<string>
  /** How long it is kept, such as `168h`. */
  retention?: Maybe<string>
  /** What must be in it; a receipt says whether it is. */
  survivePaths?: Maybe<readonly string[]>
  surviveGlobs?: Maybe<readonly string[]>
  /** The commit that the workspace is at must be in it, with its history. */
  surviveGit?: Maybe<boolean>
  /** Larger files are not captured, in bytes; 0 is no limit. Default 10 MiB. */
  maxFile?: Maybe<number>
  /** Keeps the last state of files that have become too large. */
  keepLast?: Maybe<boolean>
  /** Globs of what is never captured. */
  never?: Maybe<readonly string[]>
  /** Leaves out `.env` files. */
  skipEnvFiles?: Maybe<boolean>
  /** Leaves out private keys. */
  skipPrivateKeys?: Maybe<boolean>
  mtimes?: Maybe<boolean>
  xattrs?: Maybe<boolean>
  /** Whether the commit that the workspace is at is copied with its history. */
  history?: Maybe<boolean>
  /** The only paths that may have changed. */
  dirty?: Maybe<readonly string[]>
  threads?: Maybe<number>
  /** Captures also where nothing has changed. */
  force?: Maybe<boolean>
  progress?: Maybe<(progress: Progress) => void>
}

/** How a snapshot is written back. */
export interface RestoreOptions extends BudgetOptions {
  /** What happens where the target holds work that no snapshot has. Default `refuse`. */
  onDirty?: Maybe<'refuse' | 'capture'>
  /** What happens to names that this machine cannot have. Default `refuse`. */
  onUnfit?: Maybe<'refuse' | 'rename'>
  /** Has every file on disk before it is told done. */
  sync?: Maybe<boolean>
  threads?: Maybe<number>
  force?: Maybe<boolean>
  progress?: Maybe<(progress: Progress) => void>
}

export interface VaultHookOptions {
  /** How often work is saved while a sandbox is in use, in milliseconds; 0 is never. Default 300 000. */
  interval?: Maybe<number>
  capture?: Maybe<Omit<CaptureOptions, 'signal'>>
  restore?: Maybe<Omit<RestoreOptions, 'signal'>>
  /** Where copies go, and where what this machine has not is fetched from. */
  mirror?: Maybe<MirrorConfig | Mirror>
}

export interface BranchOptions extends CallOptions {
  /** Default `sandbox-recover/<branch>-<id>`. */
  name?: Maybe<string>
}

export interface VerifyOptions extends BudgetOptions {
  /** Default `content`. */
  depth?: Maybe<'reachable' | 'sums' | 'content'>
}

export interface GcOptions extends BudgetOptions {
  /** Leaves alone what is younger, in milliseconds. */
  minAge?: Maybe<number>
  maxPacks?: Maybe<number>
}

/** Which snapshots go. Ages are milliseconds. */
export interface Retention extends CallOptions {
  /** The age of snapshots of runs. */
  runs?: Maybe<number>
  /** The age of snapshots that somebody asked for. */
  manual?: Maybe<number>
  maxCount?: Maybe<number>
  maxBytes?: Maybe<number>
  /** Keeps what has no copy in a mirror. */
  requireMirror?: Maybe<boolean>
  superseded?: Maybe<boolean>
  /** Deletes nothing and says what would go. */
  dry?: Maybe<boolean>
}

export interface BundleOptions extends BudgetOptions {
  /** Snapshots that the reader has. */
  since?: Maybe<readonly string[]>
  branch?: Maybe<string>
}

/** What a bundle may make of itself, in bytes and objects. */
export interface BundleLimits extends BudgetOptions {
  maxFile?: Maybe<number>
  maxObjects?: Maybe<number>
  maxObject?: Maybe<number>
  maxInflated?: Maybe<number>
}

export interface RepositoryRepairOptions extends CallOptions {
  /** The repository that a linked worktree is of. */
  main?: Maybe<string>
  /** What the worktree was at, where no snapshot tells. */
  head?: Maybe<string>
  /** Leaves alone younger locks, in milliseconds. */
  lockAge?: Maybe<number>
}

export interface ImportOptions extends BundleLimits {
  /** The id that it must have. */
  id?: Maybe<string>
  /** The commit that it must hold. */
  expected?: Maybe<string>
  /** Takes one that needs what the vault has. */
  incremental?: Maybe<boolean>
  /** Takes one of another repository. */
  anyRepository?: Maybe<boolean>
}

export interface AdoptOptions extends BundleLimits {
  /** The ref of the bundle, where it has several. */
  reference?: Maybe<string>
  /** The commit that it must hold. */
  expected?: Maybe<string>
  /** Takes one that needs what the vault has. */
  incremental?: Maybe<boolean>
  label?: Maybe<string>
  retention?: Maybe<string>
}

/** Which snapshots go to a mirror, and how. */
export interface MirrorOptions {
  /** What all keys begin with. Default nothing. */
  prefix?: Maybe<string>
  /** Default `manual`: where it is asked for. */
  mode?: Maybe<'off' | 'manual' | 'all'>
  /** Larger bundles are refused; 0 is no limit. Default 1 024. */
  maxObjectMb?: Maybe<number>
  /** Larger bundles go up in parts. Default 64. */
  multipartAboveMb?: Maybe<number>
}

/** A bucket that is reached by the protocol of S3. Keys are read from the named variables of the environment. */
export interface S3Options extends MirrorOptions {
  region?: Maybe<string>
  endpoint?: Maybe<string>
  pathStyle?: Maybe<boolean>
  allowHttp?: Maybe<boolean>
  accessKeyEnv?: Maybe<string>
  secretKeyEnv?: Maybe<string>
  sessionTokenEnv?: Maybe<string>
}

export interface GcsOptions extends MirrorOptions {
  endpoint?: Maybe<string>
  serviceAccountEnv?: Maybe<string>
  accessTokenEnv?: Maybe<string>
}

export interface AzureOptions extends MirrorOptions {
  endpoint?: Maybe<string>
  accessKeyEnv?: Maybe<string>
  sasTokenEnv?: Maybe<string>
}

export interface FetchOptions extends CallOptions {
  /** The key of the vault whose copy it is. Default the own one. */
  repo?: Maybe<string>
}

export interface MirrorVerifyOptions extends CallOptions {
  /** Default `head`. */
  level?: Maybe<'head' | 'digest' | 'full'>
}
