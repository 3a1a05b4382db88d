//! Reading and checking the files that a process shows to its peers.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use crate::error::PkiError;
use crate::files;
use crate::identity::{Identity, Role};

/// Where a process finds its CA, certificate and key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// One or more CA certificates; a peer's must be signed by one of them.
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl TlsFiles {
    /// The files of a role in a folder made by [`crate::pki`]: `master.pem`, `agent-<name>.pem`,
    /// `operator-<name>.pem` and so on, with `.key` beside each, and `ca.pem`.
    #[must_use]
    pub fn in_folder(folder: &Path, role: Role, name: &str) -> Self {
        let stem = match role {
            Role::Master => "master".to_owned(),
            Role::Agent | Role::Operator | Role::Admin | Role::User => format!("{role}-{name}"),
        };
        Self::with_stem(folder, &stem)
    }

    pub(crate) fn with_stem(folder: &Path, stem: &str) -> Self {
        Self {
            ca: folder.join("ca.pem"),
            certificate: folder.join(format!("{stem}.pem")),
            key: folder.join(format!("{stem}.key")),
        }
    }
}

/// A certificate's dates and holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateStatus {
    pub path: PathBuf,
    /// None for a CA, or for a certificate that is none of ours.
    pub identity: Option<Identity>,
    pub subject: String,
    /// In hexadecimal.
    pub serial: String,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

impl CertificateStatus {
    /// Days until the end, with fractions; negative once expired.
    #[must_use]
    pub fn days_left(&self, now: SystemTime) -> f64 {
        let day = 86_400.0;
        match self.not_after.duration_since(now) {
            Ok(left) => left.as_secs_f64() / day,
            Err(over) => -over.duration().as_secs_f64() / day,
        }
    }

    /// # Errors
    /// Where `now` is before the first or after the last instant.
    pub fn check_dates(&self, now: SystemTime) -> Result<(), PkiError> {
        let path = self.path.clone();
        if now < self.not_before {
            return Err(PkiError::NotYetValid { path, date: date(self.not_before) });
        }
        if now > self.not_after {
            return Err(PkiError::Expired { path, date: date(self.not_after) });
        }
        Ok(())
    }

    /// True where this was read from `der`. Serials are long random numbers.
    pub(crate) fn is_of(&self, der: &CertificateDer<'_>) -> bool {
        status_of(&self.path, der).is_ok_and(|other| other == *self)
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// A serial number as text: hexadecimal, without leading zeros.
pub(crate) fn serial_text(bytes: &[u8]) -> String {
    let text = hexadecimal(bytes);
    let digits = text.trim_start_matches('0');
    if digits.is_empty() { "0".to_owned() } else { digits.to_owned() }
}

/// A serial number as a person may write it (`4F:00:aa`), in the one form used here.
///
/// # Errors
/// Where it is no number, or longer than any serial.
pub fn parse_serial(text: &str) -> Result<String, PkiError> {
    let digits: String = text.chars().filter(|c| !matches!(c, ':' | ' ')).collect();
    let bytes = serial_bytes(&digits.to_ascii_lowercase()).ok_or_else(|| PkiError::Invalid {
        field: "serial",
        problem: format!("{text:?} is not a serial number in hexadecimal"),
    })?;
    Ok(serial_text(&bytes))
}

/// 1 to 20 bytes.
pub(crate) fn serial_bytes(text: &str) -> Option<Vec<u8>> {
    let fits = (1..=40).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    let even = if text.len() % 2 == 1 { format!("0{text}") } else { text.to_owned() };
    let pair = |at: usize| u8::from_str_radix(even.get(at..at + 2)?, 16).ok();
    fits.then(|| (0..even.len()).step_by(2).map(pair).collect()).flatten()
}

/// `2026-08-21 07:30:00 UTC`.
pub(crate) fn date(at: SystemTime) -> String {
    let at = time::OffsetDateTime::from(at);
    let (hour, minute, second) = at.time().as_hms();
    format!("{} {hour:02}:{minute:02}:{second:02} UTC", at.date())
}

pub(crate) fn instant(unix_s: i64) -> SystemTime {
    let offset = Duration::from_secs(unix_s.unsigned_abs());
    let at =
        if unix_s < 0 { UNIX_EPOCH.checked_sub(offset) } else { UNIX_EPOCH.checked_add(offset) };
    at.unwrap_or(UNIX_EPOCH)
}

const CERTIFICATE_REMEDY: &str = "make it with optimus cert issue, or name the right file";

/// Dates and holder of the first certificate in a file.
///
/// # Errors
/// Where the file does not read or holds no certificate.
pub fn certificate_status(path: &Path) -> Result<CertificateStatus, PkiError> {
    let chain = read_certificates(path)?;
    status_of(path, &chain[0])
}

/// As [`certificate_status`], of all certificates in a file.
///
/// # Errors
/// As [`certificate_status`].
pub fn certificate_statuses(path: &Path) -> Result<Vec<CertificateStatus>, PkiError> {
    read_certificates(path)?.iter().map(|der| status_of(path, der)).collect()
}

pub(crate) fn status_of(
    path: &Path,
    der: &CertificateDer<'_>,
) -> Result<CertificateStatus, PkiError> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).map_err(|error| {
        PkiError::Unusable { path: path.to_owned(), reason: format!("it is not X.509: {error}") }
    })?;
    Ok(CertificateStatus {
        path: path.to_owned(),
        identity: Identity::of_certificate(der).ok(),
        subject: crate::error::words(certificate.subject().to_string().as_bytes()),
        serial: serial_text(certificate.raw_serial()),
        not_before: instant(certificate.validity().not_before.timestamp()),
        not_after: instant(certificate.validity().not_after.timestamp()),
    })
}

/// At least one certificate.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let bytes = files::read(path, CERTIFICATE_REMEDY)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match read {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) | Err(_) => Err(PkiError::NotPem {
            path: path.to_owned(),
            what: "certificate",
            remedy: CERTIFICATE_REMEDY,
        }),
    }
}

pub(crate) fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, PkiError> {
    let bytes = files::read(path, CERTIFICATE_REMEDY)?;
    if let Ok(metadata) = std::fs::metadata(path) {
        let mode = metadata.permissions().mode() & 0o777;
        // Not the group's bits: systemd's LoadCredential grants by an ACL, which shows there.
        if mode & 0o007 != 0 {
            return Err(PkiError::Exposed { path: path.to_owned(), mode });
        }
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| PkiError::NotPem {
        path: path.to_owned(),
        what: "private key",
        remedy: CERTIFICATE_REMEDY,
    })
}

/// Checks a certificate that is to be used elsewhere as a peer here would.
///
/// # Errors
/// Where it is not `identity`'s, out of its dates, or not signed by a CA in the file `ca`.
pub fn check_issued(
    pem: &str,
    ca: &Path,
    identity: &Identity,
    now: SystemTime,
) -> Result<(), PkiError> {
    let path = Path::new("that was sent");
    let wrong = |reason: String| PkiError::Unusable { path: path.to_owned(), reason };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let chain = read.map_err(|_| wrong("it is not PEM".to_owned()))?;
    let (end, intermediates) =
        chain.split_first().ok_or_else(|| wrong("no certificate is in it".to_owned()))?;
    status_of(path, end)?.check_dates(now)?;
    let named = Identity::of_certificate(end).map_err(wrong)?;
    if named != *identity {
        return Err(wrong(format!("it is for {named}, not for {identity}")));
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(read_certificates(ca)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let verifier = verifier.build().map_err(|error| wrong(error.to_string()))?;
    let at = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
    let verified = verifier.verify_client_cert(end, intermediates, at);
    verified.map(|_| ()).map_err(|_| PkiError::OtherCa { path: path.to_owned(), ca: ca.to_owned() })
}

/// A certificate, its key and the CA, read and found in order. Read anew for every connection,
/// so that a renewed certificate is used without a restart.
pub struct Credentials {
    files: TlsFiles,
    identity: Identity,
    status: CertificateStatus,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("files", &self.files)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// CAs, the chain of a certificate, and its key.
type Parts = (Vec<CertificateDer<'static>>, Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Where a renewal puts the new key until the certificate is in its place.
pub(crate) fn renewed_key(key: &Path) -> PathBuf {
    let mut name = key.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    key.with_file_name(name)
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

impl Credentials {
    /// Reads the files and checks all that a peer would refuse: dates at `now`, the CA's
    /// signature, the role, and that the key belongs to the certificate.
    ///
    /// # Errors
    /// One for each fault, with the file, and the date or the remedy.
    pub fn load(files: &TlsFiles, role: Role, now: SystemTime) -> Result<Self, PkiError> {
        Self::load_one_of(files, &[role], now)
    }

    /// As [`Self::load`], for a client of any role: [`Self::identity`] tells which.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_client(files: &TlsFiles, now: SystemTime) -> Result<Self, PkiError> {
        // The one that has been there longest is named where none of them is found.
        Self::load_one_of(files, &[Role::Operator, Role::Admin, Role::User], now)
    }

    fn load_one_of(files: &TlsFiles, roles: &[Role], now: SystemTime) -> Result<Self, PkiError> {
        let authorities = read_certificates(&files.ca)?;
        let chain = read_certificates(&files.certificate)?;
        let key = read_key(&files.key)?;
        let parts = (authorities.clone(), chain.clone(), key);
        let loaded = Self::of_parts(files, roles, parts, now);
        // Killed between the two renames of a renewal: its key lies beside the old one.
        if matches!(loaded, Err(PkiError::KeyMismatch { .. }))
            && let Ok(key) = read_key(&renewed_key(&files.key))
            && let Ok(renewed) = Self::of_parts(files, roles, (authorities, chain, key), now)
        {
            return Ok(renewed);
        }
        loaded
    }

    /// As [`Self::load`], of CAs, a chain and its key that were read already.
    pub(crate) fn of_parts(
        files: &TlsFiles,
        roles: &[Role],
        (mut authorities, chain, key): Parts,
        now: SystemTime,
    ) -> Result<Self, PkiError> {
        let path = &files.certificate;
        let unusable = |reason: String| PkiError::Unusable { path: path.clone(), reason };
        // While a CA is changed there are two, of which one may have ended.
        let first = status_of(&files.ca, &authorities[0])?.check_dates(now);
        let holds = |der: &CertificateDer<'_>| {
            status_of(&files.ca, der).is_ok_and(|status| status.check_dates(now).is_ok())
        };
        authorities.retain(holds);
        if authorities.is_empty() {
            first?;
        }
        let status = status_of(path, &chain[0])?;
        status.check_dates(now)?;
        let identity = Identity::of_certificate(&chain[0]).map_err(unusable)?;
        if !roles.contains(&identity.role) {
            return Err(PkiError::WrongRole {
                path: path.clone(),
                found: identity.to_string(),
                wanted: roles[0],
            });
        }
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|error| PkiError::Unusable {
                path: files.ca.clone(),
                reason: format!("it is not a CA: {error}"),
            })?;
        }
        let credentials =
            Self { files: files.clone(), identity, status, roots: Arc::new(roots), chain, key };
        credentials.check_key()?;
        credentials.check_chain(now)?;
        Ok(credentials)
    }

    fn check_key(&self) -> Result<(), PkiError> {
        let wrong = || PkiError::KeyMismatch {
            path: self.files.certificate.clone(),
            key: self.files.key.clone(),
        };
        let key =
            provider().key_provider.load_private_key(self.key.clone_key()).map_err(|_| wrong())?;
        rustls::sign::CertifiedKey::new(self.chain.clone(), key).keys_match().map_err(|_| wrong())
    }

    /// Verifies as the peer will.
    fn check_chain(&self, now: SystemTime) -> Result<(), PkiError> {
        let unusable = |error: String| PkiError::Unusable {
            path: self.files.certificate.clone(),
            reason: error,
        };
        let now = UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap_or_default());
        let (end, intermediates) = self.chain.split_first().expect("read_certificates gives one");
        let as_client = self
            .client_verifier()
            .map_err(unusable)?
            .verify_client_cert(end, intermediates, now)
            .map(|_| ());
        let checked = match self.identity.role {
            Role::Agent | Role::Operator | Role::Admin | Role::User => as_client,
            Role::Master => {
                let name = ServerName::try_from(crate::SERVER_NAME).expect("a plain DNS name");
                let verifier = self.server_verifier().map_err(unusable)?;
                let as_server = verifier.verify_server_cert(end, intermediates, &name, &[], now);
                as_client.and_then(|()| as_server.map(|_| ()))
            }
        };
        checked.map_err(|error| {
            let other_ca = matches!(
                error,
                rustls::Error::InvalidCertificate(
                    rustls::CertificateError::UnknownIssuer
                        | rustls::CertificateError::BadSignature,
                )
            );
            if other_ca {
                let path = self.files.certificate.clone();
                return PkiError::OtherCa { path, ca: self.files.ca.clone() };
            }
            unusable(error.to_string())
        })
    }

    pub(crate) fn client_verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, String> {
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.roots), provider())
            .build()
            .map_err(|error| error.to_string())
    }

    pub(crate) fn server_verifier(&self) -> Result<Arc<WebPkiServerVerifier>, String> {
        WebPkiServerVerifier::builder_with_provider(Arc::clone(&self.roots), provider())
            .build()
            .map_err(|error| error.to_string())
    }

    /// Whose certificate it is: an agent's own name, where its configuration gives none.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    #[must_use]
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// When the certificate begins.
    #[must_use]
    pub fn not_before(&self) -> SystemTime {
        self.status.not_before
    }

    /// When the certificate ends.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.status.not_after
    }

    /// The certificate's number, in hexadecimal.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.status.serial
    }

    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.chain.clone()
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }
}
