//! Settings of QUIC and TLS, each with its reason.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{EndpointConfig, IdleTimeout, TransportConfig, VarInt};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::credentials::{Credentials, provider};
use crate::keys::ResetKeys;
use crate::verify::{Clients, Said, Servers};

/// A connection on which nothing came for this long is lost. Well over the SUSPECT time of a
/// node, so that a node is called silent before its connection goes.
pub(crate) const IDLE: Duration = Duration::from_secs(20);

/// The connecting side says something at least this often; several are lost before [`IDLE`].
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A cluster's network answers in under a millisecond; the default of 333 ms makes the first
/// retransmission, and so every reconnection over a lossy link, slow.
const INITIAL_RTT: Duration = Duration::from_millis(20);

/// What a peer may have under way in one stream and in all, before it is read. The defaults
/// let one peer hold megabytes; a heartbeat is some KiB.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 512 << 10;
const SEND_WINDOW: u64 = 1 << 20;

/// Streams that a peer may have open at once: an operator's command uses one or two.
const STREAMS: u32 = 8;

/// Resets that a restarted master may send: 10,000 a second, so that the agents of a large
/// cluster all learn of it within seconds. quinn's default is 50 a second.
const RESET_INTERVAL: Duration = Duration::from_micros(100);

fn transport() -> TransportConfig {
    let mut config = TransportConfig::default();
    let idle = IdleTimeout::try_from(IDLE).expect("20 s is in range");
    config
        .max_idle_timeout(Some(idle))
        .initial_rtt(INITIAL_RTT)
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .send_window(SEND_WINDOW)
        .datagram_receive_buffer_size(None);
    config
}

pub(crate) fn endpoint_config(keys: &ResetKeys) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(keys.reset_key()));
    let keys = keys.clone();
    config
        .cid_generator(move || Box::new(keys.connection_ids()))
        .min_reset_interval(RESET_INTERVAL);
    config
}

/// What a server shows and asks for, until it is given other credentials.
#[derive(Debug)]
pub(crate) struct Acceptor {
    provider: Arc<CryptoProvider>,
    verifier: Arc<dyn ClientCertVerifier>,
    shown: Arc<dyn ResolvesServerCert>,
    transport: Arc<TransportConfig>,
    /// Carries the key of address tokens too.
    base: quinn::ServerConfig,
}

impl Acceptor {
    pub(crate) fn new(credentials: &Credentials) -> Result<Self, String> {
        let (provider, verifier) = (provider(), credentials.client_verifier()?);
        let key = provider.key_provider.load_private_key(credentials.key());
        let key = CertifiedKey::new(credentials.chain(), key.map_err(|error| error.to_string())?);
        let shown: Arc<dyn ResolvesServerCert> = Arc::new(SingleCertAndKey::from(key));
        let crypto = crypto(&provider, &verifier, &shown, Said::default())?;
        let base = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        Ok(Self { provider, verifier, shown, transport: Arc::new(transport()), base })
    }

    /// For one connection; `said` holds the words where its certificate is refused.
    pub(crate) fn config(&self, said: Said) -> Result<quinn::ServerConfig, String> {
        let mut config = self.base.clone();
        config.crypto = Arc::new(crypto(&self.provider, &self.verifier, &self.shown, said)?);
        config.transport_config(Arc::clone(&self.transport));
        Ok(config)
    }
}

fn crypto(
    provider: &Arc<CryptoProvider>,
    verifier: &Arc<dyn ClientCertVerifier>,
    shown: &Arc<dyn ResolvesServerCert>,
    said: Said,
) -> Result<QuicServerConfig, String> {
    let clients = Clients { inner: Arc::clone(verifier), said };
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(Arc::new(clients))
        .with_cert_resolver(Arc::clone(shown));
    tls.alpn_protocols = vec![crate::ALPN.to_vec()];
    // No resumption: every connection shows its certificate anew, and an expired one is seen.
    // 0-RTT, which could be replayed, goes with it. The store of sessions is some 20 KiB.
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    tls.max_early_data_size = 0;
    QuicServerConfig::try_from(tls).map_err(|error| error.to_string())
}

pub(crate) fn client_config(
    credentials: &Credentials,
    said: Said,
) -> Result<quinn::ClientConfig, String> {
    let servers = Servers { inner: credentials.server_verifier()?, said };
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        // It is WebPKI's own verifier, which only notes its words.
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(servers))
        .with_client_auth_cert(credentials.chain(), credentials.key())
        .map_err(|error| error.to_string())?;
    tls.alpn_protocols = vec![crate::ALPN.to_vec()];
    tls.resumption = Resumption::disabled();
    tls.enable_early_data = false;
    let tls = QuicClientConfig::try_from(tls).map_err(|error| error.to_string())?;
    let mut config = quinn::ClientConfig::new(Arc::new(tls));
    let mut transport = transport();
    transport.keep_alive_interval(Some(KEEP_ALIVE));
    config.transport_config(Arc::new(transport));
    Ok(config)
}
