//! Errors on their way to JavaScript and, from hooks, back: by their fields, never by text.

use std::collections::BTreeMap;
use std::error::Error as StdError;

use napi::bindgen_prelude::{
    Either3, FromNapiValue as _, JavaScriptClassExt as _, JsObjectValue as _, JsValue as _, Object, Unknown,
};
use napi::{Env, JsError, JsTypeError};
use napi_derive::napi;
use sandhold_core::{Error, ErrorKind};

/// An error of the library, as what a call throws or rejects with; the face makes a `SandboxError` of it.
#[napi]
pub struct NativeFailure(pub(crate) Error);

#[napi]
impl NativeFailure {
    /// The stable code of the kind.
    #[napi(getter)]
    pub fn kind(&self) -> &'static str {
        self.0.kind().as_str()
    }

    /// One line that says it all.
    #[napi(getter)]
    pub fn text(&self) -> String {
        self.0.to_string()
    }

    /// The message alone, without place and context.
    #[napi(getter)]
    pub fn message(&self) -> String {
        self.0.message().to_owned()
    }

    /// A stable word within the kind.
    #[napi(getter)]
    pub fn reason(&self) -> Option<&'static str> {
        self.0.reason()
    }

    /// Whether another try may succeed and cannot do harm.
    #[napi(getter)]
    pub fn retryable(&self) -> bool {
        self.0.is_retryable()
    }

    /// The delay that the provider asked for, in milliseconds.
    #[napi(getter)]
    pub fn retry_after(&self) -> Option<f64> {
        self.0.retry_after().map(|delay| delay.as_secs_f64() * 1000.0)
    }

    /// What is known about the effect.
    #[napi(getter)]
    pub fn outcome(&self) -> &'static str {
        self.0.outcome().as_str()
    }

    /// The provider's name.
    #[napi(getter)]
    pub fn provider(&self) -> Option<&'static str> {
        Some(self.0.provider()).filter(|name| !name.is_empty())
    }

    /// The operation that failed.
    #[napi(getter)]
    pub fn operation(&self) -> Option<&'static str> {
        Some(self.0.operation()).filter(|name| !name.is_empty())
    }

    /// Pairs that are safe to log.
    #[napi(getter)]
    pub fn context(&self) -> BTreeMap<String, String> {
        self.0.context().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// What led to it: another failure, a text for each cause of other making, or what JavaScript threw.
    #[napi(getter)]
    pub fn cause(&self) -> Option<Either3<NativeFailure, Vec<String>, NativeThrown>> {
        let source = self.0.source()?;
        if let Some(error) = source.downcast_ref::<Error>() {
            return Some(Either3::A(NativeFailure(error.clone())));
        }
        if let Some(thrown) = source.downcast_ref::<napi::Error>() {
            return Some(match thrown.try_clone() {
                Ok(thrown) => Either3::C(NativeThrown(thrown)),
                Err(_) => Either3::B(vec![thrown.reason.clone()]),
            });
        }
        let mut texts = Vec::new();
        let mut next: Option<&(dyn StdError + 'static)> = Some(source);
        while let Some(source) = next {
            texts.push(source.to_string());
            next = source.source();
        }
        Some(Either3::B(texts))
    }
}

/// What JavaScript threw, on its way through the library.
#[napi]
pub struct NativeThrown(napi::Error);

#[napi]
impl NativeThrown {
    /// The same value.
    #[napi(getter)]
    pub fn value(&self) -> napi::Result<napi::Error> {
        self.0.try_clone()
    }
}

/// Makes what is thrown for an error: Node-API throws errors alone as they are, so one carries the failure.
pub(crate) fn thrown(env: &Env, error: Error) -> napi::Error {
    carrier(env, error).unwrap_or_else(|error| error)
}

fn carrier(env: &Env, error: Error) -> napi::Result<napi::Error> {
    let carrier = JsError::from(napi::Error::from_reason(error.message())).into_unknown(*env);
    let mut object = Object::from_unknown(carrier)?;
    object.set_named_property("failure", NativeFailure(error).into_instance(env)?)?;
    Ok(napi::Error::from_unknown_without_coercion(object.to_unknown()))
}

/// Makes what is thrown for a value that is not acceptable; the message names the argument.
pub(crate) fn invalid_argument(env: &Env, argument: &str, problem: &str) -> napi::Error {
    let error = Error::invalid_argument(format!("the argument {argument} {problem}"));
    thrown(env, error.with_context("argument", argument))
}

/// Makes the `TypeError` for a value of a wrong type.
pub(crate) fn type_error(env: &Env, problem: &str) -> napi::Error {
    let error = JsTypeError::from(napi::Error::from_reason(problem));
    napi::Error::from_unknown_without_coercion(error.into_unknown(*env))
}

/// Reads what JavaScript threw: a failure of ours stays the same, any other value is the cause.
pub(crate) fn from_javascript(
    thrown: Unknown<'_>,
    origin: Option<&NativeFailure>,
    at: &str,
    reason: Option<&'static str>,
) -> Error {
    if let Some(origin) = origin {
        return origin.0.clone();
    }
    let error = Error::new(ErrorKind::Unexpected, format!("{at} threw"));
    let error = match reason {
        Some(reason) => error.with_reason(reason),
        None => error,
    };
    error.with_source(napi::Error::from_unknown_without_coercion(thrown))
}

/// Returns the code of every kind.
#[napi]
pub fn error_kinds() -> Vec<&'static str> {
    ErrorKind::ALL.iter().map(|kind| kind.as_str()).collect()
}
