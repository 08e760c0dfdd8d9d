//! E2B's control plane as a sandbox provider: E2B's cloud, a self-hosted E2B, or any server that speaks its protocol.
//!
//! [`E2bProvider`] finds, makes, pauses and destroys sandboxes over the control plane; inside them it speaks to E2B's
//! daemon by the client of `sandhold-envd`. [`wire`] holds the messages of the control plane, in both directions: a
//! client and a server use the same types.
//!
//! # What it keeps to
//! - Only a 404 in E2B's own form says that a sandbox is gone. A 404 of something in between, a cut-off body, a page of
//!   a list that fails or a cursor that comes again are errors.
//! - A create carries the attempt as its idempotency key and is sent again with the same key and the same bytes only.
//!   A server without v2 routes takes no such key: it is told apart by a 404 or 405 that is not E2B's own, the create is
//!   sent to it once, after a look for the attempt, and [`sandhold_core::Capabilities::idempotent_create`] is off then.
//! - Ports are closed to the public, and a sandbox for which no traffic token comes back is destroyed.
//! - Connect by id is two requests: a look, for only it tells the generation and how the sandbox was paused, and the
//!   connect, for only it wakes, extends and tells the traffic token. After a find of just now it is the connect alone.
//!   A third request follows only when a sandbox was paused between the two, to give it its lease back.
//!
//! | feature | what it adds |
//! |---|---|
//! | `testing` | a recording proxy with scripted faults, for tests of any client or server of this API |

mod access;
mod account;
mod config;
mod control;
mod create;
mod error;
mod fork;
mod http;
mod identity;
mod logs;
mod paging;
mod provider;
mod secrets;
mod templates;
#[cfg(feature = "testing")]
pub mod testing;
mod volumes;
pub mod wire;

pub use access::{PortAccess, SandboxAccess, SignOptions};
pub use config::{AutoResume, E2bConfig, PublicTraffic};
pub use provider::E2bProvider;
pub use secrets::Secrets;
pub use templates::{BuildOptions, CopyOptions, DefaultTemplate, Recipe, TemplateBuild, Templates};
pub use volumes::{VolumeContent, VolumeOptions, Volumes};
