/** The sandboxes of one owner at one provider. */
import { call, type CallOptions } from './call'
import { now } from './errors'
import { native as hooks } from './hooks'
import { native, type NativeSandboxes } from './native'
import type { AcquireOptions, HostOptions } from './options'
import { Provider, Providers } from './provider'
import { VaultHook } from './persist'
import { Sandbox } from './sandbox'
import { Events } from './stream'
import type { DestroyOutcome, SandboxInfo, StopOutcome } from './values'

/** Acquire sandboxes by key, let them go, get the same ones back. */
export class Sandboxes {
  readonly #native: NativeSandboxes

  /** The provider. */
  readonly provider: Provider

  constructor(provider: Provider, options: HostOptions = {}) {
    if (!(provider instanceof Provider)) {
      throw new TypeError("Sandboxes() argument 'provider': give a LocalProvider, an E2bProvider or one of Providers")
    }
    const { persist, providers, ...rest } = options
    if (persist && !(persist instanceof VaultHook)) throw new TypeError("Sandboxes() argument 'persist': give a VaultHook")
    if (providers && !(providers instanceof Providers)) {
      throw new TypeError("Sandboxes() argument 'providers': give Providers")
    }
    this.provider = provider
    this.#native = now(
      () => new native.NativeSandboxes(provider.provider, persist?.native, providers?.native, hooks(rest))
    )
  }

  /** Finds, connects or creates the one sandbox of a key. */
  async acquire(key: string, options: AcquireOptions = {}): Promise<Sandbox> {
    const { signal, ...rest } = options
    return new Sandbox(await call(signal, around => this.#native.acquire(around, key, hooks(rest))))
  }

  /** Returns a value of the key's sandbox that is acquired by its first use. */
  async lazy(key: string, options: AcquireOptions = {}): Promise<Sandbox> {
    const { signal, ...rest } = options
    return new Sandbox(await call(signal, around => this.#native.lazy(around, key, hooks(rest))))
  }

  /** Looks for the sandbox that a key has, without waking or making one. */
  find(key: string, options: CallOptions = {}): Promise<SandboxInfo | null> {
    return call(options.signal, around => this.#native.find(around, key))
  }

  /**
   * Says that the credentials or the endpoint were changed on purpose, for the sandbox of a key that fails with
   * `OwnershipError`, reason `fingerprint`. Returns whether they differed; afterwards the old sandbox counts as gone.
   */
  confirmMove(key: string, options: CallOptions = {}): Promise<boolean> {
    return call(options.signal, around => this.#native.confirmMove(around, key))
  }

  /** Lets a key's sandbox rest, without connecting to it. */
  stop(key: string, options: CallOptions = {}): Promise<StopOutcome> {
    return call(options.signal, around => this.#native.stop(around, key))
  }

  /** Destroys a key's sandbox, without waking it, and forgets its record. */
  destroy(key: string, options: CallOptions = {}): Promise<DestroyOutcome> {
    return call(options.signal, around => this.#native.destroy(around, key))
  }

  /** Listens to what happens to the sandboxes of this host from now on. */
  async events(options: CallOptions = {}): Promise<Events> {
    return new Events(await call(options.signal, around => this.#native.events(around)))
  }
}
