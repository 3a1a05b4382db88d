//! Peers that do not keep to the rules: plain quinn and rustls.

use std::net::SocketAddr;
use std::sync::Arc;

use net::TlsFiles;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::rustls::pki_types::pem::PemObject;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use quinn::rustls::{self, RootCertStore};

use crate::world::LOOPBACK;

/// What a greeting of version 1 is on the wire, for ever.
pub(crate) const HELLO: &[u8] = b"\x0e\0\0\0OPTIMUS\0\x01\0\x01\0\x01x";

fn chain(files: &TlsFiles) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(&files.certificate).unwrap().map(Result::unwrap).collect()
}

fn key(files: &TlsFiles) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_file(&files.key).unwrap()
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A connection after TLS, as the connecting side sees it, without any greeting. `ca` gives the
/// CA; `own` the certificate to show, if any.
pub(crate) async fn connect(
    address: SocketAddr,
    ca: &TlsFiles,
    own: Option<&TlsFiles>,
    alpn: &[u8],
) -> Result<quinn::Connection, quinn::ConnectionError> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&ca.ca).unwrap()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut tls = match own {
        Some(files) => builder.with_client_auth_cert(chain(files), key(files)).unwrap(),
        None => builder.with_no_client_auth(),
    };
    tls.alpn_protocols = vec![alpn.to_vec()];
    let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let endpoint = quinn::Endpoint::client(LOOPBACK).unwrap();
    endpoint.connect_with(config, address, net::SERVER_NAME).unwrap().await
}

/// A server of another protocol, with a master's good certificate.
pub(crate) fn server(files: &TlsFiles, alpn: &[u8]) -> quinn::Endpoint {
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain(files), key(files))
        .unwrap();
    tls.alpn_protocols = vec![alpn.to_vec()];
    let tls = Arc::new(QuicServerConfig::try_from(tls).unwrap());
    quinn::Endpoint::server(quinn::ServerConfig::with_crypto(tls), LOOPBACK).unwrap()
}
