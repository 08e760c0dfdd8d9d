/**
 * A sandbox for Mastra: `new Workspace({ sandbox: new SandholdSandbox({ sandboxes, id }) })`. Needs the package `@mastra/core`.
 *
 * @packageDocumentation
 */
import {
  MastraSandbox,
  ProcessHandle,
  SandboxProcessManager,
  type CommandResult,
  type MastraSandboxOptions,
  type ProcessInfo,
  type ProviderStatus,
  type SandboxCloneOptions,
  type SandboxFileInput,
  type SandboxInfo,
  type SandboxNetworking,
  type SandboxStartOptions,
  type SandboxStartResult,
  type SpawnProcessOptions,
  type WriteFilesOptions
} from '@mastra/core/workspace'
import type { Sandboxes } from './host.js'
import type { AcquireOptions } from './options.js'
import type { Process } from './process.js'
import { E2bProvider } from './provider.js'
import type { Sandbox } from './sandbox.js'

/** How many bytes of each background process stay inside, for a program that attaches to it later. */
const RETAIN = 1 << 20

/** What such a sandbox is made with. */
export interface SandholdSandboxOptions extends Omit<MastraSandboxOptions, 'processes'> {
  /** Where it is acquired. */
  sandboxes: Sandboxes
  /** The key: who starts with the same one gets the same sandbox back. Default a random one. */
  id?: string
  /** How it is acquired. */
  acquire?: Omit<AcquireOptions, 'signal'>
}

/** A sandbox of a key, as Mastra wants one: started and let go of by Mastra, and found again by its id. */
export class SandholdSandbox extends MastraSandbox {
  readonly id: string
  readonly name = 'SandholdSandbox'
  readonly provider: string
  status: ProviderStatus = 'pending'
  declare readonly processes: SandboxProcessManager
  /** Where ports answer; only where the provider tells a URL for them. */
  declare readonly networking?: SandboxNetworking
  readonly #options: SandholdSandboxOptions
  #sandbox: Sandbox | undefined

  constructor(options: SandholdSandboxOptions) {
    const processes = new Processes()
    super({ ...options, name: 'SandholdSandbox', processes })
    this.#options = options
    this.id = options.id ?? globalThis.crypto.randomUUID()
    this.provider = `sandhold-${options.sandboxes.provider.name}`
    processes.of = this
    const provider = options.sandboxes.provider
    if (provider instanceof E2bProvider) {
      this.networking = { getPortUrl: port => this.#portUrl(provider, port) }
    }
  }

  /** The sandbox itself, with everything that Mastra's interface has no word for; only between start and stop. */
  get sandbox(): Sandbox {
    if (this.#sandbox === undefined) throw new Error(`the sandbox ${this.id} is not started`)
    return this.#sandbox
  }

  override async start(options: SandboxStartOptions = {}): Promise<SandboxStartResult> {
    const { sandboxes, acquire } = this.#options
    this.#sandbox = await sandboxes.acquire(this.id, { ...acquire, signal: options.abortSignal })
    return { outcome: this.#sandbox.outcome ?? 'connected' }
  }

  /** Lets it rest: it is paused with its processes where the provider can. */
  override async stop(): Promise<void> {
    const sandbox = this.#sandbox
    this.#sandbox = undefined
    if (sandbox) await sandbox.stop()
    else await this.#options.sandboxes.stop(this.id)
  }

  /** Destroys it with its files. */
  override async destroy(): Promise<void> {
    const sandbox = this.#sandbox
    this.#sandbox = undefined
    if (sandbox) await sandbox.destroy()
    else await this.#options.sandboxes.destroy(this.id)
  }

  /** Saves the work of its workspace, where its host keeps work; does nothing elsewhere. */
  override async snapshot(): Promise<void> {
    await this.ensureRunning()
    await this.sandbox.save().catch((error: unknown) => {
      if ((error as { reason?: unknown }).reason !== 'no_persist') throw error
    })
  }

  clone(options: SandboxCloneOptions = {}): SandholdSandbox {
    const { id, sandboxId, env, workingDirectory, idleTimeoutMinutes } = options
    const { id: _, acquire, ...rest } = this.#options
    return new SandholdSandbox({
      ...rest,
      id,
      workingDirectory: workingDirectory ?? rest.workingDirectory,
      acquire: {
        ...acquire,
        providerId: sandboxId,
        env: { ...acquire?.env, ...env },
        lease: idleTimeoutMinutes === undefined ? acquire?.lease : idleTimeoutMinutes * 60_000
      }
    })
  }

  override getInstructions(): string {
    return this.#sandbox?.instructions ?? 'Commands run in a sandbox of their own, which is started by the first one.'
  }

  override async getInfo(): Promise<SandboxInfo> {
    const info = await (this.#sandbox?.info() ?? this.#options.sandboxes.find(this.id))
    return {
      id: this.id,
      name: this.name,
      provider: this.provider,
      status: this.status,
      createdAt: info?.createdAt ?? new Date(),
      timeoutAt: info?.expiresAt ?? undefined,
      metadata: { ...info?.metadata, providerId: info?.id, state: info?.state }
    }
  }

  override async writeFiles(files: SandboxFileInput[], options: WriteFilesOptions = {}): Promise<void> {
    const signal = options.abortSignal
    await this.ensureRunning()
    for (const { path, content, mode } of files) {
      await this.sandbox.write(path, content, { signal })
      if (mode === undefined) continue
      const { exit, stderr } = await this.sandbox.exec(['chmod', mode.toString(8), '--', path], { signal })
      if (!exit.success) throw new Error(`the mode of ${path} was not set: ${stderr}`)
    }
  }

  async #portUrl(provider: E2bProvider, port: number): Promise<string | null> {
    const id = this.#sandbox?.providerId
    return id ? (await provider.access(id)).port(port).url : null
  }
}

/** The processes of a sandbox, by their pids inside; they outlive this program. */
class Processes extends SandboxProcessManager {
  /** Set by the sandbox that it is of. */
  of!: SandholdSandbox

  override async spawn(command: string, options: SpawnProcessOptions = {}): Promise<ProcessHandle> {
    const env = Object.entries({ ...this.env, ...options.env }).filter(([, value]) => value !== undefined)
    const process = await this.of.sandbox.start(command, {
      env: Object.fromEntries(env) as Record<string, string>,
      cwd: options.cwd ?? this.of.workingDirectory,
      deadline: options.timeout,
      stdin: options.stdinMode === 'ignore' ? 'closed' : 'open',
      retain: RETAIN
    })
    const handle = new Handle(process, options)
    this._tracked.set(handle.pid, handle)
    return handle
  }

  override async list(): Promise<ProcessInfo[]> {
    const found = await this.of.sandbox.processes()
    return found.map(({ pid, argv, exit }) => ({
      pid: String(pid),
      command: this._tracked.get(String(pid))?.command ?? argv.join(' '),
      running: exit === null,
      exitCode: exit === null ? undefined : codeOf(exit)
    }))
  }

  /** Forgets an ended process, here and inside. */
  override release(pid: string): void {
    super.release(pid)
    // One that runs still is kept inside, for whoever attaches to it.
    void this.of.sandbox.release(Number(pid)).catch(() => {})
  }

  /** Finds also a process that another program has started. */
  override async get(pid: string): Promise<ProcessHandle | undefined> {
    const tracked = this._tracked.get(pid)
    if (tracked !== undefined) return tracked
    const found = (await this.of.sandbox.processes()).find(process => String(process.pid) === pid)
    if (found === undefined) return undefined
    const handle = new Handle(await this.of.sandbox.attach(found.pid, { replay: true }))
    handle.command = found.argv.join(' ')
    this._tracked.set(pid, handle)
    return handle
  }
}

type Exit = NonNullable<Process['exit']>

/** The code that a shell would tell: 124 past the deadline, 128 and more for a signal. */
function codeOf(exit: Exit): number {
  if (exit.timedOut) return 124
  return exit.code ?? 128 + (exit.signal ?? 0)
}

class Handle extends ProcessHandle {
  readonly pid: string
  readonly #process: Process
  readonly #started = performance.now()
  readonly #ended: Promise<Exit>
  #exit: Exit | undefined

  constructor(process: Process, options: SpawnProcessOptions = {}) {
    super(options)
    this.pid = String(process.pid)
    this.#process = process
    this.#ended = this.#follow()
    // Whoever waits hears of it.
    this.#ended.catch(() => {})
  }

  get exitCode(): number | undefined {
    return this.#exit === undefined ? undefined : codeOf(this.#exit)
  }

  async kill(): Promise<boolean> {
    return this.#process.kill()
  }

  async sendStdin(data: string): Promise<void> {
    await this.#process.write(data)
  }

  override async closeStdin(): Promise<void> {
    await this.#process.closeStdin()
  }

  override async wait(): Promise<CommandResult> {
    const exit = await this.#ended
    return {
      command: this.command,
      success: exit.success,
      exitCode: codeOf(exit),
      stdout: this.stdout,
      stderr: this.stderr,
      executionTimeMs: performance.now() - this.#started,
      timedOut: exit.timedOut,
      killed: exit.signal !== null,
      stdoutTruncated: this.stdoutTruncated,
      stderrTruncated: this.stderrTruncated,
      stdoutDroppedBytes: this.stdoutDroppedBytes,
      stderrDroppedBytes: this.stderrDroppedBytes
    }
  }

  /** Reads to the end: characters that are split between pieces come whole. */
  async #follow(): Promise<Exit> {
    const [stdout, stderr] = [new TextDecoder(), new TextDecoder()]
    for await (const { stream, data } of this.#process) {
      if (stream === 'stderr') this.emitStderr(stderr.decode(data, { stream: true }))
      else this.emitStdout(stdout.decode(data, { stream: true }))
    }
    const rest = [stdout.decode(), stderr.decode()]
    if (rest[0]) this.emitStdout(rest[0])
    if (rest[1]) this.emitStderr(rest[1])
    this.#exit = this.#process.exit ?? (await this.#process.wait())
    return this.#exit
  }
}
