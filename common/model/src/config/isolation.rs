//! Checks the agent's settings of what tasks run as and in.

use super::{AgentConfig, TASK_USERS};
use crate::job::Fault;

pub(super) fn check(config: &AgentConfig, faults: &mut Vec<Fault>) {
    if config.task_user == "root" || config.task_user.is_empty() {
        faults.push(Fault::new(
            "task_user",
            format!("{:?} cannot run tasks", config.task_user),
            "name an unprivileged user: a task never runs as root",
        ));
    }
    if !TASK_USERS.contains(&config.task_user_from.as_str()) {
        faults.push(Fault::new(
            "task_user_from",
            format!("{:?} is not known", config.task_user_from),
            format!("give one of {}", TASK_USERS.join(", ")),
        ));
    }
    if config.task_uid_min == 0 {
        faults.push(Fault::new(
            "task_uid_min",
            "0 is root",
            "give 1 or more, 1000 is usual: a task never runs as root",
        ));
    }
    if let Some(root) = &config.cgroup_root
        && (!root.starts_with('/') || root.split('/').any(|part| part == ".."))
    {
        faults.push(Fault::new(
            "cgroup_root",
            format!("{root:?} is not a folder from the root"),
            "give such as /sys/fs/cgroup/optimus-tasks.slice, or leave it out",
        ));
    }
    // A task of MXNet has some ten threads for each CPU; the kernel's own bound is 4194304.
    if !(16..=4_194_304).contains(&config.pids_max) {
        faults.push(Fault::new(
            "pids_max",
            format!("{} is out of range", config.pids_max),
            "give 16 to 4194304; 4096 is usual",
        ));
    }
}
