//! Certificates that were taken back: the lists that a cluster's CAs sign.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use ring::digest::{SHA256, digest};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::credentials::{date, hexadecimal, instant, read_certificates, serial_text};
use crate::error::PkiError;
use crate::files::{self, PUBLIC};
use crate::verify::PeerCertificate;

/// Longest list in PEM: some 15,000 certificates.
pub const REVOCATIONS_BYTES_MAX: usize = 900 << 10;

/// What one CA took back.
#[derive(Clone, Debug, PartialEq, Eq)]
struct List {
    /// Grows with every list of this CA.
    number: u64,
    der: Vec<u8>,
    /// Since when, by serial.
    since: BTreeMap<String, SystemTime>,
}

/// The newest list of each CA of a cluster: one, or two while the CA is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    /// By a digest of the CA's key.
    lists: BTreeMap<String, List>,
}

/// What becomes of a list of a CA that is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unknown {
    Refuse,
    /// Its certificates are not trusted either.
    Skip,
}

const REMEDY: &str = "make it with optimus cert revoke";

fn unusable(path: &Path, reason: impl Into<String>) -> PkiError {
    PkiError::NoList { path: path.to_owned(), reason: reason.into() }
}

impl Revocations {
    /// Reads lists in PEM and verifies that a CA in the file `ca` signed each.
    ///
    /// # Errors
    /// Where something else is in it, or a signature is wrong; names `path`.
    pub fn read(pem: &[u8], path: &Path, ca: &Path) -> Result<Self, PkiError> {
        Self::read_with(pem, path, &read_certificates(ca)?, Unknown::Refuse)
    }

    /// As [`Self::read`], from a file.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn load(path: &Path, ca: &Path) -> Result<Self, PkiError> {
        Self::read(&files::read(path, REMEDY)?, path, ca)
    }

    /// What [`Self::store`] kept; none where it has kept nothing yet. Lists of a CA that is not
    /// trusted any more are left out.
    ///
    /// # Errors
    /// Where the file is there and damaged.
    pub fn kept(path: &Path, ca: &Path) -> Result<Self, PkiError> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let pem = files::read(path, REMEDY)?;
        Self::read_with(&pem, path, &read_certificates(ca)?, Unknown::Skip)
    }

    fn read_with(
        pem: &[u8],
        path: &Path,
        authorities: &[CertificateDer<'_>],
        unknown: Unknown,
    ) -> Result<Self, PkiError> {
        let wrong = |reason: &str| unusable(path, reason);
        if REVOCATIONS_BYTES_MAX < pem.len() {
            return Err(wrong("it is too long"));
        }
        let read: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem).collect();
        let ders = read.map_err(|_| wrong("it is not PEM"))?;
        if ders.is_empty() {
            return Err(wrong("no list is in it"));
        }
        let mut lists = BTreeMap::new();
        for der in ders {
            let (rest, list) = CertificateRevocationList::from_der(der.as_ref())
                .map_err(|error| unusable(path, format!("it does not read: {error}")))?;
            if !rest.is_empty() {
                return Err(wrong("something follows its end"));
            }
            let Some(signer) = signer(&list, authorities) else {
                match unknown {
                    Unknown::Refuse => return Err(wrong("the cluster's CA has not signed it")),
                    Unknown::Skip => continue,
                }
            };
            let number = list.crl_number().and_then(|number| u64::try_from(number).ok());
            let number = number.ok_or_else(|| wrong("it has no number"))?;
            let since = list
                .iter_revoked_certificates()
                .map(|one| {
                    (serial_text(one.raw_serial()), instant(one.revocation_date.timestamp()))
                })
                .collect();
            let read = List { number, der: der.as_ref().to_vec(), since };
            if lists.insert(signer, read).is_some() {
                return Err(wrong("two lists of one CA are in it"));
            }
        }
        Ok(Self { lists })
    }

    /// These lists with newer ones put in.
    ///
    /// # Errors
    /// In words, where one is older than what is known, or is another of the same number: it
    /// would let in again who was taken back.
    pub fn updated(&self, newer: &Self) -> Result<Self, String> {
        let mut lists = self.lists.clone();
        for (signer, list) in &newer.lists {
            match self.lists.get(signer) {
                Some(known) if list.number < known.number => {
                    return Err(format!(
                        "the list has number {}, and number {} is in use: send the newest",
                        list.number, known.number
                    ));
                }
                Some(known) if list.number == known.number && list.der != known.der => {
                    return Err(format!(
                        "another list of number {} is in use: revoke in one folder only",
                        known.number
                    ));
                }
                Some(_) | None => lists.insert(signer.clone(), list.clone()),
            };
        }
        Ok(Self { lists })
    }

    /// These lists with those of `other` put in that are newer.
    #[must_use]
    pub fn newest(&self, other: &Self) -> Self {
        let mut lists = self.lists.clone();
        for (signer, list) in &other.lists {
            if lists.get(signer).is_none_or(|known| known.number < list.number) {
                lists.insert(signer.clone(), list.clone());
            }
        }
        Self { lists }
    }

    /// Since when a certificate is revoked.
    #[must_use]
    pub fn since(&self, serial: &str) -> Option<SystemTime> {
        self.lists.values().filter_map(|list| list.since.get(serial)).min().copied()
    }

    /// Why a peer may not be here, where its certificate is revoked.
    #[must_use]
    pub fn refusal(&self, certificate: &PeerCertificate) -> Option<String> {
        let since = self.since(&certificate.serial)?;
        Some(format!(
            "the certificate of {} (serial {}) is revoked since {}",
            certificate.identity,
            certificate.serial,
            date(since)
        ))
    }

    /// Revoked certificates: their serials, and since when.
    pub fn iter(&self) -> impl Iterator<Item = (&str, SystemTime)> {
        let all = self.lists.values().flat_map(|list| &list.since);
        all.map(|(serial, since)| (serial.as_str(), *since))
    }

    /// The highest number of a list; 0 where there is none.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.lists.values().map(|list| list.number).max().unwrap_or(0)
    }

    /// All lists in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        let pems = self.lists.values().map(|list| files::pem("X509 CRL", &list.der));
        pems.collect()
    }

    /// Keeps the lists in a file, for [`Self::kept`].
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn store(&self, path: &Path) -> Result<(), PkiError> {
        if let Some(folder) = path.parent() {
            files::make_folder(folder)?;
        }
        files::replace(path, self.pem().as_bytes(), PUBLIC)
    }
}

/// The CA that signed the list.
fn signer(
    list: &CertificateRevocationList<'_>,
    authorities: &[CertificateDer<'_>],
) -> Option<String> {
    authorities.iter().find_map(|der| {
        let (_, authority) = x509_parser::parse_x509_certificate(der).ok()?;
        let key = authority.public_key();
        list.verify_signature(key).ok()?;
        Some(hexadecimal(digest(&SHA256, key.raw).as_ref()))
    })
}
