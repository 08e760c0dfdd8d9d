use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use http::Uri;
use sandhold_core::{Error, PortStream, Result};
use tokio::net::{TcpStream, UnixStream};

/// Opens byte streams to a daemon.
#[async_trait]
pub trait Transport: Debug + Send + Sync + 'static {
    /// Opens one.
    ///
    /// # Errors
    /// The system's error.
    async fn open(&self) -> io::Result<Box<dyn PortStream>>;

    /// Returns what the `Host` header says.
    fn authority(&self) -> &str;

    /// Returns what stands before every path; empty, or begins with a slash and ends without one.
    fn prefix(&self) -> &str {
        ""
    }

    /// Says whether nobody but this machine or the other end can read what is sent.
    fn is_private(&self) -> bool;
}

/// Reaches a daemon in the clear over TCP.
#[derive(Clone, Debug)]
pub struct TcpTransport {
    pub(crate) host: String,
    pub(crate) port: u16,
    authority: String,
    prefix: String,
}

impl TcpTransport {
    /// Reaches this port of this host; an IPv6 address stands without brackets.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        let authority =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Self { host, port, authority, prefix: String::new() }
    }

    #[cfg(feature = "tls")]
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        connect(&self.host, self.port).await
    }
}

async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // Requests are small and awaited: they must not wait for acknowledgements.
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[async_trait]
impl Transport for TcpTransport {
    async fn open(&self) -> io::Result<Box<dyn PortStream>> {
        Ok(Box::new(connect(&self.host, self.port).await?))
    }

    fn authority(&self) -> &str {
        &self.authority
    }

    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn is_private(&self) -> bool {
        self.host == "localhost" || self.host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
    }
}

/// Reaches a daemon by its Unix socket.
#[derive(Clone, Debug)]
pub struct UnixTransport(PathBuf);

impl UnixTransport {
    /// Reaches the socket at this path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }
}

#[async_trait]
impl Transport for UnixTransport {
    async fn open(&self) -> io::Result<Box<dyn PortStream>> {
        Ok(Box::new(UnixStream::connect(&self.0).await?))
    }

    fn authority(&self) -> &str {
        "localhost"
    }

    fn is_private(&self) -> bool {
        true
    }
}

/// Makes the transport for `http://HOST[:PORT][/PREFIX]`, `https://…` (feature `tls`) or `unix:/PATH`.
///
/// # Errors
/// [`sandhold_core::ErrorKind::InvalidArgument`] for anything else.
pub fn transport_from_url(url: &str) -> Result<Arc<dyn Transport>> {
    let bad = |why: &str| {
        Error::invalid_argument(format!("{url:?} {why}; give http://HOST:PORT, https://HOST or unix:/PATH"))
    };
    if let Some(path) = url.strip_prefix("unix:") {
        // `unix:///path` and `unix:/path` name the same socket.
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') {
            return Err(bad("names no absolute path"));
        }
        return Ok(Arc::new(UnixTransport::new(path)));
    }
    let uri: Uri = url.parse().map_err(|_| bad("is not a URL"))?;
    let authority = uri.authority().ok_or_else(|| bad("names no host"))?;
    if authority.as_str().contains('@') || uri.query().is_some() {
        return Err(bad("carries more than a place"));
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let secure = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(bad("has another scheme")),
    };
    let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let mut tcp = TcpTransport::new(host, port);
    tcp.authority = authority.to_string();
    tcp.prefix = uri.path().trim_end_matches('/').to_owned();
    if !secure {
        return Ok(Arc::new(tcp));
    }
    #[cfg(feature = "tls")]
    return Ok(Arc::new(crate::client::tls::TlsTransport::with_web_roots(tcp)?));
    #[cfg(not(feature = "tls"))]
    Err(bad("needs the feature `tls`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_place_prefix_and_whether_others_can_read() {
        let local = transport_from_url("http://127.0.0.1:8080/envd/").unwrap();
        assert_eq!(
            (local.authority(), local.prefix(), local.is_private()),
            ("127.0.0.1:8080", "/envd", true)
        );
        let six = transport_from_url("http://[::1]").unwrap();
        assert_eq!((six.authority(), six.is_private()), ("[::1]", true));
        assert!(!transport_from_url("http://sandbox.example").unwrap().is_private());
        assert!(transport_from_url("unix:///run/envd.sock").unwrap().is_private());
    }

    #[test]
    fn what_is_not_a_place_is_refused_by_name() {
        for url in ["", "localhost:1", "ftp://host", "unix:relative", "http://user@host", "http://h/?q=1"] {
            let error = transport_from_url(url).unwrap_err();
            assert_eq!(error.kind(), sandhold_core::ErrorKind::InvalidArgument);
            assert!(error.message().contains(&format!("{url:?}")), "{error}");
        }
    }
}
