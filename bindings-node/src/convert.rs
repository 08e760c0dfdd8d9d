//! Arguments of JavaScript as values of Rust. What does not fit is an error that names the argument.

use std::time::Duration;

use napi::bindgen_prelude::{FromNapiValue, JsObjectValue as _, Object, TypeName, Unknown};
use napi::{Env, ValueType};
use sandhold_core::ProcessSpec;

use crate::errors::{invalid_argument, thrown, type_error};

/// The options of a call, taken out one by one. `undefined` and `null` are as good as none.
pub(crate) struct Options<'env> {
    pub(crate) env: &'env Env,
    call: &'static str,
    given: Option<Object<'env>>,
    taken: Vec<&'static str>,
}

impl<'env> Options<'env> {
    pub(crate) fn new(env: &'env Env, call: &'static str, given: Option<Object<'env>>) -> Self {
        Self { env, call, given, taken: Vec::new() }
    }

    /// Takes an option as it is.
    pub(crate) fn any(&mut self, name: &'static str) -> napi::Result<Option<Unknown<'env>>> {
        self.taken.push(name);
        let Some(given) = &self.given else { return Ok(None) };
        let value: Unknown<'env> = given.get_named_property(name)?;
        Ok(Some(value).filter(|value| !is_nothing(value)))
    }

    /// Takes an option.
    pub(crate) fn take<T: FromNapiValue + TypeName>(
        &mut self,
        name: &'static str,
    ) -> napi::Result<Option<T>> {
        let Some(value) = self.any(name)? else { return Ok(None) };
        extract(self.env, self.call, name, value).map(Some)
    }

    /// Takes a whole number that is not below zero.
    pub(crate) fn count<T: TryFrom<u64>>(&mut self, name: &'static str) -> napi::Result<Option<T>> {
        let Some(value) = self.take::<f64>(name)? else { return Ok(None) };
        count(self.env, name, value).map(Some)
    }

    /// Takes a time in milliseconds.
    pub(crate) fn millis(&mut self, name: &'static str) -> napi::Result<Option<Duration>> {
        let Some(value) = self.take::<f64>(name)? else { return Ok(None) };
        millis(self.env, name, value).map(Some)
    }

    /// Takes one of these words.
    pub(crate) fn word<T: Copy>(
        &mut self,
        name: &'static str,
        words: &[(&str, T)],
    ) -> napi::Result<Option<T>> {
        let Some(word) = self.take::<String>(name)? else { return Ok(None) };
        one_of(self.env, name, &word, words).map(Some)
    }

    /// Takes a function that other threads may call.
    pub(crate) fn function<T: FromNapiValue>(&mut self, name: &'static str) -> napi::Result<Option<T>> {
        let Some(value) = self.any(name)? else { return Ok(None) };
        if value.get_type()? != ValueType::Function {
            return Err(type_error(self.env, &format!("{}() argument '{name}': give a function", self.call)));
        }
        from_unknown(value).map(Some)
    }

    /// Takes an object of options.
    pub(crate) fn options(&mut self, name: &'static str) -> napi::Result<Option<Options<'env>>> {
        let given: Option<Object<'env>> = self.take(name)?;
        Ok(given.map(|given| Options::new(self.env, name, Some(given))))
    }

    /// Refuses whatever was not taken.
    pub(crate) fn finish(self) -> napi::Result<()> {
        let Some(given) = &self.given else { return Ok(()) };
        let known = |name: &String| self.taken.contains(&name.as_str());
        match Object::keys(given)?.into_iter().find(|name| !known(name)) {
            Some(name) => Err(type_error(self.env, &format!("{}() has no option {name:?}", self.call))),
            None => Ok(()),
        }
    }
}

fn is_nothing(value: &Unknown<'_>) -> bool {
    matches!(value.get_type(), Ok(ValueType::Undefined | ValueType::Null))
}

/// Reads an argument of one type.
pub(crate) fn extract<T: FromNapiValue + TypeName>(
    env: &Env,
    call: &str,
    name: &str,
    value: Unknown<'_>,
) -> napi::Result<T> {
    let found = value.get_type().map_or_else(|_| "something else".to_owned(), |found| found.to_string());
    // A number is no object, though napi would ask it for its properties.
    let fits = match T::value_type() {
        ValueType::Object => found == ValueType::Object.to_string(),
        _ => true,
    };
    let problem = match fits.then(|| from_unknown::<T>(value)) {
        Some(Ok(value)) => return Ok(value),
        Some(Err(error)) => error.reason.clone(),
        None => String::new(),
    };
    let wanted = match T::type_name() {
        "String" => "a text",
        "f64" => "a number",
        "bool" => "a boolean",
        "BTreeMap" => "an object of texts",
        "Object" => "an object",
        _ => "an array",
    };
    let more = if problem.is_empty() { String::new() } else { format!(" ({problem})") };
    Err(type_error(env, &format!("{call}() argument '{name}': give {wanted}, not {found}{more}")))
}

fn from_unknown<T: FromNapiValue>(value: Unknown<'_>) -> napi::Result<T> {
    T::from_unknown(value)
}

/// Reads a whole number that is not below zero.
pub(crate) fn count<T: TryFrom<u64>>(env: &Env, name: &str, value: f64) -> napi::Result<T> {
    const LARGEST: f64 = 9_007_199_254_740_991.0;
    let whole = (value.fract() == 0.0 && (0.0..=LARGEST).contains(&value)).then_some(value as u64);
    whole.and_then(|whole| T::try_from(whole).ok()).ok_or_else(|| {
        invalid_argument(env, name, &format!("is {value}; give a whole number, 0 or more, that fits"))
    })
}

/// Reads a time in milliseconds.
pub(crate) fn millis(env: &Env, name: &str, value: f64) -> napi::Result<Duration> {
    Duration::try_from_secs_f64(value / 1000.0)
        .map_err(|_| invalid_argument(env, name, &format!("is {value}; give milliseconds, 0 or more")))
}

/// Finds one of these words.
pub(crate) fn one_of<T: Copy>(env: &Env, name: &str, word: &str, words: &[(&str, T)]) -> napi::Result<T> {
    words.iter().find(|(known, _)| *known == word).map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(known, _)| format!("{known:?}")).collect();
        invalid_argument(env, name, &format!("is {word:?}; give one of {}", known.join(", ")))
    })
}

/// Reads a command: a text is a line of shell, an array the program and its arguments.
pub(crate) fn command(env: &Env, call: &'static str, value: Unknown<'_>) -> napi::Result<ProcessSpec> {
    if matches!(value.get_type()?, ValueType::String) {
        return Ok(ProcessSpec::shell(from_unknown::<String>(value)?));
    }
    let mut argv = extract::<Vec<String>>(env, call, "command", value)?.into_iter();
    match argv.next() {
        Some(program) => Ok(ProcessSpec::argv(program, argv)),
        None => Err(invalid_argument(env, "command", "is empty; give a program and its arguments")),
    }
}

/// Names the argument in the error of a value that Rust has checked.
pub(crate) fn checked<T>(
    env: &Env,
    argument: &'static str,
    value: sandhold_core::Result<T>,
) -> napi::Result<T> {
    value.map_err(|error| thrown(env, error.with_context("argument", argument)))
}
