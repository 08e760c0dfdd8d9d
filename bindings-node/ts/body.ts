/**
 * The body of a file that comes in pieces.
 *
 * @internal
 */
import { originOf } from './errors'
import type { NativeUpload } from './native'

/** Feeds an upload, as fast as it is read. */
export async function feed(
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
