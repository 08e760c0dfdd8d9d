use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use sandhold_core::{Error, ErrorKind, PortStream, Result};
use tokio_rustls::TlsConnector;

use crate::client::transport::{TcpTransport, Transport};

/// Reaches a daemon over TLS; the process-wide default of rustls is left alone.
#[derive(Clone)]
pub struct TlsTransport {
    tcp: TcpTransport,
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl std::fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsTransport").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

impl TlsTransport {
    /// Speaks TLS by this configuration over `tcp`, and expects a certificate for its host.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a host that no certificate can name.
    pub fn new(tcp: TcpTransport, config: Arc<ClientConfig>) -> Result<Self> {
        let name = ServerName::try_from(tcp.host.clone()).map_err(|error| {
            Error::invalid_argument(format!("no certificate can name the host {:?}", tcp.host))
                .with_source(error)
        })?;
        Ok(Self { tcp, name, connector: TlsConnector::from(config) })
    }

    /// Trusts the authorities that browsers trust.
    pub(crate) fn with_web_roots(tcp: TcpTransport) -> Result<Self> {
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                Error::new(ErrorKind::Unexpected, "no TLS version is supported").with_source(error)
            })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self::new(tcp, Arc::new(config))
    }
}

#[async_trait]
impl Transport for TlsTransport {
    async fn open(&self) -> io::Result<Box<dyn PortStream>> {
        let tcp = self.tcp.connect().await?;
        Ok(Box::new(self.connector.connect(self.name.clone(), tcp).await?))
    }

    fn authority(&self) -> &str {
        self.tcp.authority()
    }

    fn prefix(&self) -> &str {
        self.tcp.prefix()
    }

    fn is_private(&self) -> bool {
        true
    }
}
