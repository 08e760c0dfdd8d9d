//! The server side: an envd that runs inside the sandbox.

mod auth;
mod files;
mod fs;
mod http;
mod keepalive;
mod process;
mod state;
mod users;
mod watch;

pub use self::http::{Body, ExtraRoutes};
pub use self::state::{ChildSetup, ChildUser, DaemonConfig, UserMode};
