/**
 * The native part, as `src` has it. Its names begin with `Native` and are not for users; a test compares this list with what
 * was built.
 *
 * @internal
 */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import type { CloneOptions } from './options'
import type {
  DestroyOutcome,
  EntryInfo,
  Event,
  ExitStatus,
  Facts,
  Output,
  OutputStream,
  PauseOutcome,
  ProcessInfo,
  SandboxInfo,
  StopOutcome,
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
}

export interface NativeLocalProvider extends NativeProvider {
  readonly home: string
}

export interface NativeVaultHook {
  readonly [opaque]: 'vault'
}

export interface NativeSandboxes {
  acquire(around: Around, key: string, options: object): Promise<NativeSandbox>
  lazy(around: Around, key: string, options: object): Promise<NativeSandbox>
  find(around: Around, key: string): Promise<SandboxInfo | null>
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
  NativeE2bProvider: new (options: object) => NativeProvider
  NativeVaultHook: new (home: string, key: string, path: string, options: object) => NativeVaultHook
  NativeSandboxes: new (
    provider: NativeProvider,
    persist: NativeVaultHook | undefined,
    options: object
  ) => NativeSandboxes
  NativeUpload: new () => NativeUpload
  errorKinds(): string[]
}

const root = join(__dirname, '..')

export const native: Native = require(join(root, 'sandhold.node'))

const helper = join(root, 'bin', 'sandhold-helper')

/** The helper program that lies in this package, where it was built with one. */
export const packagedHelper: string | undefined = existsSync(helper) ? helper : undefined
