//! ansible, run as an operator would: over ssh, with an inventory of this run's hosts.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use harness::Binaries;
use harness::binaries::checkout;
use harness::hosts::Site;
use harness::process::talk;
use harness::wait::Clock;
use serde_json::{Value, json};

pub(crate) const MASTER: &str = "master";
pub(crate) const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// CPUs and memory that each node declares: a host sees all of this machine.
const NODE_CPUS: f64 = 2.25;
const NODE_MEMORY: &str = "4GiB";

/// The key that seals the master's store, as an operator keeps it.
const STORE_KEY: &str = "store.key";

/// Quick rounds and quick judgements, so that the story is short.
fn master_settings() -> Value {
    json!({
        "rounds": {
            "interval": "10s", "spacing": "500ms", "profile_shapes_max": 1,
            "profile_time": "2s", "change_spacing": "10s", "rescale_cost": "8s",
        },
        "nodes": { "suspect": "3s", "down": "12s", "start_grace": "10s" },
        "jobs": {
            "backoff": "500ms", "stop_grace": "5s", "start_timeout": "120s",
            "stall_timeout": "90s", "checkpoint_timeout": "60s",
        },
    })
}

fn inventory(site: &Site, binaries: &Path) -> Value {
    let node = |name: &str| json!({ "ansible_host": site.host(name).address });
    let nodes: serde_json::Map<_, _> =
        NODES.iter().map(|name| ((*name).to_owned(), node(name))).collect();
    json!({ "all": {
        "vars": {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": site.key(),
            "ansible_ssh_common_args":
                "-F /dev/null -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null",
            "optimus_cluster": "hosts",
            "optimus_binaries": binaries,
            "optimus_task_uid": harness::hosts::TASK_UID,
            "optimus_cpus": NODE_CPUS,
            "optimus_memory": NODE_MEMORY,
            "optimus_storage": ["/srv/checkpoints"],
            "optimus_store_key": site.folder.join(STORE_KEY),
            // The group that the shared folder belongs to.
            "optimus_master_groups": [harness::hosts::TASK_USER],
            "optimus_master_settings": master_settings(),
            "optimus_agent_settings": {
                "beat": "500ms", "disconnect_stop": "6s",
            },
        },
        "children": {
            "optimus_master": { "hosts": { MASTER: node(MASTER) } },
            "optimus_agents": { "hosts": nodes },
        },
    } })
}

/// A folder with the three binaries as a release has them: without symbols, which would be
/// copied to every host. `mark` makes another version of them: the loader ignores what follows.
fn release(folder: &Path, mark: &str) -> Result<()> {
    let built = Binaries::build()?;
    fs::create_dir_all(folder)?;
    for from in [&built.master, &built.agent, &built.optimus] {
        let to = folder.join(from.file_name().context("a binary has a name")?);
        let stripped = std::process::Command::new("strip").arg("-o").arg(&to).arg(from).status();
        if !stripped.is_ok_and(|status| status.success()) {
            fs::copy(from, &to)?;
        }
        let mut bytes = fs::read(&to)?;
        bytes.extend(mark.bytes());
        fs::write(&to, bytes)?;
    }
    Ok(())
}

/// What a play did to each host, from ansible's recap.
#[derive(Debug)]
pub(crate) struct Recap {
    pub(crate) hosts: Vec<(String, u32)>,
}

impl Recap {
    fn of(output: &str) -> Self {
        let number = |line: &str, word: &str| -> Option<u32> {
            line.split_whitespace().find_map(|part| part.strip_prefix(word)?.parse().ok())
        };
        let hosts = output
            .lines()
            .filter_map(|line| {
                let (host, rest) = line.split_once(" : ").or_else(|| line.split_once(':'))?;
                Some((host.trim().to_owned(), number(rest, "changed=")?))
            })
            .collect();
        Self { hosts }
    }

    pub(crate) fn changed(&self) -> u32 {
        self.hosts.iter().map(|(_, changed)| changed).sum()
    }
}

#[derive(Debug)]
pub(crate) struct Rollout {
    inventory: PathBuf,
    programs: PathBuf,
    /// The release in use.
    pub(crate) binaries: PathBuf,
    upgraded: PathBuf,
}

impl Rollout {
    /// Two releases and the inventory.
    pub(crate) fn prepare(site: &Site) -> Result<Self> {
        let rollout = Self {
            inventory: site.folder.join("inventory"),
            programs: harness::ansible::ready()?,
            binaries: site.folder.join("release-1"),
            upgraded: site.folder.join("release-2"),
        };
        release(&rollout.binaries, "")?;
        release(&rollout.upgraded, "the next release")?;
        fs::create_dir(&rollout.inventory)?;
        fs::write(site.folder.join(STORE_KEY), format!("{}\n", "5a".repeat(32)))?;
        rollout.write_inventory(site)?;
        Ok(rollout)
    }

    /// Writes the hosts with the addresses that they have now.
    pub(crate) fn write_inventory(&self, site: &Site) -> Result<()> {
        let hosts = serde_json::to_string_pretty(&inventory(site, &self.binaries))?;
        fs::write(self.inventory.join("hosts.yml"), hosts).context("cannot write the inventory")
    }

    /// The folder of the CA and of the certificates.
    pub(crate) fn pki(&self) -> PathBuf {
        self.inventory.join("pki")
    }

    /// Runs a playbook, which must succeed.
    pub(crate) fn play(&self, site: &Site, playbook: &str, more: &[&str]) -> Result<Recap> {
        let clock = Clock::start();
        let folder = checkout().join("ansible");
        let output = site
            .command(&self.programs.join("ansible-playbook"))
            .arg("--inventory")
            .arg(self.inventory.join("hosts.yml"))
            .args(more)
            .arg(playbook)
            .current_dir(&folder)
            .env("ANSIBLE_CONFIG", folder.join("ansible.cfg"))
            .env("ANSIBLE_LOCAL_TEMP", site.folder.join("ansible"))
            // Sockets of ssh have short paths.
            .env("ANSIBLE_SSH_CONTROL_PATH_DIR", format!("/tmp/optimus-{}", std::process::id()))
            .env("ANSIBLE_NOCOLOR", "1")
            .env("LC_ALL", "C.UTF-8")
            .stdin(std::process::Stdio::null())
            .output()
            .context("cannot run ansible-playbook")?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "ansible-playbook {playbook} failed:\n{}\n{}",
            said,
            String::from_utf8_lossy(&output.stderr)
        );
        let recap = Recap::of(&said);
        ensure!(!recap.hosts.is_empty(), "no recap in {said}");
        talk(&format!(
            "{playbook}: {} changes in {:.1} s",
            recap.changed(),
            clock.elapsed().as_secs_f64()
        ));
        Ok(recap)
    }

    /// The same with the other release.
    pub(crate) fn upgrade(&self, site: &Site) -> Result<Recap> {
        let binaries = format!("optimus_binaries={}", self.upgraded.display());
        self.play(site, "upgrade.yml", &["--extra-vars", &binaries])
    }
}
