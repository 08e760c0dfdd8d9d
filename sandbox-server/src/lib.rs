//! A server that E2B's SDKs cannot tell from E2B, over any sandbox provider.
//!
//! One origin answers for the control plane (`X-API-KEY`) and for the insides of all sandboxes, which requests name by
//! headers or by their host name. What a sandbox is stands with its provider; this server keeps only what a provider
//! has no place for, and finds both again after it was killed.

mod api;
mod app;
mod auth;
mod config;
mod connection;
mod error;
mod extract;
mod guard;
mod holds;
mod ids;
mod images;
mod inflow;
mod machine;
mod network;
mod pace;
mod passes;
mod proxy;
mod resolve;
mod rooted;
mod samples;
mod sandboxes;
mod secrets;
mod server;
mod snapshots;
mod socket;
mod store;
mod templates;
mod tokens;
mod unparsed;
mod volumes;

pub use config::{Egress, ServerConfig};
pub use images::Alias;
pub use server::Server;
pub use templates::RootImporter;
