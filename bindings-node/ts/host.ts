/** The sandboxes of one owner at one provider. */
import { call, type CallOptions } from './call'
import { now } from './errors'
import { native as hooks } from './hooks'
import { native, type NativeSandboxes } from './native'
import type { AcquireOptions, HostOptions } from './options'
import { E2bProvider, LocalProvider } from './provider'
import { Sandbox } from './sandbox'
import { Events } from './stream'
import type { DestroyOutcome, SandboxInfo, StopOutcome } from './values'

/** Acquire sandboxes by key, let them go, get the same ones back. */
export class Sandboxes {
  readonly #native: NativeSandboxes

  constructor(provider: LocalProvider | E2bProvider, options: HostOptions = {}) {
    if (!(provider instanceof LocalProvider || provider instanceof E2bProvider)) {
      throw new TypeError("Sandboxes() argument 'provider': give a LocalProvider or an E2bProvider")
    }
    const { persist, ...rest } = options
    this.#native = now(() => new native.NativeSandboxes(provider.native, persist?.native, hooks(rest)))
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
