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
  /** Why. */
  readonly replacedBecause: 'gone' | 'other_spec' | null
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
  /** What was promised to survive at that snapshot, and was found there again. */
  readonly receipt: Receipt | null
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

/** What a provider can do. Times are milliseconds. */
export interface Capabilities {
  readonly listVisibility: number | null
  readonly createSettle: number | null
  readonly idempotentCreate: boolean
  readonly findWithoutWaking: boolean
  readonly tags: boolean
  readonly pause: boolean
  readonly pauseKeepsMemory: boolean
  readonly pauseWithoutMemory: boolean
  readonly lease: boolean
  readonly maxLease: number | null
  readonly snapshot: boolean
  readonly snapshotKeepsMemory: boolean
  readonly fork: boolean
  readonly metrics: boolean
  readonly logs: boolean
  readonly updateNetwork: boolean
  readonly dial: boolean
  readonly retainedOutput: boolean
  readonly signalTree: boolean
  readonly hostMounts: boolean
  readonly egressPolicy: boolean
  readonly portAuth: boolean
  readonly binaryExec: boolean
}

/** Facts about a snapshot that a provider keeps. */
export interface SnapshotInfo {
  readonly id: string
  readonly names: string[]
  readonly createdAt: Date | null
  /** The sandbox that it was taken of. */
  readonly sandbox: string | null
}

/** A line that a provider logged. */
export interface LogLine {
  readonly at: Date
  readonly level: string
  readonly message: string
}

/** What a sandbox uses. Sizes are bytes. */
export interface Metrics {
  readonly at: Date | null
  readonly cpuCount: number
  readonly cpuUsedPercent: number
  readonly memoryUsed: number
  readonly memoryCache: number
  readonly memoryTotal: number
  readonly diskUsed: number
  readonly diskTotal: number
}

/** Where a port answers over HTTP, and what requests to it must carry. */
export interface PortAccess {
  readonly url: string
  readonly headers: Record<string, string>
}

/** A volume of an account. */
export interface Volume {
  readonly volumeId: string
  readonly name: string
}

/** A file or directory of a volume. */
export interface VolumeEntry {
  readonly name: string
  readonly path: string
  readonly fileType: 'file' | 'directory' | 'symlink' | 'other'
  readonly size: number
  readonly mode: number
  readonly uid: number
  readonly gid: number
  readonly accessedAt: Date
  readonly modifiedAt: Date
  readonly changedAt: Date
  readonly symlinkTarget: string | null
}

/** A secret, without its value. */
export interface SecretInfo {
  readonly secretId: string
  readonly name: string
  readonly currentVersion: number
  readonly metadata: Record<string, string>
  readonly createdAt: Date | null
  readonly updatedAt: Date | null
}

/** One build of a template. */
export interface BuildInfo {
  readonly buildId: string
  readonly status: 'waiting' | 'building' | 'ready' | 'error'
  readonly createdAt: Date
  readonly updatedAt: Date
  readonly finishedAt: Date | null
  readonly cpuCount: number
  readonly memoryMb: number
  readonly diskSizeMb: number | null
  readonly envdVersion: string | null
}

/** A template, in lists and by name. */
export interface Template {
  readonly templateId: string
  readonly buildId: string
  readonly public: boolean
  readonly names: string[]
  readonly aliases: string[]
  readonly createdAt: Date
  readonly updatedAt: Date
  readonly lastSpawnedAt: Date | null
  readonly spawnCount: number
  readonly buildCount: number
  readonly buildStatus: 'waiting' | 'building' | 'ready' | 'error' | null
  readonly cpuCount: number
  readonly memoryMb: number
  readonly diskSizeMb: number
  readonly envdVersion: string
  /** Only by name. */
  readonly builds: BuildInfo[] | null
}

/** One tag of a template. */
export interface Tag {
  readonly tag: string
  readonly buildId: string
  readonly createdAt: Date
}

/** What got tags. */
export interface AssignedTags {
  readonly buildId: string
  readonly tags: string[]
}

/** How far a build is. */
export interface BuildAnswer {
  readonly status: 'waiting' | 'building' | 'ready' | 'error'
  readonly logs: LogLine[]
  /** Why it failed. */
  readonly message: string | null
  /** The step that failed. */
  readonly step: string | null
}

/** What a vault knows of a snapshot. Objects of git are hex digits. */
export interface Snapshot {
  readonly id: string
  /** How it is best called. */
  readonly status: 'baseline' | 'snapshot' | 'open' | 'interrupted' | 'exited' | 'failed' | 'clean'
  /** Whether its newest state is in a mirror. */
  readonly isMirrored: boolean
  /** The key of the vault. */
  readonly repo: string
  readonly workspace: string
  readonly commit: string
  readonly tree: string
  readonly branch: string | null
  readonly head: string | null
  readonly headAtStart: string | null
  readonly hasHistory: boolean
  readonly startedAt: Date
  readonly capturedAt: Date
  readonly endedAt: Date | null
  readonly outcome: 'clean' | 'signalled' | 'failed' | 'manual' | 'baseline' | null
  readonly exitCode: number | null
  readonly captures: number
  readonly label: string | null
  readonly source: 'run' | 'sdk'
  readonly agent: string | null
  readonly retention: string | null
  /** The sandbox whose workspace it is of, by its key, and the path inside. */
  readonly sandbox: string | null
  readonly files: number
  readonly bytes: number
  /** Paths that were not captured, or not as they should be. */
  readonly skipped: number
  /** What was to survive, and did. */
  readonly receipt: Receipt | null
  /** The copy in a mirror. */
  readonly remote: RemoteCopy | null
}

/** A path that is in a snapshot, as it was promised. */
export interface Promised {
  readonly path: string
  readonly mode: number
  readonly id: string
}

/** What was to survive, and did not. */
export interface Missing {
  readonly what: string
  readonly why: string
}

/** What was to survive, and did. */
export interface Receipt {
  readonly promised: Promised[]
  readonly head: string | null
  readonly missing: Missing[]
}

/** The copy of a snapshot in a mirror. */
export interface RemoteCopy {
  readonly bucket: string
  readonly key: string
  readonly uploadedAt: Date | null
  readonly commit: string | null
  readonly bytes: number | null
  readonly sha256: string | null
  readonly error: string | null
}

/** What git cannot hold of a snapshot, and what was not captured. */
export interface SideManifest {
  readonly version: number
  readonly emptyDirs: string[]
  readonly skipped: { readonly path: string; readonly reason: string; readonly size: number | null }[]
  readonly nested: { readonly path: string; readonly head: string | null; readonly submodule: boolean }[]
  readonly lfsPointers: string[]
  readonly warnings: string[]
}

/** What a restore did. */
export interface Restored {
  readonly id: string
  readonly target: string
  readonly written: number
  readonly untouched: number
  readonly deleted: number
  /** The snapshot of what was there before. */
  readonly saved: string | null
  /** Names that this machine cannot have, and what they are called instead. */
  readonly renamed: [string, string][]
  readonly submodules: string[]
  readonly warnings: string[]
}

/** A branch that a restore added. */
export interface RestoredBranch {
  readonly name: string
  readonly commit: string
  readonly wasThere: boolean
  readonly files: number
  readonly matchesWorkspace: boolean
}

/** A restore whose end is not recorded. */
export interface Unfinished {
  readonly id: string
  readonly target: string
  readonly isNew: boolean
  readonly over: string | null
  readonly writes: string[]
  readonly deletes: string[]
}

/** How sound a snapshot is. */
export interface Examined {
  readonly id: string
  readonly depth: 'reachable' | 'sums' | 'content'
  readonly objects: number
  /** None: it could be restored. */
  readonly flaws: Flaw[]
}

/** What is wrong with a snapshot. */
export interface Flaw {
  readonly object: string | null
  readonly what: string
}

/** What a collection did. */
export interface Collected {
  readonly packs: number
  readonly deleted: number
  readonly copied: number
  readonly freed: number
}

/** What a repair did, and what is lost. */
export interface Repaired {
  readonly records: string[]
  readonly refs: string[]
  readonly indexes: number
  readonly packs: number
  readonly lost: string[]
  readonly incomplete: string[]
}

/** What was done to the repository of a workspace, and what was left to its user. */
export interface RepositoryRepaired {
  /** The administrative directory of a linked worktree that was made again. */
  readonly worktree: string | null
  /** Locks that were removed. */
  readonly locks: string[]
  /** Locks that are too young. */
  readonly held: string[]
  /** What is going on there; it is never touched. */
  readonly inProgress: ('merge' | 'rebase' | 'cherry_pick' | 'revert' | 'bisect')[]
}

/** How a change of settings ended. */
export interface SettingsChange {
  readonly changed: string[]
  /** What only the host has a say in. */
  readonly pinned: string[]
}

/** What a look at all snapshots led to. */
export interface Pruned {
  readonly removed: string[]
  readonly kept: [string, 'last_good' | 'live' | 'not_mirrored' | 'restoring' | 'moved'][]
}

/** A file that holds a snapshot. */
export interface Bundle {
  readonly id: string
  readonly commit: string
  readonly path: string
  readonly bytes: number
  readonly sha256: string
  readonly objects: number
  readonly prerequisites: string[]
}

/** What a bundle holds and needs. */
export interface BundleHeader {
  readonly refs: [string, string][]
  readonly prerequisites: string[]
}

/** What was taken from a bundle. */
export interface Imported {
  readonly snapshot: Snapshot
  /** Whether the commit was known before, or only the bundle speaks for itself. */
  readonly provenance: 'known' | 'bundle_alone'
  readonly objects: number
  readonly wasHere: boolean
}

/** A vault that has copies in a mirror. */
export interface MirroredRepo {
  readonly key: string
  readonly snapshots: number
  readonly newest: string
  readonly bytes: number
}

/** A snapshot in a mirror. */
export interface MirroredSnapshot {
  readonly snapshot: Snapshot
  /** Whether its bundle is there. */
  readonly isWhole: boolean
}

/** The newest snapshots of a vault in a mirror. */
export interface MirroredSnapshots {
  readonly snapshots: MirroredSnapshot[]
  readonly total: number
  readonly unreadable: string[]
}

/** A bundle that no snapshot needs any more. */
export interface Orphan {
  readonly repo: string
  readonly id: string
  readonly commit: string
  readonly key: string
  readonly bytes: number
  readonly uploadedAt: Date
  readonly isSuperseded: boolean
}

/** A snapshot that was brought from a mirror. */
export interface Fetched {
  readonly snapshot: Snapshot
  readonly provenance: 'known' | 'bundle_alone'
  readonly wasHere: boolean
}

/** A copy that was found as it should be. */
export interface Verified {
  readonly level: 'head' | 'digest' | 'full'
  readonly provenance: 'known' | 'bundle_alone'
  readonly key: string
  readonly bytes: number
  readonly sha256: string | null
}
