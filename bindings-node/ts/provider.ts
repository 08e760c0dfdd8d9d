/** Where sandboxes are. */
import { now } from './errors'
import { native, packagedHelper, type NativeLocalProvider, type NativeProvider } from './native'
import type { E2bOptions, LocalOptions } from './options'

/** Sandboxes on this machine: isolated processes that outlive the program that made them. */
export class LocalProvider {
  declare private readonly kind: 'local'
  /** @internal */
  readonly native: NativeLocalProvider

  constructor(options: LocalOptions = {}) {
    this.native = now(() => new native.NativeLocalProvider(options, packagedHelper))
  }

  /** The provider's stable name. */
  get name(): string {
    return this.native.name
  }

  /** The state directory. */
  get home(): string {
    return this.native.home
  }
}

/** E2B's cloud, a self-hosted E2B, or any server that speaks its protocol. */
export class E2bProvider {
  declare private readonly kind: 'e2b'
  /** @internal */
  readonly native: NativeProvider

  constructor(options: E2bOptions = {}) {
    this.native = now(() => new native.NativeE2bProvider(options))
  }

  /** The provider's stable name. */
  get name(): string {
    return this.native.name
  }
}
