//! Facts that a crate can say as JSON, as plain objects of JavaScript; and the reverse for options of that kind.
#![expect(unsafe_code, reason = "Node-API knows values by their addresses")]

use napi::Env;
use napi::bindgen_prelude::{FromNapiValue as _, ToNapiValue, Unknown};
use napi::sys;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::errors::{invalid_argument, type_error};

/// What is below these names is the caller's own, whose names stay.
const OWN: &[&str] = &["metadata", "env", "other", "headers", "transform", "fields"];

/// A value that is a plain object of JavaScript, with the names of JavaScript.
#[derive(Debug)]
pub struct Plain(Value);

impl<T: Serialize> From<T> for Plain {
    fn from(facts: T) -> Self {
        Self(self::facts(facts))
    }
}

/// Says facts as JSON, with the names of JavaScript.
pub(crate) fn facts(facts: impl Serialize) -> Value {
    // A map whose names are no texts is all that JSON cannot say, and there is none.
    serde_json::to_value(facts).map_or(Value::Null, |value| renamed(value, &camel))
}

impl ToNapiValue for Plain {
    unsafe fn to_napi_value(env: sys::napi_env, value: Self) -> napi::Result<sys::napi_value> {
        // SAFETY: as the caller says.
        unsafe { Value::to_napi_value(env, value.0) }
    }
}

/// Reads an option of JSON; its names are those of JavaScript.
pub(crate) fn read<T: DeserializeOwned>(env: &Env, name: &str, value: Unknown<'_>) -> napi::Result<T> {
    named(env, name, value, &|name: &str| name.to_owned())
}

/// Reads an option of JSON whose names are in snake_case in Rust.
pub(crate) fn read_snake<T: DeserializeOwned>(env: &Env, name: &str, value: Unknown<'_>) -> napi::Result<T> {
    named(env, name, value, &snake)
}

fn named<T: DeserializeOwned>(
    env: &Env,
    name: &str,
    value: Unknown<'_>,
    rename: &dyn Fn(&str) -> String,
) -> napi::Result<T> {
    let value = Value::from_unknown(value).map_err(|error| {
        type_error(env, &format!("argument '{name}': give plain values ({})", error.reason))
    })?;
    serde_json::from_value(renamed(value, rename))
        .map_err(|error| invalid_argument(env, name, &format!("cannot be read: {error}")))
}

fn renamed(value: Value, rename: &dyn Fn(&str) -> String) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(|item| renamed(item, rename)).collect(),
        Value::Object(fields) => {
            let field = |(name, value): (String, Value)| {
                let value = if OWN.contains(&name.as_str()) && value.is_object() {
                    value
                } else {
                    renamed(value, rename)
                };
                (rename(&name), value)
            };
            Value::Object(fields.into_iter().map(field).collect::<Map<_, _>>())
        }
        value => value,
    }
}

/// `captured_at_ms` and `templateID` are `capturedAtMs` and `templateId`.
fn camel(name: &str) -> String {
    let mut made = String::with_capacity(name.len());
    let (mut raise, mut after_upper) = (false, false);
    for letter in name.chars() {
        if letter == '_' {
            raise = !made.is_empty();
            continue;
        }
        let upper = letter.is_ascii_uppercase();
        made.push(match (raise, upper && after_upper) {
            (true, _) => letter.to_ascii_uppercase(),
            (false, true) => letter.to_ascii_lowercase(),
            (false, false) => letter,
        });
        (raise, after_upper) = (false, upper);
    }
    made
}

/// `maxObjectMb` is `max_object_mb`.
fn snake(name: &str) -> String {
    let mut made = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            made.push('_');
        }
        made.push(letter.to_ascii_lowercase());
    }
    made
}
