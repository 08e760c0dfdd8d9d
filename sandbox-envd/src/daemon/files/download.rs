//! `GET /files`: the content of one file.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::SystemTime;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    HeaderValue, LAST_MODIFIED, RANGE, VARY,
};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use rustix::buffer::spare_capacity;
use tokio::task::JoinHandle;

use crate::daemon::files::failure::Failure;
use crate::daemon::files::negotiate::{self, Condition, Encoding, Part};
use crate::daemon::files::{FileAccess, actor, media};
use crate::daemon::fs as files;
use crate::daemon::http::{self as plain, Body};
use crate::daemon::state::State;

/// Bytes read at once. Three of these are in flight for one download: one is being read, one waits, one is sent.
const CHUNK: usize = 512 * 1024;

/// Answers `GET` or `HEAD /files`, whose caller was authorized.
pub(super) async fn download(
    state: &Arc<State>,
    query: FileAccess,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response<Body>, Failure> {
    let state = Arc::clone(state);
    let opened = tokio::task::spawn_blocking(move || {
        let actor = actor(&state, query.username.as_deref())?;
        Opened::open(actor.resolve(query.path.as_deref().unwrap_or_default())?)
    });
    let opened = opened.await.map_err(|_| Failure::interrupted())??;
    let Some(encoding) = negotiate::encoding(headers) else {
        let text = "no acceptable encoding found: only identity and gzip can be sent";
        return Err(Failure::new(StatusCode::NOT_ACCEPTABLE, text));
    };
    let mut response = match encoding {
        Encoding::Gzip => opened.respond_gzip(method),
        Encoding::Identity => opened.respond(method, headers),
    }?;
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    Ok(response)
}

/// A file to send, and its first bytes.
struct Opened {
    path: PathBuf,
    file: File,
    modified: SystemTime,
    start: Vec<u8>,
    /// Size, if it is known: exact for a file that fits into `start`, whatever its directory entry says (files
    /// of `/proc` say 0, those of `/sys` 4096).
    size: Option<u64>,
}

impl Opened {
    fn open(path: PathBuf) -> Result<Self, Failure> {
        let stat = fs::metadata(&path).map_err(|error| Failure::find("read", &path, &error))?;
        if stat.is_dir() {
            return Err(Failure::directory(&path));
        }
        if !stat.is_file() {
            return Err(Failure::bad(format!("path '{}' is not a regular file", path.display())));
        }
        let mut options = OpenOptions::new();
        // A pipe that took the file's place meanwhile must not be waited for.
        let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(&path);
        let mut file = file.map_err(|error| Failure::find("open", &path, &error))?;
        let failed = |error: io::Error| Failure::io("read", &path, &error);
        let stat = file.metadata().map_err(failed)?;
        let first = usize::try_from(stat.len()).unwrap_or(CHUNK).saturating_add(1).clamp(4096, CHUNK);
        let mut start = Vec::new();
        let mut ended = false;
        while start.len() < first && !ended {
            let missing = first - start.len();
            ended = read(&mut file, &mut start, missing).map_err(failed)? == 0;
        }
        let size = match stat.len() {
            _ if ended => Some(start.len() as u64),
            size if size >= start.len() as u64 => Some(size),
            _ => None,
        };
        let modified = stat.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Self { path, file, modified, start, size })
    }

    fn respond_gzip(self, method: &Method) -> Result<Response<Body>, Failure> {
        let mut response = self.head();
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        let media = media::by_extension(&self.path);
        set(&mut response, CONTENT_TYPE, media.as_deref().unwrap_or("application/octet-stream"));
        if method != Method::HEAD {
            let encoder = GzEncoder::new(Vec::new(), Compression::fast());
            let left = self.size.map(|size| size.saturating_sub(self.start.len() as u64));
            let source = Source { file: self.file, left, encoder: Some(encoder) };
            *response.body_mut() = FileBody::new(Some(self.start), source, None).boxed_unsync();
        }
        Ok(response)
    }

    fn respond(mut self, method: &Method, headers: &HeaderMap) -> Result<Response<Body>, Failure> {
        let mut response = self.head();
        match negotiate::condition(headers, self.modified) {
            Condition::NotModified => {
                *response.status_mut() = StatusCode::NOT_MODIFIED;
                response.headers_mut().remove(CONTENT_DISPOSITION);
                return Ok(response);
            }
            Condition::Failed => {
                let text = format!("path '{}' does not meet the request's condition", self.path.display());
                return Err(Failure::new(StatusCode::PRECONDITION_FAILED, text));
            }
            Condition::Send { range } => {
                let media = media::by_extension(&self.path);
                let media = media.as_deref().unwrap_or_else(|| media::by_content(&self.start));
                set(&mut response, CONTENT_TYPE, media);
                let Some(size) = self.size else {
                    // How much there is shows only at the end, so there are no parts of it.
                    if method != Method::HEAD {
                        let source = Source { file: self.file, left: None, encoder: None };
                        *response.body_mut() = FileBody::new(Some(self.start), source, None).boxed_unsync();
                    }
                    return Ok(response);
                };
                response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
                let wanted = headers.get(RANGE).filter(|_| range);
                // Bytes that are no text are no range either.
                let wanted = wanted.map(|value| value.to_str().unwrap_or("?"));
                let bytes = match negotiate::part(wanted, size) {
                    Part::Whole => 0..size,
                    Part::Bytes(bytes) => {
                        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                        let text = format!("bytes {}-{}/{size}", bytes.start, bytes.end - 1);
                        set(&mut response, CONTENT_RANGE, &text);
                        bytes
                    }
                    Part::Unsatisfiable => {
                        let text = format!("invalid range: path '{}' has {size} bytes", self.path.display());
                        let status = StatusCode::RANGE_NOT_SATISFIABLE;
                        let mut response = Failure::new(status, text).into_response();
                        set(&mut response, CONTENT_RANGE, &format!("bytes */{size}"));
                        return Ok(response);
                    }
                };
                let length = bytes.end - bytes.start;
                set(&mut response, CONTENT_LENGTH, &length.to_string());
                if method != Method::HEAD {
                    *response.body_mut() = self.body(bytes)?;
                }
            }
        }
        Ok(response)
    }

    /// What all answers have.
    fn head(&self) -> Response<Body> {
        let mut response = plain::empty(StatusCode::OK);
        let modified = negotiate::whole_seconds(self.modified);
        set(&mut response, LAST_MODIFIED, &httpdate::fmt_http_date(modified));
        let name = files::base_name(&self.path).as_bytes();
        set(&mut response, CONTENT_DISPOSITION, &media::disposition(name));
        response
    }

    /// The body of a part, out of what was read already as far as that goes.
    fn body(&mut self, bytes: std::ops::Range<u64>) -> Result<Body, Failure> {
        let known = self.start.len() as u64;
        let failed = |error: io::Error| Failure::io("read", &self.path, &error);
        let start = std::mem::take(&mut self.start);
        if bytes.end <= known {
            let (from, to) = (index(bytes.start), index(bytes.end));
            return Ok(plain::full(Bytes::from(start).slice(from..to)));
        }
        let mut file = self.file.try_clone().map_err(failed)?;
        let (start, left) = if bytes.start == 0 {
            (Some(start), bytes.end - known)
        } else {
            // A part that starts later is read anew.
            file.seek(io::SeekFrom::Start(bytes.start)).map_err(failed)?;
            (None, bytes.end - bytes.start)
        };
        let length = Some(bytes.end - bytes.start);
        let source = Source { file, left: Some(left), encoder: None };
        Ok(FileBody::new(start, source, length).boxed_unsync())
    }
}

/// A position inside what was read, which is small.
fn index(position: u64) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}

fn set(response: &mut Response<Body>, name: http::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// Appends up to `most` bytes, without clearing the room for them first.
fn read(file: &mut File, into: &mut Vec<u8>, most: usize) -> io::Result<usize> {
    into.reserve_exact(most);
    loop {
        match rustix::io::read(&*file, spare_capacity(into)) {
            Err(rustix::io::Errno::INTR) => {}
            count => return Ok(count?),
        }
    }
}

/// The rest of a file.
struct Source {
    file: File,
    /// Bytes to send; until the end of the file if that is not known.
    left: Option<u64>,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

/// What was read: some bytes, and what there is to read after them.
type Step = (Bytes, Option<Source>);

impl Source {
    /// Reads the next chunk. Blocks.
    fn step(mut self) -> io::Result<Step> {
        let most = self.left.map_or(CHUNK, |left| index(left).min(CHUNK));
        let mut chunk = Vec::new();
        let count = if most == 0 { 0 } else { read(&mut self.file, &mut chunk, most)? };
        // The allocation may have room for more than was asked for.
        chunk.truncate(most);
        if let Some(left) = &mut self.left {
            if count == 0 && *left > 0 && self.encoder.is_none() {
                // Its length was promised. The client sees the connection end, not a short file.
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the file became shorter while it was sent",
                ));
            }
            *left = left.saturating_sub(chunk.len() as u64);
        }
        let more = count > 0 && self.left != Some(0);
        self.encode(chunk, more)
    }

    fn encode(mut self, chunk: Vec<u8>, more: bool) -> io::Result<Step> {
        let Some(encoder) = &mut self.encoder else {
            return Ok((chunk.into(), more.then_some(self)));
        };
        encoder.write_all(&chunk)?;
        if more {
            let encoded = std::mem::take(encoder.get_mut());
            Ok((encoded.into(), Some(self)))
        } else {
            let encoded = self.encoder.take().map(GzEncoder::finish).transpose()?;
            Ok((encoded.unwrap_or_default().into(), None))
        }
    }
}

/// A body that is read one chunk ahead, on blocking threads that it does not hold while the client is slow.
struct FileBody {
    reading: Option<JoinHandle<io::Result<Step>>>,
    length: Option<u64>,
}

impl FileBody {
    /// Makes a body of `start` and then `source`, `length` bytes together if that is known.
    fn new(start: Option<Vec<u8>>, source: Source, length: Option<u64>) -> Self {
        let reading = tokio::task::spawn_blocking(move || match start {
            Some(start) => {
                let more = source.left != Some(0);
                source.encode(start, more)
            }
            None => source.step(),
        });
        Self { reading: Some(reading), length }
    }
}

impl HttpBody for FileBody {
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        loop {
            let Some(reading) = &mut this.reading else { return Poll::Ready(None) };
            let step = ready!(Pin::new(reading).poll(context));
            this.reading = None;
            let (chunk, rest) = step??;
            this.reading = rest.map(|rest| tokio::task::spawn_blocking(move || rest.step()));
            if chunk.is_empty() {
                continue;
            }
            if let Some(length) = &mut this.length {
                *length = length.saturating_sub(chunk.len() as u64);
            }
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.reading.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
