//! The environment of a task, made from nothing: the agent's own never leaks into it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::agent::Launch;
use model::job::RESERVED_ENVIRONMENT;
use model::{Batch, Role, Task};

use crate::config::TaskUser;
use crate::procfs::{FOLDER, FORK_SERVER, MARK, Mark};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a task's environment depends on beside its launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) mark: &'a Mark,
    /// The generation's folder on this node.
    pub(crate) folder: &'a Path,
    pub(crate) user: &'a TaskUser,
    pub(crate) task_address: &'a str,
    /// Where it listens; a PS scheduler goes by its root port.
    pub(crate) port: Option<u16>,
    pub(crate) python_package: Option<&'a Path>,
    /// Identifiers of the task's GPUs.
    pub(crate) gpus: &'a [String],
    /// Parameter blocks lie as the master assigns them.
    pub(crate) assigned: bool,
    /// What the package reads of the job's data set.
    pub(crate) data: Option<&'a str>,
}

/// The path of a `file:///…` URL.
///
/// # Errors
/// Where it is another scheme or not from the root.
pub(crate) fn local_path(url: &str) -> Result<PathBuf, String> {
    match url.strip_prefix("file://") {
        Some(path) if path.starts_with('/') => Ok(PathBuf::from(path)),
        _ => Err(format!("{url:?} is not a folder of this machine; give file:///absolute/folder")),
    }
}

/// A checkpoint's folder as tasks name it: a path of this machine, or the URL of one that they
/// reach through their agent.
///
/// # Errors
/// Where it is on this machine and not from the root.
pub(crate) fn reachable(url: &str) -> Result<String, String> {
    if crate::gateway::is_remote(url) {
        return Ok(url.to_owned());
    }
    local_path(url).map(|path| path.display().to_string())
}

/// All variables of one task. What the job sets itself comes over the agent's defaults, what the
/// package relies on over both. `DMLC_ROLE` is missing on purpose: with it in place,
/// `import mxnet` starts the role at once, and the package sets it later.
///
/// # Errors
/// Where the checkpoint to resume from is not on this machine.
pub(crate) fn of_task(
    launch: &Launch,
    place: Place<'_>,
) -> Result<BTreeMap<String, String>, String> {
    let task = place.mark.task;
    let threads = threads_of(launch, task);
    let mut environment =
        common(&launch.environment, threads, place.folder, place.user, place.python_package);
    let mut set = |name: &str, value: String| environment.insert(name.to_owned(), value);
    set("OPTIMUS_JOB", place.mark.key.job.to_string());
    set("OPTIMUS_GENERATION", place.mark.key.generation.0.to_string());
    set("OPTIMUS_ROLE", task.role.name().to_owned());
    set("OPTIMUS_INDEX", task.index.to_string());
    set("OPTIMUS_SERVERS", launch.shape.servers.to_string());
    set("OPTIMUS_WORKERS", launch.shape.workers.to_string());
    set("OPTIMUS_MODE", launch.mode.name().to_owned());
    match launch.batch {
        Batch::Global(samples) => set("OPTIMUS_GLOBAL_BATCH", samples.to_string()),
        Batch::PerWorker(samples) => set("OPTIMUS_WORKER_BATCH", samples.to_string()),
    };
    set("OPTIMUS_EPOCHS_MAX", launch.epochs_max.to_string());
    set(FOLDER, place.folder.display().to_string());
    set(MARK, place.mark.to_string());
    if let Some(data) = place.data {
        set("OPTIMUS_DATA", data.to_owned());
    }
    if place.assigned {
        set("OPTIMUS_ASSIGNMENT", "wait".to_owned());
    }
    if let Some(url) = &launch.resume {
        set("OPTIMUS_RESUME", reachable(url)?);
    }
    set("DMLC_PS_ROOT_URI", launch.root_host.clone());
    set("DMLC_PS_ROOT_PORT", launch.root_port.to_string());
    set("DMLC_NUM_WORKER", launch.shape.workers.to_string());
    set("DMLC_NUM_SERVER", launch.shape.servers.to_string());
    set("DMLC_NODE_HOST", place.task_address.to_owned());
    if let Some(port) = place.port {
        set("PORT", port.to_string());
    }
    // Empty hides every GPU: a task that asked for none must not take a neighbour's memory.
    set("CUDA_VISIBLE_DEVICES", place.gpus.join(","));
    Ok(environment)
}

/// Room for the environment of a task where that of its fork server was, beside the job's own.
const PADDING_BYTES: usize = 8192;

/// The variables of a fork server: what is read before its tasks are known, and room for theirs.
/// `folder` is its own, `name` says whose it is.
pub(crate) fn of_fork_server(
    own: &BTreeMap<String, String>,
    threads: u64,
    name: &str,
    folder: &Path,
    user: &TaskUser,
    python_package: Option<&Path>,
) -> BTreeMap<String, String> {
    let mut environment = common(own, threads, folder, user, python_package);
    // It is nobody's task. A task that it forks writes its own mark over the whole block.
    for (name, value) in [(MARK, "-"), (FORK_SERVER, name), ("CUDA_VISIBLE_DEVICES", "")] {
        environment.insert(name.to_owned(), value.to_owned());
    }
    environment.insert(FOLDER.to_owned(), folder.display().to_string());
    let bytes = own.iter().fold(PADDING_BYTES, |sum, (name, value)| sum + name.len() + value.len());
    environment.insert("OPTIMUS_PADDING".to_owned(), "-".repeat(bytes));
    environment
}

/// What tasks of one kind share with their fork server.
fn common(
    own: &BTreeMap<String, String>,
    threads: u64,
    folder: &Path,
    user: &TaskUser,
    python_package: Option<&Path>,
) -> BTreeMap<String, String> {
    let mut environment = defaults(folder, user);
    environment.insert("OMP_NUM_THREADS".to_owned(), threads.to_string());
    for (name, value) in own {
        let reserved = RESERVED_ENVIRONMENT.iter().any(|prefix| name.starts_with(prefix));
        // ps-lite binds the port of PORT, which is the agent's to choose.
        if !reserved && name != "PORT" {
            environment.insert(name.clone(), value.clone());
        }
    }
    if let Some(package) = python_package {
        let own = environment.get("PYTHONPATH").map_or("", String::as_str);
        let joined = [package.display().to_string(), own.to_owned()];
        let joined: Vec<_> = joined.into_iter().filter(|part| !part.is_empty()).collect();
        environment.insert("PYTHONPATH".to_owned(), joined.join(":"));
    }
    environment.insert("PYTHONUNBUFFERED".to_owned(), "1".to_owned());
    environment
}

fn defaults(folder: &Path, user: &TaskUser) -> BTreeMap<String, String> {
    let temporary = folder.join("tmp");
    // `nobody` has a home that does not exist; many libraries insist on writing there.
    let home = if user.home.is_dir() { &user.home } else { &temporary };
    [
        ("PATH", PATH.to_owned()),
        ("HOME", home.display().to_string()),
        ("USER", user.name.clone()),
        ("LOGNAME", user.name.clone()),
        ("SHELL", "/bin/sh".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TMPDIR", temporary.display().to_string()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

/// Threads of a task's own computation.
pub(crate) fn threads_of(launch: &Launch, task: Task) -> u64 {
    threads(match task.role {
        Role::Scheduler => 1,
        Role::Server => launch.server.cpus_milli,
        Role::Worker => launch.worker.cpus_milli,
    })
}

/// Cores, rounded up.
pub(crate) fn threads(cpus_milli: u64) -> u64 {
    cpus_milli.div_ceil(1000).max(1)
}

#[cfg(test)]
mod tests {
    use model::{Mode, OnDisconnect, Resources, Shape};
    use nix::unistd::{Gid, Uid};

    use super::*;

    fn launch() -> Launch {
        Launch {
            job_name: "digits".to_owned(),
            command: vec!["true".to_owned()],
            working_directory: "/".to_owned(),
            environment: BTreeMap::new(),
            mode: Mode::Sync,
            batch: Batch::Global(64),
            epochs_max: 9,
            shape: Shape::new(2, 3),
            tasks: Vec::new(),
            worker: Resources::new(2500, 1, 0),
            server: Resources::new(500, 1, 0),
            root_host: "10.0.0.1".to_owned(),
            root_port: 21_007,
            resume: None,
            on_disconnect: OnDisconnect::Keep,
        }
    }

    fn of(
        launch: &Launch,
        mark: &str,
        gpus: &[String],
    ) -> Result<BTreeMap<String, String>, String> {
        let user = TaskUser {
            name: "nobody".to_owned(),
            uid: Uid::from_raw(65_534),
            gid: Gid::from_raw(65_534),
            home: PathBuf::from("/nonexistent"),
            switch: true,
            helpers: None,
        };
        let place = Place {
            mark: &mark.parse().unwrap(),
            folder: Path::new("/state/tasks/j12-g3"),
            user: &user,
            task_address: "10.0.0.7",
            port: (mark != "n1/j12/3/scheduler0").then_some(10_004),
            python_package: Some(Path::new("/opt/python")),
            gpus,
            assigned: false,
            data: None,
        };
        of_task(launch, place)
    }

    #[test]
    fn a_worker_gets_what_the_package_reads() {
        let found = of(&launch(), "n1/j12/3/worker2", &["GPU-a".to_owned(), "GPU-b".to_owned()]);
        let found = found.unwrap();
        for (name, value) in [
            ("OPTIMUS_JOB", "j12"),
            ("OPTIMUS_GENERATION", "3"),
            ("OPTIMUS_ROLE", "worker"),
            ("OPTIMUS_INDEX", "2"),
            ("OPTIMUS_SERVERS", "2"),
            ("OPTIMUS_WORKERS", "3"),
            ("OPTIMUS_MODE", "sync"),
            ("OPTIMUS_GLOBAL_BATCH", "64"),
            ("OPTIMUS_EPOCHS_MAX", "9"),
            ("OPTIMUS_DIR", "/state/tasks/j12-g3"),
            ("OPTIMUS_TASK", "n1/j12/3/worker2"),
            ("DMLC_PS_ROOT_URI", "10.0.0.1"),
            ("DMLC_PS_ROOT_PORT", "21007"),
            ("DMLC_NUM_WORKER", "3"),
            ("DMLC_NUM_SERVER", "2"),
            ("DMLC_NODE_HOST", "10.0.0.7"),
            ("PORT", "10004"),
            ("OMP_NUM_THREADS", "3"),
            ("PYTHONPATH", "/opt/python"),
            ("PYTHONUNBUFFERED", "1"),
            ("HOME", "/state/tasks/j12-g3/tmp"),
            ("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b"),
        ] {
            assert_eq!(found.get(name).map(String::as_str), Some(value), "{name}");
        }
        for name in ["DMLC_ROLE", "OPTIMUS_WORKER_BATCH", "OPTIMUS_RESUME", "CARGO_MANIFEST_DIR"] {
            assert!(!found.contains_key(name), "{name}");
        }
    }

    #[test]
    fn a_job_sets_its_own_variables_but_none_of_ours() {
        let mut launch = launch();
        for (name, value) in [
            ("SEED", "7"),
            ("OMP_NUM_THREADS", "1"),
            ("PYTHONPATH", "/mine"),
            ("DMLC_ROLE", "worker"),
            ("PS_VERBOSE", "2"),
            ("PORT", "9000"),
            ("CUDA_VISIBLE_DEVICES", "0"),
        ] {
            launch.environment.insert(name.to_owned(), value.to_owned());
        }
        launch.batch = Batch::PerWorker(8);
        launch.resume = Some("file:///ckpt/j12/g00000002-c00000001".to_owned());
        let found = of(&launch, "n1/j12/3/scheduler0", &[]).unwrap();
        assert_eq!(found["SEED"], "7");
        assert_eq!(found["OMP_NUM_THREADS"], "1");
        assert_eq!(found["PYTHONPATH"], "/opt/python:/mine");
        assert_eq!(found["OPTIMUS_WORKER_BATCH"], "8");
        assert_eq!(found["OPTIMUS_ROLE"], "scheduler");
        assert_eq!(found["OPTIMUS_RESUME"], "/ckpt/j12/g00000002-c00000001");
        assert_eq!(found["CUDA_VISIBLE_DEVICES"], "");
        for name in ["DMLC_ROLE", "PS_VERBOSE", "PORT", "OPTIMUS_GLOBAL_BATCH"] {
            assert!(!found.contains_key(name), "{name}");
        }
        launch.resume = Some("hdfs://x/y".to_owned());
        assert_eq!(of(&launch, "n1/j12/3/worker0", &[]).unwrap()["OPTIMUS_RESUME"], "hdfs://x/y");
        launch.resume = Some("file://x/y".to_owned());
        assert!(of(&launch, "n1/j12/3/worker0", &[]).unwrap_err().contains("file://x/y"));
    }
}
