//! The body of a file on its way into a sandbox, piece by piece.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use napi::Env;
use napi::bindgen_prelude::{PromiseRaw, Unknown};
use napi_derive::napi;
use sandhold_core::{ByteStream, Result, ResultStream};
use tokio::sync::mpsc;

use crate::errors::{NativeFailure, from_javascript};
use crate::process::bytes;
use crate::runtime::call;

/// How many pieces wait between JavaScript and the wire.
const PIECES: usize = 2;

/// A body that JavaScript feeds while a write reads it.
#[napi]
pub struct NativeUpload {
    feed: Mutex<Option<mpsc::Sender<Result<Bytes>>>>,
    body: Mutex<Option<mpsc::Receiver<Result<Bytes>>>>,
}

#[napi]
impl NativeUpload {
    #[napi(constructor)]
    pub fn new() -> Self {
        let (feed, body) = mpsc::channel(PIECES);
        Self { feed: Mutex::new(Some(feed)), body: Mutex::new(Some(body)) }
    }

    /// Adds a piece when there is room; false when nobody reads any more.
    #[napi]
    pub fn push<'env>(&self, env: &'env Env, piece: Unknown<'_>) -> napi::Result<PromiseRaw<'env, bool>> {
        let piece = bytes(env, "write", "body", piece)?;
        let feed = self.feed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        call(env, None, async move {
            Ok(match feed {
                Some(feed) => feed.send(Ok(piece)).await.is_ok(),
                None => false,
            })
        })
    }

    /// Says that this is all.
    #[napi]
    pub fn end(&self) {
        self.feed.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Says that there will be no more, because the source of the body threw.
    #[napi]
    pub fn fail<'env>(
        &self,
        env: &'env Env,
        thrown: Unknown<'_>,
        origin: Option<&NativeFailure>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let error = from_javascript(thrown, origin, "the body", None);
        let feed = self.feed.lock().unwrap_or_else(PoisonError::into_inner).take();
        call(env, None, async move {
            if let Some(feed) = feed {
                // Whoever does not read any more has failed already.
                let _ = feed.send(Err(error)).await;
            }
            Ok(())
        })
    }
}

impl NativeUpload {
    /// Takes the body that it feeds, once.
    pub(crate) fn body(&self) -> ByteStream {
        match self.body.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(body) => {
                ResultStream::unfold(
                    body,
                    |mut body| async move { body.recv().await.map(|piece| (piece, body)) },
                )
            }
            None => ResultStream::from_items(Vec::new()),
        }
    }
}
