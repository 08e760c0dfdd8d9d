//! What comes one after the other: the bytes of a file, events of a watch, events of a host.

use std::sync::Arc;

use napi::bindgen_prelude::{Null, PromiseRaw, Unknown, spawn};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Env, Status};
use napi_derive::napi;
use sandhold_core as core;
use sandhold_core::{Lagged, Result, ResultStream};
use tokio::sync::{Mutex, watch};

use crate::js::Data;
use crate::plain::Plain;
use crate::runtime::{NativeCall, call, surrounded};
use crate::values::{self, Event, Maybe, WatchEvent};

/// A stream whose readers take turns, and which whoever holds it can end.
struct Shared<T> {
    stream: Mutex<Option<ResultStream<T>>>,
    closed: watch::Sender<bool>,
}

impl<T> Shared<T> {
    fn new(stream: ResultStream<T>) -> Arc<Self> {
        Arc::new(Self { stream: Mutex::new(Some(stream)), closed: watch::Sender::new(false) })
    }

    /// Ends it, also for those who wait for its next item right now.
    fn close(&self) {
        self.closed.send_replace(true);
        // One who waits drops it.
        if let Ok(mut stream) = self.stream.try_lock() {
            *stream = None;
        }
    }

    async fn next<U: From<T>>(&self) -> Result<Maybe<U>> {
        let mut closed = self.closed.subscribe();
        let mut stream = self.stream.lock().await;
        let Some(open) = stream.as_mut() else { return Ok(values::maybe(None::<U>)) };
        let next = tokio::select! {
            biased;
            _ = closed.wait_for(|closed| *closed) => Ok(None),
            next = open.next() => next.transpose(),
        };
        if !matches!(next, Ok(Some(_))) {
            *stream = None;
        }
        next.map(values::maybe)
    }
}

/// The content of a file on its way out of the sandbox, in pieces.
#[napi]
pub struct NativeDownload {
    stream: Arc<Shared<bytes::Bytes>>,
    size: Option<u64>,
}

impl From<core::Download> for NativeDownload {
    fn from(download: core::Download) -> Self {
        Self { size: download.size, stream: Shared::new(download.body) }
    }
}

#[napi]
impl NativeDownload {
    /// The size of the content, where it is known.
    #[napi(getter)]
    pub fn size(&self) -> Option<f64> {
        self.size.map(|size| size as f64)
    }

    /// Returns the next piece; `null` is the end.
    #[napi]
    pub fn next<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, Maybe<Data>>> {
        let stream = Arc::clone(&self.stream);
        call(env, around, async move { stream.next().await })
    }

    /// Ends it.
    #[napi]
    pub fn close(&self) {
        self.stream.close();
    }
}

/// What happens in a watched directory.
#[napi]
pub struct NativeWatch(Arc<Shared<core::WatchEvent>>);

impl From<ResultStream<core::WatchEvent>> for NativeWatch {
    fn from(events: ResultStream<core::WatchEvent>) -> Self {
        Self(Shared::new(events))
    }
}

#[napi]
impl NativeWatch {
    /// Returns the next event; `null` is the end.
    #[napi]
    pub fn next<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, Maybe<WatchEvent>>> {
        let stream = Arc::clone(&self.0);
        call(env, around, async move { stream.next().await })
    }

    /// Ends it.
    #[napi]
    pub fn close(&self) {
        self.0.close();
    }
}

/// A stream of values, of one class each: napi has no generic ones.
macro_rules! stream {
    ($(#[$doc:meta])* $name:ident of $of:ty as $given:ty) => {
        $(#[$doc])*
        #[napi]
        pub struct $name(Arc<Shared<$of>>);

        impl From<ResultStream<$of>> for $name {
            fn from(items: ResultStream<$of>) -> Self {
                Self(Shared::new(items))
            }
        }

        #[napi]
        impl $name {
            /// Returns the next item; `null` is the end.
            #[napi]
            pub fn next<'env>(
                &self,
                env: &'env Env,
                around: Option<&NativeCall>,
            ) -> napi::Result<PromiseRaw<'env, Maybe<$given>>> {
                let stream = Arc::clone(&self.0);
                call(env, around, async move { stream.next().await })
            }

            /// Ends it.
            #[napi]
            pub fn close(&self) {
                self.0.close();
            }
        }
    };
}

stream! {
    /// Sandboxes of a provider.
    NativeInfos of core::SandboxInfo as values::SandboxInfo
}
stream! {
    /// Snapshots of a provider.
    NativeSnapshots of core::SnapshotInfo as values::SnapshotInfo
}
stream! {
    /// Lines of a log.
    NativeLog of core::LogLine as values::LogLine
}
stream! {
    /// Templates of an account.
    NativeTemplateList of sandhold_e2b::wire::Template as Plain
}
stream! {
    /// Secrets of an account.
    NativeSecretList of sandhold_e2b::wire::SecretInfo as Plain
}
stream! {
    /// Bytes of a file.
    NativeBytes of bytes::Bytes as Data
}
stream! {
    /// Records of a registry.
    NativeRecords of core::Record as values::Record
}

/// What a host tells: an event, or how many were missed.
type Told = std::result::Result<core::Event, Lagged>;

impl From<Told> for Event {
    fn from(told: Told) -> Self {
        match told {
            Ok(event) => (&event).into(),
            Err(lagged) => Event::lagged(lagged),
        }
    }
}

type Heard = ThreadsafeFunction<Maybe<Event>, Unknown<'static>, Maybe<Event>, Status, false, true>;

/// What happens to the sandboxes of a host. Where a listener was too slow, an event of kind `lagged` says so.
#[napi]
pub struct NativeEvents(Arc<Shared<Told>>);

impl From<core::Events> for NativeEvents {
    fn from(events: core::Events) -> Self {
        Self(Shared::new(ResultStream::unfold(events, |mut events| async move {
            let told = events.next().await?;
            Some((Ok(told), events))
        })))
    }
}

#[napi]
impl NativeEvents {
    /// Has `heard` called with the next event; `null` is the end, and what an aborted call gets.
    ///
    /// Whoever waits for this alone does not keep the process alive: events come from its own calls.
    #[napi]
    pub fn pull(&self, env: &Env, around: Option<&NativeCall>, heard: Heard) {
        let stream = Arc::clone(&self.0);
        let next = surrounded(env, around, async move { stream.next().await });
        spawn(async move {
            let event = next.await.unwrap_or(Maybe::B(Null));
            heard.call(event, ThreadsafeFunctionCallMode::NonBlocking);
        });
    }

    /// Ends it.
    #[napi]
    pub fn close(&self) {
        self.0.close();
    }
}
