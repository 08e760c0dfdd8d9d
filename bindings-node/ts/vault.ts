/** Snapshots of workspaces that cannot be lost, and their restore. */
import { call, type CallOptions } from './call'
import { failed, now, type SandboxError } from './errors'
import { dated, sideManifest } from './facts'
import { native, type NativeMirror, type NativeSession, type NativeVault } from './native'
import type {
  AdoptOptions,
  BranchOptions,
  BudgetOptions,
  BundleOptions,
  CaptureOptions,
  FetchOptions,
  GcOptions,
  ImportOptions,
  AzureOptions,
  GcsOptions,
  MirrorOptions,
  MirrorVerifyOptions,
  RepositoryRepairOptions,
  RestoreOptions,
  Retention,
  S3Options,
  VerifyOptions
} from './options'
import type { Sandbox } from './sandbox'
import type {
  Bundle,
  BundleHeader,
  Collected,
  Examined,
  Fetched,
  Imported,
  MirroredRepo,
  MirroredSnapshots,
  Orphan,
  Pruned,
  Repaired,
  RepositoryRepaired,
  Restored,
  RestoredBranch,
  SideManifest,
  Snapshot,
  Unfinished,
  Verified
} from './values'

/** A store of snapshots, in a bare git repository outside of every workspace. It is opened by the first call. */
export class Vault {
  /** @internal */
  readonly native: NativeVault

  /** `home` is the directory of all vaults on this machine, `key` names one of them. */
  constructor(home: string, key: string)
  /** @internal */
  constructor(home: string, key: string, inRepo: boolean)
  constructor(home: string, key: string, inRepo = false) {
    this.native = now(() => new native.NativeVault(home, key, inRepo))
  }

  /** Keeps snapshots in the git repository of a workspace, below `refs/sandbox/snapshots/`. */
  static inRepo(workspace: string, key: string): Vault {
    return new Vault(workspace, key, true)
  }

  /** Says by what key the vault of a workspace is best called: the same in every clone of its repository. */
  static keyOf(workspace: string, options: CallOptions = {}): Promise<string> {
    return call(options.signal, around => native.repoKeyOf(around, workspace))
  }

  /** Says what a bundle holds and needs, without taking it. */
  static bundleHeader(path: string, options: CallOptions = {}): Promise<BundleHeader> {
    return call(options.signal, around => native.bundleHeader(around, path))
  }

  /** The key. */
  get key(): string {
    return this.native.key
  }

  /** Returns the git repository that it is. */
  gitDir(options: CallOptions = {}): Promise<string> {
    return call(options.signal, around => this.native.gitDir(around))
  }

  /** Captures a directory of this machine. Where nothing has changed: `InvalidStateError`, reason `nothing_to_snapshot`. */
  async capture(workspace: string, options: CaptureOptions = {}): Promise<Snapshot> {
    const { signal, ...rest } = options
    return dated(await call(signal, around => this.native.capture(around, workspace, rest)))
  }

  /** Captures a directory inside a sandbox; `null` where nothing has changed. */
  async captureSandbox(sandbox: Sandbox, path: string, options: CaptureOptions = {}): Promise<Snapshot | null> {
    const { signal, ...rest } = options
    return dated(await call(signal, around => this.native.captureSandbox(around, sandbox.native, path, rest)))
  }

  /** Captures the state before a run; `null` where it is known already. */
  async captureBaseline(workspace: string, options: CaptureOptions = {}): Promise<Snapshot | null> {
    const { signal, ...rest } = options
    return dated(await call(signal, around => this.native.captureBaseline(around, workspace, rest)))
  }

  /** Begins a session over a directory of this machine: one snapshot that moves along. */
  async begin(workspace: string, options: CaptureOptions = {}): Promise<Session> {
    const { signal, ...rest } = options
    return new Session(await call(signal, around => this.native.begin(around, workspace, rest)))
  }

  /** Goes on with the session of a snapshot. */
  async resume(id: string, options: CaptureOptions = {}): Promise<Session> {
    const { signal, ...rest } = options
    return new Session(await call(signal, around => this.native.resume(around, id, rest)))
  }

  /** Writes a snapshot back to a directory of this machine, byte for byte. */
  restore(id: string, target: string, options: RestoreOptions = {}): Promise<Restored> {
    const { signal, ...rest } = options
    return call(signal, around => this.native.restore(around, id, target, rest))
  }

  /** Writes a snapshot back to a directory inside a sandbox. */
  restoreSandbox(sandbox: Sandbox, path: string, id: string, options: RestoreOptions = {}): Promise<Restored> {
    const { signal, ...rest } = options
    return call(signal, around => this.native.restoreSandbox(around, sandbox.native, path, id, rest))
  }

  /** Adds a branch with the snapshot to the repository of a workspace; no file of it is touched. */
  restoreBranch(id: string, workspace: string, options: BranchOptions = {}): Promise<RestoredBranch> {
    const { signal, ...rest } = options
    return call(signal, around => this.native.restoreBranch(around, id, workspace, rest))
  }

  /** Writes what a snapshot differs in from its commit as a patch; returns the size. */
  restorePatch(id: string, file: string, options: CallOptions = {}): Promise<number> {
    return call(options.signal, around => this.native.restorePatch(around, id, file))
  }

  /** Lists restores whose end is not recorded. */
  unfinishedRestores(options: CallOptions = {}): Promise<Unfinished[]> {
    return call(options.signal, around => this.native.unfinishedRestores(around))
  }

  /** Lists all snapshots, the newest first. */
  async snapshots(options: CallOptions = {}): Promise<Snapshot[]> {
    return dated(await call(options.signal, around => this.native.snapshots(around)))
  }

  /** Returns the snapshot of an id, or of the beginning of one. */
  async snapshot(id: string, options: CallOptions = {}): Promise<Snapshot> {
    return dated(await call(options.signal, around => this.native.snapshot(around, id)))
  }

  /** Returns the newest snapshot of a directory inside the sandboxes of a key; `null` where there is none. */
  async newestOfSandbox(key: string, path: string, options: CallOptions = {}): Promise<Snapshot | null> {
    return dated(await call(options.signal, around => this.native.newestOfSandbox(around, key, path)))
  }

  /** Tells what git cannot hold of a snapshot, and what was not captured. */
  async sideManifest(id: string, options: CallOptions = {}): Promise<SideManifest> {
    return sideManifest(await call(options.signal, around => this.native.sideManifest(around, id)))
  }

  /** Looks whether a snapshot could be restored. */
  verify(id: string, options: VerifyOptions = {}): Promise<Examined> {
    const { signal, ...rest } = options
    return call(signal, around => this.native.verify(around, id, rest))
  }

  /** Looks whether each snapshot could be restored. */
  verifyAll(options: VerifyOptions = {}): Promise<Examined[]> {
    const { signal, ...rest } = options
    return call(signal, around => this.native.verifyAll(around, rest))
  }

  /** Deletes what no snapshot needs. */
  gc(options: GcOptions = {}): Promise<Collected> {
    const { signal, ...rest } = options
    return call(signal, around => this.native.gc(around, rest))
  }

  /** Mends what can be mended, and says what is lost. */
  repair(options: BudgetOptions = {}): Promise<Repaired> {
    const { signal, ...rest } = options
    return call(signal, around => this.native.repair(around, rest))
  }

  /** Puts right what keeps git from working in a workspace; no file of it is touched. */
  repairRepository(workspace: string, options: RepositoryRepairOptions = {}): Promise<RepositoryRepaired> {
    const { signal, ...rest } = options
    return call(signal, around => this.native.repairRepository(around, workspace, rest))
  }

  /** Deletes snapshots that are older, or more, than is wanted; `dry` only says which. */
  prune(retention: Retention = {}): Promise<Pruned> {
    const { signal, ...rest } = retention
    return call(signal, around => this.native.prune(around, rest))
  }

  /** Says how long a snapshot is kept, such as `168h`; `null` takes the rule away. */
  async setRetention(id: string, retention: string | null, options: CallOptions = {}): Promise<Snapshot> {
    return dated(await call(options.signal, around => this.native.setRetention(around, id, retention)))
  }

  /** Writes a snapshot into a file that stands alone. */
  writeBundle(id: string, path: string, options: BundleOptions = {}): Promise<Bundle> {
    const { signal, ...rest } = options
    return call(signal, around => this.native.writeBundle(around, id, path, rest))
  }

  /** Takes the snapshot of a bundle that this library wrote. */
  async importBundle(path: string, options: ImportOptions = {}): Promise<Imported> {
    const { signal, ...rest } = options
    return dated(await call(signal, around => this.native.importBundle(around, path, rest)))
  }

  /** Takes a commit of any git bundle as a snapshot. */
  async adoptBundle(path: string, options: AdoptOptions = {}): Promise<Imported> {
    const { signal, ...rest } = options
    return dated(await call(signal, around => this.native.adoptBundle(around, path, rest)))
  }
}

/** One snapshot that moves along with a run. */
export class Session {
  readonly #native: NativeSession

  /** @internal */
  constructor(native: NativeSession) {
    this.#native = native
  }

  /** The id of its snapshot; `null` before something was captured. */
  get id(): string | null {
    return this.#native.id
  }

  /** Captures now; `null` where nothing has changed. */
  async capture(options: CallOptions = {}): Promise<Snapshot | null> {
    return dated(await call(options.signal, around => this.#native.capture(around)))
  }

  /** Captures for the last time and says how the run ended. */
  async end(outcome: 'clean' | 'signalled' | 'failed', exitCode?: number | null, options: CallOptions = {}): Promise<Snapshot | null> {
    return dated(await call(options.signal, around => this.#native.end(around, outcome, exitCode)))
  }
}

/** What became of an upload that was in the queue. */
export interface Resumed {
  readonly id: string
  /** Its record, where it is in the mirror now. */
  readonly snapshot: Snapshot | null
  /** Why it is not. */
  readonly error: SandboxError | null
}

/** Where copies of snapshots are kept, and which. */
export class MirrorConfig {
  /** @internal */
  readonly config: object

  /** @internal */
  constructor(config: object) {
    this.config = config
  }

  /** Amazon S3, or a server that speaks its protocol. */
  static s3(bucket: string, options: S3Options = {}): MirrorConfig {
    return at('s3', { bucket }, options)
  }

  /** Google Cloud Storage. */
  static gcs(bucket: string, options: GcsOptions = {}): MirrorConfig {
    return at('gcs', { bucket }, options)
  }

  /** Azure Blob Storage. */
  static azure(account: string, container: string, options: AzureOptions = {}): MirrorConfig {
    return at('azure', { account, container }, options)
  }

  /** A directory, such as one of a network file system. */
  static file(path: string, options: MirrorOptions = {}): MirrorConfig {
    return new MirrorConfig({ ...given(options), target: { file: path } })
  }
}

function at(kind: string, place: object, options: S3Options & GcsOptions & AzureOptions): MirrorConfig {
  const { prefix, mode, maxObjectMb, multipartAboveMb, ...target } = options
  return new MirrorConfig({
    ...given({ prefix, mode, maxObjectMb, multipartAboveMb }),
    target: { [kind]: { ...given(target), ...place } }
  })
}

function given(options: object): object {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined && value !== null))
}

/** Copies of snapshots in a bucket or a directory. */
export class Mirror {
  /** @internal */
  readonly native: NativeMirror

  constructor(config: MirrorConfig) {
    if (!(config instanceof MirrorConfig)) throw new TypeError("Mirror() argument 'config': give a MirrorConfig")
    this.native = now(() => new native.NativeMirror(config.config))
  }

  /** Asks whether it can be reached and written to. */
  check(options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.native.check(around))
  }

  /** Lists the vaults that have copies in it. */
  repos(options: CallOptions = {}): Promise<MirroredRepo[]> {
    return call(options.signal, around => this.native.repos(around))
  }

  /** Lists the newest snapshots of a vault that it has. */
  async snapshots(repo: string, options: CallOptions = {}): Promise<MirroredSnapshots> {
    return dated(await call(options.signal, around => this.native.snapshots(around, repo)))
  }

  /** Lists bundles that no snapshot needs any more. */
  async orphans(repo: string, options: CallOptions = {}): Promise<Orphan[]> {
    return dated(await call(options.signal, around => this.native.orphans(around, repo)))
  }

  /** Deletes such a bundle, where that is still true. */
  deleteOrphan(orphan: Orphan, options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => {
      const { uploadedAt, ...rest } = orphan
      return this.native.deleteOrphan(around, { ...rest, uploadedAtMs: uploadedAt.getTime() })
    })
  }

  /** Copies a snapshot there. */
  async upload(vault: Vault, id: string, options: BudgetOptions = {}): Promise<Snapshot> {
    const { signal, ...rest } = options
    return dated(await call(signal, around => this.native.upload(around, vault.native, id, rest)))
  }

  /** Uploads what is in the queue of a vault. */
  async resume(vault: Vault, options: CallOptions = {}): Promise<Resumed[]> {
    const uploads = await call(options.signal, around => this.native.resume(around, vault.native))
    return uploads.map(({ id, snapshot, error }) => ({ id, snapshot: dated(snapshot), error: error === null ? null : failed(error) }))
  }

  /** Lists the snapshots that are in the queue of a vault. */
  queued(vault: Vault, options: CallOptions = {}): Promise<string[]> {
    return call(options.signal, around => this.native.queued(around, vault.native))
  }

  /** Brings a snapshot into a vault, from its own copies or those of the vault that `repo` names. */
  async fetch(vault: Vault, id: string, options: FetchOptions = {}): Promise<Fetched> {
    const { signal, ...rest } = options
    return dated(await call(signal, around => this.native.fetch(around, vault.native, id, rest)))
  }

  /** Restores a snapshot, and fetches it first where this machine has it not. */
  restore(vault: Vault, id: string, target: string, options: RestoreOptions = {}): Promise<Restored> {
    const { signal, ...rest } = options
    return call(signal, around => this.native.restore(around, vault.native, id, target, rest))
  }

  /** Looks at the copy of a snapshot. */
  verify(vault: Vault, id: string, options: MirrorVerifyOptions = {}): Promise<Verified> {
    const { signal, ...rest } = options
    return call(signal, around => this.native.verify(around, vault.native, id, rest))
  }
}
