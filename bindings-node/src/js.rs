//! What napi has no Rust type for: bytes that are lent where that is cheaper, and points in time.
#![expect(unsafe_code, reason = "Node-API knows values and memory by their addresses")]

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use napi::bindgen_prelude::{BufferSlice, ToNapiValue};
use napi::{Env, sys};

/// From how many bytes on lending memory is cheaper than copying it.
const WORTH_LENDING: usize = 16 << 10;

/// Bytes on their way to JavaScript, where they are a `Buffer`.
#[derive(Clone, Debug)]
pub struct Data(pub(crate) Bytes);

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl ToNapiValue for Data {
    /// Lends what is large and nobody else has, and copies everything else: JavaScript may write to what it gets.
    unsafe fn to_napi_value(env: sys::napi_env, value: Self) -> napi::Result<sys::napi_value> {
        let env = Env::from_raw(env);
        let bytes = value.0;
        let buffer = if bytes.len() >= WORTH_LENDING && bytes.is_unique() {
            let (start, length) = (bytes.as_ptr().cast_mut(), bytes.len());
            // SAFETY: the memory stays while `bytes` does, which the finalizer drops. Nobody else has it, so JavaScript
            // may write to it.
            unsafe { BufferSlice::from_external(&env, start, length, bytes, |_, bytes| drop(bytes)) }?
        } else {
            BufferSlice::copy_from(&env, bytes)?
        };
        // SAFETY: it is of this environment.
        unsafe { ToNapiValue::to_napi_value(env.raw(), &buffer) }
    }
}

/// A point in time on its way to JavaScript, where it is a `Date`.
#[derive(Clone, Copy, Debug)]
pub struct Time(pub(crate) SystemTime);

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        Self(time)
    }
}

impl ToNapiValue for Time {
    unsafe fn to_napi_value(env: sys::napi_env, value: Self) -> napi::Result<sys::napi_value> {
        let millis = match value.0.duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_secs_f64() * 1000.0,
            Err(before) => before.duration().as_secs_f64() * -1000.0,
        };
        let here = Env::from_raw(env);
        let date = here.create_date(millis.trunc())?;
        // SAFETY: it is of this environment.
        unsafe { ToNapiValue::to_napi_value(env, date) }
    }
}
