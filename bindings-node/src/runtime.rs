//! Futures of Rust as promises of JavaScript.

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

/// Returns a promise for a future. The future is dropped when the call is aborted.
pub(crate) fn call<'env, T, V>(
    env: &'env Env,
    around: Option<&NativeCall>,
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> napi::Result<PromiseRaw<'env, V>>
where
    T: Send + 'static,
    V: ToNapiValue + From<T>,
{
    let future = surrounded(around, future);
    let future = async move { Ok(future.await) };
    env.spawn_future_with_callback(future, |env, result: Result<T>| {
        result.map(V::from).map_err(|error| errors::thrown(env, error))
    })
}

/// Has a future end when its call is aborted, and tells it of the hooks that it comes from.
pub(crate) fn surrounded<T, F: Future<Output = Result<T>>>(
    around: Option<&NativeCall>,
    future: F,
) -> impl Future<Output = Result<T>> + use<T, F> {
    let around = around.map(|around| (around.aborted.subscribe(), around.scope.clone()));
    async move {
        let Some((mut aborted, scope)) = around else { return future.await };
        let scoped = async {
            match scope {
                Some(scope) => scope.run(future).await,
                None => future.await,
            }
        };
        tokio::select! {
            biased;
            Ok(_) = aborted.wait_for(|aborted| *aborted) => {
                Err(Error::new(ErrorKind::Cancelled, "the call was aborted"))
            }
            result = scoped => result,
        }
    }
}
