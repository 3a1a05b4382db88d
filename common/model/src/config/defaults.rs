//! What the daemons go by where their files say nothing.

use super::{
    AgentConfig, CapacityConfig, FILTERS, GpuConfig, JobTimesConfig, LimitsConfig, MasterConfig,
    NodeTimesConfig, POLICIES, RoundConfig, StragglerConfig, TASK_USERS, TlsConfig,
};
use crate::units::DurationMs;

impl Default for MasterConfig {
    fn default() -> Self {
        Self {
            cluster: "optimus".to_owned(),
            listen: "127.0.0.1:7600".to_owned(),
            state_dir: None,
            hadoop_conf_dir: None,
            kerberos_principal: None,
            kerberos_keytab: None,
            store_key: None,
            tls: TlsConfig::default(),
            rounds: RoundConfig::default(),
            nodes: NodeTimesConfig::default(),
            jobs: JobTimesConfig::default(),
            limits: LimitsConfig::default(),
            stragglers: StragglerConfig::default(),
            gpus: GpuConfig::default(),
        }
    }
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            name: None,
            master: "127.0.0.1:7600".to_owned(),
            state_dir: None,
            task_address: "127.0.0.1".to_owned(),
            task_ports: (10_000, 19_999),
            filter: FILTERS[0].to_owned(),
            task_user: "nobody".to_owned(),
            task_user_from: TASK_USERS[0].to_owned(),
            task_uid_min: 1000,
            cgroup_root: None,
            cpu_limit: true,
            pids_max: 4096,
            python_package: None,
            beat: DurationMs::seconds(2),
            stop_grace: DurationMs::seconds(10),
            disconnect_stop: DurationMs::seconds(45),
            log_bytes_max: "8MiB".to_owned(),
            spool_bytes_max: "32GiB".to_owned(),
            hadoop_conf_dir: None,
            kerberos_principal: None,
            kerberos_keytab: None,
            tls: TlsConfig::default(),
            capacity: CapacityConfig::default(),
        }
    }
}

impl Default for RoundConfig {
    fn default() -> Self {
        Self {
            policy: POLICIES[0].to_owned(),
            interval: DurationMs::seconds(600),
            spacing: DurationMs::seconds(1),
            hysteresis_factor: 1.5,
            change_spacing: DurationMs::seconds(60),
            profile_shapes_max: 5,
            profile_time: DurationMs::seconds(10),
            rescale_cost: DurationMs::seconds(10),
            pause_share: 0.025,
        }
    }
}

impl Default for NodeTimesConfig {
    fn default() -> Self {
        Self {
            suspect: DurationMs::seconds(10),
            down: DurationMs::seconds(60),
            start_grace: DurationMs::seconds(60),
            down_share_max: 0.34,
        }
    }
}

impl Default for JobTimesConfig {
    fn default() -> Self {
        Self {
            start_timeout: DurationMs::seconds(300),
            checkpoint_timeout: DurationMs::seconds(120),
            stop_grace: DurationMs::seconds(10),
            backoff: DurationMs::seconds(5),
            backoff_max: DurationMs::seconds(300),
            stall_timeout: DurationMs::seconds(600),
            checkpoints_kept: 2,
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            jobs_queued_max: 10_000,
            jobs_per_user: 1_000,
            jobs_finished_kept: 10_000,
            events_kept: 20_000,
            rounds_kept: 1_000,
            root_ports: (21_000, 29_999),
        }
    }
}

impl Default for StragglerConfig {
    fn default() -> Self {
        Self {
            window: DurationMs::seconds(5),
            windows: 3,
            ratio: 0.5,
            node_flag: DurationMs::seconds(1800),
        }
    }
}
