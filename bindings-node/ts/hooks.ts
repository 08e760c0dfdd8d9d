/** Hooks: functions that are called as sandboxes come and go. */
import { inside } from './call'
import { CancelledError, originOf } from './errors'
import type { NativeHookCall } from './native'
import { Sandbox } from './sandbox'
import type { AcquireOutcome, Event, Facts } from './values'

/** What a start hook is told. */
export interface Start {
  /** The sandbox; usable at once, while other callers still wait. */
  readonly sandbox: Sandbox
  /** Whether this acquire made it. */
  readonly outcome: AcquireOutcome
  readonly setup: 'needed' | 'done'
  /** More about how it came. */
  readonly facts: Facts
}

/** What every hook gets beside its subject. */
export interface HookContext {
  /** Aborted when nobody waits for the hook any more: its deadline has passed, or its call was given up. */
  readonly signal: AbortSignal
}

/** A file that a resume hook wants fresh inside the sandbox, such as a rotated token. */
export interface FreshFile {
  path: string
  content: string | Uint8Array
  /** The permission bits. Default 0o600. */
  mode?: number
  owner?: string
}

/** Functions that may be asynchronous, and may call the sandbox that they get. */
export interface Hooks {
  /**
   * Returns files with secrets, which are put in place before the start hook and after the work was put back. Runs whenever the
   * start hook does.
   */
  secrets?:
    | ((sandbox: Sandbox, context: HookContext) => readonly FreshFile[] | null | undefined | void | Promise<readonly FreshFile[] | null | undefined | void>)
    | null
  /** Runs for a new sandbox before anybody gets it, and again where it did not complete. */
  onStart?: ((start: Start, context: HookContext) => unknown) | null
  /** Runs after a resume; the files that it returns are written. */
  onResume?:
    | ((
        sandbox: Sandbox,
        memory: 'kept' | 'lost',
        context: HookContext
      ) => readonly FreshFile[] | null | undefined | void | Promise<readonly FreshFile[] | null | undefined | void>)
    | null
  /** Runs before a sandbox is stopped. */
  onStop?: ((sandbox: Sandbox, context: HookContext) => unknown) | null
  /** Runs before a sandbox is destroyed. */
  onDestroy?: ((sandbox: Sandbox, context: HookContext) => unknown) | null
  /** Is told what happens, in order. One that throws is a warning of the process. */
  onEvent?: ((event: Event) => unknown) | null
  /** Another number runs the start hook again. Default 1. */
  setupVersion?: number | null
  /** Runs the start hook at every acquire. Default false. */
  runsOnEveryStart?: boolean | null
  /** How long a hook may take, in milliseconds. Default 900 000. */
  hookDeadline?: number | null
}

/**
 * Puts what the native part calls in the place of the hooks.
 *
 * @internal
 */
export function native<T extends Hooks>(options: T): object {
  const { secrets, onStart, onResume, onStop, onDestroy, onEvent, ...rest } = options
  return {
    ...rest,
    secrets: dispatcher(secrets, 'secrets', (hook, call, context) => hook(new Sandbox(call.sandbox), context)),
    onStart: dispatcher(onStart, 'onStart', (hook, call, context) => {
      const { outcome, setup, facts } = call
      return hook({ sandbox: new Sandbox(call.sandbox), outcome, setup, facts } as Start, context)
    }),
    onResume: dispatcher(onResume, 'onResume', (hook, call, context) =>
      hook(new Sandbox(call.sandbox), call.memory as 'kept' | 'lost', context)
    ),
    onStop: dispatcher(onStop, 'onStop', (hook, call, context) => hook(new Sandbox(call.sandbox), context)),
    onDestroy: dispatcher(onDestroy, 'onDestroy', (hook, call, context) => hook(new Sandbox(call.sandbox), context)),
    onEvent: typeof onEvent === 'function' ? listener(onEvent) : onEvent
  }
}

function dispatcher<H extends (...told: never[]) => unknown>(
  hook: H | null | undefined,
  name: string,
  run: (hook: H, call: NativeHookCall, context: HookContext) => unknown
): unknown {
  // The native part refuses what is no function, by its name.
  if (typeof hook !== 'function') return hook
  const running = new Map<number, AbortController>()
  return (call: NativeHookCall | null, number: number): void => {
    if (call === null) {
      running.get(number)?.abort(new CancelledError(`nobody waits for ${name} any more`))
      running.delete(number)
      return
    }
    const controller = new AbortController()
    running.set(number, controller)
    void inside(call.scope, async () => {
      try {
        const returned = await run(hook, call, { signal: controller.signal })
        call.resolve(name === 'onResume' || name === 'secrets' ? returned : undefined)
      } catch (thrown) {
        call.reject(thrown, originOf(thrown))
      } finally {
        running.delete(number)
      }
    })
  }
}

function listener(onEvent: (event: Event) => unknown): (event: Event) => void {
  // What a listener does with the news is no part of what happened.
  const warn = (thrown: unknown) => {
    const warning = new Error('onEvent threw', { cause: thrown })
    warning.name = 'SandholdWarning'
    process.emitWarning(warning)
  }
  return event => {
    try {
      const returned = onEvent(event)
      if (returned instanceof Promise) returned.catch(warn)
    } catch (thrown) {
      warn(thrown)
    }
  }
}
