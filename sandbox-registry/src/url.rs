//! A registry named by one line of text, as in a setting.

use std::path::PathBuf;
use std::sync::Arc;

use sandhold_core::{Error, MemoryRegistry, Registry, Result};

use crate::FileRegistry;
#[cfg(feature = "sqlite")]
use crate::SqliteRegistry;
#[cfg(feature = "postgres")]
use crate::{PostgresConfig, PostgresRegistry};

/// Which registry to open.
///
/// | text | registry |
/// |---|---|
/// | `memory:` | [`MemoryRegistry`] |
/// | `file:/directory` | [`FileRegistry`] |
/// | `sqlite:/path/of/the/file` | `SqliteRegistry` |
/// | `postgres://user:password@host/database` | `PostgresRegistry` |
///
/// `Debug` does not show a password.
#[derive(Clone, Debug)]
pub struct RegistryUrl(Place);

#[derive(Clone, Debug)]
enum Place {
    Memory,
    File(PathBuf),
    #[cfg(feature = "sqlite")]
    Sqlite(PathBuf),
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresConfig>),
}

impl RegistryUrl {
    /// Reads the text; opens nothing.
    ///
    /// # Errors
    /// [`sandhold_core::ErrorKind::InvalidArgument`]; the text of a database is not repeated, as it may hold a password.
    pub fn parse(text: &str) -> Result<Self> {
        let (scheme, rest) = text.split_once(':').unwrap_or((text, ""));
        let place = match scheme {
            "memory" => Place::Memory,
            "file" => Place::File(path(scheme, rest)?),
            #[cfg(feature = "sqlite")]
            "sqlite" => Place::Sqlite(path(scheme, rest)?),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => Place::Postgres(Box::new(PostgresConfig::new(text)?)),
            _ => {
                return Err(Error::invalid_argument(
                    "the registry's URL cannot be understood; give memory:, file:/directory, sqlite:/path or \
                     postgres://user:password@host/database",
                ));
            }
        };
        Ok(Self(place))
    }

    /// Opens the registry.
    ///
    /// # Errors
    /// What opening it answered.
    pub async fn open(&self) -> Result<Arc<dyn Registry>> {
        Ok(match &self.0 {
            Place::Memory => Arc::new(MemoryRegistry::new()),
            Place::File(root) => Arc::new(FileRegistry::new(root)),
            #[cfg(feature = "sqlite")]
            Place::Sqlite(path) => Arc::new(SqliteRegistry::open(path).await?),
            #[cfg(feature = "postgres")]
            Place::Postgres(config) => Arc::new(PostgresRegistry::open((**config).clone()).await?),
        })
    }
}

/// `/path` and `///path` are the same place.
fn path(scheme: &str, rest: &str) -> Result<PathBuf> {
    let path = PathBuf::from(rest.strip_prefix("//").unwrap_or(rest));
    if path.is_absolute() {
        return Ok(path);
    }
    Err(Error::invalid_argument(format!("{scheme}:{rest} names no absolute path; give {scheme}:/path")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_absolute_and_a_password_is_never_repeated() {
        assert_eq!(path("file", "/a/b").unwrap(), path("file", "///a/b").unwrap());
        for bad in [
            "file:a",
            "file:",
            "file://host/a",
            "sqlite:a.db",
            "redis://u:hush@h/",
            "",
            "memory",
            "postgres:hush",
        ] {
            let answer = RegistryUrl::parse(bad);
            if bad == "memory" {
                assert!(answer.is_ok());
                continue;
            }
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), sandhold_core::ErrorKind::InvalidArgument, "{bad}");
            assert!(!format!("{error:?}").contains("hush"), "{error:?}");
        }
        #[cfg(feature = "postgres")]
        assert!(!format!("{:?}", RegistryUrl::parse("postgres://u:hush@h/d").unwrap()).contains("hush"));
    }
}
