//! Puts a running master together, and takes it apart again in the right order.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use control::record::Record;
use control::{Control, Settings};
use model::config::MasterConfig;
use net::{ResetKeys, Server, ServerOptions};
use storage::HdfsSettings;
use storage::snapshot::Header;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::audit::Audit;
use crate::clock::Clock;
use crate::codec::{self, CodecError};
use crate::config::{Environment, Places};
use crate::daemon::{Daemon, Ears, Hands, Internal};
use crate::disk::Disk;
use crate::door::{Counters, Door, INPUTS_MAX, QUERIES_MAX, REQUESTS_MAX};
use crate::keeper::Keeper;
use crate::pki::Certificates;
use crate::planner::Planner;
use crate::publisher::Publisher;
use crate::removals::Removals;
use crate::room::Room;
use crate::seal::Seal;
use crate::sessions;
use crate::state_dir::StateDir;
use crate::store::{Content, StoreError};
use crate::vault::{Vault, open_with_room};

/// For the answers that are under way when the master stops.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// For storage work that hangs on a dead mount.
const LAST_WORK: Duration = Duration::from_secs(1);

/// What a master starts with.
#[derive(Clone, Debug)]
pub(crate) struct Start<'a> {
    pub(crate) config: &'a MasterConfig,
    pub(crate) environment: &'a Environment,
    pub(crate) places: &'a Places,
    /// The store's key, where it has one.
    pub(crate) seal: Option<Arc<Seal>>,
    pub(crate) clock: Clock,
}

/// Runs a master until a signal ends it.
pub(crate) fn serve(start: Start<'_>, state_dir: StateDir) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("sessions")
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(Box::pin(async {
        let Start { config, environment, places, seal, clock } = start;
        // Before the store, which may take minutes: unheard, the signal would end the process, and
        // systemd takes that for a stop that was wished.
        let hangup = signal(SignalKind::hangup()).context("cannot hear SIGHUP")?;
        let certificates = Certificates::find(config, places, environment, clock)?;
        let store = Opened::open(config, state_dir.path(), clock, seal)?;
        let server = listen(config, &certificates, state_dir.path())?;
        run(config, clock, store, (Arc::new(server), Arc::new(certificates)), hangup).await
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
    folder: PathBuf,
    vault: Vault,
    disk: Arc<Disk>,
    repairs: Vec<String>,
    records: Vec<Record>,
    removals: Removals,
    seal: Option<Arc<Seal>>,
}

impl Opened {
    fn open(
        config: &MasterConfig,
        state_dir: &Path,
        clock: Clock,
        seal: Option<Arc<Seal>>,
    ) -> anyhow::Result<Self> {
        let disk = Disk::new(state_dir).context("cannot look at the disk of the state folder")?;
        let disk = Arc::new(disk);
        let header = Header {
            cluster: config.cluster.clone(),
            software: env!("CARGO_PKG_VERSION").to_owned(),
            created_unix_ms: clock.unix_ms(),
        };
        let left = || format!("the store in {} is left as it is", state_dir.display());
        let remedy = || {
            format!(
                "cannot open the store in {}: put the folder aside and give a fresh one to \
                 optimus-master --restore SNAPSHOT (optimus snapshot save makes one)",
                state_dir.display()
            )
        };
        let opened = open_with_room(state_dir, &header, &disk);
        let (mut vault, repairs) = match opened {
            Err(error @ StoreError::Newer { .. }) => return Err(error).with_context(left),
            // Nothing is wrong with the store here either.
            Err(error @ StoreError::Full(_)) => {
                return Err(error).with_context(|| format!("{}; {}", left(), disk.remedy()));
            }
            other => other.with_context(remedy)?,
        };
        for repair in &repairs {
            tracing::warn!("{repair}");
        }
        let content = vault.records().with_context(remedy)?;
        let records = match codec::decode_all(&content, seal.as_deref()) {
            // Nothing is wrong with the store.
            Err(error @ (CodecError::Sealed | CodecError::OtherKey)) => {
                return Err(error).with_context(left);
            }
            other => other.with_context(remedy)?,
        };
        if let Some(seal) = &seal {
            seal_rest(&mut vault, &content, seal)?;
        }
        tracing::info!(records = records.len(), sealed = seal.is_some(), "opened the store");
        let removals = Removals::new(state_dir);
        Ok(Self { folder: state_dir.to_owned(), vault, disk, repairs, records, seal, removals })
    }
}

/// Seals what was stored before there was a key.
fn seal_rest(vault: &mut Vault, content: &Content, seal: &Seal) -> anyhow::Result<()> {
    let plain = content.iter().filter(|(_, value)| !codec::is_sealed(value));
    let ops = plain.map(|(key, value)| codec::sealed_op(key.clone(), value, seal));
    let ops = ops.collect::<Result<Vec<_>, _>>().context("cannot seal the store")?;
    if ops.is_empty() && !vault.is_resealing() {
        return Ok(());
    }
    let left = vault.reseal(&ops).context("cannot seal the store with its key")?;
    tracing::info!(records = ops.len(), "sealed the store with its key");
    if !left.is_empty() {
        let left = left.join(", ");
        tracing::warn!(left, "older copies beside the store are not sealed: remove them");
    }
    Ok(())
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
    clock: Clock,
    opened: Opened,
    (server, certificates): (Arc<Server>, Arc<Certificates>),
    hangup: Signal,
) -> anyhow::Result<()> {
    let Opened { folder, vault, disk, repairs, records, seal, removals } = opened;
    let (control, commands) = Control::new(Settings::from(config), clock.now(), records)
        .context("cannot start from what the store holds")?;
    let (internal, heard) = mpsc::unbounded_channel();
    let (to_store, to_planner) = (internal.clone(), internal.clone());
    // The loop hears these as long as the process lives.
    let keeper = Keeper::start(vault, Arc::clone(&disk), repairs, move |told| {
        let _ = to_store.send(Internal::Store(told));
    })?;
    let room = Room::new(disk, keeper.health());
    let planner = Planner::start(clock, move |planned| {
        let _ = to_planner.send(Internal::Planned(planned));
    })?;
    let counters = Arc::new(Counters::default());
    let audit = Audit::start(&folder).context("cannot start the audit log")?;
    let path = |text: &Option<String>| text.as_ref().map(std::path::PathBuf::from);
    let hdfs = HdfsSettings::by(path(&config.hadoop_conf_dir))?
        .as_principal(config.kerberos_principal.clone(), path(&config.kerberos_keytab))?;
    let publisher = Publisher::new(hdfs.clone(), config.jobs.checkpoint_timeout.0, removals);
    publisher.resume();
    let hands = Hands {
        keeper,
        planner,
        publisher,
        internal,
        counters: Arc::clone(&counters),
        certificates: Arc::clone(&certificates),
        audit: audit.health(),
        room: room.clone(),
        seal,
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
        shares: Arc::default(),
        certificates: Arc::clone(&certificates),
        hdfs,
        room,
    };
    let requests = Arc::clone(&door.requests);
    let stop = listen_for_signals()?;
    let accepting = tokio::spawn(sessions::accept(Arc::clone(&server), door));
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
