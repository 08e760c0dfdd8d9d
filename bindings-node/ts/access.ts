/** What an E2B sandbox is reached by beside its handle. */
import { now } from './errors'
import type { NativeAccess } from './native'
import type { SignOptions } from './options'
import type { PortAccess } from './values'

/** How a sandbox is reached: by host names, by its tokens, and by URLs that need none. */
export class SandboxAccess {
  readonly #native: NativeAccess

  /** @internal */
  constructor(native: NativeAccess) {
    this.#native = native
  }

  /** The token that requests to ports carry, where ports are not open to everybody. */
  get trafficToken(): string | null {
    return this.#native.trafficToken
  }

  /** The token of the daemon inside. */
  get envdToken(): string | null {
    return this.#native.envdToken
  }

  /** Returns the host of a port, without a scheme. */
  host(port: number): string {
    return now(() => this.#native.host(port))
  }

  /** Says how a port is asked over HTTP: its URL, and headers for every request. */
  port(port: number): PortAccess {
    return now(() => this.#native.port(port))
  }

  /** Returns a URL from which one file can be downloaded without any token. */
  downloadUrl(path: string, options: SignOptions = {}): string {
    return now(() => this.#native.downloadUrl(path, options))
  }

  /** Returns a URL to which one file can be uploaded without any token; an empty path leaves it to the upload. */
  uploadUrl(path: string, options: SignOptions = {}): string {
    return now(() => this.#native.uploadUrl(path, options))
  }
}
