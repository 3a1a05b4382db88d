//! The master's certificate: where it is found or made, when it is read anew, and when it ends.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use model::config::MasterConfig;
use net::{Credentials, PkiError, Role, Server, TlsFiles};
use tokio::signal::unix::Signal;

use crate::clock::Clock;
use crate::config::{self, Environment, Places};

/// Between two looks at the files. A renewed certificate is in use this long after at most.
const LOOK: Duration = Duration::from_secs(30);

/// From so many days before its end on, a certificate is an alert.
const WARNED_DAYS: f64 = 30.0;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(
        "no certificate for {listen}: make one in {folder} with optimus cert init and optimus cert \
         issue, or name ca, certificate and key under [tls]"
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

#[derive(Debug)]
pub(crate) struct Certificates {
    files: TlsFiles,
    /// Where the master makes them itself.
    local: Option<Local>,
    alerts: Mutex<Vec<String>>,
    clock: Clock,
}

impl Certificates {
    /// The configured files, else those in the cluster's folder; on loopback without either they
    /// are made.
    pub(crate) fn find(
        config: &MasterConfig,
        places: &Places,
        environment: &Environment,
        clock: Clock,
    ) -> Result<Self, CertificateError> {
        let alerts = Mutex::default();
        let tls = &config.tls;
        if let (Some(ca), Some(certificate), Some(key)) = (&tls.ca, &tls.certificate, &tls.key) {
            let files =
                TlsFiles { ca: ca.into(), certificate: certificate.into(), key: key.into() };
            return Ok(Self { files, local: None, alerts, clock });
        }
        let folder = &places.pki_dir;
        let files = TlsFiles::in_folder(folder, Role::Master, "");
        // Without a CA's key the certificates come from elsewhere and are only used.
        let ours = folder.join("ca.key").exists() || !files.ca.exists();
        if is_loopback(&config.listen) && ours {
            let local = Local {
                folder: folder.clone(),
                cluster: config.cluster.clone(),
                node: config::node_name(),
                operator: environment.operator(),
            };
            local.prepare(clock.wall())?;
            return Ok(Self { files, local: Some(local), alerts, clock });
        }
        if !files.certificate.exists() {
            let (listen, folder) = (config.listen.clone(), folder.clone());
            return Err(CertificateError::Missing { listen, folder });
        }
        Ok(Self { files, local: None, alerts, clock })
    }

    /// Reads and checks the files.
    pub(crate) fn load(&self) -> Result<Credentials, PkiError> {
        Credentials::load(&self.files, Role::Master, self.clock.wall())
    }

    pub(crate) fn alerts(&self) -> Vec<String> {
        self.alerts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Watches the files for as long as it runs: renews those of a local cluster, shows renewed
    /// ones to new connections, warns of those that end.
    /// `wake` makes it look at once.
    pub(crate) async fn watch(self: Arc<Self>, server: Arc<Server>, mut wake: Signal) {
        let mut shown = self.stamps();
        loop {
            self.look(&server, &mut shown);
            tokio::select! {
                Some(()) = wake.recv() => tracing::info!("looks at the certificates: SIGHUP"),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    fn look(&self, server: &Server, shown: &mut [Option<SystemTime>; 3]) {
        let mut alerts = Vec::new();
        if let Some(local) = &self.local
            && let Err(error) = local.prepare(self.clock.wall())
        {
            alerts.push(format!("cannot renew the certificates: {error}"));
        }
        let stamps = self.stamps();
        if stamps != *shown {
            let shown_now = self.load().map_err(|error| error.to_string());
            match shown_now.and_then(|new| server.reload(&new).map_err(|e| e.to_string())) {
                Ok(()) => {
                    *shown = stamps;
                    tracing::info!("shows the renewed certificate from now on");
                }
                // Two files are replaced one after the other: the next look finds them whole.
                Err(error) => alerts.push(format!("cannot use the renewed certificate: {error}")),
            }
        }
        for path in [&self.files.certificate, &self.files.ca] {
            alerts.extend(self.ending(path));
        }
        let mut known = self.alerts.lock().unwrap_or_else(PoisonError::into_inner);
        for alert in alerts.iter().filter(|alert| !known.contains(alert)) {
            tracing::warn!("{alert}");
        }
        *known = alerts;
    }

    /// Changes whenever a file is replaced.
    fn stamps(&self) -> [Option<SystemTime>; 3] {
        let stamp = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
        [stamp(&self.files.ca), stamp(&self.files.certificate), stamp(&self.files.key)]
    }

    fn ending(&self, path: &Path) -> Option<String> {
        let status = match net::certificate_status(path) {
            Ok(status) => status,
            Err(error) => return Some(error.to_string()),
        };
        let days = status.days_left(self.clock.wall());
        (days < WARNED_DAYS).then(|| {
            let shown = path.display();
            format!("the certificate {shown} ends in {:.0} days: renew it", days.max(0.0).floor())
        })
    }
}

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
