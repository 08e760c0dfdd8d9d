/** Processes inside a sandbox. */
import { constants } from 'node:os'
import { call, type CallOptions } from './call'
import type { NativeProcess } from './native'
import type { ExitStatus, Output } from './values'

/** A signal by its name or number. */
export type Signal = NodeJS.Signals | number

/** @internal */
export function signalNumber(signal: Signal): number {
  const number = typeof signal === 'string' ? constants.signals[signal] : signal
  if (number === undefined) throw new TypeError(`argument 'signal': ${JSON.stringify(signal)} is no signal`)
  return number
}

/** A process inside a sandbox: iterate over its output. Leaving the loop, or dropping this, leaves the process alone. */
export class Process implements AsyncIterableIterator<Output> {
  readonly #native: NativeProcess

  /** @internal */
  constructor(native: NativeProcess) {
    this.#native = native
  }

  /** The process id inside the sandbox. */
  get pid(): number {
    return this.#native.pid
  }

  /** The tag given at its start. */
  get tag(): string | null {
    return this.#native.tag
  }

  /** How it ended, once its end was read; `null` before. */
  get exit(): ExitStatus | null {
    return this.#native.exit
  }

  /** Returns the next piece of output; aborting its signal leaves the process alone. */
  async next(signal?: AbortSignal): Promise<IteratorResult<Output, undefined>> {
    const value = await call(signal, around => this.#native.next(around))
    return value === null ? { done: true, value: undefined } : { done: false, value }
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  /** Waits for the exit and drops the output on the way. */
  wait(options: CallOptions = {}): Promise<ExitStatus> {
    return call(options.signal, around => this.#native.wait(around))
  }

  /** Writes to the standard input or to the terminal; a text is written as UTF-8. */
  write(data: string | Uint8Array, options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.#native.write(around, data))
  }

  /** Closes the standard input; a second time is no error. */
  closeStdin(options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.#native.closeStdin(around))
  }

  /** Changes the size of the terminal. */
  resize(cols: number, rows: number, options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.#native.resize(around, cols, rows))
  }

  /** Sends a signal to the whole process tree; false when the process had ended. */
  signal(signal: Signal = 'SIGTERM', options: CallOptions = {}): Promise<boolean> {
    return call(options.signal, around => this.#native.signal(around, signalNumber(signal)))
  }

  /** Kills the whole process tree; false when it had ended. */
  kill(options: CallOptions = {}): Promise<boolean> {
    return this.signal('SIGKILL', options)
  }
}
