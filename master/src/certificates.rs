//! Renews and takes back certificates for an operator, who alone has the CA's key: the master
//! passes requests and certificates on, and never signs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::agent::{AgentAnswer, AgentQuery};
use model::client::{Answer, ErrorKind, Refusal, Reply};
use model::nodes::{CertificateCall, CertificateView, Holder, PROTOCOL_OF_NODES};
use model::{NodeId, UnixMs};
use net::{Connection, PEM_BYTES_MAX, PeerCertificate, Revocations, Role};
use tokio::sync::oneshot;

use crate::door::{Door, Query};
use crate::operators::ask;
use crate::pki::Certificates;

/// For an agent to make a key or to write a certificate.
const AGENT: Duration = Duration::from_secs(10);
/// For the loop, which answers from memory.
const LOOP: Duration = Duration::from_secs(5);

fn refusal(kind: ErrorKind, message: impl Into<String>, hint: &str) -> Refusal {
    Refusal::new(kind, message, hint)
}

/// Answers one call. A rehearsal asks nobody for a key and changes nothing.
pub(crate) async fn answer(door: &Door, user: &str, call: CertificateCall, dry_run: bool) -> Reply {
    match call {
        CertificateCall::Status => status(door).await,
        CertificateCall::Ask { holder } => {
            let agent = reachable(door, &holder).await?;
            if dry_run {
                return Ok(accepted(&holder, "nothing was asked".to_owned()));
            }
            tracing::info!(user, holder = name(&holder), "asks for a certificate's request");
            request(door, &holder, agent).await.map(Answer::CertificateRequest)
        }
        CertificateCall::Install { holder, pem } => {
            let agent = reachable(door, &holder).await?;
            if dry_run {
                return Ok(accepted(&holder, "nothing was installed".to_owned()));
            }
            let note = install(door, &holder, agent, pem).await?;
            tracing::info!(user, holder = name(&holder), "renewed a certificate");
            Ok(accepted(&holder, note))
        }
        CertificateCall::Revocations { pem } => revoke(door, user, pem, dry_run).await,
    }
}

fn name(holder: &Holder) -> String {
    match holder {
        Holder::Master => "the master".to_owned(),
        Holder::Agent(node) => format!("agent {node}"),
    }
}

fn accepted(holder: &Holder, note: String) -> Answer {
    let node = match holder {
        Holder::Master => None,
        Holder::Agent(node) => Some(node.clone()),
    };
    Answer::Accepted { job: None, node, note }
}

/// The way to an agent that can renew; none for the master itself.
async fn reachable(door: &Door, holder: &Holder) -> Result<Option<Connection>, Refusal> {
    let Holder::Agent(node) = holder else { return Ok(None) };
    let (reply, agents) = oneshot::channel();
    let asked = async {
        door.queries.send(Query::Agents { reply }).await.ok()?;
        agents.await.ok()
    };
    let by_file = "or issue by file: optimus cert issue agent NODE --replace, copy the files, and \
                   send the agent SIGHUP";
    let Ok(Some(agents)) = tokio::time::timeout(LOOP, asked).await else {
        return Err(refusal(ErrorKind::Unavailable, "the master is busy or stopping", "try again"));
    };
    let found = agents.into_iter().find(|(connected, _, _, _)| connected == node);
    let Some((_, _, protocol, connection)) = found else {
        let words = format!("node {node} is not connected");
        let hint = format!("see optimus nodes; {by_file}");
        return Err(refusal(ErrorKind::Unavailable, words, &hint));
    };
    if protocol < PROTOCOL_OF_NODES {
        let words = format!(
            "the agent of {node} speaks protocol {protocol} and cannot renew its certificate over \
             the master"
        );
        return Err(refusal(ErrorKind::Unavailable, words, &format!("upgrade it, {by_file}")));
    }
    Ok(Some(connection))
}

async fn question(
    node: &str,
    agent: &Connection,
    query: &AgentQuery,
) -> Result<AgentAnswer, Refusal> {
    match tokio::time::timeout(AGENT, ask(agent, query)).await {
        Ok(Ok(AgentAnswer::Refused(words))) => {
            Err(refusal(ErrorKind::Conflict, format!("{node}: {words}"), "begin anew"))
        }
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(words)) => {
            let words = format!("{node} did not answer: {words}");
            Err(refusal(ErrorKind::Unavailable, words, "try again"))
        }
        Err(_) => {
            let words = format!("{node} did not answer within {} s", AGENT.as_secs());
            Err(refusal(ErrorKind::Unavailable, words, "see optimus nodes for its state"))
        }
    }
}

fn odd(node: &str) -> Refusal {
    refusal(ErrorKind::Unavailable, format!("{node} answered another question"), "try again")
}

/// Files are small, but a disk may be slow: not on the thread of the sessions.
async fn blocking<T: Send + 'static>(
    door: &Door,
    work: impl FnOnce(&Certificates) -> Result<T, String> + Send + 'static,
) -> Result<T, Refusal> {
    let certificates = Arc::clone(&door.certificates);
    let done = tokio::task::spawn_blocking(move || work(&certificates)).await;
    let done = done.unwrap_or_else(|error| Err(error.to_string()));
    done.map_err(|words| refusal(ErrorKind::Conflict, words, "begin anew"))
}

async fn request(
    door: &Door,
    holder: &Holder,
    agent: Option<Connection>,
) -> Result<String, Refusal> {
    let Some(agent) = agent else {
        let made = |own: &Certificates| own.request().map_err(|error| error.to_string());
        return blocking(door, made).await;
    };
    let node = name(holder);
    match question(&node, &agent, &AgentQuery::CertificateRequest).await? {
        AgentAnswer::CertificateRequest(pem) if pem.len() <= PEM_BYTES_MAX => Ok(pem),
        AgentAnswer::CertificateRequest(_)
        | AgentAnswer::Log { .. }
        | AgentAnswer::Refused(_)
        | AgentAnswer::Probed(_)
        | AgentAnswer::Installed => Err(odd(&node)),
    }
}

async fn install(
    door: &Door,
    holder: &Holder,
    agent: Option<Connection>,
    pem: String,
) -> Result<String, Refusal> {
    if PEM_BYTES_MAX < pem.len() {
        let words = format!("the certificate has {} bytes", pem.len());
        return Err(refusal(ErrorKind::Invalid, words, "send one certificate"));
    }
    let (Some(agent), Holder::Agent(id)) = (agent, holder) else {
        let shown = blocking(door, move |own| own.install(&pem)).await?;
        return Ok(format!("the master shows serial {} from now on", shown.serial));
    };
    door.certificates.check(&pem, id).map_err(|words| {
        let hint = "sign it with the CA of this cluster; while the CA is changed, put both into \
                    the master's ca.pem first";
        refusal(ErrorKind::Invalid, words, hint)
    })?;
    let node = name(holder);
    match question(&node, &agent, &AgentQuery::CertificateInstall { pem }).await? {
        AgentAnswer::Installed => Ok(format!("{node} shows it from its next connection on")),
        AgentAnswer::Log { .. }
        | AgentAnswer::Refused(_)
        | AgentAnswer::Probed(_)
        | AgentAnswer::CertificateRequest(_) => Err(odd(&node)),
    }
}

async fn revoke(door: &Door, user: &str, pem: String, dry_run: bool) -> Reply {
    let ca = door.certificates.ca();
    let read = Revocations::read(pem.as_bytes(), Path::new("of the request"), &ca);
    let lists = read.map_err(|error| {
        let hint = "send the list that optimus cert revoke made, in the folder of this CA";
        refusal(ErrorKind::Invalid, error.to_string(), hint)
    })?;
    let known = door.certificates.present.revocations();
    let newer = known.updated(&lists).map_err(|words| {
        refusal(ErrorKind::Conflict, words, "revoke in the folder with the newest crl.pem")
    })?;
    let count = newer.iter().count();
    if dry_run {
        let note = format!("{count} certificates would be revoked");
        return Ok(Answer::Accepted { job: None, node: None, note });
    }
    let closed = blocking(door, move |own| own.revoke(&lists)).await?;
    tracing::info!(user, number = newer.number(), count, closed, "took a list of revoked ones");
    let note = format!("{count} certificates are revoked, {closed} sessions were closed");
    Ok(Answer::Accepted { job: None, node: None, note })
}

pub(crate) fn unix_ms(at: SystemTime) -> UnixMs {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

async fn status(door: &Door) -> Reply {
    let (reply, ends) = oneshot::channel();
    let asked = async {
        door.queries.send(Query::CertificateEnds { reply }).await.ok()?;
        ends.await.ok()
    };
    // Without them the dates of the present connections stand for themselves.
    let next = tokio::time::timeout(LOOP, asked).await.ok().flatten().unwrap_or_default();
    let own = &door.certificates;
    let revocations = own.present.revocations();
    let mut views: Vec<CertificateView> = own
        .shown()
        .map(|shown| CertificateView {
            identity: format!("{}/{}", shown.identity.role, shown.identity.name),
            revoked: revocations.since(&shown.serial).is_some(),
            serial: shown.serial,
            ends: unix_ms(shown.not_after),
            connected: true,
            next_ends: None,
        })
        .into_iter()
        .collect();
    let mut others: Vec<CertificateView> = own
        .present
        .certificates()
        .into_iter()
        .map(|PeerCertificate { identity, serial, not_after }| CertificateView {
            next_ends: next_ends(&identity, &next),
            identity: format!("{}/{}", identity.role, identity.name),
            revoked: revocations.since(&serial).is_some(),
            serial,
            ends: unix_ms(not_after),
            connected: true,
        })
        .collect();
    others
        .sort_by(|one, other| (&one.identity, &one.serial).cmp(&(&other.identity, &other.serial)));
    views.extend(others);
    Ok(Answer::Certificates(views))
}

fn next_ends(identity: &net::Identity, next: &[(NodeId, UnixMs)]) -> Option<UnixMs> {
    let of_agent = identity.role == Role::Agent;
    let found = next.iter().find(|(node, _)| of_agent && node.as_str() == identity.name);
    found.map(|(_, ends)| *ends)
}
