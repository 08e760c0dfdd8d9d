//! How the database is reached.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use sandhold_core::{Error, Result};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Says where the database of a [`crate::PostgresRegistry`] is and how it is used.
///
/// `Debug` does not show the password.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PostgresConfig {
    pub(super) database: tokio_postgres::Config,
    /// The schema that the tables are in; default `sandhold`. It is made if it is not there.
    pub schema: String,
    /// How many connections are open at most; default 8.
    pub connections: usize,
    /// How long a change whose answer was lost is looked for; default 20 s.
    pub settle_limit: Duration,
    roots: Vec<CertificateDer<'static>>,
}

impl PostgresConfig {
    /// Reads a URL or a `key=value` line, as `libpq` does: `postgres://user:password@host/database`.
    ///
    /// TLS checks the server's certificate and name. `sslmode=prefer`, which is the default, means `require` for a host
    /// that is not this machine; `sslmode=disable` must be said.
    ///
    /// # Errors
    /// [`sandhold_core::ErrorKind::InvalidArgument`]; the URL is not repeated, as it may hold a password.
    pub fn new(url: &str) -> Result<Self> {
        let mut database: tokio_postgres::Config = url.parse().map_err(|_| {
            Error::invalid_argument(
                "the database's URL cannot be understood; give postgres://user:password@host/database",
            )
        })?;
        if database.get_hosts().is_empty() && database.get_hostaddrs().is_empty() {
            return Err(Error::invalid_argument(
                "the database's URL names no host; give one, or host=/path/of/the/socket's/directory",
            ));
        }
        if database.get_ssl_mode() == SslMode::Prefer && !is_this_machine(&database) {
            database.ssl_mode(SslMode::Require);
        }
        // Behind several hosts only the one that can be written has the records.
        database.target_session_attrs(TargetSessionAttrs::ReadWrite);
        if database.get_connect_timeout().is_none() {
            database.connect_timeout(Duration::from_secs(10));
        }
        if database.get_tcp_user_timeout().is_none() {
            database.tcp_user_timeout(Duration::from_secs(30));
        }
        if database.get_application_name().is_none() {
            database.application_name("sandhold");
        }
        Ok(Self {
            database,
            schema: "sandhold".to_owned(),
            connections: 8,
            settle_limit: Duration::from_secs(20),
            roots: Vec::new(),
        })
    }

    /// Uses the tables in this schema: a lower-case letter or `_`, then letters, digits and `_`, at most 63.
    #[must_use]
    pub fn with_schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Opens at most so many connections.
    #[must_use]
    pub fn with_connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// Looks so long for a change whose answer was lost, before the error is `outcome_unknown`.
    #[must_use]
    pub fn with_settle_limit(mut self, limit: Duration) -> Self {
        self.settle_limit = limit;
        self
    }

    /// Trusts servers under this certificate authority (DER) instead of the public ones; can be said several times.
    #[must_use]
    pub fn with_root_certificate(mut self, der: impl Into<Vec<u8>>) -> Self {
        self.roots.push(CertificateDer::from(der.into()));
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        let mut letters = self.schema.bytes();
        let begins = letters.next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let goes_on = letters.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if !begins || !goes_on || self.schema.len() > 63 {
            return Err(Error::invalid_argument(format!(
                "the schema {:?} is no plain name; use lower-case letters, digits and _, at most 63",
                self.schema
            )));
        }
        if self.connections == 0 {
            return Err(Error::invalid_argument("a registry needs at least one connection"));
        }
        Ok(())
    }

    pub(super) fn tls(&self) -> Result<MakeRustlsConnect> {
        let mut roots = rustls::RootCertStore::empty();
        if self.roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        for root in &self.roots {
            roots.add(root.clone()).map_err(|error| {
                Error::invalid_argument("the root certificate cannot be understood; give it as DER")
                    .with_source(error)
            })?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                Error::new(sandhold_core::ErrorKind::Unexpected, "TLS cannot be set up").with_source(error)
            })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(MakeRustlsConnect::new(config))
    }
}

fn is_this_machine(database: &tokio_postgres::Config) -> bool {
    let hosts = database.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
    });
    hosts && database.get_hostaddrs().iter().all(IpAddr::is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_to_another_machine_is_never_silently_plain() {
        for (url, mode) in [
            ("postgres://u@db.example.com/d", SslMode::Require),
            ("postgres://u@10.0.0.1/d", SslMode::Require),
            ("postgres://u@db.example.com/d?sslmode=prefer", SslMode::Require),
            ("postgres://u@db.example.com/d?sslmode=disable", SslMode::Disable),
            ("postgres://u@localhost/d", SslMode::Prefer),
            ("postgres://u@127.0.0.1,db.example.com/d", SslMode::Require),
            ("host=/run/postgresql user=u", SslMode::Prefer),
        ] {
            assert_eq!(PostgresConfig::new(url).unwrap().database.get_ssl_mode(), mode, "{url}");
        }
    }

    #[test]
    fn a_bad_url_is_refused_and_a_password_is_never_shown() {
        for bad in ["postgres://u:hunter2@h/d?nonsense=hunter2", "hunter2", "user=u password=hunter2"] {
            let error = PostgresConfig::new(bad).unwrap_err();
            assert_eq!(error.kind(), sandhold_core::ErrorKind::InvalidArgument);
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
        let config = PostgresConfig::new("postgres://u:hunter2@h/d").unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn a_schema_is_a_plain_name() {
        let config = PostgresConfig::new("host=/run user=u").unwrap();
        for bad in ["", "A", "1a", "a.b", "a\"; DROP", &"a".repeat(64)] {
            assert!(config.clone().with_schema(bad).check().is_err(), "{bad}");
        }
        config.clone().check().unwrap();
        assert!(config.with_connections(0).check().is_err());
    }
}
