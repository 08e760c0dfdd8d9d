/** An acquired sandbox. */
import { send } from './body'
import { abortable, call, type CallOptions } from './call'
import { UnexpectedError, now } from './errors'
import type { NativeExecOutput, NativeListener, NativeSandbox } from './native'
import type {
  AttachOptions,
  Body,
  CloneOptions,
  ExecOptions,
  FileOptions,
  ListOptions,
  ReadOptions,
  StartOptions,
  WatchOptions,
  WriteOptions
} from './options'
import { Process, type Signal, signalNumber } from './process'
import { Download, Watch } from './stream'
import {
  Captured,
  type AcquireOutcome,
  type DestroyOutcome,
  type EntryInfo,
  type ExecOutput,
  type Facts,
  type PauseOutcome,
  type ProcessInfo,
  type SandboxInfo,
  type StopOutcome
} from './values'

/** A sandbox of a key. Disposing it lets go of it and leaves the sandbox alone. */
export class Sandbox implements AsyncDisposable {
  readonly #native: NativeSandbox

  /** @internal */
  constructor(native: NativeSandbox) {
    this.#native = native
  }

  /** @internal */
  get native(): NativeSandbox {
    return this.#native
  }

  /** The key. */
  get key(): string {
    return this.#native.key
  }

  /** The namespace of the key. */
  get owner(): string {
    return this.#native.owner
  }

  /** The provider's id; `null` before a lazy value has acquired. */
  get providerId(): string | null {
    return this.#native.providerId
  }

  /** The provider's name. */
  get provider(): string {
    return this.#native.provider
  }

  /** The identity of this very sandbox. */
  get generation(): string | null {
    return this.#native.generation
  }

  /** Whether the acquire made it; `null` for a value that no acquire returned. */
  get outcome(): AcquireOutcome | null {
    return this.#native.outcome
  }

  /** More about how it came; `null` for a value that no acquire returned. */
  get facts(): Facts | null {
    return this.#native.facts
  }

  /** What a model should know of this sandbox to work in it. */
  get instructions(): string {
    return this.#native.instructions
  }

  /** Lets go of it: this value admits no call any more, and the sandbox stays as it is. */
  detach(): void {
    this.#native.detach()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.detach()
  }

  /** Returns a value for another sandbox of the same spec, acquired by its first use. */
  cloneWith(options: CloneOptions = {}): Sandbox {
    return new Sandbox(now(() => this.#native.cloneWith(options)))
  }

  /** Runs a command to completion and captures its output. An array is a program and its arguments, a text a line of shell. */
  async exec(command: string | readonly string[], options: ExecOptions = {}): Promise<ExecOutput> {
    const { signal, onOutput, ...rest } = options
    if (typeof onOutput !== 'function') {
      return output(await call(signal, around => this.#native.exec(around, command, { ...rest, onOutput })))
    }
    let failure: { thrown: unknown } | undefined
    try {
      return output(
        await abortable(signal, around => {
          const fail = (thrown: unknown) => {
            failure ??= { thrown }
            around.abort()
          }
          const listen: NativeListener = (stream, data) => {
            if (data.length === 0 || failure) return
            try {
              const returned = onOutput(stream, data)
              if (returned instanceof Promise) returned.catch(fail)
            } catch (thrown) {
              fail(thrown)
            }
          }
          return this.#native.exec(around, command, { ...rest, onOutput: listen })
        })
      )
    } catch (error) {
      if (failure === undefined) throw error
      throw new UnexpectedError('onOutput threw', { outcome: 'unknown', operation: 'exec' }, { cause: failure.thrown })
    }
  }

  /** Runs a line of shell text to completion and captures its output. */
  async shell(line: string, options: ExecOptions = {}): Promise<ExecOutput> {
    if (typeof line !== 'string') throw new TypeError("shell() argument 'line': give a text")
    return this.exec(line, options)
  }

  /** Starts a process and returns as soon as it runs. */
  async start(command: string | readonly string[], options: StartOptions = {}): Promise<Process> {
    const { signal, ...rest } = options
    return new Process(await call(signal, around => this.#native.start(around, command, rest)))
  }

  /** Attaches to a process that was started earlier, by this program or another: by its pid or its tag. */
  async attach(process: number | string, options: AttachOptions = {}): Promise<Process> {
    const { signal, ...rest } = options
    return new Process(await call(signal, around => this.#native.attach(around, process, rest)))
  }

  /** Lists the processes that were started through the provider, and kept records of ended ones. */
  processes(options: CallOptions = {}): Promise<ProcessInfo[]> {
    return call(options.signal, around => this.#native.processes(around))
  }

  /** Sends a signal to a process and its whole tree; false when it had ended. */
  signal(process: number | string, signal: Signal = 'SIGTERM', options: CallOptions = {}): Promise<boolean> {
    return call(options.signal, around => this.#native.signal(around, process, signalNumber(signal)))
  }

  /** Forgets the kept output and exit of an ended process; false when nothing was kept. */
  release(process: number | string, options: CallOptions = {}): Promise<boolean> {
    return call(options.signal, around => this.#native.release(around, process))
  }

  /** Reads a file as a stream of bytes. */
  async read(path: string, options: ReadOptions = {}): Promise<Download> {
    const { signal, ...rest } = options
    return new Download(await call(signal, around => this.#native.read(around, path, rest)))
  }

  /** Reads a whole file of at most 64 MiB. */
  readBytes(path: string, options: CallOptions = {}): Promise<Buffer> {
    return call(options.signal, around => this.#native.readBytes(around, path))
  }

  /** Reads a whole text file of at most 64 MiB. */
  readText(path: string, options: CallOptions = {}): Promise<string> {
    return call(options.signal, around => this.#native.readText(around, path))
  }

  /** Writes a file; parents are created. A body that comes in pieces is not gathered in memory. */
  write(path: string, body: Body, options: WriteOptions = {}): Promise<EntryInfo> {
    const { signal, ...rest } = options
    return call(signal, around => send(body, body => this.#native.write(around, path, body, rest)))
  }

  /** Writes a whole file; what is given is bytes, never text. */
  async writeBytes(path: string, content: Uint8Array, options: WriteOptions = {}): Promise<EntryInfo> {
    if (!(content instanceof Uint8Array)) throw new TypeError("writeBytes() argument 'content': give a Uint8Array")
    return this.write(path, content, options)
  }

  /** Returns facts about a file or directory. */
  stat(path: string, options: FileOptions = {}): Promise<EntryInfo> {
    const { signal, ...rest } = options
    return call(signal, around => this.#native.stat(around, path, rest))
  }

  /** Tells whether a path exists. */
  exists(path: string, options: CallOptions = {}): Promise<boolean> {
    return call(options.signal, around => this.#native.exists(around, path))
  }

  /** Lists a directory, depth first, sorted by name. */
  list(path: string, options: ListOptions = {}): Promise<EntryInfo[]> {
    const { signal, ...rest } = options
    return call(signal, around => this.#native.list(around, path, rest))
  }

  /** Makes a directory and its parents. */
  makeDir(path: string, options: FileOptions = {}): Promise<EntryInfo> {
    const { signal, ...rest } = options
    return call(signal, around => this.#native.makeDir(around, path, rest))
  }

  /** Renames a file or directory; parents of the destination are created. */
  rename(source: string, destination: string, options: FileOptions = {}): Promise<EntryInfo> {
    const { signal, ...rest } = options
    return call(signal, around => this.#native.rename(around, source, destination, rest))
  }

  /** Removes a file, or a directory with all that is in it; a missing one is no error. */
  remove(path: string, options: FileOptions = {}): Promise<void> {
    const { signal, ...rest } = options
    return call(signal, around => this.#native.remove(around, path, rest))
  }

  /** Watches a directory; it is in force when the promise is fulfilled. */
  async watch(path: string, options: WatchOptions = {}): Promise<Watch> {
    const { signal, ...rest } = options
    return new Watch(await call(signal, around => this.#native.watch(around, path, rest)))
  }

  /** Asks for the present facts, without waking the sandbox. */
  info(options: CallOptions = {}): Promise<SandboxInfo> {
    return call(options.signal, around => this.#native.info(around))
  }

  /** Pauses it. Work that comes later resumes it. */
  pause(options: CallOptions = {}): Promise<PauseOutcome> {
    return call(options.signal, around => this.#native.pause(around))
  }

  /** Has the persist hook save its work now. */
  save(options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.#native.save(around))
  }

  /** Resumes it; no effect on a running one. */
  resume(options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.#native.resume(around))
  }

  /** Lets it rest: the stop hook runs, then it is paused where the provider can. */
  stop(options: CallOptions = {}): Promise<StopOutcome> {
    return call(options.signal, around => this.#native.stop(around))
  }

  /** Destroys it with all that belongs to it. */
  destroy(options: CallOptions = {}): Promise<DestroyOutcome> {
    return call(options.signal, around => this.#native.destroy(around))
  }

  /** Sets the lease to end so many milliseconds from now. */
  setLease(lease: number, options: CallOptions = {}): Promise<void> {
    return call(options.signal, around => this.#native.setLease(around, lease))
  }
}

function output(captured: NativeExecOutput): ExecOutput {
  return {
    exit: captured.exit,
    stdout: new Captured(captured.stdout),
    stderr: new Captured(captured.stderr)
  }
}
