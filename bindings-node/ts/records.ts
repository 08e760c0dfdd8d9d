/** What a registry remembers, and what it and a provider do not agree about. */
import type { SandboxInfo } from './values'

/** An attempt that was given up. */
export interface Abandoned {
  readonly attempt: string
  readonly at: Date
}

/** What a registry remembers of a key. */
export interface Record {
  readonly owner: string
  readonly key: string
  readonly version: number
  readonly fence: number
  readonly provider: string
  /** What identifies endpoint and credentials that it was made under. */
  readonly fingerprint: string
  /** The provider's id, once it is known. */
  readonly id: string | null
  readonly generation: string
  readonly attempt: string
  readonly phase: 'creating' | 'ready' | 'pausing' | 'paused' | 'resuming' | 'destroying'
  readonly phaseSince: Date
  /** The spec, as it is stored. */
  readonly spec: object
  /** The version of the setup that completed. */
  readonly setupDone: number | null
  readonly abandoned: Abandoned[]
  /** The sandbox whose place it takes. */
  readonly replaces: string | null
  readonly replacedBecause: 'gone' | 'other_spec' | null
}

/** Something that provider and registry do not agree about, or that nobody has finished. */
export interface Finding {
  readonly kind: 'untagged' | 'unrecorded' | 'duplicate' | 'abandoned' | 'open_create' | 'open_destroy' | 'missing' | 'elsewhere' | 'mismatched' | 'spent'
  readonly owner: string | null
  readonly key: string | null
  readonly info: SandboxInfo | null
  readonly record: Record | null
  /** The sandbox that the key keeps, for a duplicate. */
  readonly keeps: string | null
  /** The sandbox of the attempt, for an open create, where it is listed. */
  readonly made: string | null
}

/** One thing to do. */
export interface Step {
  readonly finding: Finding
  /** The sandbox that is destroyed; `null` when only a record is forgotten. */
  readonly destroys: string | null
  /** The same for people. */
  readonly text: string
}

/** What is left alone, and why. */
export interface Kept {
  readonly finding: Finding
  readonly why: 'policy' | 'not_ours' | 'too_young' | 'acquire'
}
