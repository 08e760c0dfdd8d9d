//! The server side: an envd that runs inside the sandbox.

mod auth;
mod files;
mod fs;
mod http;
mod init;
mod keepalive;
mod linger;
mod metrics;
mod process;
mod serve;
mod state;
mod tunnel;
mod users;
mod watch;

pub use self::auth::UNAUTHORIZED_MESSAGE;
#[cfg(feature = "fuzzing")]
pub use self::files::multipart;
pub use self::files::{FileAccess, FileOperation};
pub use self::fs::remove_tree;
pub use self::http::{Body, ExtraRoutes};
pub use self::linger::Lingering;
pub use self::process::{Guest, GuestCommand, GuestExit, START_TAG};
pub use self::serve::{Daemon, Listener};
pub use self::state::{ChildSetup, ChildUser, DaemonConfig, UserMode};

/// The version of E2B's envd whose behaviour this daemon follows; clients decide by it what they may ask for.
pub const ENVD_VERSION: &str = "0.6.13";
