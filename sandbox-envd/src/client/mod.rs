//! The client side: a sandbox handle over any envd.

mod config;
mod connection;
mod convert;
mod dial;
mod explain;
mod fault;
mod files;
mod handle;
mod process;
mod relay;
mod request;
mod rpc;
#[cfg(feature = "tls")]
mod tls;
mod transport;
mod watch;

pub use self::config::{Dialect, EnvdConfig};
pub use self::handle::{ControlPlane, EnvdHandle};
pub use self::request::EnvdClient;
#[cfg(feature = "tls")]
pub use self::tls::TlsTransport;
pub use self::transport::{TcpTransport, Transport, UnixTransport, transport_from_url};
