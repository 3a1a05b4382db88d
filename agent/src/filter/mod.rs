//! Keeps strangers from the ports of tasks: a parameter server unpickles whatever reaches it, so
//! that who reaches its port runs code as its user.
//!
//! What may pass follows from the ledger alone ([`Rules`]). The agent's loop says what it wants
//! ([`Filter::want`]), and whoever starts tasks waits until the kernel has it
//! ([`Filter::settle`]). The rules stay in the kernel when the agent ends, as its tasks do. A
//! server that cannot filter still trains, and says so.

mod rules;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::NodeId;
use nix::unistd::geteuid;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::config::Settings;
pub(crate) use rules::{Admitted, Rules};

/// Where `nft` lies; a service's own PATH may not name it.
const PROGRAMS: [&str; 4] = ["/usr/sbin/nft", "/sbin/nft", "/usr/local/sbin/nft", "/usr/bin/nft"];
/// `nft` takes some 20 ms. One that hangs must not keep tasks from starting for ever.
const LIMIT: Duration = Duration::from_secs(10);

/// The packet filter of one agent.
#[derive(Debug)]
pub(crate) struct Filter {
    table: String,
    /// `nft`, or in words why there is no filter.
    program: Result<PathBuf, String>,
    wanted: Mutex<Wanted>,
    /// The count of what the kernel has; whoever holds it changes the kernel's table.
    applied: tokio::sync::Mutex<u64>,
    trouble: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Wanted {
    /// Grows with each change.
    count: u64,
    rules: Rules,
}

impl Filter {
    pub(crate) fn new(settings: &Settings, node: &NodeId) -> Self {
        let program = find(settings.filters);
        Self::with(rules::table_name(node, &settings.state_dir), program)
    }

    fn with(table: String, program: Result<PathBuf, String>) -> Self {
        let trouble = program.as_ref().err().cloned();
        // The first time is due even where nothing is to be let in: the kernel may have a table of
        // an earlier life, and whether it takes one at all is to be known.
        let wanted = Wanted { count: 1, rules: Rules::default() };
        Self {
            table,
            program,
            wanted: Mutex::new(wanted),
            applied: tokio::sync::Mutex::new(0),
            trouble: Mutex::new(trouble),
        }
    }

    /// Says who may reach the tasks from now on. True where that is news.
    pub(crate) fn want(&self, rules: Rules) -> bool {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let news = wanted.rules != rules;
        if news {
            *wanted = Wanted { count: wanted.count + 1, rules };
        }
        news
    }

    /// Returns once the kernel has what was wanted before the call, or refuses it.
    pub(crate) async fn settle(&self) {
        let Ok(program) = &self.program else { return };
        let mut applied = self.applied.lock().await;
        let (count, script) = {
            let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            (wanted.count, rules::script(&self.table, &wanted.rules))
        };
        if *applied == count {
            return;
        }
        let done = nft(program, &["-f", "-"], &script).await;
        if done.is_ok() {
            *applied = count;
        }
        self.note(done.err());
    }

    /// Sets the rules again where they are gone: a firewall that is loaded anew often drops all
    /// tables first. Does nothing where there are none to be set.
    pub(crate) async fn look(&self) {
        let Ok(program) = &self.program else { return };
        let none =
            self.wanted.lock().unwrap_or_else(PoisonError::into_inner).rules.ports.is_empty();
        if !none {
            let mut applied = self.applied.lock().await;
            let listed = nft(program, &["list", "table", "inet", &self.table], "").await;
            if listed.is_err() && *applied != 0 {
                tracing::warn!(table = self.table, "the packet filter's table is gone; set again");
                *applied = 0;
            }
        }
        self.settle().await;
    }

    /// As [`Self::settle`], beside the caller.
    pub(crate) fn settle_soon(self: &Arc<Self>) {
        let filter = Arc::clone(self);
        tokio::spawn(async move { filter.settle().await });
    }

    /// As [`Self::look`], beside the caller.
    pub(crate) fn look_soon(self: &Arc<Self>) {
        let filter = Arc::clone(self);
        tokio::spawn(async move { filter.look().await });
    }

    /// In words, why strangers are not kept out; none where they are.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, trouble: Option<String>) {
        let trouble = trouble.map(|why| {
            format!(
                "{OPEN}: {why}; an agent sets rules with the right CAP_NET_ADMIN and a kernel that \
                 has nf_tables"
            )
        });
        let mut known = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != trouble {
            match &trouble {
                Some(why) => tracing::error!(why, "no packet filter"),
                None => tracing::info!("the packet filter is set again"),
            }
            *known = trouble;
        }
    }
}

/// What it means that there is no filter.
const OPEN: &str = "filter: whoever reaches this server reaches its tasks' ports, and a parameter \
                    server runs what it gets";

fn find(wanted: bool) -> Result<PathBuf, String> {
    if !wanted {
        return Err(format!("{OPEN}: the settings say so; set filter = \"nft\""));
    }
    if !geteuid().is_root() {
        return Err(format!("{OPEN}: the agent is not root; run it as root"));
    }
    let found = PROGRAMS.iter().map(Path::new).find(|path| path.is_file());
    found
        .map(Path::to_owned)
        .ok_or_else(|| format!("{OPEN}: there is no nft; install the package nftables"))
}

/// Runs `nft`.
///
/// # Errors
/// In words.
async fn nft(program: &Path, arguments: &[&str], input: &str) -> Result<(), String> {
    let run = async {
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that has ended says why in its output.
            let _ended = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let name = program.display();
    let output = match tokio::time::timeout(LIMIT, run).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("cannot run {name}: {error}")),
        Err(_) => return Err(format!("{name} has not ended in {} s", LIMIT.as_secs())),
    };
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let first = words.lines().next().unwrap_or("no word").to_owned();
    Err(format!("{name}: {}", crate::telemetry::printable(&first, 200)))
}

#[cfg(test)]
mod tests;
