/**
 * Let go of a sandbox, and get exactly that one back, with its work.
 *
 * @packageDocumentation
 */
export type { CallOptions } from './call'
export {
  AlreadyExistsError,
  CancelledError,
  ConflictError,
  GoneError,
  InvalidArgumentError,
  InvalidStateError,
  NotFoundError,
  OutcomeUnknownError,
  OwnershipError,
  PermissionDeniedError,
  QuotaExceededError,
  RateLimitedError,
  SandboxError,
  StaleError,
  StorageFullError,
  TimeoutError,
  UnauthenticatedError,
  UnavailableError,
  UnexpectedError,
  UnsupportedError,
  type ErrorFields,
  type Outcome
} from './errors'
export type { FreshFile, HookContext, Hooks, Start } from './hooks'
export { Sandboxes } from './host'
export type {
  AcquireOptions,
  AttachOptions,
  Body,
  CloneOptions,
  E2bOptions,
  ExecOptions,
  FileOptions,
  HostOptions,
  Kind,
  ListOptions,
  LocalOptions,
  Mount,
  ReadOptions,
  Resources,
  Spec,
  StartOptions,
  WatchOptions,
  WriteOptions
} from './options'
export { VaultHook } from './persist'
export { Process, type Signal } from './process'
export { E2bProvider, LocalProvider } from './provider'
export { Sandbox } from './sandbox'
export { Download, Events, Stream, Watch } from './stream'
export { Captured } from './values'
export type {
  AcquireOutcome,
  DestroyOutcome,
  EntryInfo,
  Event,
  ExecOutput,
  ExitStatus,
  Facts,
  Isolation,
  Output,
  OutputStream,
  PauseOutcome,
  ProcessInfo,
  SandboxInfo,
  StopOutcome,
  WatchEvent
} from './values'
