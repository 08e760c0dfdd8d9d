/** Keeping the work of sandboxes as they come and go. */
import { now } from './errors'
import { native, type NativeVaultHook } from './native'

/**
 * Keeps a workspace inside each sandbox in a vault, and puts it back into the sandbox that takes its place.
 *
 * `home` is the directory of all vaults on this machine, `key` names one of them, `path` is the workspace inside each
 * sandbox. Work is saved before a pause, before a destroy and every `interval` milliseconds (default 300 000; 0 is never).
 */
export class VaultHook {
  declare private readonly kind: 'vault'
  /** @internal */
  readonly native: NativeVaultHook

  constructor(home: string, key: string, path: string, options: { interval?: number | null } = {}) {
    this.native = now(() => new native.NativeVaultHook(home, key, path, options))
  }
}
