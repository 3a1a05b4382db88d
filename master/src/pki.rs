//! The master's certificate: where it is found or made, when it is read anew, and when it ends.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::config::MasterConfig;
use model::nodes::{Finding, Severity};
use model::{NodeId, UnixMs};
use net::{
    Chosen, Credentials, Ending, Identity, PkiError, Revocations, Role, Server, TlsFiles, Wallet,
    ending_words,
};
use tokio::signal::unix::Signal;

use crate::clock::Clock;
use crate::config::{self, Environment, Places};
use crate::present::{Present, Revoked};

/// Between two looks at the files. A renewed certificate is in use this long after at most.
const LOOK: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(
        "no certificate for {listen}: make one in {folder} with optimus cert init and optimus cert \
         issue, name ca, certificate and key under [tls], or hand over a bundle as tls.enrolment"
    )]
    Missing { listen: String, folder: PathBuf },
}

/// Certificates of a cluster on one machine, made and renewed by the master itself.
#[derive(Debug)]
struct Local {
    folder: PathBuf,
    cluster: String,
    node: String,
    operator: String,
}

/// What the server shows now.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) identity: Identity,
    pub(crate) serial: String,
    pub(crate) not_after: SystemTime,
    file: PathBuf,
}

/// One thing that an operator should know.
#[derive(Clone, Debug)]
struct Alert {
    /// What is the same in it from day to day.
    key: String,
    severity: Severity,
    words: String,
    remedy: &'static str,
}

/// How much the end of a certificate presses.
pub(crate) const fn severity(step: Ending) -> Severity {
    match step {
        Ending::Month => Severity::Note,
        Ending::Week => Severity::Warning,
        Ending::Day | Ending::Over => Severity::Fault,
    }
}

const RENEW: &str = "renew it with optimus cert rotate master";

#[derive(Debug)]
pub(crate) struct Certificates {
    /// None where only what the master keeps itself is used.
    configured: Option<TlsFiles>,
    /// Where the master makes them itself.
    local: Option<Local>,
    wallet: Wallet,
    /// A list of revoked certificates that is given as a file.
    list: Option<PathBuf>,
    pub(crate) present: Present,
    shown: Mutex<Option<Shown>>,
    alerts: Mutex<Vec<Alert>>,
    /// Once it listens.
    server: OnceLock<Arc<Server>>,
    clock: Clock,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Values in here are only ever replaced whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Certificates {
    /// The configured files, else those in the cluster's folder; on loopback without either they
    /// are made. What was renewed or enrolled lies in the state folder, and the newest counts.
    pub(crate) fn find(
        config: &MasterConfig,
        places: &Places,
        environment: &Environment,
        clock: Clock,
    ) -> Result<Self, CertificateError> {
        let wallet = Wallet::new(places.state_dir.join("pki"), Role::Master);
        let enrolment = environment.enrolment(config);
        let folder = &places.pki_dir;
        let mut local = None;
        let tls = &config.tls;
        let configured = if let (Some(ca), Some(certificate), Some(key)) =
            (&tls.ca, &tls.certificate, &tls.key)
        {
            let (ca, certificate, key) = (ca.into(), certificate.into(), key.into());
            Some(TlsFiles { ca, certificate, key })
        } else {
            let files = TlsFiles::in_folder(folder, Role::Master, "");
            // Without a CA's key the certificates come from elsewhere and are only used.
            let ours = folder.join("ca.key").exists() || !files.ca.exists();
            if is_loopback(&config.listen) && ours && enrolment.is_none() {
                let made = Local {
                    folder: folder.clone(),
                    cluster: config.cluster.clone(),
                    node: config::node_name(),
                    operator: environment.operator(),
                };
                made.prepare(clock.wall())?;
                local = Some(made);
            }
            Some(files).filter(|files| files.certificate.exists())
        };
        if let Some(bundle) = &enrolment
            && let Some(identity) = wallet.enrol(bundle, configured.as_ref(), clock.wall())?
        {
            tracing::info!(%identity, bundle = %bundle.display(), "enrolled");
        }
        if configured.is_none() && !wallet.current().exists() {
            let (listen, folder) = (config.listen.clone(), folder.clone());
            return Err(CertificateError::Missing { listen, folder });
        }
        let list = tls.revocations.as_ref().map(PathBuf::from);
        Self::new(Parts { configured, local, wallet, list, clock }, &places.state_dir)
    }

    fn new(parts: Parts, state_dir: &Path) -> Result<Self, CertificateError> {
        let Parts { configured, local, wallet, list, clock } = parts;
        let kept = state_dir.join("pki/revocations.pem");
        let ca = wallet.ca(configured.as_ref());
        let mut revocations = Revocations::kept(&kept, &ca)?;
        if let Some(list) = &list {
            revocations = revocations.newest(&Revocations::load(list, &ca)?);
        }
        Ok(Self {
            configured,
            local,
            wallet,
            list,
            present: Present::new(kept, revocations),
            shown: Mutex::default(),
            alerts: Mutex::default(),
            server: OnceLock::new(),
            clock,
        })
    }

    /// Over plain files, for a test of the sessions.
    #[cfg(test)]
    pub(crate) fn of_files(files: TlsFiles, state_dir: &Path, clock: Clock) -> Self {
        let wallet = Wallet::new(state_dir.join("pki"), Role::Master);
        let configured = Some(files);
        let parts = Parts { configured, local: None, wallet, list: None, clock };
        Self::new(parts, state_dir).expect("a fresh folder has no list")
    }

    /// Reads and checks the files, and notes what is shown from now on.
    pub(crate) fn load(&self) -> Result<Credentials, PkiError> {
        let Chosen { credentials, faults } = self.choose()?;
        for fault in faults {
            tracing::error!("{fault}; the other certificate is used");
        }
        self.note(&credentials);
        Ok(credentials)
    }

    fn choose(&self) -> Result<Chosen, PkiError> {
        self.wallet.choose(self.configured.as_ref(), self.clock.wall())
    }

    fn note(&self, credentials: &Credentials) {
        *lock(&self.shown) = Some(Shown {
            identity: credentials.identity().clone(),
            serial: credentials.serial().to_owned(),
            not_after: credentials.not_after(),
            file: credentials.files().certificate.clone(),
        });
    }

    pub(crate) fn shown(&self) -> Option<Shown> {
        lock(&self.shown).clone()
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.wallet.ca(self.configured.as_ref())
    }

    /// From now on renewed certificates are shown by this server, and revoked ones refused.
    pub(crate) fn attach(&self, server: Arc<Server>) {
        server.set_revocations(self.present.revocations());
        // It is called once, before anything else of the server runs.
        let _ = self.server.set(server);
    }

    pub(crate) fn alerts(&self) -> Vec<String> {
        let known = lock(&self.alerts);
        known.iter().map(|alert| format!("{}; {}", alert.words, alert.remedy)).collect()
    }

    /// A request for a new certificate, with a key that stays here.
    pub(crate) fn request(&self) -> Result<String, PkiError> {
        self.wallet.request(&self.identity()?)
    }

    fn identity(&self) -> Result<Identity, PkiError> {
        match self.shown() {
            Some(shown) => Ok(shown.identity),
            None => Ok(self.choose()?.credentials.identity().clone()),
        }
    }

    /// Checks an agent's certificate before the agent is given it: one that this master would
    /// refuse must not take the place of one that works.
    pub(crate) fn check(&self, pem: &str, node: &NodeId) -> Result<(), String> {
        let identity = Identity::new(Role::Agent, node.as_str()).map_err(|e| e.to_string())?;
        net::check_issued(pem, &self.ca(), &identity, self.clock.wall()).map_err(|e| e.to_string())
    }

    /// Takes the certificate for the newest request into use; connections stay.
    pub(crate) fn install(&self, pem: &str) -> Result<Shown, String> {
        let identity = self.identity().map_err(|error| error.to_string())?;
        let installed = self.wallet.install(pem, &self.ca(), &identity, self.clock.wall());
        let credentials = installed.map_err(|error| error.to_string())?;
        self.show(&credentials)?;
        self.shown().ok_or_else(|| "nothing is shown".to_owned())
    }

    fn show(&self, credentials: &Credentials) -> Result<(), String> {
        if let Some(server) = self.server.get() {
            server.reload(credentials).map_err(|error| error.to_string())?;
        }
        self.note(credentials);
        let (serial, file) = (credentials.serial(), credentials.files().certificate.display());
        tracing::info!(serial, %file, "shows this certificate from now on");
        Ok(())
    }

    /// Takes a newer list of revoked certificates: refuses them, sends them away, and keeps it.
    pub(crate) fn revoke(&self, newer: &Revocations) -> Result<usize, String> {
        let Revoked { closed, unkept } = self.present.revoke(newer)?;
        if let Some(server) = self.server.get() {
            server.set_revocations(self.present.revocations());
        }
        match unkept {
            None => Ok(closed),
            Some(words) => {
                Err(format!("the list is in use, but only until the next start: {words}"))
            }
        }
    }

    /// Watches the files for as long as it runs: renews those of a local cluster, shows renewed
    /// ones to new connections, warns of those that end.
    /// `wake` makes it look at once.
    pub(crate) async fn watch(self: Arc<Self>, mut wake: Signal) {
        let mut seen = self.stamps();
        let mut asked = false;
        loop {
            self.look(&mut seen, asked);
            asked = tokio::select! {
                Some(()) = wake.recv() => {
                    tracing::info!("reads the certificates anew: SIGHUP");
                    crate::notify::reloading();
                    true
                }
                () = tokio::time::sleep(LOOK) => false,
            };
        }
    }

    fn look(&self, seen: &mut Stamps, asked: bool) {
        let mut alerts = Vec::new();
        let mut alert = |key: &str, words: String, remedy: &'static str| {
            alerts.push(Alert { key: key.to_owned(), severity: Severity::Fault, words, remedy });
        };
        if let Some(local) = &self.local
            && let Err(error) = local.prepare(self.clock.wall())
        {
            let words = format!("cannot renew the certificates: {error}");
            alert("renew", words, "look at their folder");
        }
        let stamps = self.stamps();
        let changed = asked || stamps != *seen;
        match self.refresh(changed) {
            Ok(faults) => {
                for fault in faults {
                    alert(&fault, fault.clone(), "the other certificate is in use meanwhile");
                }
            }
            // Two files are replaced one after the other: the next look finds them whole.
            Err(error) => {
                let words = format!("cannot use the new certificate: {error}");
                alert(&error, words, "the former one stays in use meanwhile");
            }
        }
        if let Err(error) = self.reload_list() {
            alert("list", error, "the former list stays in use meanwhile");
        }
        *seen = stamps;
        alerts.extend(self.endings());
        let mut known = lock(&self.alerts);
        for new in alerts.iter().filter(|new| !known.iter().any(|old| old.key == new.key)) {
            match new.severity {
                Severity::Note | Severity::Warning => {
                    tracing::warn!("{}; {}", new.words, new.remedy)
                }
                Severity::Fault => tracing::error!("{}; {}", new.words, new.remedy),
            }
        }
        *known = alerts;
        drop(known);
        if asked {
            crate::notify::reloaded();
        }
    }

    /// Shows what the files hold now, where it is another certificate or they have changed: CAs
    /// may be others though the certificate is the same.
    ///
    /// # Returns
    /// What is wrong with files that were to be used beside it.
    fn refresh(&self, changed: bool) -> Result<Vec<String>, String> {
        let Chosen { credentials, faults } = self.choose().map_err(|error| error.to_string())?;
        if changed || self.shown().is_none_or(|shown| shown.serial != credentials.serial()) {
            self.show(&credentials)?;
        }
        Ok(faults.iter().map(ToString::to_string).collect())
    }

    fn reload_list(&self) -> Result<(), String> {
        let Some(list) = &self.list else { return Ok(()) };
        let read = Revocations::load(list, &self.ca()).map_err(|error| error.to_string())?;
        if self.present.revocations().newest(&read) != *self.present.revocations() {
            let closed = self.revoke(&self.present.revocations().newest(&read))?;
            tracing::info!(list = %list.display(), closed, "revoked certificates of the list");
        }
        Ok(())
    }

    /// Changes whenever a file is replaced.
    fn stamps(&self) -> Stamps {
        let configured = self.configured.iter();
        let files = configured.flat_map(|files| [&files.ca, &files.certificate, &files.key]);
        let own = [self.wallet.current(), self.ca()];
        let paths = files.chain(&own).chain(&self.list);
        let stamp = |path: &PathBuf| std::fs::metadata(path).and_then(|it| it.modified()).ok();
        Stamps(paths.map(stamp).collect())
    }

    /// The master's own certificate and its CA, where they end soon or are revoked.
    fn endings(&self) -> Vec<Alert> {
        let now = self.clock.wall();
        let mut alerts = Vec::new();
        if let Some(Shown { identity, serial, not_after, file }) = self.shown() {
            let file = file.display();
            if let Some(step) = Ending::of(not_after, now) {
                let ends = ending_words(not_after, now);
                alerts.push(Alert {
                    key: format!("own {serial} {step:?}"),
                    severity: severity(step),
                    words: format!("the certificate of {identity} ({file}) {ends}"),
                    remedy: RENEW,
                });
            }
            if self.present.revocations().since(&serial).is_some() {
                alerts.push(Alert {
                    key: format!("own {serial} revoked"),
                    severity: Severity::Fault,
                    words: format!(
                        "the certificate of {identity} ({file}, serial {serial}) is revoked"
                    ),
                    remedy: RENEW,
                });
            }
        }
        alerts.extend(self.ca_ending(now));
        alerts
    }

    fn ca_ending(&self, now: SystemTime) -> Option<Alert> {
        let ca = self.ca();
        let file = ca.display();
        let last = match net::certificate_statuses(&ca) {
            // While the CA is changed there are two: the one that stays counts.
            Ok(statuses) => statuses.iter().map(|status| status.not_after).max()?,
            Err(error) => {
                let (words, severity) = (error.to_string(), Severity::Fault);
                let remedy = "put the file back";
                return Some(Alert { key: "ca".to_owned(), severity, words, remedy });
            }
        };
        let step = Ending::of(last, now)?;
        Some(Alert {
            key: format!("ca {step:?}"),
            severity: severity(step),
            words: format!("the CA {file} {}", ending_words(last, now)),
            remedy: "make a new one, put both into ca.pem everywhere, then issue anew",
        })
    }

    /// For `doctor`: what of the master's own certificate and the CA needs a hand.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let finding = |alert: &Alert| Finding {
            severity: alert.severity,
            subject: "the master's certificates".to_owned(),
            words: alert.words.clone(),
            remedy: alert.remedy.to_owned(),
        };
        lock(&self.alerts).iter().map(finding).collect()
    }

    /// What is to be said of an agent's certificate that ends soon.
    pub(crate) fn agent_finding(&self, node: &NodeId, ends: UnixMs) -> Option<Finding> {
        let (now, ends) = (self.clock.wall(), UNIX_EPOCH + Duration::from_millis(ends.0));
        let step = Ending::of(ends, now)?;
        Some(Finding {
            severity: severity(step),
            subject: format!("node {node}"),
            words: format!("the certificate of agent {node} {}", ending_words(ends, now)),
            remedy: format!("renew it with optimus cert rotate agent {node}"),
        })
    }
}

/// What [`Certificates`] are made from.
struct Parts {
    configured: Option<TlsFiles>,
    local: Option<Local>,
    wallet: Wallet,
    list: Option<PathBuf>,
    clock: Clock,
}

/// When each file was written.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stamps(Vec<Option<SystemTime>>);

impl Local {
    fn prepare(&self, now: SystemTime) -> Result<(), PkiError> {
        let fresh = !self.folder.join("ca.pem").exists();
        net::pki::prepare(&self.folder, &self.cluster, &self.node, &self.operator, now)?;
        if fresh {
            let (folder, node, operator) = (self.folder.display(), &self.node, &self.operator);
            tracing::info!(%folder, node, operator, "made certificates for a cluster on loopback");
        }
        Ok(())
    }
}

fn is_loopback(listen: &str) -> bool {
    listen.parse::<std::net::SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}
