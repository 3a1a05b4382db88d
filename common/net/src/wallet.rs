//! The certificates that a daemon keeps itself, in a folder of its state: what it enrolled with,
//! and what was renewed over the network.
//!
//! `current.pem` holds key and certificate together, so that one rename replaces both and a
//! crash leaves the old pair or the new one. `next.pem` is the key of the newest request.
//! `ca.pem` came with the enrolment. All are 0600 in a folder of 0700.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::credentials::{Credentials, TlsFiles, certificate_status, read_certificates, read_key};
use crate::error::PkiError;
use crate::files::{self, PRIVATE, PUBLIC};
use crate::identity::{Identity, Role};
use crate::pki::invalid;
use crate::signing;

/// Longest certificate or bundle in PEM, in bytes.
pub const PEM_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Debug)]
pub struct Wallet {
    folder: PathBuf,
    role: Role,
}

/// What [`Wallet::choose`] found.
#[derive(Debug)]
pub struct Chosen {
    pub credentials: Credentials,
    /// What is wrong with files that were to be used beside these.
    pub faults: Vec<PkiError>,
}

impl Wallet {
    #[must_use]
    pub fn new(folder: PathBuf, role: Role) -> Self {
        Self { folder, role }
    }

    /// Where the pair in use is kept, once there is one.
    #[must_use]
    pub fn current(&self) -> PathBuf {
        self.folder.join("current.pem")
    }

    fn next(&self) -> PathBuf {
        self.folder.join("next.pem")
    }

    fn own_ca(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// The CA file: the configured one, else that of the enrolment.
    #[must_use]
    pub fn ca(&self, configured: Option<&TlsFiles>) -> PathBuf {
        let own = self.own_ca();
        match configured {
            Some(files) if files.ca.exists() || !own.exists() => files.ca.clone(),
            Some(_) | None => own,
        }
    }

    /// The newest usable pair: the configured files, or what is kept here. Of two, the one that
    /// was issued last, so that a file put in place by hand counts as much as a renewal.
    ///
    /// # Errors
    /// Where neither can be used: the configured files' fault first.
    pub fn choose(
        &self,
        configured: Option<&TlsFiles>,
        now: SystemTime,
    ) -> Result<Chosen, PkiError> {
        let current = self.current();
        let ca = self.ca(configured);
        // Where the daemon has enrolled, the configured places may stay empty.
        let there = |files: &&TlsFiles| files.certificate.exists() || !current.exists();
        let configured = configured.filter(there);
        let kept = current.exists().then(|| {
            let files = TlsFiles { ca, certificate: current.clone(), key: current.clone() };
            Credentials::load(&files, self.role, now)
        });
        let given = configured.map(|files| Credentials::load(files, self.role, now));
        match (given, kept) {
            (Some(Ok(given)), Some(Ok(kept))) => {
                let by_hand = kept.not_before() < given.not_before();
                let credentials = if by_hand { given } else { kept };
                Ok(Chosen { credentials, faults: Vec::new() })
            }
            (Some(Ok(credentials)), None) | (None, Some(Ok(credentials))) => {
                Ok(Chosen { credentials, faults: Vec::new() })
            }
            (Some(Ok(credentials)), Some(Err(fault)))
            | (Some(Err(fault)), Some(Ok(credentials))) => {
                // After a renewal the former one ends where it lies: that is no fault.
                let ended = matches!(fault, PkiError::Expired { .. });
                let faults = if ended { Vec::new() } else { vec![fault] };
                Ok(Chosen { credentials, faults })
            }
            (Some(Err(fault)), _) | (None, Some(Err(fault))) => Err(fault),
            (None, None) => Err(PkiError::Unusable {
                path: self.current(),
                reason: "no certificate was issued yet; name its files under [tls]".to_owned(),
            }),
        }
    }

    /// Takes in a bundle of certificate, key and CA, where nothing usable is kept here yet.
    ///
    /// # Returns
    /// Whose it is, where it was taken in; none where what is kept serves.
    ///
    /// # Errors
    /// Where the bundle is needed and cannot be used: names the file.
    pub fn enrol(
        &self,
        bundle: &Path,
        configured: Option<&TlsFiles>,
        now: SystemTime,
    ) -> Result<Option<Identity>, PkiError> {
        if self.choose(configured, now).is_ok() {
            return Ok(None);
        }
        let remedy = "make it with optimus cert issue --bundle";
        let wrong = |what| PkiError::NotPem { path: bundle.to_owned(), what, remedy };
        let certificates = read_certificates(bundle)?;
        let (end, authorities) = certificates.split_first().expect("at least one was read");
        if authorities.is_empty() {
            return Err(wrong("certificate of a CA"));
        }
        let key = read_key(bundle)?;
        let pair = pair_pem(&key, end).ok_or_else(|| wrong("private key"))?;
        let files = TlsFiles {
            ca: bundle.to_owned(),
            certificate: bundle.to_owned(),
            key: bundle.to_owned(),
        };
        let trusted = authorities.to_vec();
        let credentials =
            Credentials::of_parts(&files, &[self.role], (trusted, vec![end.clone()], key), now)?;
        files::make_folder(&self.folder)?;
        // The CA first: the pair is there only once it can be used.
        let authorities: String =
            authorities.iter().map(|der| files::pem("CERTIFICATE", der)).collect();
        files::replace(&self.own_ca(), authorities.as_bytes(), PUBLIC)?;
        files::replace(&self.current(), pair.as_bytes(), PRIVATE)?;
        Ok(Some(credentials.identity().clone()))
    }

    /// Makes a new key, keeps it aside, and returns a request for a certificate of it, in PEM. The
    /// key of an earlier request that was not answered is given up.
    ///
    /// # Errors
    /// Where the folder cannot be written.
    pub fn request(&self, identity: &Identity) -> Result<String, PkiError> {
        let asked = signing::ask(identity)?;
        files::make_folder(&self.folder)?;
        files::replace(&self.next(), asked.key.as_bytes(), PRIVATE)?;
        Ok(asked.request)
    }

    /// Takes the certificate for the newest request into use. The same certificate once more is
    /// no fault: an answer may have been lost.
    ///
    /// # Errors
    /// Where it does not belong to the newest request, is another holder's, of another CA or out
    /// of its dates; what was in use stays so.
    pub fn install(
        &self,
        pem: &str,
        ca: &Path,
        identity: &Identity,
        now: SystemTime,
    ) -> Result<Credentials, PkiError> {
        let wrong = invalid("certificate");
        if PEM_BYTES_MAX < pem.len() {
            return Err(wrong(format!("it has {} bytes", pem.len())));
        }
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        let Some(chain) = read.ok().filter(|chain| !chain.is_empty()) else {
            return Err(wrong("it is not PEM".to_owned()));
        };
        let current = self.current();
        let files =
            TlsFiles { ca: ca.to_owned(), certificate: current.clone(), key: current.clone() };
        if current.exists() && certificate_status(&current).is_ok_and(|kept| kept.is_of(&chain[0]))
        {
            return Credentials::load(&files, self.role, now);
        }
        if !self.next().exists() {
            return Err(wrong("no request is open here; ask for one first".to_owned()));
        }
        let key = read_key(&self.next())?;
        let parts = (read_certificates(ca)?, chain.clone(), key);
        let credentials =
            Credentials::of_parts(&files, &[self.role], parts, now).map_err(|error| {
                if !matches!(error, PkiError::KeyMismatch { .. }) {
                    return error;
                }
                let words = "it does not belong to the newest request: another one may have come \
                             between; begin anew";
                wrong(words.to_owned())
            })?;
        if credentials.identity() != identity {
            let named = credentials.identity();
            return Err(wrong(format!("it is for {named}, not for {identity}")));
        }
        let mut text = files::read(&self.next(), "ask for a new request")?;
        for der in &chain {
            text.extend_from_slice(files::pem("CERTIFICATE", der).as_bytes());
        }
        files::replace(&current, &text, PRIVATE)?;
        // It is in use now. Left behind by a crash, it is replaced by the next request.
        let _ = std::fs::remove_file(self.next());
        Ok(credentials)
    }
}

/// Key and certificate in one text.
fn pair_pem(key: &PrivateKeyDer<'_>, certificate: &CertificateDer<'_>) -> Option<String> {
    let label = match key {
        PrivateKeyDer::Pkcs8(_) => "PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        _ => return None,
    };
    Some(files::pem(label, key.secret_der()) + &files::pem("CERTIFICATE", certificate))
}
