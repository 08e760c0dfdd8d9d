/** Facts and results. */
import type { NativeCaptured } from './native'

export type AcquireOutcome = 'created' | 'connected'
export type StopOutcome = 'paused' | 'already_paused' | 'left_running' | 'no_sandbox'
export type PauseOutcome = 'paused' | 'already_paused'
export type DestroyOutcome = 'destroyed' | 'already_gone'
export type OutputStream = 'stdout' | 'stderr' | 'pty'

/** How a process ended. A non-zero code is a result, not an error. */
export interface ExitStatus {
  /** The exit code; `null` when a signal ended it. */
  readonly code: number | null
  /** The signal that ended it. */
  readonly signal: number | null
  /** It was ended because its deadline had passed. */
  readonly timedOut: boolean
  /** It was ended because the sandbox ran out of memory. */
  readonly oomKilled: boolean
  /** It exited with code 0. */
  readonly success: boolean
}

/** Captured bytes of one stream: the tail, and how much before it was dropped. */
export class Captured {
  /** The bytes. */
  readonly bytes: Buffer
  /** How many bytes before them were dropped. */
  readonly dropped: number

  /** @internal */
  constructor(captured: NativeCaptured) {
    this.bytes = captured.bytes
    this.dropped = captured.dropped
  }

  /** Returns the bytes as text; what is not UTF-8 becomes U+FFFD. */
  text(): string {
    return this.bytes.toString('utf8')
  }

  toString(): string {
    return this.text()
  }
}

/** The result of a foreground command. */
export interface ExecOutput {
  /** How it ended. */
  readonly exit: ExitStatus
  /** What it wrote to standard output. */
  readonly stdout: Captured
  /** What it wrote to standard error. */
  readonly stderr: Captured
}

/** A piece of what a process wrote. */
export interface Output {
  /** Where. */
  readonly stream: OutputStream
  /** The bytes; characters may be split between pieces. */
  readonly data: Buffer
  /** The position of the first byte in the stream. */
  readonly offset: number
  /** Bytes before it that the retention cap dropped. */
  readonly dropped: number
}

/** Facts about a process inside a sandbox. */
export interface ProcessInfo {
  /** Its id inside the sandbox. */
  readonly pid: number
  /** The tag given at its start. */
  readonly tag: string | null
  /** The program and its arguments. */
  readonly argv: string[]
  /** Where it started. */
  readonly cwd: string | null
  /** How it ended, for a kept one that has. */
  readonly exit: ExitStatus | null
}

/** Facts about one file or directory. */
export interface EntryInfo {
  /** The last part of the path. */
  readonly name: string
  /** The absolute path. */
  readonly path: string
  readonly fileType: 'file' | 'directory' | 'symlink' | 'other'
  /** Its size in bytes. */
  readonly size: number
  /** The permission bits. */
  readonly mode: number
  /** The owner's name, or the number as text. */
  readonly owner: string
  /** The group's name, or the number as text. */
  readonly group: string
  /** When the content was last modified. */
  readonly modifiedAt: Date | null
  /** Where a symbolic link leads. */
  readonly symlinkTarget: string | null
  /** The pairs that were given at the upload. */
  readonly metadata: Record<string, string>
}

/** One event of a watch; after `overflow` look at the whole directory again. */
export interface WatchEvent {
  /** The path relative to the watched directory. */
  readonly name: string
  readonly kind: 'create' | 'write' | 'remove' | 'rename' | 'chmod' | 'overflow'
  /** Facts of the entry, where asked for. */
  readonly entry: EntryInfo | null
}

/** How strongly a sandbox is separated from its host, as found by running it. */
export interface Isolation {
  readonly namespaces: string[]
  /** The user tier: `full`, `ranges` or `single`. */
  readonly users: string
  /** What the root view is made of. */
  readonly filesystem: string
  readonly network: string
  /** Whether a system call filter is on. */
  readonly seccomp: boolean
  /** What enforces the limits. */
  readonly limits: string
  /** What freezes the processes. */
  readonly freezer: string
}

/** Facts about one sandbox, as its provider tells them. */
export interface SandboxInfo {
  /** The provider's id. */
  readonly id: string
  readonly state: 'running' | 'paused' | 'stopped' | 'transitioning'
  /** The namespace of its key; `null` when it was made elsewhere. */
  readonly owner: string | null
  readonly key: string | null
  /** The identity of this very sandbox. */
  readonly generation: string | null
  readonly template: string
  /** When it was created, by the provider's clock. */
  readonly createdAt: Date
  /** When its present run began. */
  readonly startedAt: Date
  /** When its lease ends; `null` means never. */
  readonly expiresAt: Date | null
  readonly metadata: Record<string, string>
  /** The isolation in force, where the provider tells. */
  readonly isolation: Isolation | null
  /** What it outlives: `host_process`, `service`, or empty. */
  readonly survives: string
}

/** How a sandbox came to an acquire. */
export interface Facts {
  readonly how: 'fresh' | 'replaced' | 'adopted' | 'unfinished' | 'attached' | 'resumed'
  /** The id of the sandbox whose place it took. */
  readonly replaced: string | null
  /** What became of its memory; `null` when it was running. */
  readonly resumed: 'kept' | 'lost' | null
  /** It was running. */
  readonly attached: boolean
  /** Our own create made it, and the answer was lost. */
  readonly adopted: boolean
  readonly setup: 'needed' | 'done'
  /** Another caller in this process did the work. */
  readonly joined: boolean
  /** The snapshot that was put back. */
  readonly restored: string | null
  /** Other sandboxes of this key that were found and left alone. */
  readonly duplicates: string[]
}

/** Something that happened to the sandbox of a key. `lagged` stands for missed ones: `details.missed` tells how many. */
export interface Event {
  readonly owner: string
  readonly key: string
  /** The provider's id, where there is one. */
  readonly id: string | null
  /** When, by this machine's clock. */
  readonly at: Date
  /** What, such as `started`. */
  readonly kind: string
  /** More about it, by name. */
  readonly details: Record<string, unknown>
}
