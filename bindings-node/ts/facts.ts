/**
 * Facts that the native part tells as JSON, with the values of JavaScript.
 *
 * @internal
 */
import type { BuildAnswer, LogLine, SecretInfo, SideManifest, Tag, Template, VolumeEntry } from './values'

type Told = Record<string, any>

/** Puts points in time in the place of milliseconds since 1970, at any depth. */
export function dated<T>(told: unknown): T {
  if (Array.isArray(told)) return told.map(dated) as T
  if (typeof told !== 'object' || told === null) return told as T
  const fields = Object.entries(told).map(([name, value]): [string, unknown] =>
    name.endsWith('AtMs') ? [name.slice(0, -2), date(value)] : [name, dated(value)]
  )
  return Object.fromEntries(fields) as T
}

function date(told: unknown): Date | null {
  return told === null || told === undefined ? null : new Date(told as string | number)
}

/** What is empty is not told. */
export function sideManifest(told: Told): SideManifest {
  const empty = { emptyDirs: [], skipped: [], nested: [], metadata: [], lfsPointers: [], warnings: [] }
  return { ...empty, ...told } as unknown as SideManifest
}

export function volumeEntry({ type, atime, mtime, ctime, target, ...entry }: Told): VolumeEntry {
  return {
    ...entry,
    fileType: type === 'unknown' ? 'other' : type,
    accessedAt: date(atime),
    modifiedAt: date(mtime),
    changedAt: date(ctime),
    symlinkTarget: target ?? null
  } as VolumeEntry
}

export function secretInfo({ metadata, createdAt, updatedAt, ...secret }: Told): SecretInfo {
  return { ...secret, metadata: metadata ?? {}, createdAt: date(createdAt), updatedAt: date(updatedAt) } as SecretInfo
}

export function template({ createdAt, updatedAt, lastSpawnedAt, buildStatus, builds, ...template }: Told): Template {
  return {
    ...template,
    createdAt: date(createdAt),
    updatedAt: date(updatedAt),
    lastSpawnedAt: date(lastSpawnedAt),
    buildStatus: buildStatus ?? null,
    builds: builds?.map(build) ?? null
  } as Template
}

function build({ createdAt, updatedAt, finishedAt, diskSizeMb, envdVersion, ...build }: Told): unknown {
  return {
    ...build,
    createdAt: date(createdAt),
    updatedAt: date(updatedAt),
    finishedAt: date(finishedAt),
    diskSizeMb: diskSizeMb ?? null,
    envdVersion: envdVersion ?? null
  }
}

export function tag({ createdAt, ...tag }: Told): Tag {
  return { ...tag, createdAt: date(createdAt) } as Tag
}

export function buildAnswer({ status, logEntries, reason }: Told): BuildAnswer {
  const logs = (logEntries as Told[]).map(({ timestamp, level, message }): LogLine => ({ at: new Date(timestamp), level, message }))
  return { status, logs, message: reason?.message ?? null, step: reason?.step ?? null }
}
