//! `file://` checkpoints on more than one host: whether their folder is one and the same.
//!
//! A folder of one host looks like one of another until a job moves there, finds nothing and
//! begins anew. So a job with such checkpoints is taken only where all is on one host, or where
//! its owner says that the folder is shared and what one agent makes there all others see.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use model::agent::{AgentAnswer, AgentQuery, ProbeAct};
use model::client::{Change, ErrorKind, Refusal};
use model::notes::PROTOCOL_OF_NOTES;
use model::{BootId, JobOptions, JobSpec, NodeId};
use net::Connection;
use tokio::sync::oneshot;

use crate::door::{Door, Peer, Query};
use crate::operators::ask;

/// For all agents together to answer one question.
const PROBE: Duration = Duration::from_secs(8);
/// Agents that are asked: a mount that is missing on one of many is found with its first job.
const ASKED_MAX: usize = 256;
/// Agents that are asked to make the probe, until one can.
const MAKERS_MAX: usize = 3;
const REMEDY: &str = "use hdfs://, or mount one folder at this path on every host, the master's \
                      too, and add checkpoint_shared = true to the job's file";

const MASTER_REMEDY: &str = "the master writes a manifest beside each checkpoint: name the folder \
                             in ReadWritePaths= of a drop-in of optimus-master.service, and give \
                             it to a group of the master's user with the set-group-id bit (by \
                             ansible: optimus_storage and optimus_master_groups)";

/// Why a submission cannot be taken: its checkpoints would lie on several hosts. A dry run leaves
/// nothing on the disk of a cluster that is one host.
pub(crate) async fn unshared(door: &Door, change: &Change, dry_run: bool) -> Option<Refusal> {
    let (spec, options) = submitted(change)?;
    let shared = options.is_some_and(|options| options.checkpoint_shared);
    let url = spec.checkpoint.as_str();
    // Anything wrong with the URL itself is told with the job's other faults.
    let folder = url.strip_prefix("file://").filter(|path| path.starts_with('/'))?;
    let agents = agents(door).await;
    let mut boots: BTreeSet<&BootId> = agents.iter().map(|(_, boot, _, _)| boot).collect();
    let own = own_boot();
    boots.extend(&own);
    let hosts = if agents.is_empty() { 0 } else { boots.len() };
    if 1 < hosts && !shared {
        let words = format!("checkpoint: {url} would lie on {hosts} hosts, each with its own");
        return Some(Refusal::new(ErrorKind::Conflict, words, REMEDY));
    }
    // An older agent cannot be asked; the others still can.
    let asked: Vec<Peer> = agents.into_iter().filter(|peer| PROTOCOL_OF_NOTES <= peer.2).collect();
    if hosts < 2 && (dry_run || asked.len() < 2) {
        return None;
    }
    let (words, remedy) = probe(url, folder, asked, hosts).await.err()?;
    Some(Refusal::new(ErrorKind::Conflict, format!("checkpoint: {words}"), remedy))
}

/// The job that a change submits, with its options where it has some.
pub(crate) fn submitted(change: &Change) -> Option<(&JobSpec, Option<&JobOptions>)> {
    match change {
        Change::Submit { spec, .. } => Some((spec, None)),
        Change::SubmitWith { spec, options, .. } | Change::SubmitWatched { spec, options, .. } => {
            Some((spec, Some(options)))
        }
        Change::Cancel { .. }
        | Change::Pause { .. }
        | Change::Resume { .. }
        | Change::Checkpoint { .. }
        | Change::Resize { .. }
        | Change::Unpin { .. }
        | Change::Update { .. }
        | Change::NodeLost { .. }
        | Change::NodeCordon { .. }
        | Change::NodeDrain { .. }
        | Change::NodeUndrain { .. }
        | Change::Gpu { .. } => None,
    }
}

async fn agents(door: &Door) -> Vec<Peer> {
    let (reply, answer) = oneshot::channel();
    if door.queries.send(Query::Agents { reply }).await.is_err() {
        return Vec::new();
    }
    // A master that ends answers the change itself.
    answer.await.unwrap_or_default()
}

fn own_boot() -> Option<BootId> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(BootId(text.trim().to_owned()))
}

/// Lets one agent make a folder, the others look for it, and the master write into it as into
/// that of a checkpoint. Tells what is wrong, and the remedy.
async fn probe(
    url: &str,
    folder: &str,
    agents: Vec<Peer>,
    hosts: usize,
) -> Result<(), (String, &'static str)> {
    let name = format!(".optimus-probe-{}", token().map_err(|e| (e.to_string(), REMEDY))?);
    let mut why = String::new();
    let mut maker = None;
    for (node, _, _, connection) in agents.iter().take(MAKERS_MAX) {
        match question(connection, url, &name, ProbeAct::Make).await {
            Ok(_) => {
                maker = Some((node.clone(), connection.clone()));
                break;
            }
            Err(words) => why = format!("{node}: {words}"),
        }
    }
    let Some((maker, connection)) = maker else {
        // On one host that is the job's own matter, and told with its first checkpoint.
        let words = format!("{url} cannot be written: {why}");
        return if 1 < hosts { Err((words, REMEDY)) } else { Ok(()) };
    };
    let mut blind = look(url, &name, agents).await;
    let place = Path::new(folder).join(&name);
    let own = tokio::task::spawn_blocking(move || written(&place));
    let own = tokio::time::timeout(PROBE, own).await;
    let unwritten = match own {
        Ok(Ok(Ok(true))) => None,
        Ok(Ok(Err(error))) => Some(error.to_string()),
        Ok(Ok(Ok(false)) | Err(_)) | Err(_) => {
            blind.insert(0, "the master".to_owned());
            None
        }
    };
    if let Err(words) = question(&connection, url, &name, ProbeAct::Remove).await {
        tracing::warn!(node = %maker, url, name, words, "a probe is left");
    }
    if blind.is_empty() {
        return unwritten.map_or(Ok(()), |why| {
            Err((format!("the master cannot write to {url}: {why}"), MASTER_REMEDY))
        });
    }
    let (count, some) = (blind.len(), blind[..blind.len().min(5)].join(", "));
    let words = format!("what {maker} writes to {url} is not seen by {some} ({count} in all)");
    Err((words, REMEDY))
}

/// Whether the probe's folder is there; where it is, a file can be made in it.
fn written(place: &Path) -> std::io::Result<bool> {
    if !fs::symlink_metadata(place).is_ok_and(|found| found.is_dir()) {
        return Ok(false);
    }
    let file = place.join("master");
    fs::OpenOptions::new().write(true).create_new(true).open(&file)?;
    fs::remove_file(&file)?;
    Ok(true)
}

/// Those that do not see the probe.
async fn look(url: &str, name: &str, agents: Vec<Peer>) -> Vec<String> {
    let mut looks = tokio::task::JoinSet::new();
    for (node, _, _, connection) in agents.into_iter().take(ASKED_MAX) {
        let (url, name) = (url.to_owned(), name.to_owned());
        looks.spawn(async move {
            let seen = question(&connection, &url, &name, ProbeAct::Look).await;
            (node, seen)
        });
    }
    let mut blind: Vec<NodeId> = Vec::new();
    while let Some(looked) = looks.join_next().await {
        if let Ok((node, seen)) = looked
            && seen != Ok(true)
        {
            blind.push(node);
        }
    }
    blind.sort();
    blind.iter().map(ToString::to_string).collect()
}

async fn question(
    agent: &Connection,
    url: &str,
    name: &str,
    act: ProbeAct,
) -> Result<bool, String> {
    let query = AgentQuery::Probe { folder: url.to_owned(), name: name.to_owned(), act };
    match tokio::time::timeout(PROBE, ask(agent, &query)).await {
        Ok(Ok(AgentAnswer::Probed(found))) => Ok(found),
        Ok(Ok(AgentAnswer::Refused(words)) | Err(words)) => Err(words),
        Ok(Ok(
            AgentAnswer::Log { .. } | AgentAnswer::CertificateRequest(_) | AgentAnswer::Installed,
        )) => Err("it answered another question".to_owned()),
        Err(_) => Err(format!("no answer in {} s", PROBE.as_secs())),
    }
}

/// A name that nobody has used.
fn token() -> std::io::Result<String> {
    let mut bytes = [0; 8];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
