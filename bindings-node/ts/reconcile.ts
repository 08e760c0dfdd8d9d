/** What a registry remembers, and what it and a provider do not agree about: for operators. */
import { call, type CallOptions } from './call'
import { failed, now, type SandboxError } from './errors'
import { native, type NativeOrphanReport, type NativeReconcilePlan, type NativeReconciler, type NativeRegistry } from './native'
import type { ReconcileOptions, ReconcilePolicy, RecordFilter } from './options'
import { Provider } from './provider'
import { Stream } from './stream'
import type { Finding, Kept, Record, Step } from './records'

/** A registry: `memory:`, `file:/directory`, `sqlite:/path` or `postgres://...`. It is opened by the first call. */
export class Registry {
  /** @internal */
  readonly native: NativeRegistry

  constructor(url: string) {
    this.native = now(() => new native.NativeRegistry(url))
  }

  /** Says between whom its leases hold. */
  scope(options: CallOptions = {}): Promise<'process' | 'machine' | 'cluster'> {
    return call(options.signal, around => this.native.scope(around))
  }

  /** Loads the record of a key. */
  load(owner: string, key: string, options: CallOptions = {}): Promise<Record | null> {
    return call(options.signal, around => this.native.load(around, owner, key))
  }

  /** Lists records. */
  async list(filter: RecordFilter = {}): Promise<Stream<Record>> {
    const { signal, ...rest } = filter
    return new Stream(await call(signal, around => this.native.list(around, rest)))
  }
}

/** Finds what a provider has and its registry has not, and the reverse. Nothing changes before a plan is applied. */
export class Reconciler {
  readonly #native: NativeReconciler

  constructor(provider: Provider, registry: Registry, options: ReconcileOptions = {}) {
    if (!(provider instanceof Provider)) throw new TypeError("Reconciler() argument 'provider': give a provider")
    if (!(registry instanceof Registry)) throw new TypeError("Reconciler() argument 'registry': give a Registry")
    this.#native = now(() => new native.NativeReconciler(provider.provider, registry.native, options))
  }

  /** Reports; changes nothing. */
  async orphans(options: CallOptions = {}): Promise<OrphanReport> {
    return new OrphanReport(await call(options.signal, around => this.#native.orphans(around)))
  }

  /** Plans what the policy allows; changes nothing. */
  plan(report: OrphanReport, policy: ReconcilePolicy = {}): ReconcilePlan {
    if (!(report instanceof OrphanReport)) throw new TypeError("plan() argument 'report': give what orphans() returned")
    return report.plan(policy)
  }

  /** Does what was planned and is still true, each step under the lease of its key. */
  async apply(plan: ReconcilePlan, options: CallOptions = {}): Promise<StepOutcome[]> {
    if (!(plan instanceof ReconcilePlan)) throw new TypeError("apply() argument 'plan': give what plan() returned")
    return plan.apply(options)
  }
}

/** What was found, and how much was looked at. */
export class OrphanReport {
  readonly #native: NativeOrphanReport
  /** What provider and registry do not agree about, or that nobody has finished. */
  readonly findings: Finding[]

  /** @internal */
  constructor(native: NativeOrphanReport) {
    this.#native = native
    this.findings = native.findings
  }

  /** How many sandboxes the provider listed. */
  get sandboxes(): number {
    return this.#native.sandboxes
  }

  /** How many records the registry listed. */
  get records(): number {
    return this.#native.records
  }

  /** @internal */
  plan(policy: ReconcilePolicy): ReconcilePlan {
    return new ReconcilePlan(now(() => this.#native.plan(policy)))
  }
}

/** What became of a step. */
export interface StepOutcome {
  readonly step: Step
  /** `held`: somebody is at work on its key; `changed`: it is not true any more. Nothing was done in both cases. */
  readonly outcome: 'done' | 'held' | 'changed' | 'failed'
  /** Why it failed. */
  readonly error: SandboxError | null
}

/** What is to be done about a report, and what is left alone and why. Nothing has been done yet. */
export class ReconcilePlan {
  readonly #native: NativeReconcilePlan
  /** What is to be done, in order. */
  readonly steps: Step[]
  /** What is left alone, and why. */
  readonly kept: Kept[]

  /** @internal */
  constructor(native: NativeReconcilePlan) {
    this.#native = native
    this.steps = native.steps
    this.kept = native.kept
  }

  /** Leaves out the steps for which `keep` is false. */
  retain(keep: (step: Step) => boolean): ReconcilePlan {
    return new ReconcilePlan(now(() => this.#native.retain(this.steps.map(step => Boolean(keep(step))))))
  }

  /** @internal */
  async apply(options: CallOptions): Promise<StepOutcome[]> {
    const outcomes = await call(options.signal, around => this.#native.apply(around))
    return outcomes.map(({ step, outcome, error }) => ({ step, outcome, error: error === null ? null : failed(error) }))
  }
}
