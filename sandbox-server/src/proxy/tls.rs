//! TLS to programs inside that speak it on their ports themselves (`httpsPorts`).

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use sandhold_core::{Error, ErrorKind, PortStream, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::passes::write_to_stream;

/// A program that accepts and then says nothing speaks no TLS.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Speaks TLS to the inside of sandboxes.
#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Prepares for it; the process-wide default of rustls is left alone.
    ///
    /// # Errors
    /// [`ErrorKind::Unexpected`] when rustls supports no version of TLS.
    pub(crate) fn new() -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| {
                Error::new(ErrorKind::Unexpected, "no TLS version is supported").with_source(error)
            })?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
            .with_no_client_auth();
        // All sandboxes have the same name here: the ticket of one must not be shown to another.
        config.resumption = Resumption::disabled();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Speaks TLS from now on with the program at the other end.
    pub(super) async fn handshake(&self, stream: Box<dyn PortStream>) -> io::Result<Spoken> {
        // An address, so that no name is asked for: the one that the client used says nothing inside.
        let name = ServerName::from(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let handshake = self.0.connect(name, stream);
        let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no TLS within 10 s"))??;
        Ok(Spoken { stream })
    }
}

/// Takes every certificate. The stream was made by the provider into that very sandbox, and nothing stands between: who
/// answers on the port is whoever the sandbox's owner let listen there, and no certificate could say more. Programs inside
/// sign theirs themselves, for names that nobody outside knows, so there is nothing to check one against either.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        // Proves that the other end has the key of a certificate that says nothing.
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A connection that TLS is spoken on. One that ends without saying so is at its end, as it is to E2B's proxy: many
/// programs just close, and HTTP itself says how long its bodies are, where that matters.
#[derive(Debug)]
pub(super) struct Spoken {
    stream: TlsStream<Box<dyn PortStream>>,
}

impl AsyncRead for Spoken {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(cx, buffer) {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            polled => polled,
        }
    }
}

impl AsyncWrite for Spoken {
    write_to_stream!();
}
