//! `POST /files`: the content of one file, or of several in a multipart form.
//!
//! The async side only collects what arrives; decoding, parsing and writing happen on a blocking thread while
//! the next pieces are collected. There is no limit on the whole, only on silence.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Serialize;

use crate::daemon::files::failure::Failure;
use crate::daemon::files::multipart::{Event, Parser, PartHead};
use crate::daemon::files::target::Target;
use crate::daemon::files::{FileAccess, actor};
use crate::daemon::fs::{self as files, Actor, Metadata};
use crate::daemon::http::{self as plain, Body};
use crate::daemon::state::State;
use crate::messages::filesystem::EntryInfo;

/// Bytes handed to the blocking thread at once, if more than that do not arrive together.
const BATCH: usize = 512 * 1024;

/// What a client sends (RFC 7240) that wants to be told everything about the file, and so needs not ask for it.
const PREFER: &str = "return=representation";

/// A file that was written, as the answer tells it.
#[derive(Debug, Serialize)]
pub(super) struct Written {
    path: String,
    name: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata,
    /// What `Stat` would tell, for whoever prefers that ([`PREFER`]): clients of E2B's envd know the other fields only.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<EntryInfo>,
}

impl Written {
    pub(super) fn new(path: &Path, metadata: Metadata) -> Self {
        Self {
            path: path.to_string_lossy().into_owned(),
            name: files::base_name(path).to_string_lossy().into_owned(),
            r#type: "file",
            metadata,
            entry: None,
        }
    }
}

/// Answers `POST /files`, whose caller was authorized.
pub(super) async fn upload(
    state: &Arc<State>,
    query: FileAccess,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Response<Body>, Failure> {
    let idle = state.config.upload_idle;
    let metadata = files::metadata_from_headers(headers).map_err(Failure::bad)?;
    let decoder = Encoding::of(headers)?;
    let kind = Kind::of(headers, &query)?;
    let whole = headers.get_all("prefer").iter().any(|value| value.as_bytes() == PREFER.as_bytes());
    let state = Arc::clone(state);
    let begin = move || {
        let actor = actor(&state, query.username.as_deref())?;
        let sink = match kind {
            Kind::Raw(path) => {
                let teller = whole.then(|| actor.clone());
                Sink::Raw { target: Target::open(actor.resolve(&path)?, actor, state)?, teller }
            }
            Kind::Form(parser) => {
                Sink::Form { parser, path: query.path, actor, state, open: None, taken: Vec::new() }
            }
        };
        Ok(Pipeline::new(decoder, Receiver { sink, metadata, written: Vec::new() }))
    };
    let written = receive(begin, body, idle).await?;
    Ok(plain::json(StatusCode::OK, &written))
}

/// Carries a body into a pipeline: one batch is written while the next is collected.
async fn receive(
    begin: impl FnOnce() -> Result<Pipeline, Failure> + Send + 'static,
    mut body: Incoming,
    idle: Duration,
) -> Result<Vec<Written>, Failure> {
    let (mut batch, mut complete) = collect(&mut body, idle).await?;
    let mut stage = Stage::Begin(begin);
    while !complete {
        let mut writing = tokio::task::spawn_blocking(move || stage.write(&batch).map(Stage::Running));
        let mut collecting = std::pin::pin!(collect(&mut body, idle));
        tokio::select! {
            next = &mut collecting => {
                (batch, complete) = next?;
                stage = writing.await.map_err(|_| Failure::interrupted())??;
            }
            // Whatever refuses the write (no room, a directory) is told before the rest arrives.
            written = &mut writing => {
                stage = written.map_err(|_| Failure::interrupted())??;
                (batch, complete) = collecting.await?;
            }
        }
    }
    let finishing = tokio::task::spawn_blocking(move || stage.write(&batch)?.finish());
    finishing.await.map_err(|_| Failure::interrupted())?
}

/// A pipeline, or what begins it: that blocks too, so it is done together with the first write.
enum Stage<B> {
    Begin(B),
    Running(Pipeline),
}

impl<B: FnOnce() -> Result<Pipeline, Failure>> Stage<B> {
    fn write(self, batch: &[Bytes]) -> Result<Pipeline, Failure> {
        let mut pipeline = match self {
            Self::Begin(begin) => begin()?,
            Self::Running(pipeline) => pipeline,
        };
        batch.iter().try_for_each(|piece| pipeline.push(piece))?;
        Ok(pipeline)
    }
}

/// Collects a batch of the body; says whether it is the last one.
async fn collect(body: &mut Incoming, idle: Duration) -> Result<(Vec<Bytes>, bool), Failure> {
    let mut batch = Vec::new();
    let mut size = 0;
    while size < BATCH {
        let frame = tokio::time::timeout(idle, body.frame()).await.map_err(|_| {
            Failure::new(
                StatusCode::REQUEST_TIMEOUT,
                format!("the upload stalled: no byte arrived for {} ms", idle.as_millis()),
            )
        })?;
        match frame {
            None => return Ok((batch, true)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    size += data.len();
                    batch.push(data);
                }
            }
            Some(Err(error)) => return Err(Failure::bad(format!("the upload broke off: {error}"))),
        }
    }
    Ok((batch, false))
}

#[derive(Debug, Clone, Copy)]
enum Encoding {
    Identity,
    Gzip,
}

impl Encoding {
    fn of(headers: &HeaderMap) -> Result<Self, Failure> {
        let Some(value) = headers.get(CONTENT_ENCODING) else { return Ok(Self::Identity) };
        match value.to_str().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(Self::Identity),
            "gzip" => Ok(Self::Gzip),
            other => Err(Failure::bad(format!(
                "unsupported content encoding {other:?}, expected gzip or identity"
            ))),
        }
    }
}

enum Kind {
    Raw(String),
    Form(Parser),
}

impl Kind {
    fn of(headers: &HeaderMap, query: &FileAccess) -> Result<Self, Failure> {
        let value = headers.get(CONTENT_TYPE).and_then(|value| std::str::from_utf8(value.as_bytes()).ok());
        let value = value.unwrap_or_default();
        let media = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if media.starts_with("multipart/") {
            return Ok(Self::Form(Parser::new(value)?));
        }
        if media != "application/octet-stream" {
            return Err(Failure::bad(format!(
                "unsupported content type {value:?}, expected multipart/form-data or application/octet-stream"
            )));
        }
        match &query.path {
            Some(path) => Ok(Self::Raw(path.clone())),
            None => Err(Failure::bad("path query parameter is required for raw body upload")),
        }
    }
}

/// From the bytes of a body to files.
enum Pipeline {
    Identity(Box<Receiver>),
    /// The decoder writes what it decodes straight on, so a small body that decodes to a huge one needs no
    /// memory.
    Gzip(Box<MultiGzDecoder<Decoded>>),
}

impl Pipeline {
    fn new(encoding: Encoding, receiver: Receiver) -> Self {
        match encoding {
            Encoding::Identity => Self::Identity(Box::new(receiver)),
            Encoding::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(Decoded { receiver, failure: None }))),
        }
    }

    fn push(&mut self, data: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Identity(receiver) => receiver.push(data),
            Self::Gzip(decoder) => decoder.write_all(data).map_err(|error| decoder.get_mut().failed(&error)),
        }
    }

    fn finish(self) -> Result<Vec<Written>, Failure> {
        match self {
            Self::Identity(receiver) => receiver.finish(),
            Self::Gzip(mut decoder) => {
                decoder.try_finish().map_err(|error| decoder.get_mut().failed(&error))?;
                let decoded = decoder.finish().map_err(|error| bad_gzip(&error))?;
                decoded.receiver.finish()
            }
        }
    }
}

/// Where decoded bytes go. `Write` only knows I/O errors, so the real reason is kept beside.
struct Decoded {
    receiver: Receiver,
    failure: Option<Failure>,
}

impl Decoded {
    fn failed(&mut self, error: &io::Error) -> Failure {
        self.failure.take().unwrap_or_else(|| bad_gzip(error))
    }
}

impl Write for Decoded {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self.receiver.push(data) {
            Ok(()) => Ok(data.len()),
            Err(failure) => {
                self.failure = Some(failure);
                Err(io::Error::other("the decoded body was refused"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn bad_gzip(error: &io::Error) -> Failure {
    Failure::bad(format!("error decompressing request body: {error}"))
}

/// Puts a decoded body into files.
struct Receiver {
    sink: Sink,
    metadata: Metadata,
    written: Vec<Written>,
}

enum Sink {
    Raw {
        target: Target,
        /// For whom the file is described, if that is wanted.
        teller: Option<Actor>,
    },
    Form {
        parser: Parser,
        /// Path of the query, which wins over the part's file name.
        path: Option<String>,
        actor: Actor,
        state: Arc<State>,
        /// The file of the current part, if it is one.
        open: Option<Target>,
        /// What was written before, to refuse a path that comes twice.
        taken: Vec<PathBuf>,
    },
}

impl Receiver {
    fn push(&mut self, data: &[u8]) -> Result<(), Failure> {
        match &mut self.sink {
            Sink::Raw { target, .. } => target.write(data),
            Sink::Form { parser, path, actor, state, open, taken } => parser.push(data, &mut |event| {
                match event {
                    Event::Part(head) => {
                        let file = part_path(&head, path.as_deref(), actor, taken)?;
                        let begin = |file| Target::open(file, actor.clone(), Arc::clone(state));
                        *open = file.map(begin).transpose()?;
                    }
                    Event::Data(data) => {
                        if let Some(target) = open {
                            target.write(data)?;
                        }
                    }
                    Event::End => {
                        if let Some(target) = open.take() {
                            let path = target.path().to_owned();
                            target.commit(&self.metadata)?;
                            self.written.push(Written::new(&path, self.metadata.clone()));
                            taken.push(path);
                        }
                    }
                }
                Ok(())
            }),
        }
    }

    fn finish(mut self) -> Result<Vec<Written>, Failure> {
        match self.sink {
            Sink::Raw { target, teller } => {
                let path = target.path().to_owned();
                target.commit(&self.metadata)?;
                let mut written = Written::new(&path, self.metadata);
                // It may have been removed since: then there is nothing to tell.
                written.entry = teller.and_then(|actor| files::describe(&path, &actor).ok());
                self.written.push(written);
            }
            Sink::Form { parser, .. } => parser.finish()?,
        }
        Ok(self.written)
    }
}

/// Only parts named `file` are files. `%22` in a file name stays as it is: E2B's envd does not decode it.
fn part_path(
    head: &PartHead,
    path: Option<&str>,
    actor: &Actor,
    taken: &[PathBuf],
) -> Result<Option<PathBuf>, Failure> {
    if head.name.as_deref() != Some("file") {
        return Ok(None);
    }
    let Some(path) = path.or(head.filename.as_deref()) else {
        return Err(Failure::bad("a multipart part named \"file\" has no file name, and the query no path"));
    };
    let path = actor.resolve(path)?;
    if taken.contains(&path) {
        return Err(Failure::bad(format!(
            "you cannot upload multiple files to the same path '{}' in one upload request, \
             only the first specified file was uploaded",
            path.display()
        )));
    }
    Ok(Some(path))
}
