//! The in-sandbox protocol that E2B's `envd` speaks: its messages, a client, and a daemon.
//!
//! Processes and files travel as Connect RPC, file contents as plain HTTP. Everything that happens inside a
//! sandbox goes over this one protocol, whoever made the sandbox.
//!
//! - [`EnvdHandle`] is the sandbox handle of any provider whose inside speaks envd. It is made of an
//!   [`EnvdClient`] over a [`Transport`], and a [`ControlPlane`] that says what became of a sandbox that is silent.
//! - `Daemon` serves the protocol, for E2B's own SDKs too, and adds kept output, replay by offset, signals to whole
//!   trees and tunnels to ports. The program `sandhold-envd` is the daemon for places that have no other way to
//!   start one.
//!
//! | feature | gives |
//! |---|---|
//! | `client` (default) | the client side |
//! | `tls` | `https` endpoints for the client, by rustls with ring |
//! | `daemon` | the server side and the program `sandhold-envd` |
//! | `fuzzing` | entries for fuzz targets; not covered by semver |

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "daemon")]
mod daemon;
mod messages;

/// Entries for fuzz targets; not covered by semver.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    pub use crate::daemon::multipart;
}

#[cfg(feature = "tls")]
pub use client::TlsTransport;
#[cfg(feature = "client")]
pub use client::{
    ControlPlane, Dialect, EnvdClient, EnvdConfig, EnvdHandle, TcpTransport, Transport, UnixTransport,
    transport_from_url,
};
#[cfg(feature = "daemon")]
pub use daemon::{
    Body, ChildSetup, ChildUser, Daemon, DaemonConfig, ENVD_VERSION, ExtraRoutes, FileAccess, FileOperation,
    Guest, GuestCommand, GuestExit, Lingering, Listener, START_TAG, UNAUTHORIZED_MESSAGE, UserMode,
    remove_tree,
};
