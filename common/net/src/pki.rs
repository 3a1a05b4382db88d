//! The cluster's CA and the certificates that it issues.
//!
//! A folder holds `ca.pem`, `ca.key`, `master.pem`/`.key`, `agent-<name>.pem`/`.key`,
//! `admin-<name>.pem`/`.key`, and so for `operator` and `user`; the folder is 0700, keys 0600.
//! `ca.key` is needed only to issue, and is best kept off the cluster. Beside it lie `issued.tsv`,
//! a line for each certificate, and `crl.pem`, the list of those that were taken back.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::credentials::{self, Credentials, TlsFiles};
use crate::error::PkiError;
use crate::files::{self, PRIVATE, PUBLIC};
pub use crate::identity::BadName;
use crate::identity::{Identity, Role};
pub use crate::register::Issued;
pub use crate::signing::{Signed, issued_to};

/// Certificates start this long before they are made: the clocks of a cluster differ.
pub const BACKDATED: Duration = Duration::from_secs(600);

/// Days that a certificate may last.
pub const DAYS_MAX: u32 = 36_500;
pub const CA_DAYS: u32 = 3_650;
pub const LEAF_DAYS: u32 = 365;

/// [`prepare`] renews a certificate with fewer days left.
const RENEWED_DAYS_LEFT: f64 = 30.0;

const DAY: Duration = Duration::from_secs(86_400);

/// The cluster's authority, with its key.
#[derive(Debug)]
pub struct Ca {
    folder: PathBuf,
    pub(crate) issuer: Issuer<'static, KeyPair>,
    pub(crate) not_after: SystemTime,
}

/// A certificate to issue.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub role: Role,
    pub name: &'a str,
    /// Further names of a master: numeric addresses or DNS names. Of no use to others.
    pub addresses: &'a [String],
    /// How long it lasts, where no other time is given.
    pub days: u32,
}

/// What to do where a certificate of the same role and name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    Refuse,
    /// Renew it: each file is replaced at once, whoever reads sees the old or the new.
    Replace,
}

pub(crate) fn invalid(field: &'static str) -> impl Fn(String) -> PkiError {
    move |problem| PkiError::Invalid { field, problem }
}

pub(crate) fn made(error: rcgen::Error) -> PkiError {
    PkiError::Invalid { field: "certificate", problem: format!("cannot be made: {error}") }
}

/// Days as a time.
///
/// # Errors
/// Where they are out of range.
pub fn days(count: u32) -> Result<Duration, PkiError> {
    if !(1..=DAYS_MAX).contains(&count) {
        let problem = format!("{count} is out of range; give 1 to {DAYS_MAX}");
        return Err(invalid("days")(problem));
    }
    Ok(DAY.saturating_mul(count))
}

/// From the backdated start to `lasts` after `now`.
fn set_dates(
    params: &mut CertificateParams,
    now: SystemTime,
    lasts: Duration,
) -> Result<SystemTime, PkiError> {
    let wrong = invalid("days");
    let most = DAY.saturating_mul(DAYS_MAX);
    if !(Duration::from_secs(1)..=most).contains(&lasts) {
        let problem = format!("{} s is out of range; give 1 s to {DAYS_MAX} days", lasts.as_secs());
        return Err(wrong(problem));
    }
    let end = now
        .checked_add(lasts)
        .ok_or_else(|| wrong(format!("{} s from now is no date; give fewer", lasts.as_secs())))?;
    let start = now.checked_sub(BACKDATED).unwrap_or(now);
    params.not_before = time::OffsetDateTime::from(start);
    params.not_after = time::OffsetDateTime::from(end);
    Ok(end)
}

/// Makes the CA of a new cluster in `folder`.
///
/// A key without a certificate is what an interrupted call leaves: it is used, not replaced.
///
/// # Errors
/// [`PkiError::Exists`] where the folder has a CA: it is never overwritten.
pub fn init_cluster(
    folder: &Path,
    cluster: &str,
    days: u32,
    now: SystemTime,
) -> Result<Ca, PkiError> {
    if cluster.is_empty() || cluster.len() > 64 || cluster.chars().any(char::is_control) {
        let problem = format!("{cluster:?} is no name; give 1 to 64 bytes of plain text");
        return Err(invalid("cluster")(problem));
    }
    files::make_folder(folder)?;
    let (certificate_path, key_path) = (folder.join("ca.pem"), folder.join("ca.key"));
    if certificate_path.exists() {
        return Err(PkiError::Exists { path: certificate_path, remedy: CA_REMEDY });
    }
    let mut params = CertificateParams::default();
    set_dates(&mut params, now, self::days(days)?)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, cluster);
    params.distinguished_name.push(DnType::CommonName, format!("Optimus CA of {cluster}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = if key_path.exists() {
        read_ca_key(&key_path)?
    } else {
        let key = KeyPair::generate().map_err(made)?;
        files::write_new(&key_path, key.serialize_pem().as_bytes(), PRIVATE, CA_REMEDY)?;
        key
    };
    let pem = params.self_signed(&key).map_err(made)?.pem();
    files::write_new(&certificate_path, pem.as_bytes(), PUBLIC, CA_REMEDY)?;
    load_ca(folder, now)
}

const CA_REMEDY: &str = "a new CA would lock out every agent: issue with the one that is there, or \
                         choose another folder";

fn read_ca_key(path: &Path) -> Result<KeyPair, PkiError> {
    let wrong = |reason: String| PkiError::Unusable { path: path.to_owned(), reason };
    // Checks the mode and gives the better words; rcgen reads its own text.
    credentials::read_key(path)?;
    let bytes = files::read(path, "name the folder that optimus cert init made")?;
    let text = String::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
    KeyPair::from_pem(&text).map_err(|error| wrong(format!("it is not a CA's key: {error}")))
}

/// Reads the CA of a folder, to issue with it.
///
/// # Errors
/// Where the files do not read, do not belong together, or the CA has expired.
pub fn load_ca(folder: &Path, now: SystemTime) -> Result<Ca, PkiError> {
    let (path, key_path) = (folder.join("ca.pem"), folder.join("ca.key"));
    let remedy = "name the folder of the cluster's CA with --dir; optimus cert init makes a new CA, \
                  once for a cluster";
    let pem = files::read(&path, remedy)?;
    let der = CertificateDer::from_pem_slice(&pem).map_err(|_| PkiError::NotPem {
        path: path.clone(),
        what: "certificate",
        remedy,
    })?;
    let status = credentials::status_of(&path, &der)?;
    status.check_dates(now)?;
    let key = read_ca_key(&key_path)?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).map_err(|error| {
        PkiError::Unusable { path: path.clone(), reason: format!("it is not X.509: {error}") }
    })?;
    if certificate.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
        return Err(PkiError::KeyMismatch { path, key: key_path });
    }
    let issuer = Issuer::from_ca_cert_der(&der, key)
        .map_err(|error| PkiError::Unusable { path, reason: format!("it is not a CA: {error}") })?;
    Ok(Ca { folder: folder.to_owned(), issuer, not_after: status.not_after })
}

impl Ca {
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Issues a certificate with a new key into `folder`, which may be another than the CA's;
    /// `ca.pem` is put beside it there. It never outlives the CA.
    ///
    /// # Errors
    /// Where a field is out of range, the files exist, or cannot be written.
    pub fn issue(
        &self,
        request: &Request<'_>,
        folder: &Path,
        existing: Existing,
        now: SystemTime,
    ) -> Result<TlsFiles, PkiError> {
        self.issue_lasting(request, days(request.days)?, folder, existing, now)
    }

    /// As [`Self::issue`], for another time than the request's days.
    ///
    /// # Errors
    /// As [`Self::issue`].
    pub fn issue_lasting(
        &self,
        request: &Request<'_>,
        lasts: Duration,
        folder: &Path,
        existing: Existing,
        now: SystemTime,
    ) -> Result<TlsFiles, PkiError> {
        let identity = Identity::new(request.role, request.name)
            .map_err(|error| invalid("name")(error.to_string()))?;
        let files = TlsFiles::in_folder(folder, request.role, request.name);
        if existing == Existing::Refuse && files.certificate.exists() {
            return Err(PkiError::Exists { path: files.certificate, remedy: LEAF_REMEDY });
        }
        let params = self.parameters(&identity, request, lasts, now)?;
        let key = KeyPair::generate().map_err(made)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(made)?;
        self.register(certificate.der(), identity)?;
        files::make_folder(folder)?;
        if folder != self.folder {
            let ca = files::read(&self.folder.join("ca.pem"), "name the CA's folder")?;
            files::replace(&files.ca, &ca, PUBLIC)?;
        }
        // A crash at any point leaves a pair that can be used: the old one, or the new one with
        // its key still beside (see `Credentials::load`).
        let renewed = credentials::renewed_key(&files.key);
        files::replace(&renewed, key.serialize_pem().as_bytes(), PRIVATE)?;
        files::replace(&files.certificate, certificate.pem().as_bytes(), PUBLIC)?;
        files::rename(&renewed, &files.key)?;
        Ok(files)
    }

    /// Issues a certificate with a new key as one file for [`crate::Wallet::enrol`]: certificate,
    /// key and CA. The file is 0600 and must not exist.
    ///
    /// # Errors
    /// As [`Self::issue`].
    pub fn issue_bundle(
        &self,
        request: &Request<'_>,
        lasts: Duration,
        path: &Path,
        now: SystemTime,
    ) -> Result<(), PkiError> {
        let identity = Identity::new(request.role, request.name)
            .map_err(|error| invalid("name")(error.to_string()))?;
        let params = self.parameters(&identity, request, lasts, now)?;
        let key = KeyPair::generate().map_err(made)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(made)?;
        self.register(certificate.der(), identity)?;
        let ca = files::read(&self.folder.join("ca.pem"), "name the CA's folder")?;
        let mut text = (certificate.pem() + &key.serialize_pem()).into_bytes();
        text.extend_from_slice(&ca);
        files::write_new(path, &text, PRIVATE, "name a file that does not exist yet")
    }

    pub(crate) fn parameters(
        &self,
        identity: &Identity,
        request: &Request<'_>,
        lasts: Duration,
        now: SystemTime,
    ) -> Result<CertificateParams, PkiError> {
        let mut params = CertificateParams::default();
        // Not from the key, so that a certificate that is issued anew for one is another.
        params.serial_number = Some(SerialNumber::from(random_serial()?));
        let end = set_dates(&mut params, now, lasts)?;
        if end > self.not_after {
            params.not_after = time::OffsetDateTime::from(self.not_after);
        }
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, identity.to_string());
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let uri = identity.uri().try_into().map_err(made)?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        if identity.role == Role::Master {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            let own = crate::SERVER_NAME.try_into().map_err(made)?;
            params.subject_alt_names.push(SanType::DnsName(own));
        } else if !request.addresses.is_empty() {
            let problem = format!("an {} has none; leave them out", identity.role);
            return Err(invalid("addresses")(problem));
        }
        for address in request.addresses {
            params.subject_alt_names.push(alternative_name(address)?);
        }
        Ok(params)
    }
}

/// 16 random bytes, the first of them from 64 to 127: a positive number of full length.
fn random_serial() -> Result<Vec<u8>, PkiError> {
    let mut bytes = [0; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| invalid("serial")("the system gives no random numbers".to_owned()))?;
    bytes[0] = (bytes[0] & 0x3f) | 0x40;
    Ok(bytes.to_vec())
}

fn alternative_name(address: &str) -> Result<SanType, PkiError> {
    if let Ok(ip) = address.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(ip));
    }
    let wrong = || {
        let problem = format!("{address:?} is neither a numeric address nor a DNS name");
        invalid("addresses")(problem)
    };
    rustls::pki_types::DnsName::try_from(address).map_err(|_| wrong())?;
    Ok(SanType::DnsName(address.try_into().map_err(|_| wrong())?))
}

const LEAF_REMEDY: &str = "ask to replace it, to renew it";

/// All that a cluster on one machine needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    pub master: TlsFiles,
    pub agent: TlsFiles,
    pub operator: TlsFiles,
    /// None in a folder that has none and whose CA has its key elsewhere.
    pub admin: Option<TlsFiles>,
}

/// Makes what is missing of a CA, a master's, an agent's, an operator's and an admin's certificate
/// in one folder, and renews what ends within 30 days. For a master on loopback without any settings.
///
/// # Errors
/// As [`init_cluster`] and [`Ca::issue`]; in a folder whose CA has its key elsewhere, where a
/// certificate is missing.
pub fn prepare(
    folder: &Path,
    cluster: &str,
    node: &str,
    operator: &str,
    now: SystemTime,
) -> Result<Prepared, PkiError> {
    if !folder.join("ca.pem").exists() {
        match init_cluster(folder, cluster, CA_DAYS, now) {
            // Another process was faster.
            Ok(_) | Err(PkiError::Exists { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let leaf = |role, name| -> Result<TlsFiles, PkiError> {
        let files = TlsFiles::in_folder(folder, role, name);
        let lasts = credentials::certificate_status(&files.certificate)
            .is_ok_and(|status| status.days_left(now) > RENEWED_DAYS_LEFT);
        if lasts && files.key.exists() {
            return Ok(files);
        }
        let request = Request { role, name, addresses: &[], days: LEAF_DAYS };
        match load_ca(folder, now)?.issue(&request, folder, Existing::Replace, now) {
            // It still holds; renewing it can wait for the CA's key.
            Err(_) if Credentials::load(&files, role, now).is_ok() => Ok(files),
            other => other,
        }
    };
    let admin = match leaf(Role::Admin, operator) {
        Ok(files) => Some(files),
        // Folders of before there were admins, whose CA's key is kept elsewhere, go on.
        Err(_) if !folder.join("ca.key").exists() => None,
        Err(error) => return Err(error),
    };
    Ok(Prepared {
        admin,
        master: leaf(Role::Master, "master")?,
        agent: leaf(Role::Agent, node)?,
        operator: leaf(Role::Operator, operator)?,
    })
}

/// Finds certificates of a client in a folder, the one that may do most first: of each role
/// `<role>.pem`, else `<role>-<user>.pem`; where there is none at all, the only `<role>-*.pem`
/// that there is of the first role that has any.
///
/// # Errors
/// Where there is none, or where several fit and none is the user's.
pub fn find_clients(folder: &Path, user: Option<&str>) -> Result<Vec<TlsFiles>, PkiError> {
    let mut found = Vec::new();
    for role in Role::CLIENTS {
        let named = user.map(|user| format!("{role}-{user}"));
        let mut stems = std::iter::once(role.to_string()).chain(named);
        let there = |stem: &String| TlsFiles::with_stem(folder, stem).certificate.exists();
        found.extend(stems.find(there).map(|stem| TlsFiles::with_stem(folder, &stem)));
    }
    if !found.is_empty() {
        return Ok(found);
    }
    let remedy = "make one with optimus cert issue, or name the folder";
    let entries = std::fs::read_dir(folder).map_err(|source| PkiError::Read {
        path: folder.to_owned(),
        source,
        remedy,
    })?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".pem").map(str::to_owned))
        .collect();
    names.sort();
    for role in Role::CLIENTS {
        let prefix = format!("{role}-");
        let stems: Vec<&str> =
            names.iter().map(String::as_str).filter(|stem| stem.starts_with(&prefix)).collect();
        match stems.as_slice() {
            [only] => found.push(TlsFiles::with_stem(folder, only)),
            [] => {}
            several if found.is_empty() => {
                return Err(PkiError::NoOperator {
                    folder: folder.to_owned(),
                    reason: format!(
                        "several are there ({}) and none is named for you",
                        several.join(", ")
                    ),
                });
            }
            _ => {}
        }
    }
    if found.is_empty() {
        return Err(PkiError::NoOperator { folder: folder.to_owned(), reason: remedy.to_owned() });
    }
    Ok(found)
}
