/** What comes one after the other. */
import { call } from './call'
import type { NativeDownload, NativeEvents, NativeStream } from './native'
import type { Event, WatchEvent } from './values'

/** An iterable that can be closed; leaving a loop over it closes it. */
export class Stream<T> implements AsyncIterableIterator<T>, AsyncDisposable {
  readonly #native: NativeStream<T>

  /** @internal */
  constructor(native: NativeStream<T>) {
    this.#native = native
  }

  /** Returns the next item; aborting its signal leaves the stream as it is. */
  async next(signal?: AbortSignal): Promise<IteratorResult<T, undefined>> {
    const value = await call(signal, around => this.#native.next(around))
    return value === null ? { done: true, value: undefined } : { done: false, value }
  }

  async return(): Promise<IteratorResult<T, undefined>> {
    this.close()
    return { done: true, value: undefined }
  }

  /** Ends it; whoever waits for the next item gets the end. */
  close(): void {
    this.#native.close()
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close()
  }
}

/** A stream whose items are told otherwise. */
class Mapped<T, U> extends Stream<U> {
  constructor(native: NativeStream<T>, tell: (item: T) => U) {
    super({
      next: async around => {
        const item = await native.next(around)
        return item === null ? null : tell(item)
      },
      close: () => native.close()
    })
  }
}

/** @internal */
export function mapped<T, U>(native: NativeStream<T>, tell: (item: T) => U): Stream<U> {
  return new Mapped(native, tell)
}

/** The content of a file on its way out of the sandbox, in pieces. One that breaks ends with an error. */
export class Download extends Stream<Buffer> {
  /** The size of the content, where it is known. */
  readonly size: number | null

  /** @internal */
  constructor(native: NativeDownload) {
    super(native)
    this.size = native.size
  }
}

/** What happens in a watched directory. */
export class Watch extends Stream<WatchEvent> {}

/**
 * What happens to the sandboxes of a host. Where a listener was too slow, an event of kind `lagged` says so.
 *
 * They come from calls of this program, so waiting for one does not keep it alive.
 */
export class Events extends Stream<Event> {
  /** @internal */
  constructor(native: NativeEvents) {
    super({ next: around => new Promise(heard => native.pull(around, heard)), close: () => native.close() })
  }

  override async next(signal?: AbortSignal): Promise<IteratorResult<Event, undefined>> {
    const next = await super.next(signal)
    if (next.done) signal?.throwIfAborted()
    return next
  }
}
