//! Records and leases on disk: where a key's sandbox is remembered, and who may change it.
//!
//! | registry | for | its lease ends |
//! |---|---|---|
//! | [`SqliteRegistry`] | one machine: one file, many processes | with its holder, or at its time by a clock that nobody can set |
//! | [`PostgresRegistry`] | many machines | at its time by the database's clock |
//! | [`FileRegistry`] | one machine, few keys, files that a person can read | with its holder |
//!
//! | feature | what it adds |
//! |---|---|
//! | `sqlite` (default) | [`SqliteRegistry`]; SQLite is compiled in |
//! | `postgres` | [`PostgresRegistry`]; TLS is rustls |

mod file;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod json;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod migration;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod pages;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
mod url;

pub use file::FileRegistry;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresConfig, PostgresRegistry};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteRegistry;
pub use url::RegistryUrl;
