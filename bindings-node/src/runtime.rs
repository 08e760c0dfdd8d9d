//! Futures of Rust as promises of JavaScript.

use std::cell::OnceCell;

use napi::Env;
use napi::bindgen_prelude::{PromiseRaw, ToNapiValue};
use napi_derive::napi;
use sandhold_core::{Error, ErrorKind, HookScope, Result};
use tokio::sync::watch;

use crate::errors;

/// What surrounds a call where there is a signal that may abort it, or a hook that it comes from.
#[napi]
pub struct NativeCall {
    aborted: watch::Sender<bool>,
    scope: Option<HookScope>,
}

#[napi]
impl NativeCall {
    #[napi(constructor)]
    pub fn new(scope: Option<&NativeScope>) -> Self {
        Self { aborted: watch::Sender::new(false), scope: scope.map(|scope| scope.0.clone()) }
    }

    /// Ends the future behind the call; no effect on one that has ended.
    #[napi]
    pub fn abort(&self) {
        self.aborted.send_replace(true);
    }
}

/// The hooks that a call comes from.
#[napi]
pub struct NativeScope(pub(crate) HookScope);

thread_local! {
    /// Whether the environment of this thread has ended: the main one, or that of a worker.
    static ENDED: OnceCell<watch::Sender<bool>> = const { OnceCell::new() };
}

/// Tells when the environment has ended. Nobody waits for its calls then.
fn end_of(env: &Env) -> watch::Receiver<bool> {
    let made = || {
        let ended = watch::Sender::new(false);
        let hook = env.add_env_cleanup_hook(ended.clone(), |ended| {
            ended.send_replace(true);
        });
        // Without it calls of a worker that is terminated go on to their own ends.
        drop(hook);
        ended
    };
    ENDED.with(|ended| ended.get_or_init(made).subscribe())
}

/// Returns a promise for a future. The future is dropped when the call is aborted, and when the environment ends.
pub(crate) fn call<'env, T, V>(
    env: &'env Env,
    around: Option<&NativeCall>,
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> napi::Result<PromiseRaw<'env, V>>
where
    T: Send + 'static,
    V: ToNapiValue + From<T>,
{
    let future = surrounded(env, around, future);
    let future = async move { Ok(future.await) };
    env.spawn_future_with_callback(future, |env, result: Result<T>| {
        result.map(V::from).map_err(|error| errors::thrown(env, error))
    })
}

/// Has a future end when its call is aborted or its environment ends, and tells it of the hooks that it comes from.
pub(crate) fn surrounded<T, F: Future<Output = Result<T>>>(
    env: &Env,
    around: Option<&NativeCall>,
    future: F,
) -> impl Future<Output = Result<T>> + use<T, F> {
    let mut end = end_of(env);
    let (aborted, scope) = match around {
        Some(around) => (Some(around.aborted.subscribe()), around.scope.clone()),
        None => (None, None),
    };
    async move {
        let scoped = async {
            match scope {
                Some(scope) => scope.run(future).await,
                None => future.await,
            }
        };
        let aborted = async {
            match aborted {
                Some(mut aborted) => aborted.wait_for(|aborted| *aborted).await.is_ok(),
                None => false,
            }
        };
        tokio::select! {
            biased;
            true = aborted => Err(Error::new(ErrorKind::Cancelled, "the call was aborted")),
            Ok(_) = end.wait_for(|ended| *ended) => {
                Err(Error::new(ErrorKind::Cancelled, "the environment of the call ended"))
            }
            result = scoped => result,
        }
    }
}
