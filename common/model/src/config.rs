//! Settings of the two daemons as their TOML files hold them. Every field has a default, so that
//! both run on loopback with no file at all; an unknown key is refused.

mod defaults;
mod gpus;
mod isolation;
mod kerberos;
mod ports;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::job::Fault;
use crate::units::{DurationMs, cpus_milli, parse_bytes};

pub use gpus::GpuConfig;

/// `master.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MasterConfig {
    /// Name of the cluster, shown by `status`.
    pub cluster: String,
    /// UDP address for agents and operators.
    pub listen: String,
    /// Folder of the store; the default depends on the user.
    pub state_dir: Option<String>,
    /// Folder of Hadoop's core-site.xml and hdfs-site.xml; the default is `HADOOP_CONF_DIR`.
    pub hadoop_conf_dir: Option<String>,
    /// Whom Kerberos takes the daemon for on HDFS; its user's tickets where none is named.
    pub kerberos_principal: Option<String>,
    /// The principal's keytab: tickets are then taken as they are needed, and never run out.
    pub kerberos_keytab: Option<String>,
    /// File of the key that the store is sealed with; the default is the systemd credential
    /// `store-key`, and without either it is not sealed.
    pub store_key: Option<String>,
    pub tls: TlsConfig,
    pub rounds: RoundConfig,
    pub nodes: NodeTimesConfig,
    pub jobs: JobTimesConfig,
    pub limits: LimitsConfig,
    pub stragglers: StragglerConfig,
    pub gpus: GpuConfig,
}

/// `agent.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// Node name; must equal the one in the certificate. Default: from the certificate.
    pub name: Option<String>,
    /// The master's UDP address.
    pub master: String,
    pub state_dir: Option<String>,
    /// Numeric address at which other nodes' tasks reach tasks here.
    pub task_address: String,
    /// First and last port that tasks here listen at, but for PS schedulers; outside the range of
    /// ephemeral ports.
    pub task_ports: (u16, u16),
    /// What keeps strangers from the ports of tasks: one of [`FILTERS`].
    pub filter: String,
    /// User for tasks where the agent runs as root; the agent's own user elsewhere.
    pub task_user: String,
    /// Whose tasks they are where the agent runs as root: one of [`TASK_USERS`].
    pub task_user_from: String,
    /// Tasks run as no user below this number.
    pub task_uid_min: u32,
    /// Folder of the cgroup v2 tree for the groups of tasks; found by the agent where none.
    pub cgroup_root: Option<String>,
    /// Whether a task gets no more than its CPUs, also where others are idle.
    pub cpu_limit: bool,
    /// Most processes and threads of a task.
    pub pids_max: u32,
    /// Folder that holds the Python package `optimus`, put on `PYTHONPATH` of each task.
    pub python_package: Option<String>,
    pub beat: DurationMs,
    /// TERM, this long a wait, then KILL.
    pub stop_grace: DurationMs,
    /// After this time without contact, tasks with `on_disconnect` stop or replace are ended.
    pub disconnect_stop: DurationMs,
    /// The end of each task's output that is kept: so much, and up to half as much again.
    pub log_bytes_max: String,
    /// Parts of checkpoints that this node keeps to store and to read again, all jobs together.
    pub spool_bytes_max: String,
    /// Folder of Hadoop's core-site.xml and hdfs-site.xml; the default is `HADOOP_CONF_DIR`.
    pub hadoop_conf_dir: Option<String>,
    /// Whom Kerberos takes the daemon for on HDFS; its user's tickets where none is named.
    pub kerberos_principal: Option<String>,
    /// The principal's keytab: tickets are then taken as they are needed, and never run out.
    pub kerberos_keytab: Option<String>,
    pub tls: TlsConfig,
    pub capacity: CapacityConfig,
}

/// Files in PEM. Default: made in the state folder where everything is on loopback.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    pub ca: Option<String>,
    pub certificate: Option<String>,
    pub key: Option<String>,
    /// A bundle of certificate, key and CA, taken in where the daemon has nothing usable yet;
    /// the default is `enrolment` among the credentials that systemd hands over.
    pub enrolment: Option<String>,
    /// A list of revoked certificates; one that was sent to the master counts beside it.
    pub revocations: Option<String>,
}

/// Packet filters: rules that the agent sets through `nft` where it is root, or none.
pub const FILTERS: [&str; 2] = ["nft", "off"];
/// Where the user of tasks comes from: `setting` is `task_user`, `submitter` whoever submitted the
/// job.
pub const TASK_USERS: [&str; 2] = ["setting", "submitter"];

/// Policies that a daemon can run: those that need no more than its jobs tell.
pub const POLICIES: [&str; 4] = ["horizon", "optimus", "drf", "tetris"];

/// What the agent says it has, instead of what it finds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CapacityConfig {
    pub cpus: Option<f64>,
    pub memory: Option<String>,
    pub gpus: Option<u32>,
    pub named: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RoundConfig {
    /// Who gets what: one of [`POLICIES`].
    pub policy: String,
    pub interval: DurationMs,
    /// Least time between two rounds, whatever asks for one.
    pub spacing: DurationMs,
    /// A change of shape must save this many times its measured cost.
    pub hysteresis_factor: f64,
    /// Least time between two changes of one job's shape.
    pub change_spacing: DurationMs,
    /// Shapes tried for a new job, and how long each is measured.
    pub profile_shapes_max: u32,
    pub profile_time: DurationMs,
    /// Assumed cost of a job's first rescale.
    pub rescale_cost: DurationMs,
    /// Share of its time that a job may stand still because rounds move it, in (0, 1]; less for a
    /// large one.
    pub pause_share: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeTimesConfig {
    pub suspect: DurationMs,
    pub down: DurationMs,
    /// After a start of the master no node is judged for this long.
    pub start_grace: DurationMs,
    /// Share of all nodes that may fall silent at once and be DOWN, in (0, 1], but always one;
    /// where more do, the master's own network is taken to have failed. 1 sets no limit.
    pub down_share_max: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobTimesConfig {
    /// From the start order to the first step of every worker.
    pub start_timeout: DurationMs,
    /// From the checkpoint order to its manifest.
    pub checkpoint_timeout: DurationMs,
    /// TERM, this long a wait, then KILL, where a generation is stopped.
    pub stop_grace: DurationMs,
    /// First wait before a restart after a fault; doubles up to `backoff_max`.
    pub backoff: DurationMs,
    pub backoff_max: DurationMs,
    /// Time without any new step before a running generation is taken as hung.
    pub stall_timeout: DurationMs,
    pub checkpoints_kept: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Jobs that have not ended.
    pub jobs_queued_max: u32,
    /// Of these, of one person who is neither operator nor admin.
    pub jobs_per_user: u32,
    /// Finished jobs kept in the store.
    pub jobs_finished_kept: u32,
    pub events_kept: u32,
    pub rounds_kept: u32,
    /// First and last root port of PS schedulers; outside the range of ephemeral ports.
    pub root_ports: (u16, u16),
}

/// When a worker counts as slow (section 5.2), and what follows for its node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StragglerConfig {
    /// Workers of a job are compared over this time.
    pub window: DurationMs,
    /// Slow in so many windows in a row: named, and put on another node. 0: nobody is watched.
    pub windows: u32,
    /// Below this share of the other workers' median speed a worker is slow.
    pub ratio: f64,
    /// A node that slowness follows is avoided for this long after the last sign of it.
    pub node_flag: DurationMs,
}

fn check_address(field: &str, text: &str, faults: &mut Vec<Fault>) {
    if text.parse::<std::net::SocketAddr>().is_err() {
        faults.push(Fault::new(
            field,
            format!("{text:?} is not an address and a port"),
            "write a numeric address, such as 10.0.0.1:7600 or [::1]:7600",
        ));
    }
}

fn check_order(low: (&str, DurationMs), high: (&str, DurationMs), faults: &mut Vec<Fault>) {
    if high.1 <= low.1 {
        faults.push(Fault::new(
            high.0,
            format!("{} is not longer than {} = {}", high.1, low.0, low.1),
            format!("give more than {}", low.1),
        ));
    }
}

fn check_positive(field: &str, duration: DurationMs, faults: &mut Vec<Fault>) {
    if duration.0 == 0 {
        faults.push(Fault::new(field, "is zero", "give a positive duration such as 10s"));
    }
}

fn check_tls(tls: &TlsConfig, faults: &mut Vec<Fault>) {
    let given = [&tls.ca, &tls.certificate, &tls.key];
    let count = given.iter().filter(|path| path.is_some()).count();
    if count != 0 && count != given.len() {
        faults.push(Fault::new(
            "tls",
            "names only some of ca, certificate and key",
            "give all three, or none to use those in the state folder",
        ));
    }
}

impl MasterConfig {
    /// Everything wrong with the settings, all at once.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        check_address("listen", &self.listen, &mut faults);
        check_tls(&self.tls, &mut faults);
        let (principal, keytab) = (&self.kerberos_principal, &self.kerberos_keytab);
        kerberos::check(principal.as_deref(), keytab.as_deref(), &mut faults);
        let (rounds, nodes, jobs) = (&self.rounds, &self.nodes, &self.jobs);
        for (field, duration) in [
            ("rounds.interval", rounds.interval),
            ("rounds.spacing", rounds.spacing),
            ("rounds.profile_time", rounds.profile_time),
            ("nodes.suspect", nodes.suspect),
            ("jobs.start_timeout", jobs.start_timeout),
            ("jobs.checkpoint_timeout", jobs.checkpoint_timeout),
            ("jobs.stall_timeout", jobs.stall_timeout),
            ("jobs.backoff", jobs.backoff),
            ("stragglers.window", self.stragglers.window),
        ] {
            check_positive(field, duration, &mut faults);
        }
        check_order(("nodes.suspect", nodes.suspect), ("nodes.down", nodes.down), &mut faults);
        if jobs.backoff_max < jobs.backoff {
            faults.push(Fault::new(
                "jobs.backoff_max",
                format!("{} is under jobs.backoff = {}", jobs.backoff_max, jobs.backoff),
                "raise it",
            ));
        }
        self.check_rounds(&mut faults);
        if !(1..=100).contains(&jobs.checkpoints_kept) {
            faults.push(Fault::new(
                "jobs.checkpoints_kept",
                format!("{} is out of range", jobs.checkpoints_kept),
                "give 1 to 100",
            ));
        }
        if !(self.nodes.down_share_max > 0.0 && self.nodes.down_share_max <= 1.0) {
            faults.push(Fault::new(
                "nodes.down_share_max",
                format!("{} is out of range", self.nodes.down_share_max),
                "give more than 0 and at most 1; 0.34 is usual",
            ));
        }
        if !(self.stragglers.ratio > 0.0 && self.stragglers.ratio < 1.0) {
            faults.push(Fault::new(
                "stragglers.ratio",
                format!("{} is out of range", self.stragglers.ratio),
                "give more than 0 and less than 1; 0.5 is usual",
            ));
        }
        self.gpus.check(&mut faults);
        let (first, last) = self.limits.root_ports;
        if first < 1024 || last < first || last - first < 100 {
            faults.push(Fault::new(
                "limits.root_ports",
                format!("[{first}, {last}] is not a range of at least 100 ports from 1024 on"),
                "give two ports outside the system's ephemeral range, such as [21000, 29999]",
            ));
        }
        faults
    }

    fn check_rounds(&self, faults: &mut Vec<Fault>) {
        let rounds = &self.rounds;
        if !POLICIES.contains(&rounds.policy.as_str()) {
            faults.push(Fault::new(
                "rounds.policy",
                format!("{:?} is not a policy", rounds.policy),
                format!("give one of {}", POLICIES.join(", ")),
            ));
        }
        if !(1..=16).contains(&rounds.profile_shapes_max) {
            faults.push(Fault::new(
                "rounds.profile_shapes_max",
                format!("{} is out of range", rounds.profile_shapes_max),
                "give 1 to 16; 5 is usual",
            ));
        }
        if !(0.0..=100.0).contains(&rounds.hysteresis_factor) {
            faults.push(Fault::new(
                "rounds.hysteresis_factor",
                format!("{} is out of range", rounds.hysteresis_factor),
                "give 0 to 100; 1.5 is usual",
            ));
        }
        if !(rounds.pause_share > 0.0 && rounds.pause_share <= 1.0) {
            faults.push(Fault::new(
                "rounds.pause_share",
                format!("{} is out of range", rounds.pause_share),
                "give more than 0 and at most 1; 0.025 is usual",
            ));
        }
    }
}

impl AgentConfig {
    /// Everything wrong with the settings, all at once.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        check_address("master", &self.master, &mut faults);
        check_tls(&self.tls, &mut faults);
        let (principal, keytab) = (&self.kerberos_principal, &self.kerberos_keytab);
        kerberos::check(principal.as_deref(), keytab.as_deref(), &mut faults);
        if let Some(name) = &self.name
            && let Err(error) = name.parse::<crate::NodeId>()
        {
            faults.push(Fault::new("name", format!("{name:?} is not a node name"), error.remedy));
        }
        ports::check(self, &mut faults);
        isolation::check(self, &mut faults);
        if !(100..=60_000).contains(&self.beat.0) {
            faults.push(Fault::new(
                "beat",
                format!("{} is out of range", self.beat),
                "give 100ms to 60s; 2s is usual",
            ));
        }
        check_positive("disconnect_stop", self.disconnect_stop, &mut faults);
        if let Err(error) = parse_bytes(&self.log_bytes_max) {
            faults.push(Fault::new("log_bytes_max", error.to_string(), "give such as 8MiB"));
        }
        if let Err(error) = parse_bytes(&self.spool_bytes_max) {
            faults.push(Fault::new("spool_bytes_max", error.to_string(), "give such as 32GiB"));
        }
        if let Some(Err(error)) = self.capacity.cpus.map(cpus_milli) {
            faults.push(Fault::new("capacity.cpus", error.to_string(), "give such as 16"));
        }
        if let Some(Err(error)) = self.capacity.memory.as_deref().map(parse_bytes) {
            faults.push(Fault::new("capacity.memory", error.to_string(), "give such as 64GiB"));
        }
        faults
    }
}

#[cfg(test)]
mod tests;
