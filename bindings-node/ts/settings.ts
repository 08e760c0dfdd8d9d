/** What persistence goes by: the words of a user, of a project and of a host. */
import { call, type CallOptions } from './call'
import { now } from './errors'
import { native, type NativePersistConfig, type NativePersistSettings } from './native'
import type { Retention } from './options'
import type { SettingsChange } from './values'
import { MirrorConfig } from './vault'

type Text = string | Uint8Array

/** What persistence goes by. */
export class PersistConfig {
  /** @internal */
  readonly native: NativePersistConfig

  constructor()
  /** @internal */
  constructor(made: NativePersistConfig)
  constructor(made?: NativePersistConfig) {
    this.native = made ?? now(() => new native.NativePersistConfig())
  }

  /** Reads the settings files of the user and of a project, where they are there. */
  static async load(user?: string | null, project?: string | null, options: CallOptions = {}): Promise<PersistConfig> {
    return new PersistConfig(await call(options.signal, around => native.loadPersistConfig(around, user, project)))
  }

  /** Adds the text of a settings file of the user. */
  withUserFile(text: Text): PersistConfig {
    return new PersistConfig(now(() => this.native.withUserFile(text)))
  }

  /** Adds the text of a settings file of a project, whose word counts for less. */
  withProjectFile(text: Text): PersistConfig {
    return new PersistConfig(now(() => this.native.withProjectFile(text)))
  }

  /** How often work is saved, in milliseconds; `null` is never. */
  get interval(): number | null {
    return this.native.interval
  }

  /** How long snapshots are kept. */
  get retention(): Retention {
    return this.native.retention
  }

  /** What is captured. */
  get rules(): Record<string, unknown> {
    return this.native.rules
  }

  /** Where copies go. */
  get mirror(): MirrorConfig | null {
    const config = this.native.mirror
    return config === null ? null : new MirrorConfig(config)
  }
}

/** Settings of persistence that a program lets its user change. */
export class PersistSettings {
  readonly #native: NativePersistSettings

  constructor()
  /** @internal */
  constructor(made: NativePersistSettings)
  constructor(made?: NativePersistSettings) {
    this.#native = made ?? now(() => new native.NativePersistSettings())
  }

  /** Reads the settings files of the user and of what was chosen, where they are there. */
  static async load(user?: string | null, chosen?: string | null, options: CallOptions = {}): Promise<PersistSettings> {
    return new PersistSettings(await call(options.signal, around => native.loadPersistSettings(around, user, chosen)))
  }

  /** Adds what the host wants, which nobody changes. */
  withHost(text: Text): PersistSettings {
    return new PersistSettings(now(() => this.#native.withHost(text)))
  }

  /** Returns what they come to. */
  resolve(): PersistConfig {
    return new PersistConfig(now(() => this.#native.resolve()))
  }

  /** The settings that only the host has a say in. */
  get pinned(): string[] {
    return this.#native.pinned()
  }

  /** Changes some of them. */
  update(change: Text): SettingsChange {
    return now(() => this.#native.update(change))
  }

  /** Writes what was chosen to a file. */
  save(chosen: string, options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.#native.save(around, chosen))
  }
}
