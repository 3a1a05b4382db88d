//! Ten thousand hostile datagrams, handshakes and frames from one peer: the master serves on, and
//! its memory stays bounded.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use harness::jobs::{Finish, JobFile};
use harness::process::talk;
use harness::{Binaries, Cluster, ClusterOptions, wait};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::rustls::pki_types::pem::PemObject;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use quinn::rustls::{self, RootCertStore};

use crate::common::{MINUTE, show, submit, wait_steps};

const DATAGRAMS: usize = 6_500;
const HALF: usize = 500;
const WRONG_CA: usize = 1_000;
const GARBAGE: usize = 2_000;
/// Of the hostile peer, under way at once.
const AT_ONCE: usize = 32;
/// What the master may have grown by, once all of it is over: its buffers and what the allocator
/// keeps of them. Ten thousand connections of 40 KiB would be 400 MiB.
const GROWTH_KIB_MAX: u64 = 96 << 10;

/// Any bytes will do, the same ones in every run.
struct Noise(u64);

impl Noise {
    fn byte(&mut self) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.to_le_bytes()[0]
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }
}

fn resident_kib(pid: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// What a QUIC client shows, from files as `optimus cert issue` makes them.
fn client(ca: &Path, folder: &Path, stem: &str) -> Result<quinn::ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca)?)?;
    let certificate = CertificateDer::from_pem_file(folder.join(format!("{stem}.pem")))?;
    let key = PrivateKeyDer::from_pem_file(folder.join(format!("{stem}.key")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)?;
    tls.alpn_protocols = vec![b"optimus/1".to_vec()];
    Ok(quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?)))
}

/// The hostile peer has an address of its own, as it would outside.
fn endpoint() -> Result<quinn::Endpoint> {
    Ok(quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 66], 0)))?)
}

fn datagrams(master: &str) -> Result<()> {
    let mut noise = Noise(42);
    let sockets: Vec<UdpSocket> =
        (0..20).map(|_| UdpSocket::bind("127.0.0.66:0")).collect::<Result<_, _>>()?;
    for round in 0..DATAGRAMS {
        let mut datagram = noise.bytes(1 + round % 1400);
        // Half of them look like the start of a QUIC connection, of version 1 where long enough.
        if round % 2 == 0 {
            datagram[0] |= 0xc0;
            if datagram.len() > 5 {
                datagram[1..5].copy_from_slice(&1_u32.to_be_bytes());
            }
        }
        // A full buffer drops it, which is as good.
        let _dropped = sockets[round % sockets.len()].send_to(&datagram, master);
    }
    Ok(())
}

/// A handshake whose second half never comes: the endpoint is gone after its first packets.
async fn half(master: SocketAddr, config: quinn::ClientConfig) -> Result<()> {
    let endpoint = endpoint()?;
    let connecting = endpoint.connect_with(config, master, "optimus-master")?;
    let _unfinished = tokio::time::timeout(Duration::from_micros(300), connecting).await;
    Ok(())
}

/// Good TLS, then what no peer of ours says.
async fn garbage(master: SocketAddr, config: quinn::ClientConfig, number: usize) -> Result<()> {
    /// A greeting of version 1.
    const HELLO: &[u8] = b"\x0e\0\0\0OPTIMUS\0\x01\0\x01\0\x01x";
    let endpoint = endpoint()?;
    let connecting = endpoint.connect_with(config, master, "optimus-master")?;
    let Ok(Ok(connection)) = tokio::time::timeout(Duration::from_secs(5), connecting).await else {
        // Refused for its number of handshakes: that is what is wanted.
        return Ok(());
    };
    let mut noise = Noise(7 + number as u64);
    let (mut send, mut receive) = connection.open_bi().await?;
    let after_hello = number.is_multiple_of(2);
    if after_hello {
        send.write_all(HELLO).await?;
        let mut answer = [0; 512];
        let welcome = receive.read(&mut answer);
        let _refused = tokio::time::timeout(Duration::from_secs(5), welcome).await;
        match tokio::time::timeout(Duration::from_secs(5), connection.open_bi()).await {
            Ok(Ok(streams)) => (send, receive) = streams,
            Ok(Err(_)) | Err(_) => return Ok(()),
        }
    }
    let message = match number / 2 % 4 {
        0 => noise.bytes(900),
        // A length that would take all memory.
        1 => [0xff; 4].to_vec(),
        // A length within the limit, of which nothing comes.
        2 => (1_u32 << 20).to_le_bytes().to_vec(),
        // A good length, and a body that does not read.
        _ => [64_u32.to_le_bytes().as_slice(), &noise.bytes(64)].concat(),
    };
    let _refused = send.write_all(&message).await;
    // Some leave at once, some wait for the answer.
    if number.is_multiple_of(3) {
        let answer = receive.read_to_end(4_096);
        let _any = tokio::time::timeout(Duration::from_millis(50), answer).await;
    }
    Ok(())
}

async fn attack(master: SocketAddr, good: quinn::ClientConfig, bad: quinn::ClientConfig) {
    let mut under_way = tokio::task::JoinSet::new();
    for number in 0..HALF + WRONG_CA + GARBAGE {
        let (good, bad) = (good.clone(), bad.clone());
        under_way.spawn(async move {
            if number < HALF {
                half(master, good).await
            } else if number < HALF + WRONG_CA {
                let connecting = endpoint()?.connect_with(bad, master, "optimus-master")?;
                let refused = tokio::time::timeout(Duration::from_secs(5), connecting).await;
                // With TLS 1.3 the client is through before the master has seen its certificate.
                if let Ok(Ok(connection)) = refused {
                    let closed = connection.closed();
                    let _told = tokio::time::timeout(Duration::from_secs(5), closed).await;
                }
                Ok(())
            } else {
                garbage(master, good, number).await
            }
        });
        if under_way.len() >= AT_ONCE {
            let _ended = under_way.join_next().await;
        }
    }
    while under_way.join_next().await.is_some() {}
}

/// A user's own certificates, and one of the same cluster's name from another CA.
fn certificates(cluster: &Cluster) -> Result<(PathBuf, PathBuf)> {
    let (pki, user) = (cluster.folder.join("pki"), cluster.folder.join("mallory"));
    let folder = |path: &Path| path.display().to_string();
    let (pki, out) = (folder(&pki), folder(&user));
    cluster.run(["cert", "issue", "user", "mallory", "--dir", &pki, "--out", &out])?;
    let other = cluster.folder.join("other");
    let dir = folder(&other);
    cluster.run(["cert", "init", "--dir", &dir, "--cluster", "loopback"])?;
    cluster.run(["cert", "issue", "operator", "mallory", "--dir", &dir])?;
    Ok((user, other))
}

#[test]
fn ten_thousand_hostile_connections_and_frames_disturb_nobody() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[2.0]))?;
    let (user, other) = certificates(&cluster)?;
    let mut file = JobFile::new("undisturbed", "linear_probe.py", &cluster.checkpoints());
    file.arguments = vec!["--step-ms".to_owned(), "20".to_owned()];
    file.workers = (1, 1);
    file.servers = (1, 1);
    file.finish = Finish::Epochs(1_000);
    file.epochs_max = 1_000;
    let job = submit(&cluster, &file)?;
    wait_steps(&cluster, &job, 20)?;
    let good = client(&user.join("ca.pem"), &user, "user-mallory")?;
    let bad = client(&user.join("ca.pem"), &other, "operator-mallory")?;
    let pid = cluster.master.pid().context("the master runs")?;
    let before = resident_kib(pid)?;
    let step_before = show(&cluster, &job)?["step"].as_u64().context("a step")?;
    let over = AtomicBool::new(false);
    let (reads, peak) = std::thread::scope(|scope| -> Result<(usize, u64)> {
        let (cluster, over) = (&cluster, &over);
        // The operator works on all the while.
        let operator = scope.spawn(move || -> Result<(usize, u64)> {
            let (mut reads, mut peak) = (0, 0);
            while !over.load(Ordering::Acquire) {
                let listing = cluster.json(&["ps"])?;
                ensure!(listing["jobs"][0]["phase"] == "RUNNING", "disturbed: {listing}");
                reads += 1;
                peak = peak.max(resident_kib(pid)?);
            }
            Ok((reads, peak))
        });
        let runtime = tokio::runtime::Runtime::new()?;
        let fired = datagrams(&cluster.address);
        runtime.block_on(attack(cluster.address.parse()?, good, bad));
        over.store(true, Ordering::Release);
        let worked = operator.join().map_err(|_| anyhow::anyhow!("the operator panicked"))?;
        fired?;
        worked
    })?;
    let after = resident_kib(pid)?;
    talk(&format!(
        "the master had {before} KiB before, {peak} at most and {after} after 10,000 hostile \
         connections; {reads} listings were answered meanwhile"
    ));
    ensure!(reads > 0, "the operator was never served");
    ensure!(peak < before + GROWTH_KIB_MAX, "the master grew from {before} to {peak} KiB");
    let done = show(&cluster, &job)?;
    ensure!(done["restarts"] == 0 && done["phase"] == "RUNNING", "disturbed: {done}");
    wait::until("steps after it", MINUTE, || {
        Ok((show(&cluster, &job)?["step"].as_u64() > Some(step_before + 20)).then_some(()))
    })?;
    // What was turned away is counted.
    let status = cluster.json(&["status"])?;
    let refused = status["reports_refused"].to_string();
    for kind in ["failed handshakes", "malformed frames"] {
        ensure!(refused.contains(kind), "{kind} are not counted: {refused}");
    }
    Ok(())
}

#[test]
fn a_swapped_certificate_is_refused_in_words() -> Result<()> {
    let mut cluster = Cluster::prepare(&ClusterOptions::quick(&[]))?;
    cluster.master.start()?;
    wait::until("the master", MINUTE, || Ok(cluster.json(&["status"]).ok()))?;
    let optimus = &Binaries::build()?.optimus;
    let (pki, folder) = (cluster.folder.join("pki"), cluster.folder.join("swapped"));
    fs::create_dir(&folder)?;
    fs::copy(pki.join("ca.pem"), folder.join("ca.pem"))?;
    for (from, word) in [("master", "master"), ("ca", "operator")] {
        fs::copy(pki.join(format!("{from}.pem")), folder.join("admin.pem"))?;
        fs::copy(pki.join(format!("{from}.key")), folder.join("admin.key"))?;
        let output = Command::new(optimus)
            .arg("ps")
            .env("OPTIMUS_MASTER", &cluster.address)
            .env("OPTIMUS_TLS_DIR", &folder)
            .output()?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(4), "{from}: {output:?}");
        ensure!(words.contains(word), "{from}: no {word:?} in {words}");
    }
    Ok(())
}
