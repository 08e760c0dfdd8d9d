/** What an account at E2B keeps beside sandboxes: volumes and secrets. */
import { send } from './body'
import { call, type CallOptions } from './call'
import type { NativeSecrets, NativeVolumeContent, NativeVolumes } from './native'
import type { Body, MetadataOptions, VolumeListOptions, VolumeOptions } from './options'
import { secretInfo, volumeEntry } from './facts'
import { mapped, Stream } from './stream'
import type { DestroyOutcome, SecretInfo, VolumeEntry, Volume } from './values'

/** The volumes of an account: directories that outlive sandboxes. */
export class Volumes {
  readonly #native: NativeVolumes

  /** @internal */
  constructor(native: NativeVolumes) {
    this.#native = native
  }

  /** Makes a volume and opens its content. */
  async create(name: string, options: CallOptions = {}): Promise<VolumeContent> {
    return new VolumeContent(await call(options.signal, around => this.#native.create(around, name)))
  }

  /** Opens the content of a volume. */
  async open(id: string, options: CallOptions = {}): Promise<VolumeContent> {
    return new VolumeContent(await call(options.signal, around => this.#native.open(around, id)))
  }

  /** Lists the volumes: their ids and names. */
  list(options: CallOptions = {}): Promise<Volume[]> {
    return call(options.signal, around => this.#native.list(around))
  }

  /** Deletes a volume with its content. */
  delete(id: string, options: CallOptions = {}): Promise<DestroyOutcome> {
    return call(options.signal, around => this.#native.delete(around, id))
  }
}

/** The files of one volume. */
export class VolumeContent {
  readonly #native: NativeVolumeContent

  /** @internal */
  constructor(native: NativeVolumeContent) {
    this.#native = native
  }

  /** The volume's id. */
  get id(): string {
    return this.#native.id
  }

  /** The volume's name. */
  get name(): string {
    return this.#native.name
  }

  /** Returns facts about a path. */
  async stat(path: string, options: CallOptions = {}): Promise<VolumeEntry> {
    return volumeEntry(await call(options.signal, around => this.#native.stat(around, path)))
  }

  /** Changes the owner, group or permission bits of a path. */
  async change(path: string, options: VolumeOptions): Promise<VolumeEntry> {
    const { signal, ...rest } = options
    return volumeEntry(await call(signal, around => this.#native.change(around, path, rest)))
  }

  /** Removes a path with all that is in it. */
  remove(path: string, options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.#native.remove(around, path))
  }

  /** Lists a directory. */
  async list(path: string, options: VolumeListOptions = {}): Promise<VolumeEntry[]> {
    const { signal, ...rest } = options
    return (await call(signal, around => this.#native.list(around, path, rest))).map(volumeEntry)
  }

  /** Makes a directory. */
  async makeDir(path: string, options: VolumeOptions = {}): Promise<VolumeEntry> {
    const { signal, ...rest } = options
    return volumeEntry(await call(signal, around => this.#native.makeDir(around, path, rest)))
  }

  /** Reads a file as a stream of bytes. */
  async read(path: string, options: CallOptions = {}): Promise<Stream<Buffer>> {
    return new Stream(await call(options.signal, around => this.#native.read(around, path)))
  }

  /** Writes a file; what comes in pieces is not gathered in memory. */
  async write(path: string, body: Body, options: VolumeOptions = {}): Promise<VolumeEntry> {
    const { signal, ...rest } = options
    return volumeEntry(await call(signal, around => send(body, body => this.#native.write(around, path, body, rest))))
  }
}

/** The secrets of an account. Their values are never told. */
export class Secrets {
  readonly #native: NativeSecrets

  /** @internal */
  constructor(native: NativeSecrets) {
    this.#native = native
  }

  /** Stores a secret. */
  async create(name: string, value: string, options: MetadataOptions = {}): Promise<SecretInfo> {
    const { signal, ...rest } = options
    return secretInfo(await call(signal, around => this.#native.create(around, name, value, rest)))
  }

  /** Gives a secret, by id or name, another value. */
  async update(secret: string, value: string, options: MetadataOptions = {}): Promise<SecretInfo> {
    const { signal, ...rest } = options
    return secretInfo(await call(signal, around => this.#native.update(around, secret, value, rest)))
  }

  /** Returns facts about a secret, by id or name. */
  async get(secret: string, options: CallOptions = {}): Promise<SecretInfo> {
    return secretInfo(await call(options.signal, around => this.#native.get(around, secret)))
  }

  /** Lists the secrets of the account. */
  list(): Stream<SecretInfo> {
    return mapped(this.#native.list(), secretInfo)
  }

  /** Deletes a secret, by id or name. */
  delete(secret: string, options: CallOptions = {}): Promise<DestroyOutcome> {
    return call(options.signal, around => this.#native.delete(around, secret))
  }
}
