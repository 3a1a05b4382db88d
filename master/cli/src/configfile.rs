//! `config check` of the two daemons' files, with every fault at once.

use model::Fault;
use model::config::{AgentConfig, MasterConfig};
use serde::de::DeserializeOwned;

use crate::failure::Located;
use crate::keys::{Document, Key, Want};

const COUNT: Want = Want::Integer(u32::MAX as u64);
const COUNTS: Want = Want::Integers(u32::MAX as u64);

/// Every key of `master.toml`.
pub(crate) const MASTER_KEYS: [Key; 50] = [
    Key::optional("cluster", Want::Text),
    Key::optional("listen", Want::Text),
    Key::optional("state_dir", Want::Text),
    Key::optional("hadoop_conf_dir", Want::Text),
    Key::optional("kerberos_principal", Want::Text),
    Key::optional("kerberos_keytab", Want::Text),
    Key::optional("store_key", Want::Text),
    Key::optional("tls.ca", Want::Text),
    Key::optional("tls.certificate", Want::Text),
    Key::optional("tls.key", Want::Text),
    Key::optional("tls.enrolment", Want::Text),
    Key::optional("tls.revocations", Want::Text),
    Key::optional("rounds.policy", Want::Text),
    Key::optional("rounds.interval", Want::Duration),
    Key::optional("rounds.spacing", Want::Duration),
    Key::optional("rounds.hysteresis_factor", Want::Decimal),
    Key::optional("rounds.change_spacing", Want::Duration),
    Key::optional("rounds.profile_shapes_max", COUNT),
    Key::optional("rounds.profile_time", Want::Duration),
    Key::optional("rounds.rescale_cost", Want::Duration),
    Key::optional("rounds.pause_share", Want::Decimal),
    Key::optional("nodes.suspect", Want::Duration),
    Key::optional("nodes.down", Want::Duration),
    Key::optional("nodes.start_grace", Want::Duration),
    Key::optional("nodes.down_share_max", Want::Decimal),
    Key::optional("jobs.start_timeout", Want::Duration),
    Key::optional("jobs.checkpoint_timeout", Want::Duration),
    Key::optional("jobs.stop_grace", Want::Duration),
    Key::optional("jobs.backoff", Want::Duration),
    Key::optional("jobs.backoff_max", Want::Duration),
    Key::optional("jobs.stall_timeout", Want::Duration),
    Key::optional("jobs.checkpoints_kept", COUNT),
    Key::optional("limits.jobs_queued_max", COUNT),
    Key::optional("limits.jobs_per_user", COUNT),
    Key::optional("limits.jobs_finished_kept", COUNT),
    Key::optional("limits.events_kept", COUNT),
    Key::optional("limits.rounds_kept", COUNT),
    Key::optional("limits.root_ports", Want::Ports),
    Key::optional("stragglers.window", Want::Duration),
    Key::optional("stragglers.windows", COUNT),
    Key::optional("stragglers.ratio", Want::Decimal),
    Key::optional("stragglers.node_flag", Want::Duration),
    Key::optional("gpus.quiet", Want::Duration),
    Key::optional("gpus.suspicions_max", COUNT),
    Key::optional("gpus.out_share", Want::Decimal),
    Key::optional("gpus.ecc_uncorrected_max", COUNT),
    Key::optional("gpus.xid_user", COUNTS),
    Key::optional("gpus.xid_transient", COUNTS),
    Key::optional("gpus.xid_reset", COUNTS),
    Key::optional("gpus.xid_hardware", COUNTS),
];

/// Every key of `agent.toml`.
pub(crate) const AGENT_KEYS: [Key; 30] = [
    Key::optional("name", Want::Text),
    Key::optional("master", Want::Text),
    Key::optional("state_dir", Want::Text),
    Key::optional("task_address", Want::Text),
    Key::optional("task_ports", Want::Ports),
    Key::optional("filter", Want::Word(&model::config::FILTERS)),
    Key::optional("task_user", Want::Text),
    Key::optional("task_user_from", Want::Word(&model::config::TASK_USERS)),
    Key::optional("task_uid_min", COUNT),
    Key::optional("cgroup_root", Want::Text),
    Key::optional("cpu_limit", Want::Truth),
    Key::optional("pids_max", COUNT),
    Key::optional("python_package", Want::Text),
    Key::optional("beat", Want::Duration),
    Key::optional("stop_grace", Want::Duration),
    Key::optional("disconnect_stop", Want::Duration),
    Key::optional("log_bytes_max", Want::Size),
    Key::optional("spool_bytes_max", Want::Size),
    Key::optional("hadoop_conf_dir", Want::Text),
    Key::optional("kerberos_principal", Want::Text),
    Key::optional("kerberos_keytab", Want::Text),
    Key::optional("tls.ca", Want::Text),
    Key::optional("tls.certificate", Want::Text),
    Key::optional("tls.key", Want::Text),
    Key::optional("tls.enrolment", Want::Text),
    Key::optional("tls.revocations", Want::Text),
    Key::optional("capacity.cpus", Want::Decimal),
    Key::optional("capacity.memory", Want::Size),
    Key::optional("capacity.gpus", COUNT),
    Key::optional("capacity.named", Want::FreeIntegers),
];

/// Everything wrong with a `master.toml`, in the order of the file.
#[must_use]
pub(crate) fn master(text: &str) -> Vec<Located> {
    check::<MasterConfig>(text, &MASTER_KEYS, MasterConfig::faults)
}

/// Everything wrong with an `agent.toml`, in the order of the file.
#[must_use]
pub(crate) fn agent(text: &str) -> Vec<Located> {
    check::<AgentConfig>(text, &AGENT_KEYS, AgentConfig::faults)
}

fn check<T: DeserializeOwned>(
    text: &str,
    keys: &[Key],
    faults: impl Fn(&T) -> Vec<Fault>,
) -> Vec<Located> {
    let mut document = Document::read(text, keys);
    let Ok(mut table) = text.parse::<toml::Table>() else { return document.sorted() };
    let before = document.faults.clone();
    // The rest is judged with the defaults in place of what is wrong.
    for located in &before {
        remove(&mut table, &located.fault.field);
    }
    match table.try_into::<T>() {
        Ok(config) => {
            for fault in faults(&config) {
                document.add_unless(&before, fault);
            }
        }
        Err(error) => document
            .faults
            .push(Located { line: None, fault: Fault::new("file", error.message(), "correct it") }),
    }
    document.sorted()
}

/// Removes what a dotted path names; names with dots of their own are looked for first.
fn remove(table: &mut toml::Table, path: &str) {
    if table.remove(path).is_some() {
        return;
    }
    for (at, _) in path.match_indices('.') {
        if let Some(toml::Value::Table(inner)) = table.get_mut(&path[..at]) {
            return remove(inner, &path[at + 1..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(faults: &[Located]) -> Vec<String> {
        let line =
            |line: Option<usize>| line.map_or_else(|| "-".to_owned(), |line| line.to_string());
        faults.iter().map(|located| format!("{} {}", line(located.line), located.fault)).collect()
    }

    fn leaves(value: &toml::Value, prefix: &str, found: &mut Vec<String>) {
        let table = value.as_table().filter(|table| !table.is_empty());
        let Some(table) = table else { return found.push(prefix.to_owned()) };
        for (name, value) in table {
            let dot = if prefix.is_empty() { "" } else { "." };
            leaves(value, &format!("{prefix}{dot}{name}"), found);
        }
    }

    /// A line that gives a key a value which its type takes.
    fn sample(key: &Key) -> String {
        let value = match key.want {
            Want::Text => "'x'",
            Want::Texts => "['x']",
            Want::Word(words) => return format!("{} = '{}'", key.path, words[0]),
            Want::Integer(_) => "4",
            Want::Decimal => "1.5",
            Want::Duration => "'10s'",
            Want::Size => "'1MiB'",
            Want::FreeTexts => "{ a = 'x' }",
            Want::FreeIntegers => "{ a = 1 }",
            Want::Ports => "[21000, 29999]",
            Want::Truth => "true",
            Want::Integers(_) => "[7]",
        };
        format!("{} = {value}", key.path)
    }

    #[test]
    fn the_lists_of_keys_are_those_of_the_daemons() {
        let both: [(toml::Value, &[Key]); 2] = [
            (toml::Value::try_from(MasterConfig::default()).unwrap(), &MASTER_KEYS),
            (toml::Value::try_from(AgentConfig::default()).unwrap(), &AGENT_KEYS),
        ];
        for (value, keys) in both {
            let mut found = Vec::new();
            leaves(&value, "", &mut found);
            for path in found.iter().filter(|path| *path != "tls") {
                assert!(keys.iter().any(|key| key.path == path), "{path} is not listed");
            }
        }
        for key in &MASTER_KEYS {
            toml::from_str::<MasterConfig>(&sample(key)).expect(key.path);
        }
        for key in &AGENT_KEYS {
            toml::from_str::<AgentConfig>(&sample(key)).expect(key.path);
        }
    }

    #[test]
    fn an_empty_file_is_right() {
        assert_eq!(master(""), []);
        assert_eq!(agent(""), []);
    }

    #[test]
    fn faults_of_form_and_of_sense_come_together() {
        let text = "listen = 'nowhere'\ninterval = '3s'\n[rounds]\ninterval = 600\n\
                    hysteresis_factor = 1000\n[nodes]\nsuspect = '2m'\n[limits]\n\
                    root_ports = [80, 90]\nevents = 1\n[tls]\nca = 'x'\n";
        let found = words(&master(text));
        assert_eq!(found.len(), 8, "{found:#?}");
        for start in [
            "1 listen: \"nowhere\" is not an address",
            "2 interval: is not a known key; did you mean rounds.interval?",
            "4 rounds.interval: 600 has no unit",
            "5 rounds.hysteresis_factor: 1000 is out of range",
            "9 limits.root_ports: [80, 90] is not a range",
            "10 limits.events: is not a known key; did you mean limits.events_kept?",
            "11 tls: names only some",
        ] {
            assert!(found.iter().any(|fault| fault.starts_with(start)), "{start}: {found:#?}");
        }
        assert!(found.iter().any(|fault| fault.contains("nodes.down")), "{found:#?}");
    }

    #[test]
    fn an_agent_s_file_too() {
        let found = words(&agent("task_user = 'root'\nlog_bytes_max = 5\n[capacity]\ncpus = -1\n"));
        assert_eq!(found.len(), 3, "{found:#?}");
    }
}
