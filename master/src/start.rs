//! Puts a running master together, and takes it apart again in the right order.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use control::record::Record;
use control::{Control, Settings};
use model::config::MasterConfig;
use net::{ResetKeys, Server, ServerOptions};
use storage::HdfsSettings;
use storage::snapshot::Header;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::audit::Audit;
use crate::clock::Clock;
use crate::codec;
use crate::config::{Environment, Places};
use crate::daemon::{Daemon, Ears, Hands, Internal};
use crate::disk::Disk;
use crate::door::{Counters, Door, INPUTS_MAX, QUERIES_MAX, REQUESTS_MAX};
use crate::keeper::Keeper;
use crate::pki::Certificates;
use crate::planner::Planner;
use crate::publisher::Publisher;
use crate::sessions;
use crate::state_dir::StateDir;
use crate::vault::{Vault, open_with_room};

/// For the answers that are under way when the master stops.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// For storage work that hangs on a dead mount.
const LAST_WORK: Duration = Duration::from_secs(1);

/// Runs a master until a signal ends it.
pub(crate) fn serve(
    config: &MasterConfig,
    environment: &Environment,
    places: &Places,
    state_dir: StateDir,
    clock: Clock,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("sessions")
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(Box::pin(async {
        let certificates = Certificates::find(config, places, environment, clock)?;
        let store = Opened::open(config, state_dir.path(), clock)?;
        let server = listen(config, &certificates, state_dir.path())?;
        run(config, state_dir.path(), clock, store, Arc::new(server), Arc::new(certificates)).await
    }));
    runtime.shutdown_timeout(LAST_WORK);
    drop(state_dir);
    if outcome.is_ok() {
        tracing::info!("stopped");
    }
    outcome
}

/// The store and what it held.
struct Opened {
    vault: Vault,
    disk: Disk,
    repairs: Vec<String>,
    records: Vec<Record>,
}

impl Opened {
    fn open(config: &MasterConfig, state_dir: &Path, clock: Clock) -> anyhow::Result<Self> {
        let disk = Disk::new(state_dir).context("cannot look at the disk of the state folder")?;
        let header = Header {
            cluster: config.cluster.clone(),
            software: env!("CARGO_PKG_VERSION").to_owned(),
            created_unix_ms: clock.unix_ms(),
        };
        let remedy = || {
            format!(
                "cannot open the store in {}: put the folder aside and give a fresh one to \
                 optimus-master --restore SNAPSHOT (optimus snapshot save makes one)",
                state_dir.display()
            )
        };
        let (vault, repairs) = open_with_room(state_dir, &header, &disk).with_context(remedy)?;
        for repair in &repairs {
            tracing::warn!("{repair}");
        }
        let content = vault.records().with_context(remedy)?;
        let decoded = content.iter().map(|(key, value)| codec::decode(key, value));
        let records = decoded.collect::<Result<Vec<_>, _>>().with_context(remedy)?;
        tracing::info!(records = records.len(), "opened the store");
        Ok(Self { vault, disk, repairs, records })
    }
}

fn listen(
    config: &MasterConfig,
    certificates: &Certificates,
    state_dir: &Path,
) -> anyhow::Result<Server> {
    let credentials = certificates.load()?;
    let keys = ResetKeys::load_or_create(&state_dir.join("reset.keys"))?;
    let address: SocketAddr = config.listen.parse().context("the settings were checked")?;
    let software = concat!("optimus-master ", env!("CARGO_PKG_VERSION"));
    let options = ServerOptions::new(config.cluster.clone(), software);
    Ok(net::server(address, &credentials, &keys, options)?)
}

async fn run(
    config: &MasterConfig,
    state_dir: &Path,
    clock: Clock,
    opened: Opened,
    server: Arc<Server>,
    certificates: Arc<Certificates>,
) -> anyhow::Result<()> {
    let Opened { vault, disk, repairs, records } = opened;
    let (control, commands) = Control::new(Settings::from(config), clock.now(), records)
        .context("cannot start from what the store holds")?;
    let (internal, heard) = mpsc::unbounded_channel();
    let (to_store, to_planner) = (internal.clone(), internal.clone());
    // The loop hears these as long as the process lives.
    let keeper = Keeper::start(vault, disk, repairs, move |told| {
        let _ = to_store.send(Internal::Store(told));
    })?;
    let planner = Planner::start(clock, move |planned| {
        let _ = to_planner.send(Internal::Planned(planned));
    })?;
    let counters = Arc::new(Counters::default());
    let audit = Audit::start(state_dir).context("cannot start the audit log")?;
    let hdfs = HdfsSettings::by(config.hadoop_conf_dir.as_ref().map(std::path::PathBuf::from))?;
    let hands = Hands {
        keeper,
        planner,
        publisher: Publisher::new(hdfs, config.jobs.checkpoint_timeout.0),
        internal,
        counters: Arc::clone(&counters),
        certificates: Arc::clone(&certificates),
        audit: audit.health(),
    };
    let daemon = Daemon::new(control, commands, clock, hands)?;
    let (inputs, hear_inputs) = mpsc::channel(INPUTS_MAX);
    let (queries, hear_queries) = mpsc::channel(QUERIES_MAX);
    certificates.attach(Arc::clone(&server));
    let door = Door {
        inputs,
        queries,
        counters,
        clock,
        cluster: config.cluster.as_str().into(),
        snapshots: Arc::new(Semaphore::new(1)),
        sessions: Arc::default(),
        requests: Arc::new(Semaphore::new(REQUESTS_MAX as usize)),
        audit,
        certificates: Arc::clone(&certificates),
    };
    let requests = Arc::clone(&door.requests);
    let stop = listen_for_signals()?;
    let accepting = tokio::spawn(sessions::accept(Arc::clone(&server), door));
    let hangup = signal(SignalKind::hangup()).context("cannot hear SIGHUP")?;
    let watching = tokio::spawn(certificates.watch(hangup));
    let address = server.local_address();
    tracing::info!(%address, cluster = config.cluster, "ready");
    crate::notify::ready(&format!("serving {} on {address}", config.cluster));
    let ears = Ears { inputs: hear_inputs, queries: hear_queries, internal: heard, stop };
    let ended = Box::pin(daemon.run(ears)).await;
    accepting.abort();
    watching.abort();
    // Answers that are on their way reach their clients before the connections close.
    let answered = requests.acquire_many(REQUESTS_MAX);
    let _ = tokio::time::timeout(LAST_ANSWERS, answered).await;
    let words = if ended.is_ok() { "the master is stopping" } else { "the master has failed" };
    server.close(words).await;
    let keeper = ended?;
    tokio::task::spawn_blocking(move || keeper.finish()).await?;
    Ok(())
}

/// Hears SIGTERM and SIGINT from now on.
fn listen_for_signals() -> anyhow::Result<oneshot::Receiver<&'static str>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot hear SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot hear SIGINT")?;
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        // Nobody listens where the loop has failed already.
        let _ = stop.send(name);
    });
    Ok(stopped)
}
