/**
 * How calls reach the native part.
 *
 * @internal
 */
import { AsyncLocalStorage } from 'node:async_hooks'
import { decoded } from './errors'
import { native, type NativeCall, type NativeScope } from './native'

/** What every call takes. */
export interface CallOptions {
  /** Ends the call; it rejects with the signal's reason. A command that it waited for is killed. */
  signal?: AbortSignal
}

// The hooks that a call comes from: it must not wait for itself. Storage costs something, so it is made by the first hook.
let scopes: AsyncLocalStorage<NativeScope> | undefined

/** Runs a hook, whose calls are known as its own. */
export function inside<T>(scope: NativeScope, hook: () => T): T {
  scopes ??= new AsyncLocalStorage()
  return scopes.run(scope, hook)
}

/** Makes a call that a signal may abort. */
export async function call<T>(
  signal: AbortSignal | undefined,
  start: (around: NativeCall | undefined) => Promise<T>
): Promise<T> {
  const scope = scopes?.getStore()
  if (signal === undefined && scope === undefined) {
    try {
      return await start(undefined)
    } catch (thrown) {
      throw decoded(thrown)
    }
  }
  return abortable(signal, start, new native.NativeCall(scope))
}

/** Makes a call that a signal, or whoever has `around`, may abort. */
export async function abortable<T>(
  signal: AbortSignal | undefined,
  start: (around: NativeCall) => Promise<T>,
  around: NativeCall = new native.NativeCall(scopes?.getStore())
): Promise<T> {
  signal?.throwIfAborted()
  const abort = () => around.abort()
  signal?.addEventListener('abort', abort, { once: true })
  try {
    return await start(around)
  } catch (thrown) {
    signal?.throwIfAborted()
    throw decoded(thrown)
  } finally {
    signal?.removeEventListener('abort', abort)
  }
}
