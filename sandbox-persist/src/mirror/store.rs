//! The objects of a mirror: put, get, look, list. What they are is nobody's business here.

use std::path::Path as FilePath;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload,
};
use sandhold_core::{Error, ErrorKind, Result};

use super::config::MirrorTarget;
#[cfg(feature = "https")]
use super::credentials::Variables;
use crate::error;

/// The size of a part, where 10,000 of them are enough.
const PART: u64 = 16 << 20;
/// S3 takes no smaller one, but for the last.
const LEAST_PART: u64 = 5 << 20;
/// S3 takes 10,000 parts of one object.
const MAX_PARTS: u64 = 9_000;

/// An object as a listing has it.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) key: String,
    pub(super) bytes: u64,
    pub(super) modified_ms: u64,
}

/// How far the parts of an object have come, for going on after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Parts {
    upload: String,
    size: u64,
    done: Vec<String>,
}

/// What goes up.
#[derive(Debug)]
pub(super) struct Outgoing<'a> {
    pub(super) key: &'a str,
    pub(super) file: &'a FilePath,
    pub(super) bytes: u64,
    pub(super) sha256: &'a str,
    /// Above which size it goes in parts.
    pub(super) parts_above: u64,
}

/// Told how far the parts have come.
pub(super) type Tell<'a> = dyn FnMut(&Parts) -> BoxFuture<'static, Result<()>> + Send + 'a;

/// A place for objects.
#[derive(Clone)]
pub(super) struct Store {
    objects: Arc<dyn ObjectStore>,
    parts: Option<Arc<dyn MultipartStore>>,
    /// Whether an object can say what it is: its type and its sum.
    has_attributes: bool,
    has_attributes_in_parts: bool,
    name: String,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Store {
    /// Makes ready for requests; none is sent.
    pub(super) fn open(target: &MirrorTarget, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        #[cfg(feature = "https")]
        let variables = &Variables(lookup);
        #[cfg(not(feature = "https"))]
        let _ = lookup;
        match target {
            MirrorTarget::File(dir) => Self::file(dir),
            #[cfg(feature = "s3")]
            MirrorTarget::S3(target) => super::cloud::s3(target, variables),
            #[cfg(feature = "gcs")]
            MirrorTarget::Gcs(target) => super::cloud::gcs(target, variables),
            #[cfg(feature = "azure")]
            MirrorTarget::Azure(target) => super::cloud::azure(target, variables),
            #[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
            other => {
                let feature = match other {
                    MirrorTarget::S3(_) => "s3",
                    MirrorTarget::Gcs(_) => "gcs",
                    _ => "azure",
                };
                Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "this build cannot reach such a mirror; build sandhold-persist with the feature `{feature}`"
                    ),
                ))
            }
        }
    }

    fn file(dir: &FilePath) -> Result<Self> {
        crate::durable::create_dir(dir)?;
        let objects = object_store::local::LocalFileSystem::new_with_prefix(dir)
            .map_err(|failure| {
                Error::invalid_argument(format!("{} is no place for a mirror", dir.display()))
                    .with_source(failure)
            })?
            .with_fsync(true);
        Ok(Self {
            objects: Arc::new(objects),
            parts: None,
            has_attributes: false,
            has_attributes_in_parts: false,
            name: dir.display().to_string(),
        })
    }

    #[cfg(feature = "https")]
    pub(super) fn cloud<S: ObjectStore + MultipartStore>(
        store: S,
        name: &str,
        has_attributes_in_parts: bool,
    ) -> Self {
        let store = Arc::new(store);
        Self {
            objects: Arc::clone(&store) as Arc<dyn ObjectStore>,
            parts: Some(store),
            has_attributes: true,
            has_attributes_in_parts,
            name: name.to_owned(),
        }
    }

    /// The bucket or the directory, for people and records.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Puts a file in one request, or in parts. `tell` is told after each part, and `before` is what it was told when
    /// an earlier try was cut off.
    pub(super) async fn put_file(
        &self,
        outgoing: Outgoing<'_>,
        before: Option<Parts>,
        tell: &mut Tell<'_>,
    ) -> Result<()> {
        match &self.parts {
            Some(parts) if outgoing.bytes > outgoing.parts_above.max(LEAST_PART) => {
                self.put_parts(&**parts, outgoing, before, tell).await
            }
            Some(_) => {
                let content = read_part(outgoing.file, 0, outgoing.bytes).await?;
                self.put(outgoing.key, content, "application/x-git-bundle", Some(outgoing.sha256)).await
            }
            None => self.copy_in(outgoing).await,
        }
    }

    async fn put_parts(
        &self,
        store: &dyn MultipartStore,
        outgoing: Outgoing<'_>,
        before: Option<Parts>,
        tell: &mut Tell<'_>,
    ) -> Result<()> {
        let path = self.path(outgoing.key)?;
        let failed = |failure| self.failed("put", outgoing.key, failure);
        let size = PART.min(outgoing.parts_above.max(LEAST_PART));
        let size = size.max(outgoing.bytes.div_ceil(MAX_PARTS).next_multiple_of(1 << 20));
        let mut again = before.filter(|before| before.size == size);
        loop {
            let is_first = again.is_none();
            let mut parts = match again.take() {
                Some(parts) => parts,
                None => {
                    let attributes = match self.has_attributes_in_parts {
                        true => attributes("application/x-git-bundle", Some(outgoing.sha256)),
                        false => Attributes::new(),
                    };
                    let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
                    let upload = store.create_multipart_opts(&path, options).await.map_err(failed)?;
                    Parts { upload, size, done: Vec::new() }
                }
            };
            tell(&parts).await?;
            match self.send_parts(store, &path, &outgoing, &mut parts, tell).await {
                // The bucket has thrown away what an earlier try had begun.
                Err(Sent::Store(object_store::Error::NotFound { .. })) if !is_first => {}
                Err(Sent::Store(failure)) => return Err(failed(failure)),
                Err(Sent::Own(failure)) => return Err(failure),
                Ok(()) => return Ok(()),
            }
        }
    }

    async fn send_parts(
        &self,
        store: &dyn MultipartStore,
        path: &Path,
        outgoing: &Outgoing<'_>,
        parts: &mut Parts,
        tell: &mut Tell<'_>,
    ) -> Result<(), Sent> {
        let upload = parts.upload.clone();
        for index in parts.done.len() as u64..outgoing.bytes.div_ceil(parts.size) {
            let at = index * parts.size;
            let content = read_part(outgoing.file, at, parts.size.min(outgoing.bytes - at)).await?;
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            let part = store.put_part(path, &upload, index, content.into()).await?;
            parts.done.push(part.content_id);
            tell(parts).await?;
            crate::failpoint::pass("mirror.part");
        }
        let done = parts.done.iter().map(|id| PartId { content_id: id.clone() }).collect();
        store.complete_multipart(path, &upload, done).await?;
        Ok(())
    }

    /// A directory takes the file in pieces, and gives it its name at the end.
    async fn copy_in(&self, outgoing: Outgoing<'_>) -> Result<()> {
        let path = self.path(outgoing.key)?;
        let failed = |failure| self.failed("put", outgoing.key, failure);
        let mut upload = self.objects.put_multipart(&path).await.map_err(failed)?;
        let mut at = 0;
        while at < outgoing.bytes {
            let content = read_part(outgoing.file, at, PART.min(outgoing.bytes - at)).await?;
            at += content.len() as u64;
            let put = upload.put_part(PutPayload::from(content)).await;
            if let Err(failure) = put {
                // What is left of it has no name, and another try begins anew.
                let _ = upload.abort().await;
                return Err(failed(failure));
            }
            crate::failpoint::pass("mirror.part");
        }
        upload.complete().await.map(drop).map_err(failed)
    }

    /// Puts a small object in one request.
    pub(super) async fn put(
        &self,
        key: &str,
        content: Bytes,
        content_type: &'static str,
        sha256: Option<&str>,
    ) -> Result<()> {
        let attributes = match self.has_attributes {
            true => attributes(content_type, sha256),
            false => Attributes::new(),
        };
        let options = PutOptions { attributes, ..PutOptions::default() };
        let put = self.objects.put_opts(&self.path(key)?, content.into(), options).await;
        put.map(drop).map_err(|failure| self.failed("put", key, failure))
    }

    /// The size of an object.
    pub(super) async fn size(&self, key: &str) -> Result<u64> {
        let found = self.objects.head(&self.path(key)?).await;
        found.map(|found| found.size).map_err(|failure| self.failed("look at", key, failure))
    }

    /// Reads an object of at most `limit` bytes.
    pub(super) async fn get(&self, key: &str, limit: u64) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        let mut reading = self.read(key, limit).await?;
        while let Some(piece) = reading.next().await? {
            content.extend_from_slice(&piece);
        }
        Ok(content)
    }

    /// Begins to read an object of at most `limit` bytes.
    pub(super) async fn read(&self, key: &str, limit: u64) -> Result<Reading> {
        let found = self.objects.get(&self.path(key)?).await;
        let found = found.map_err(|failure| self.failed("get", key, failure))?;
        let size = found.meta.size;
        if size > limit {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{key} in {} has {size} bytes, above the limit of {limit}", self.name),
            )
            .with_reason("too_large"));
        }
        let (store, key) = (self.clone(), key.to_owned());
        Ok(Reading { store, key, size, bytes: 0, stream: found.into_stream() })
    }

    /// Lists what is below a key, which is a whole part of a path.
    pub(super) fn list(&self, below: &str) -> Result<impl Stream<Item = Result<Listed>> + use<>> {
        let path = self.path(below)?;
        let (store, at) = (self.clone(), below.to_owned());
        Ok(self.objects.list(Some(&path)).map(move |found| {
            let found = found.map_err(|failure| store.failed("list", &at, failure))?;
            Ok(Listed {
                key: found.location.to_string(),
                bytes: found.size,
                modified_ms: u64::try_from(found.last_modified.timestamp_millis()).unwrap_or(0),
            })
        }))
    }

    /// Removes an object; a missing one is no error.
    pub(super) async fn delete(&self, key: &str) -> Result<()> {
        match self.objects.delete(&self.path(key)?).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(failure) => Err(self.failed("delete", key, failure)),
        }
    }

    fn path(&self, key: &str) -> Result<Path> {
        Path::parse(key).map_err(|failure| {
            Error::invalid_argument(format!("{key:?} is no key of an object")).with_source(failure)
        })
    }

    fn failed(&self, what: &str, key: &str, failure: object_store::Error) -> Error {
        use object_store::Error as Failure;
        let (kind, retryable) = match &failure {
            Failure::NotFound { .. } => (ErrorKind::NotFound, false),
            Failure::PermissionDenied { .. } => (ErrorKind::PermissionDenied, false),
            Failure::Unauthenticated { .. } => (ErrorKind::Unauthenticated, false),
            Failure::AlreadyExists { .. } => (ErrorKind::AlreadyExists, false),
            Failure::Precondition { .. } => (ErrorKind::Conflict, true),
            Failure::InvalidPath { .. } => (ErrorKind::InvalidArgument, false),
            Failure::NotSupported { .. } | Failure::NotImplemented { .. } => (ErrorKind::Unsupported, false),
            _ => match refused(&failure) {
                Some(401) => (ErrorKind::Unauthenticated, false),
                Some(403) => (ErrorKind::PermissionDenied, false),
                Some(404) => (ErrorKind::NotFound, false),
                Some(_) => (ErrorKind::Unexpected, false),
                None => (ErrorKind::Unavailable, true),
            },
        };
        let message = match kind {
            ErrorKind::NotFound => format!("there is no {key} in {}", self.name),
            _ => format!("could not {what} {key} in {}: {}", self.name, brief(&failure)),
        };
        let error = Error::new(kind, message).with_source(failure);
        if retryable { error.retryable(None) } else { error }
    }
}

/// An object that is being read. One that ends early, or goes on after its end, is an error.
pub(super) struct Reading {
    store: Store,
    key: String,
    size: u64,
    bytes: u64,
    stream: BoxStream<'static, object_store::Result<Bytes>>,
}

impl Reading {
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>> {
        let piece = self.stream.next().await.transpose();
        let piece = piece.map_err(|failure| self.store.failed("get", &self.key, failure))?;
        self.bytes += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        let is_wrong = match piece {
            Some(_) => self.bytes > self.size,
            None => self.bytes != self.size,
        };
        match is_wrong {
            false => Ok(piece),
            true => Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{} in {} came with {} bytes and should have {}",
                    self.key, self.store.name, self.bytes, self.size
                ),
            )
            .retryable(None)),
        }
    }
}

/// What ended the sending of parts.
enum Sent {
    Store(object_store::Error),
    Own(Error),
}

impl From<object_store::Error> for Sent {
    fn from(failure: object_store::Error) -> Self {
        Self::Store(failure)
    }
}

impl From<Error> for Sent {
    fn from(failure: Error) -> Self {
        Self::Own(failure)
    }
}

fn attributes(content_type: &'static str, sha256: Option<&str>) -> Attributes {
    let mut attributes = Attributes::new();
    attributes.insert(Attribute::ContentType, content_type.into());
    if let Some(sha256) = sha256 {
        attributes.insert(Attribute::Metadata("sha256".into()), sha256.to_owned().into());
    }
    attributes
}

async fn read_part(file: &FilePath, at: u64, bytes: u64) -> Result<Bytes> {
    let file = file.to_owned();
    crate::cancel::run_blocking(None, move |_| {
        use std::os::unix::fs::FileExt;
        let read = || {
            let mut content = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
            std::fs::File::open(&file)?.read_exact_at(&mut content, at)?;
            Ok::<_, std::io::Error>(content.into())
        };
        read().map_err(|failure| error::io("read", &file, failure))
    })
    .await
}

/// The status by which a server has refused a request that the library has no type for.
#[cfg(feature = "https")]
fn refused(failure: &object_store::Error) -> Option<u16> {
    let first: &dyn std::error::Error = failure;
    let mut chain = std::iter::successors(Some(first), |failure| failure.source());
    chain.find_map(|failure| failure.downcast_ref::<super::http::Refused>()).map(|refused| refused.status)
}

#[cfg(not(feature = "https"))]
fn refused(_: &object_store::Error) -> Option<u16> {
    None
}

/// What a server said, in one line that is not too long.
fn brief(failure: &object_store::Error) -> String {
    let text = failure.to_string();
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(500).collect()
}
