//! The agent's certificate: which one it shows, how it is renewed, and what is wrong with it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use model::UnixMs;
use model::agent::{AgentAnswer, AgentQuery};
use model::nodes::NodeNotes;
use net::{Chosen, Credentials, Identity, Revocations, Role, TlsFiles, Wallet};

use crate::clock;
use crate::config::{self, Settings};
use crate::telemetry::printable;

/// Longest alert, in bytes.
const ALERT_BYTES_MAX: usize = 500;

/// What the last look at the files found.
#[derive(Debug, Default)]
struct State {
    /// The newest that could be used. Bad files do not take it away.
    good: Option<Arc<Credentials>>,
    /// What is wrong with the files.
    faults: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Certificates {
    settings: Arc<Settings>,
    wallet: Wallet,
    state: Mutex<State>,
}

impl Certificates {
    #[must_use]
    pub(crate) fn new(settings: &Arc<Settings>) -> Self {
        let wallet = Wallet::new(settings.state_dir.join("pki"), Role::Agent);
        Self { settings: Arc::clone(settings), wallet, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Values in here are only ever replaced whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files that the settings name, where they do.
    fn configured(&self) -> Result<TlsFiles> {
        let [ca, certificate, key]: [PathBuf; 3] = config::tls_files(&self.settings)?;
        Ok(TlsFiles { ca, certificate, key })
    }

    /// Takes in the bundle that came with the first start, where nothing usable is here yet.
    ///
    /// # Errors
    /// Where it is needed and cannot be used.
    pub(crate) fn enrol(&self) -> Result<()> {
        let Some(bundle) = self.settings.tls.enrolment.as_ref().map(PathBuf::from) else {
            return Ok(());
        };
        let configured = self.configured().ok();
        if let Some(identity) = self.wallet.enrol(&bundle, configured.as_ref(), clock::wall())? {
            tracing::info!(%identity, bundle = %bundle.display(), "enrolled");
        }
        Ok(())
    }

    /// Reads the files as they are now, and notes what was found.
    ///
    /// # Errors
    /// Where they are not there or a peer would refuse them: names the file and the remedy.
    pub(crate) fn read(&self) -> Result<Arc<Credentials>> {
        let read = self.choose();
        let mut state = self.lock();
        match read {
            Ok(Chosen { credentials, faults }) => {
                let credentials = Arc::new(credentials);
                state.good = Some(Arc::clone(&credentials));
                let told = |fault| format!("{fault}; the other certificate is used meanwhile");
                state.faults = faults.iter().map(told).collect();
                Ok(credentials)
            }
            Err(error) => {
                state.faults = vec![format!("{error:#}")];
                Err(error)
            }
        }
    }

    fn choose(&self) -> Result<Chosen> {
        let configured = match self.configured() {
            Ok(files) => Some(files),
            Err(_) if self.wallet.current().exists() => None,
            Err(error) => return Err(error),
        };
        let chosen = self.wallet.choose(configured.as_ref(), clock::wall())?;
        if let Some(good) = &self.lock().good
            && good.identity() != chosen.credentials.identity()
        {
            let (own, other) = (good.identity(), chosen.credentials.identity());
            anyhow::bail!(
                "the certificate is for {other} now, and this agent began as {own}; restart it"
            );
        }
        Ok(chosen)
    }

    /// For a new connection: what the files hold now, else the last that could be used.
    ///
    /// # Errors
    /// Where there is neither.
    pub(crate) fn newest(&self) -> Result<Arc<Credentials>> {
        let error = match self.read() {
            Ok(credentials) => return Ok(credentials),
            Err(error) => error,
        };
        let good = self.lock().good.clone();
        match good.filter(|good| clock::wall() <= good.not_after()) {
            Some(good) => {
                tracing::error!(error = format!("{error:#}"), "keeps the former certificate");
                Ok(good)
            }
            None => Err(error),
        }
    }

    /// Told by SIGHUP: the present connection stays, whatever is found.
    pub(crate) fn reload(&self) {
        match self.read() {
            Ok(now) => tracing::info!(
                serial = now.serial(),
                file = %now.files().certificate.display(),
                "uses this certificate from the next connection on"
            ),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "keeps the former certificate");
            }
        }
    }

    /// Masters whose certificate was taken back, where a list is configured.
    ///
    /// # Errors
    /// Where the list is configured and cannot be used: then no master is trusted.
    pub(crate) fn revocations(&self) -> Result<Arc<Revocations>> {
        let Some(list) = &self.settings.tls.revocations else { return Ok(Arc::default()) };
        let ca = self.wallet.ca(self.configured().ok().as_ref());
        Ok(Arc::new(Revocations::load(list.as_ref(), &ca)?))
    }

    /// Adds what the master should know of it.
    pub(crate) fn tell(&self, notes: &mut NodeNotes) {
        let state = self.lock();
        notes.certificate_ends = state.good.as_ref().map(|good| unix_ms(good.not_after()));
        notes.alerts.extend(state.faults.iter().map(|fault| printable(fault, ALERT_BYTES_MAX)));
    }

    /// Answers the master's questions of it; the rest is for others.
    ///
    /// # Errors
    /// With the question, where it is another.
    pub(crate) fn answer(&self, query: AgentQuery) -> Result<AgentAnswer, AgentQuery> {
        match query {
            AgentQuery::CertificateRequest => Ok(refused(self.request())),
            AgentQuery::CertificateInstall { pem } => Ok(refused(self.install(&pem))),
            other @ (AgentQuery::Log { .. } | AgentQuery::Probe { .. }) => Err(other),
        }
    }

    fn identity(&self) -> Result<Identity> {
        let good = self.lock().good.clone();
        let good = good.map_or_else(|| self.read(), Ok)?;
        Ok(good.identity().clone())
    }

    fn request(&self) -> Result<AgentAnswer> {
        let request = self.wallet.request(&self.identity()?)?;
        tracing::info!("made a new key and a request for a certificate of it");
        Ok(AgentAnswer::CertificateRequest(request))
    }

    fn install(&self, pem: &str) -> Result<AgentAnswer> {
        let ca = self.wallet.ca(self.configured().ok().as_ref());
        self.wallet.install(pem, &ca, &self.identity()?, clock::wall())?;
        self.reload();
        Ok(AgentAnswer::Installed)
    }
}

fn refused(answer: Result<AgentAnswer>) -> AgentAnswer {
    answer.unwrap_or_else(|error| {
        tracing::warn!(error = format!("{error:#}"), "the certificate was not renewed");
        AgentAnswer::Refused(format!("{error:#}"))
    })
}

fn unix_ms(at: SystemTime) -> UnixMs {
    let since: Duration = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
