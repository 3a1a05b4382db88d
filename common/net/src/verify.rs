//! Verifies a peer's certificate as TLS does, and says in words whose it is where it is refused.
//!
//! A TLS alert tells a number, and rustls a date in seconds since 1970. An operator needs the
//! name, the date, and which of the two clocks may be wrong.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};

use crate::credentials::{CertificateStatus, date, status_of};
use crate::identity::Identity;

/// The certificate that a peer showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    pub identity: Identity,
    /// In hexadecimal.
    pub serial: String,
    pub not_after: SystemTime,
}

impl PeerCertificate {
    pub(crate) fn read(der: &CertificateDer<'_>) -> Result<Self, String> {
        let identity = Identity::of_certificate(der)?;
        let CertificateStatus { serial, not_after, .. } = status(der)?;
        Ok(Self { identity, serial, not_after })
    }
}

fn status(der: &CertificateDer<'_>) -> Result<CertificateStatus, String> {
    status_of("the peer's".as_ref(), der).map_err(|error| error.to_string())
}

/// What a verifier says of the certificate that it refused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said(Arc<OnceLock<String>>);

impl Said {
    pub(crate) fn words(&self) -> Option<String> {
        self.0.get().cloned()
    }

    fn note(&self, der: &CertificateDer<'_>, wanted: &str, error: &rustls::Error, now: UnixTime) {
        // The first is the reason; nothing comes after it on one connection.
        let _ = self.0.set(refusal(der, wanted, error, now));
    }
}

fn refusal(der: &CertificateDer<'_>, wanted: &str, error: &rustls::Error, now: UnixTime) -> String {
    let Ok(status) = status(der) else {
        return "it does not read as a certificate".to_owned();
    };
    let holder = match &status.identity {
        Some(identity) => format!("the certificate of {identity} (serial {})", status.serial),
        None => format!("a certificate without a name of Optimus (serial {})", status.serial),
    };
    let here = UNIX_EPOCH + Duration::from_secs(now.as_secs());
    let rustls::Error::InvalidCertificate(fault) = error else {
        return format!("{holder}: {error}");
    };
    #[expect(clippy::wildcard_enum_match_arm, reason = "rustls adds kinds; their own words serve")]
    match fault {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => format!(
            "{holder} expired at {}, and it is {} here: issue a new one, or set the clock",
            date(status.not_after),
            date(here)
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            let early = status.not_before.duration_since(here).unwrap_or_default();
            format!(
                "{holder} is not valid before {}, and it is {} here: the clocks of the two hosts \
                 differ by at least {} s; set them right",
                date(status.not_before),
                date(here),
                (early + crate::pki::BACKDATED).as_secs()
            )
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            let named = holder.replacen("the certificate of", "a certificate that names", 1);
            format!("{named} is not signed by this cluster's CA: {fault}")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!("{holder} is not {wanted}")
        }
        _ => format!("{holder}: {fault}"),
    }
}

/// Verifies those who connect.
#[derive(Debug)]
pub(crate) struct Clients {
    pub(crate) inner: Arc<dyn ClientCertVerifier>,
    pub(crate) said: Said,
}

impl ClientCertVerifier for Clients {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(end, intermediates, now);
        verified.inspect_err(|error| self.said.note(end, "an agent's or operator's", error, now))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Verifies the master.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) inner: Arc<dyn ServerCertVerifier>,
    pub(crate) said: Said,
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.inner.verify_server_cert(end, intermediates, name, ocsp, now);
        verified.inspect_err(|error| self.said.note(end, "a master's", error, now))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
