//! A new certificate for a key that never leaves its host: the holder asks by a PKCS #10 request,
//! the CA signs it under the identity that the operator named, whatever else the request says.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateParams, CertificateRevocationListParams, CertificateSigningRequestParams,
    DistinguishedName, DnType, KeyPair, RevocationReason, RevokedCertParams, SanType, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;

use crate::credentials::{serial_bytes, status_of};
use crate::error::PkiError;
use crate::files::{self, PUBLIC};
use crate::identity::{Identity, Role};
use crate::pki::{Ca, Request, invalid, made};
use crate::register::{self, Issued};
use crate::revocation::Revocations;

/// A key and the request for a certificate of it, both in PEM.
pub(crate) struct Asked {
    pub(crate) key: String,
    pub(crate) request: String,
}

/// Makes a new key and a request under an identity.
pub(crate) fn ask(identity: &Identity) -> Result<Asked, PkiError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, identity.to_string());
    let uri = identity.uri().try_into().map_err(made)?;
    params.subject_alt_names = vec![SanType::URI(uri)];
    let key = KeyPair::generate().map_err(made)?;
    let request = params.serialize_request(&key).map_err(made)?.pem().map_err(made)?;
    Ok(Asked { key: key.serialize_pem(), request })
}

/// The one identity that a request names.
fn identity_of(params: &CertificateParams) -> Result<Identity, String> {
    let mut uris = params.subject_alt_names.iter().filter_map(|name| match name {
        SanType::URI(uri) => Some(uri.as_str()),
        SanType::Rfc822Name(_)
        | SanType::DnsName(_)
        | SanType::IpAddress(_)
        | SanType::OtherName(_)
        | _ => None,
    });
    match (uris.next(), uris.next()) {
        (Some(uri), None) => Identity::of_uri(uri),
        (None, _) => Err("it names nobody".to_owned()),
        (Some(_), Some(_)) => Err("it names more than one".to_owned()),
    }
}

/// A signed certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    pub pem: String,
    pub serial: String,
    pub not_after: SystemTime,
}

impl Ca {
    /// Signs the key of a request for `wanted`, with dates, names and purposes of the CA's own.
    ///
    /// # Errors
    /// Where the request does not read, is not signed by its own key, or names another holder.
    pub fn sign(
        &self,
        request_pem: &str,
        wanted: &Request<'_>,
        lasts: Duration,
        now: SystemTime,
    ) -> Result<Signed, PkiError> {
        let wrong = invalid("request");
        let request = CertificateSigningRequestParams::from_pem(request_pem)
            .map_err(|error| wrong(format!("it does not read: {error}")))?;
        let identity = Identity::new(wanted.role, wanted.name)
            .map_err(|error| invalid("name")(error.to_string()))?;
        let named = identity_of(&request.params).map_err(&wrong)?;
        if named != identity {
            return Err(wrong(format!("it is for {named}, not for {identity}")));
        }
        let params = self.parameters(&identity, wanted, lasts, now)?;
        let certificate = params.signed_by(&request.public_key, &self.issuer).map_err(made)?;
        let issued = self.register(certificate.der(), identity)?;
        let Issued { serial, not_after, .. } = issued;
        Ok(Signed { pem: certificate.pem(), serial, not_after })
    }

    /// Notes a certificate before it is handed out, so that it can be taken back.
    pub(crate) fn register(
        &self,
        der: &CertificateDer<'_>,
        identity: Identity,
    ) -> Result<Issued, PkiError> {
        let status = status_of(self.folder(), der)?;
        let (not_before, not_after) = (status.not_before, status.not_after);
        let issued = Issued { serial: status.serial, identity, not_before, not_after };
        register::append(self.folder(), &issued)?;
        Ok(issued)
    }

    /// Every certificate that was issued here, oldest first. Those of before this file was kept
    /// are not in it.
    ///
    /// # Errors
    /// Where the file does not read.
    pub fn issued(&self) -> Result<Vec<Issued>, PkiError> {
        register::read(self.folder())
    }

    /// Takes certificates back: puts them on the list `crl.pem` of the folder and signs it anew.
    ///
    /// # Errors
    /// Where a serial is no number, or the list cannot be read or written.
    pub fn revoke(&self, serials: &[String], now: SystemTime) -> Result<Revocations, PkiError> {
        // Two at once would give one number to two lists.
        let lock_path = self.folder().join(".crl.lock");
        let failed = |source| PkiError::Write { path: lock_path.clone(), source };
        let lock = File::create(&lock_path).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let path = self.folder().join("crl.pem");
        let before = self.revocations()?;
        let mut entries: Vec<(String, SystemTime)> =
            before.iter().map(|(serial, since)| (serial.to_owned(), since)).collect();
        for serial in serials {
            if before.since(serial).is_none() && !entries.iter().any(|(known, _)| known == serial) {
                entries.push((serial.clone(), now));
            }
        }
        if !entries.is_empty() && entries.len() == before.iter().count() {
            // Asked once more: the list as it is says it already.
            return Ok(before);
        }
        let list = CertificateRevocationListParams {
            this_update: OffsetDateTime::from(now),
            next_update: OffsetDateTime::from(self.not_after),
            crl_number: SerialNumber::from(before.number().saturating_add(1)),
            issuing_distribution_point: None,
            revoked_certs: entries
                .iter()
                .map(|(serial, since)| entry(serial, *since))
                .collect::<Result<_, _>>()?,
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        let pem = list.signed_by(&self.issuer).and_then(|list| list.pem()).map_err(made)?;
        let revoked = Revocations::read(pem.as_bytes(), &path, &self.folder().join("ca.pem"))?;
        files::replace(&path, pem.as_bytes(), PUBLIC)?;
        Ok(revoked)
    }

    /// What was taken back so far.
    ///
    /// # Errors
    /// Where the list is there and does not read.
    pub fn revocations(&self) -> Result<Revocations, PkiError> {
        Revocations::kept(&self.folder().join("crl.pem"), &self.folder().join("ca.pem"))
    }
}

fn entry(serial: &str, since: SystemTime) -> Result<RevokedCertParams, PkiError> {
    let bytes = serial_bytes(serial).ok_or_else(|| {
        invalid("serial")(format!("{serial:?} is not a serial number in hexadecimal"))
    })?;
    Ok(RevokedCertParams {
        serial_number: SerialNumber::from(bytes),
        revocation_time: OffsetDateTime::from(since),
        reason_code: Some(RevocationReason::Unspecified),
        invalidity_date: None,
    })
}

/// Certificates that a folder's register has of a holder.
///
/// # Errors
/// Where the register does not read.
pub fn issued_to(folder: &Path, role: Role, name: &str) -> Result<Vec<Issued>, PkiError> {
    let all = register::read(folder)?.into_iter();
    Ok(all.filter(|issued| issued.identity.role == role && issued.identity.name == name).collect())
}
