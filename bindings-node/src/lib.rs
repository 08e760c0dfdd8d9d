//! The Node.js face of Sandhold: it converts, and nothing else.
//!
//! What is here has names with `Native`, which users do not see: the face that they see is the TypeScript in `ts`.
#![allow(missing_debug_implementations, reason = "the values of JavaScript are shown by the face")]
#![allow(unreachable_pub, reason = "napi exports what is public")]
#![allow(clippy::needless_pass_by_value, reason = "napi hands arguments over by value")]

mod access;
mod account;
mod control;
mod convert;
mod errors;
mod hooks;
mod host;
mod js;
mod mirror;
mod options;
mod persist;
mod plain;
mod process;
mod provider;
mod reconcile;
mod runtime;
mod sandbox;
mod settings;
mod stream;
mod templates;
mod upload;
mod values;
mod vault;
