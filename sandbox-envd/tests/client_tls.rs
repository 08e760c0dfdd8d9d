//! The client over TLS: who is trusted, what is sent before that, and large content both ways.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]
#![cfg(all(feature = "tls", feature = "daemon"))]

#[path = "support/handle.rs"]
mod handles;
mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use handles::Plane;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sandhold_core::{
    ByteStream, ErrorKind, Outcome, ProcessSpec, ReadOptions, SandboxHandle as _, SandboxHandleExt as _,
    SandboxId, WriteOptions,
};
use sandhold_envd::{EnvdClient, EnvdConfig, EnvdHandle, TcpTransport, TlsTransport};
use support::start;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// A gateway that ends TLS for a daemon, with a certificate of its own for `localhost`.
struct Gateway {
    address: SocketAddr,
    roots: RootCertStore,
    /// Connections that got past the handshake.
    admitted: Arc<AtomicUsize>,
}

async fn gateway(daemon: SocketAddr) -> Gateway {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let admitted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&admitted);
    tokio::spawn(async move {
        while let Ok((outer, _)) = listener.accept().await {
            let (acceptor, count) = (acceptor.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                let Ok(mut outer) = acceptor.accept(outer).await else { return };
                count.fetch_add(1, Ordering::SeqCst);
                let mut inner = TcpStream::connect(daemon).await.unwrap();
                // Either side may go away first.
                let _ = tokio::io::copy_bidirectional(&mut outer, &mut inner).await;
            });
        }
    });
    Gateway { address, roots, admitted }
}

fn handle(gateway: &Gateway, host: &str, roots: RootCertStore) -> EnvdHandle {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpTransport::new(host, gateway.address.port());
    let transport = TlsTransport::new(tcp, Arc::new(config)).unwrap();
    // A secret may travel over TLS without being asked for by name.
    let config = EnvdConfig::new().with_access_token("secret");
    let client = EnvdClient::new(Arc::new(transport), config).unwrap();
    EnvdHandle::new(client, "test", SandboxId::new("box"), None, Arc::new(Plane::Running))
}

#[tokio::test]
async fn everything_works_over_tls_byte_for_byte() {
    let running = start(|config| config.with_access_token("secret")).await;
    let gateway = gateway(running.address).await;
    let handle = handle(&gateway, "localhost", gateway.roots.clone());
    let output = handle.exec(ProcessSpec::argv("head", ["-c", "3000000", "/dev/zero"])).await.unwrap();
    assert_eq!(output.stdout.bytes.len() as u64 + output.stdout.dropped, 3_000_000);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f").to_str().unwrap().to_owned();
    let content: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    handle.write(&path, ByteStream::from_bytes(content.clone()), WriteOptions::default()).await.unwrap();
    let down = handle.read(&path, ReadOptions::default()).await.unwrap();
    assert!(down.body.into_bytes(usize::MAX).await.unwrap() == content);
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_or_for_another_host_gets_nothing() {
    let running = start(|config| config.with_access_token("secret")).await;
    let gateway = gateway(running.address).await;
    let strangers = handle(&gateway, "localhost", RootCertStore::empty());
    let elsewhere = handle(&gateway, "127.0.0.1", gateway.roots.clone());
    for handle in [strangers, elsewhere] {
        let error = handle.exec(ProcessSpec::argv("true", [""; 0])).await.unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Unavailable, Outcome::NotStarted), "{error}");
    }
    assert_eq!(gateway.admitted.load(Ordering::SeqCst), 0);
}
