/**
 * The body of a file that comes in pieces.
 *
 * @internal
 */
import { originOf } from './errors'
import { native, type NativeUpload } from './native'
import type { Body } from './options'

/** Hands a body to what writes it: bytes and texts as they are, everything else as an upload that is fed meanwhile. */
export function send<T>(body: Body, write: (body: NativeUpload | string | Uint8Array) => Promise<T>): Promise<T> {
  if (typeof body === 'string' || body instanceof Uint8Array) return write(body)
  if (body instanceof ArrayBuffer) return write(new Uint8Array(body))
  const pieces = body instanceof Blob ? body.stream() : body
  if (typeof pieces !== 'object' || pieces === null || !(Symbol.iterator in pieces || Symbol.asyncIterator in pieces)) {
    throw new TypeError("write() argument 'body': give bytes, a text, a Blob, a stream or an iterable of bytes")
  }
  const upload = new native.NativeUpload()
  const written = write(upload)
  void feed(upload, pieces)
  return written
}

/** Feeds an upload, as fast as it is read. */
async function feed(
  upload: NativeUpload,
  pieces: Iterable<string | Uint8Array> | AsyncIterable<string | Uint8Array>
): Promise<void> {
  try {
    for await (const piece of pieces) {
      // Where the write has ended, the source is closed.
      if (!(await upload.push(piece))) return
    }
    upload.end()
  } catch (thrown) {
    await upload.fail(thrown, originOf(thrown))
  }
}
