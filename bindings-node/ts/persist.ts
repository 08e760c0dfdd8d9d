/** Keeping the work of sandboxes as they come and go. */
import { call, type CallOptions } from './call'
import { now } from './errors'
import { dated } from './facts'
import { native, type NativeVaultHook } from './native'
import type { VaultHookOptions } from './options'
import type { Sandbox } from './sandbox'
import { PersistConfig } from './settings'
import type { Snapshot } from './values'
import { Mirror, MirrorConfig, Vault } from './vault'

/**
 * Keeps a workspace inside each sandbox in a vault, and puts it back into the sandbox that takes its place.
 *
 * `home` is the directory of all vaults on this machine, `key` names one of them, `path` is the workspace inside each
 * sandbox. Work is saved before a pause, before a destroy and every `interval` milliseconds (default 300 000; 0 is never).
 * `VaultHook.of(vault, path, options)` makes one of a vault.
 */
export class VaultHook {
  /** @internal */
  readonly native: NativeVaultHook
  /** The vault. */
  readonly vault: Vault

  constructor(home: string, key: string, path: string, options?: VaultHookOptions)
  /** @internal */
  constructor(vault: Vault, key: undefined, path: string, options?: VaultHookOptions)
  constructor(home: string | Vault, key: string | undefined, path: string, options: VaultHookOptions = {}) {
    const { mirror, ...rest } = options
    const copies = mirror instanceof MirrorConfig ? new Mirror(mirror) : mirror
    this.vault = home instanceof Vault ? home : new Vault(home, key as string)
    this.native = now(() => new native.NativeVaultHook(this.vault.native, path, copies?.native, rest))
  }

  /** Keeps work in this vault. */
  static of(vault: Vault, path: string, options: VaultHookOptions = {}): VaultHook {
    if (!(vault instanceof Vault)) throw new TypeError("VaultHook.of() argument 'vault': give a Vault")
    return new VaultHook(vault, undefined, path, options)
  }

  /** Captures the workspace of a sandbox now; `null` where nothing has changed since its last snapshot. */
  async save(sandbox: Sandbox, options: CallOptions = {}): Promise<Snapshot | null> {
    return dated(await call(options.signal, around => this.native.save(around, sandbox.native)))
  }

  /** Puts the newest snapshot of a sandbox's key back into it; `null` where there is none. */
  async load(sandbox: Sandbox, options: CallOptions = {}): Promise<Snapshot | null> {
    return dated(await call(options.signal, around => this.native.load(around, sandbox.native)))
  }

  /** Goes by other settings from now on: the interval, the rules of captures, and the mirror. */
  apply(config: PersistConfig, options: CallOptions = {}): Promise<void> {
    if (!(config instanceof PersistConfig)) throw new TypeError("apply() argument 'config': give a PersistConfig")
    return call(options.signal, around => this.native.apply(around, config.native))
  }
}
