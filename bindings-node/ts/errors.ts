/** The errors: one base, and one class for each kind. */
import { native, type NativeFailure } from './native'

export type Outcome = 'not_started' | 'done' | 'unknown'

/** What an error says beside its message. */
export interface ErrorFields {
  reason: string | null
  retryable: boolean
  retryAfter: number | null
  outcome: Outcome
  provider: string | null
  operation: string | null
  context: Record<string, string>
  detail: string
}

/** A call of Sandhold failed; `kind` says how, and the other fields what may be done about it. */
export class SandboxError extends Error {
  /** The stable code of the kind, the same in every language. */
  readonly kind: string = 'unexpected'
  /** The message alone, without place and context. */
  readonly detail: string
  /** A stable word within the kind, where a caller can act on one. */
  readonly reason: string | null
  /** Whether another try may succeed and cannot do harm. */
  readonly retryable: boolean
  /** The delay that the provider asked for, in milliseconds. */
  readonly retryAfter: number | null
  /** What is known about the effect. */
  readonly outcome: Outcome
  /** The provider's name. */
  readonly provider: string | null
  /** The operation that failed. */
  readonly operation: string | null
  /** Pairs that are safe to log. */
  readonly context: Record<string, string>

  constructor(message: string, fields: Partial<ErrorFields> = {}, options?: ErrorOptions) {
    super(message, options)
    this.detail = fields.detail ?? message
    this.reason = fields.reason ?? null
    this.retryable = fields.retryable ?? false
    this.retryAfter = fields.retryAfter ?? null
    this.outcome = fields.outcome ?? 'not_started'
    this.provider = fields.provider ?? null
    this.operation = fields.operation ?? null
    this.context = fields.context ?? {}
  }

  override get name(): string {
    return this.constructor.name
  }
}

/** The provider itself said that the sandbox does not exist any more. */
export class GoneError extends SandboxError {
  override readonly kind = 'gone'
}

/** Something inside or beside a sandbox does not exist: a file, a process, a template. */
export class NotFoundError extends SandboxError {
  override readonly kind = 'not_found'
}

/** Something of that name is there. */
export class AlreadyExistsError extends SandboxError {
  override readonly kind = 'already_exists'
}

/** The key was asked for with another spec, or from inside its own hook. */
export class ConflictError extends SandboxError {
  override readonly kind = 'conflict'
}

/** The sandbox belongs to another owner or key, or was made under other credentials. */
export class OwnershipError extends SandboxError {
  override readonly kind = 'ownership'
}

/** A value is not acceptable; the message names it and the way out. */
export class InvalidArgumentError extends SandboxError {
  override readonly kind = 'invalid_argument'
}

/** The call does not fit the state, such as a detached sandbox or a paused one. */
export class InvalidStateError extends SandboxError {
  override readonly kind = 'invalid_state'
}

/** No valid credentials, or no such user inside the sandbox. */
export class UnauthenticatedError extends SandboxError {
  override readonly kind = 'unauthenticated'
}

/** The credentials or the file's mode do not allow it. */
export class PermissionDeniedError extends SandboxError {
  override readonly kind = 'permission_denied'
}

/** The provider asks to slow down; wait `retryAfter`. */
export class RateLimitedError extends SandboxError {
  override readonly kind = 'rate_limited'
}

/** A quota of the account is used up. */
export class QuotaExceededError extends SandboxError {
  override readonly kind = 'quota_exceeded'
}

/** No space is left where the call must write. */
export class StorageFullError extends SandboxError {
  override readonly kind = 'storage_full'
}

/** A deadline passed; look at `outcome` before another try. */
export class TimeoutError extends SandboxError {
  override readonly kind = 'timeout'
}

/** The call was cancelled from the other side of it. An `AbortSignal` throws its own reason instead. */
export class CancelledError extends SandboxError {
  override readonly kind = 'cancelled'
}

/** The provider or the path to it cannot be reached; nothing is said about the sandbox. */
export class UnavailableError extends SandboxError {
  override readonly kind = 'unavailable'
}

/** The handle is of an older generation, or its lease was lost; nothing was sent. */
export class StaleError extends SandboxError {
  override readonly kind = 'stale'
}

/** Whether it took effect is not known. */
export class OutcomeUnknownError extends SandboxError {
  override readonly kind = 'outcome_unknown'
}

/** The provider or this host cannot do it; said before anything happened. */
export class UnsupportedError extends SandboxError {
  override readonly kind = 'unsupported'
}

/** An answer that the contract does not explain, or a hook that threw. */
export class UnexpectedError extends SandboxError {
  override readonly kind = 'unexpected'
}

/**
 * The class of each kind.
 *
 * @internal
 */
export const byKind: Record<string, typeof SandboxError> = {
  gone: GoneError,
  not_found: NotFoundError,
  already_exists: AlreadyExistsError,
  conflict: ConflictError,
  ownership: OwnershipError,
  invalid_argument: InvalidArgumentError,
  invalid_state: InvalidStateError,
  unauthenticated: UnauthenticatedError,
  permission_denied: PermissionDeniedError,
  rate_limited: RateLimitedError,
  quota_exceeded: QuotaExceededError,
  storage_full: StorageFullError,
  timeout: TimeoutError,
  cancelled: CancelledError,
  unavailable: UnavailableError,
  stale: StaleError,
  outcome_unknown: OutcomeUnknownError,
  unsupported: UnsupportedError,
  unexpected: UnexpectedError
}

const origins = new WeakMap<object, NativeFailure>()

/**
 * Returns the failure that an error was made of, so that one that a hook lets through stays the same.
 *
 * @internal
 */
export function originOf(error: unknown): NativeFailure | undefined {
  return typeof error === 'object' && error !== null ? origins.get(error) : undefined
}

/**
 * Makes the error of what the native part threw; whatever else it was stays what it is.
 *
 * @internal
 */
export function decoded(thrown: unknown): unknown {
  const failure = thrown instanceof Error && 'failure' in thrown ? thrown.failure : undefined
  return failure instanceof native.NativeFailure ? failed(failure) : thrown
}

/**
 * Makes the error of a failure.
 *
 * @internal
 */
export function failed(failure: NativeFailure): SandboxError {
  const { text, message: detail, reason, retryable, retryAfter, outcome, provider, operation, context } = failure
  const fields = { detail, reason, retryable, retryAfter, outcome, provider, operation, context }
  const error = new (byKind[failure.kind] ?? SandboxError)(text, fields, causeOf(failure.cause))
  origins.set(error, failure)
  return error
}

function causeOf(cause: NativeFailure['cause']): ErrorOptions | undefined {
  if (cause === null) return undefined
  if (Array.isArray(cause)) {
    return cause.reduceRight<ErrorOptions | undefined>((inner, text) => ({ cause: new Error(text, inner) }), undefined)
  }
  if (cause instanceof native.NativeThrown) {
    return { cause: cause.value }
  }
  return { cause: failed(cause) }
}

/**
 * Calls the native part where it answers at once.
 *
 * @internal
 */
export function now<T>(work: () => T): T {
  try {
    return work()
  } catch (thrown) {
    throw decoded(thrown)
  }
}
