//! File contents, streamed both ways.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_core::Stream;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RANGE, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use sandhold_core::{ByteStream, Download, EntryInfo, Error, FileType, ReadOptions, Result, WriteOptions};
use serde::Deserialize;

use crate::client::connection::{Fault, FaultKind, RequestBody, ResponseBody, Upload};
use crate::client::fault::{Call, Effect};
use crate::client::handle::EnvdHandle;
use crate::client::request::MAX_JSON;
use crate::messages::filesystem as wire;

/// One element of the answer to an upload.
#[derive(Deserialize)]
struct Uploaded {
    path: String,
    /// Everything about the file, from a daemon that heeds what the request prefers.
    entry: Option<wire::EntryInfo>,
}

impl EnvdHandle {
    fn target(&self, path: &str, user: Option<&str>) -> String {
        let mut query = form_urlencoded::Serializer::for_suffix("/files?".to_owned(), "/files?".len());
        query.append_pair("path", path);
        if let Some(user) = self.client().user(user) {
            query.append_pair("username", user);
        }
        query.finish()
    }

    pub(crate) async fn read_file(&self, path: &str, options: ReadOptions) -> Result<Download> {
        let call = self.call("read", Effect::None);
        let client = self.client();
        let target = self.target(path, options.user.as_deref());
        let mut request = client.request(Method::GET, &target, RequestBody::Whole(None))?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let whole = options.offset == 0 && options.length.is_none();
        if let Some(range) = (!whole).then(|| range(options.offset, options.length)).flatten() {
            headers.insert(RANGE, range);
        }
        let response = client.send(&call, request, client.config().answer_timeout).await?;
        let accepted = |status| {
            matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE)
        };
        let response = client.expect(&call, response, accepted).await?;
        let (head, body) = response.into_parts();
        if head.status == StatusCode::RANGE_NOT_SATISFIABLE {
            // It begins at or behind the end of the file.
            return if whole {
                Err(call.http(head.status, &head.headers, &Bytes::new()))
            } else {
                Ok(Download::new(Some(0), ByteStream::from_bytes(Bytes::new())))
            };
        }
        let length = body_length(&call, &head.headers)?;
        // Whoever does not know ranges sends the whole file.
        let skip = if head.status == StatusCode::OK { options.offset } else { 0 };
        let wanted = options.length.unwrap_or(u64::MAX);
        let size = length.map(|length| length.saturating_sub(skip).min(wanted));
        Ok(Download::new(size, self.explained_stream(Content { call, body, skip, wanted })))
    }

    pub(crate) async fn write_file(
        &self,
        path: &str,
        body: ByteStream,
        options: WriteOptions,
    ) -> Result<EntryInfo> {
        let call = self.call("write", Effect::Idempotent);
        let client = self.client();
        let sent = Arc::new(AtomicU64::new(0));
        let failed = Arc::default();
        let upload = Upload {
            source: body,
            left: options.size,
            failed: Arc::clone(&failed),
            sent: Arc::clone(&sent),
            waiting: Arc::default(),
        };
        let target = self.target(path, options.user.as_deref());
        let mut request = client.request(Method::POST, &target, RequestBody::Stream(upload))?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        // The official answer tells the path alone: without more of it, the file has to be asked for.
        headers.insert("prefer", HeaderValue::from_static("return=representation"));
        for (name, value) in &options.metadata {
            let (name, value) = metadata(name, value)?;
            headers.insert(name, value);
        }
        let answered = async {
            let response = client.send(&call, request, client.config().answer_timeout).await?;
            let mut response = client.expect(&call, response, |status| status.is_success()).await?;
            response.body_mut().collect(MAX_JSON).await.map_err(|fault| call.fault(fault))
        }
        .await;
        if let Some(error) = failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        let answer = answered?;
        let uploaded: Vec<Uploaded> = serde_json::from_slice(&answer)
            .map_err(|error| call.fault(Fault::new(FaultKind::Malformed, error)))?;
        let Some(uploaded) = uploaded.into_iter().next() else {
            return Err(call.fault(Fault::new(FaultKind::Malformed, "the answer names no file")));
        };
        if uploaded.entry.is_some() {
            return self.entry(&call, uploaded.entry);
        }
        // The file is written by now; only facts about it may be missing.
        match self.stat_entry(&call, &uploaded.path, options.user.as_deref()).await {
            Ok(entry) => Ok(entry),
            Err(error) => {
                tracing::debug!(%error, "a written file could not be looked at");
                let mut entry = EntryInfo::new(uploaded.path, FileType::File);
                entry.size = sent.load(Relaxed);
                entry.metadata = options.metadata;
                Ok(entry)
            }
        }
    }
}

/// Returns none where the range is the whole file; an empty range asks for one byte, which is then left out.
fn range(offset: u64, length: Option<u64>) -> Option<HeaderValue> {
    let text = match length {
        Some(length) => format!("bytes={offset}-{}", offset.saturating_add(length.max(1) - 1)),
        None => format!("bytes={offset}-"),
    };
    HeaderValue::from_str(&text).ok()
}

/// Returns the length of a body that will show when it is cut off: by its length or by its last chunk.
fn body_length(call: &Call, headers: &HeaderMap) -> Result<Option<u64>> {
    let malformed = |message: &str| call.fault(Fault::new(FaultKind::Malformed, message));
    if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(malformed("the content is encoded although that was not asked for"));
    }
    if let Some(length) = headers.get(CONTENT_LENGTH) {
        let length = length.to_str().ok().and_then(|length| length.parse().ok());
        return length.map(Some).ok_or_else(|| malformed("the length is not a number"));
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        return Ok(None);
    }
    Err(malformed("the content has no length and no chunks, so that a cut would not show"))
}

fn metadata(name: &str, value: &str) -> Result<(HeaderName, HeaderValue)> {
    let bad = || {
        Error::invalid_argument(format!(
            "the metadata {name:?} = {value:?} is not printable ASCII without spaces in the name"
        ))
    };
    let name = HeaderName::try_from(format!("x-metadata-{name}")).map_err(|_| bad())?;
    if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(bad());
    }
    Ok((name, HeaderValue::from_str(value).map_err(|_| bad())?))
}

/// The bytes of a file as they come.
struct Content {
    call: Call,
    body: ResponseBody,
    /// Bytes in front that were not asked for.
    skip: u64,
    /// Bytes still wanted.
    wanted: u64,
}

impl Stream for Content {
    type Item = Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            let mut data = match ready!(this.body.poll_data(cx)) {
                Some(Ok(data)) => data,
                Some(Err(fault)) => return Poll::Ready(Some(Err(this.call.fault(fault)))),
                None => return Poll::Ready(None),
            };
            let skipped = this.skip.min(data.len() as u64);
            // Both are at most the length of the data.
            data.advance(usize::try_from(skipped).unwrap_or(data.len()));
            this.skip -= skipped;
            let taken = this.wanted.min(data.len() as u64);
            data.truncate(usize::try_from(taken).unwrap_or(data.len()));
            this.wanted -= taken;
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(data)));
            }
            if this.wanted == 0 && this.skip == 0 {
                return Poll::Ready(None);
            }
        }
    }
}
