/** What shapes calls. Times are milliseconds; `undefined` and `null` are as good as not given. */
import type { CallOptions } from './call'
import type { Hooks } from './hooks'
import type { VaultHook } from './persist'
import type { OutputStream } from './values'

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
  mastraOwner?: Maybe<string>
}
