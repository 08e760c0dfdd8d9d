/** Where sandboxes are. */
import { SandboxAccess } from './access'
import { call, type CallOptions } from './call'
import { now } from './errors'
import {
  native,
  packagedHelper,
  type NativeE2BProvider,
  type NativeLocalProvider,
  type NativeProvider,
  type NativeProviders
} from './native'
import type {
  E2bOptions,
  ForkOptions,
  ListFilter,
  LocalOptions,
  LogOptions,
  PauseOptions,
  ProvidersOptions,
  SnapshotFilter,
  SnapshotOptions
} from './options'
import { Stream } from './stream'
import { Templates } from './templates'
import type { Capabilities, DestroyOutcome, LogLine, Metrics, PauseOutcome, SandboxInfo, SnapshotInfo } from './values'
import { Secrets, Volumes } from './volumes'

/** What every provider can do with sandboxes that it is told by id: for operators. Sessions go through `Sandboxes`. */
export class Provider {
  /** @internal */
  readonly provider: NativeProvider

  /** @internal */
  constructor(provider: NativeProvider) {
    this.provider = provider
  }

  /** The provider's stable name. */
  get name(): string {
    return this.provider.name
  }

  /** What it can do. */
  get capabilities(): Capabilities {
    return this.provider.capabilities
  }

  /** What identifies its endpoint and credentials, without telling them. */
  get fingerprint(): string {
    return this.provider.fingerprint
  }

  /** Finds the sandbox of an id, without waking it; `null` only when the provider says that it does not exist. */
  find(id: string, options: CallOptions = {}): Promise<SandboxInfo | null> {
    return call(options.signal, around => this.provider.find(around, id))
  }

  /** Finds the sandboxes that carry a key, without waking them. */
  findKey(owner: string, key: string, options: CallOptions = {}): Promise<SandboxInfo[]> {
    return call(options.signal, around => this.provider.findKey(around, owner, key))
  }

  /** Lists sandboxes, running and paused. A page that fails ends the list with an error. */
  async list(filter: ListFilter = {}): Promise<Stream<SandboxInfo>> {
    const { signal, ...rest } = filter
    return new Stream(await call(signal, around => this.provider.list(around, rest)))
  }

  /** Suspends a sandbox. */
  pause(id: string, options: PauseOptions = {}): Promise<PauseOutcome> {
    const { signal, ...rest } = options
    return call(signal, around => this.provider.pause(around, id, rest))
  }

  /** Destroys a sandbox, without waking it. */
  destroy(id: string, options: CallOptions = {}): Promise<DestroyOutcome> {
    return call(options.signal, around => this.provider.destroy(around, id))
  }

  /** Sets the lease of a sandbox to end so many milliseconds from now. */
  setLease(id: string, lease: number, options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.provider.setLease(around, id, lease))
  }

  /** Keeps the state of a sandbox under an id of its own, which a spec can name as its template. */
  snapshot(id: string, options: SnapshotOptions = {}): Promise<SnapshotInfo> {
    const { signal, ...rest } = options
    return call(signal, around => this.provider.snapshot(around, id, rest))
  }

  /** Lists snapshots. */
  async listSnapshots(filter: SnapshotFilter = {}): Promise<Stream<SnapshotInfo>> {
    const { signal, ...rest } = filter
    return new Stream(await call(signal, around => this.provider.listSnapshots(around, rest)))
  }

  /** Deletes a snapshot. */
  deleteSnapshot(snapshot: string, options: CallOptions = {}): Promise<DestroyOutcome> {
    return call(options.signal, around => this.provider.deleteSnapshot(around, snapshot))
  }

  /** Makes a sandbox of another key that begins where this one is; returns its id. */
  fork(id: string, options: ForkOptions): Promise<string> {
    const { signal, ...rest } = options
    return call(signal, around => this.provider.fork(around, id, rest))
  }

  /** Reads what the provider logged about a sandbox, oldest first. */
  async logs(id: string, options: LogOptions = {}): Promise<Stream<LogLine>> {
    const { signal, since, ...rest } = options
    const from = since instanceof Date ? since.getTime() : since
    return new Stream(await call(signal, around => this.provider.logs(around, id, { ...rest, since: from })))
  }

  /** Tells what a sandbox uses. */
  metrics(id: string, options: CallOptions = {}): Promise<Metrics> {
    return call(options.signal, around => this.provider.metrics(around, id))
  }

  /** Changes what a running sandbox may reach. */
  updateNetwork(id: string, network: 'none' | 'loopback' | 'host', options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.provider.updateNetwork(around, id, network))
  }
}

/** Sandboxes on this machine: isolated processes that outlive the program that made them. */
export class LocalProvider extends Provider {
  /** @internal */
  readonly native: NativeLocalProvider

  constructor(options: LocalOptions = {}) {
    const made = now(() => new native.NativeLocalProvider(options, packagedHelper))
    super(made.provider)
    this.native = made
  }

  /** The state directory. */
  get home(): string {
    return this.native.home
  }

  /** Finds out what isolation works on this machine, by starting a sandbox. */
  probe(options: CallOptions = {}): Promise<Record<string, unknown>> {
    return call(options.signal, around => this.native.probe(around))
  }

  /** Keeps a directory that holds a whole root as a template; a spec names it by its id or one of the names. */
  importTemplate(directory: string, names: readonly string[] = [], options: CallOptions = {}): Promise<SnapshotInfo> {
    return call(options.signal, around => this.native.importTemplate(around, directory, names))
  }
}

/** E2B's cloud, a self-hosted E2B, or any server that speaks its protocol. */
export class E2bProvider extends Provider {
  /** @internal */
  readonly native: NativeE2BProvider

  constructor(options: E2bOptions = {}) {
    const [plain, recipe] = withoutRecipe(options)
    const made = now(() => new native.NativeE2BProvider(plain, recipe))
    super(made.provider)
    this.native = made
  }

  /** The templates of the account. */
  get templates(): Templates {
    return new Templates(this.native.templates)
  }

  /** The volumes of the account. */
  get volumes(): Volumes {
    return new Volumes(this.native.volumes)
  }

  /** The secrets of the account; their values are never told. */
  get secrets(): Secrets {
    return new Secrets(this.native.secrets)
  }

  /** Says how a sandbox is reached: hosts, tokens, signed URLs. It wakes a paused one. */
  async access(id: string, options: CallOptions = {}): Promise<SandboxAccess> {
    return new SandboxAccess(await call(options.signal, around => this.native.access(around, id)))
  }

  /** Replaces the whole network policy of a running sandbox, in E2B's own words. */
  updateNetworkPolicy(id: string, policy: object, options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.native.updateNetworkPolicy(around, id, policy))
  }

  /** Returns the facts in E2B's own words. */
  detail(id: string, options: CallOptions = {}): Promise<Record<string, unknown>> {
    return call(options.signal, around => this.native.detail(around, id))
  }
}

/** The native part takes the recipe of the default template beside the options. */
function withoutRecipe(options: E2bOptions): [object, ConstructorParameters<typeof native.NativeE2BProvider>[1]] {
  const { defaultTemplate, ...rest } = options
  if (defaultTemplate === undefined || defaultTemplate === null) return [rest, undefined]
  const { recipe, ...build } = defaultTemplate
  return [{ ...rest, defaultTemplate: build }, recipe?.native]
}

/** The providers that a program can use, by name. Each is made when it is asked for, and there is no default. */
export class Providers {
  /** @internal */
  readonly native: NativeProviders

  constructor(options: ProvidersOptions) {
    const { e2b, ...rest } = options
    const [plain, recipe] = e2b ? withoutRecipe(e2b) : [e2b, undefined]
    this.native = now(() => new native.NativeProviders({ ...rest, e2b: plain }, packagedHelper, recipe))
  }

  /** The names, sorted. */
  get names(): string[] {
    return this.native.names()
  }

  /** Makes the provider of this name; an unknown one is an error that lists the names. */
  fromName(name: string): Provider {
    return new Provider(now(() => this.native.fromName(name)))
  }

  /** Makes the provider that the variable `SANDHOLD_PROVIDER` names. */
  fromEnv(): Provider {
    return new Provider(now(() => this.native.fromEnv()))
  }
}
