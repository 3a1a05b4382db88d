//! Settings: `agent.toml`, the environment and the defaults that depend on the user. The only
//! place of the daemon that reads its own environment.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use model::config::{AgentConfig, TASK_USERS, TlsConfig};
use model::units::{cpus_milli, parse_bytes};
use nix::unistd::{Gid, Uid, User, geteuid};
use storage::HdfsSettings;

use crate::cgroup::{Group, GroupSettings};

/// Where the configuration is looked for where no `--config` is given.
const CONFIG_PATH: &str = "/etc/optimus/agent.toml";

/// Everything that the daemon was told, checked and with every default filled in.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) name: Option<String>,
    pub(crate) master: SocketAddr,
    pub(crate) state_dir: PathBuf,
    pub(crate) task_address: String,
    /// First and last port of tasks, but for PS schedulers.
    pub(crate) task_ports: (u16, u16),
    /// Whether only peers may reach the ports of tasks.
    pub(crate) filters: bool,
    pub(crate) user: TaskUser,
    /// Folder to put on `PYTHONPATH`, which holds the package `optimus`.
    pub(crate) python_package: Option<PathBuf>,
    pub(crate) beat_ms: u64,
    pub(crate) stop_grace_ms: u64,
    pub(crate) disconnect_stop_ms: u64,
    pub(crate) log_bytes_max: u64,
    /// Parts of checkpoints kept on this node, together.
    pub(crate) spool_bytes_max: u64,
    /// How HDFS is reached.
    pub(crate) hdfs: HdfsSettings,
    pub(crate) tls: TlsConfig,
    pub(crate) capacity: Override,
    pub(crate) groups: GroupSettings,
    /// Tasks run as whoever submitted their job, not as `user`.
    pub(crate) as_submitter: bool,
    pub(crate) uid_min: u32,
}

/// What the operator says that the node has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Override {
    pub(crate) cpus_milli: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) gpus: Option<u64>,
    pub(crate) named: BTreeMap<String, u64>,
}

/// The user that tasks run as: never root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskUser {
    pub(crate) name: String,
    pub(crate) uid: Uid,
    pub(crate) gid: Gid,
    pub(crate) home: PathBuf,
    /// Whether the agent is root and its tasks become this user.
    pub(crate) switch: bool,
    /// Where short programs run that the agent starts with his rights.
    pub(crate) helpers: Option<Group>,
}

impl TaskUser {
    /// Takes such a program out of the agent's own group: one that hangs on a dead file system
    /// would else hold up a restart of the agent's service.
    pub(crate) fn settle(&self, pid: Option<u32>) {
        let (Some(group), Some(pid)) = (&self.helpers, pid.and_then(|pid| pid.try_into().ok()))
        else {
            return;
        };
        // Made anew where the unit that it lay in was restarted.
        if let Err(error) = fs::create_dir_all(group.path()).and_then(|()| group.take(pid)) {
            tracing::debug!(pid, %error, "a program stays in the agent's own group, or has ended");
        }
    }
}

/// Reads and checks the settings.
///
/// # Errors
/// Names every fault of the file at once, each with its remedy.
pub(crate) fn load(path: Option<&Path>) -> Result<Settings> {
    let config = read(path)?;
    let faults = config.faults();
    if !faults.is_empty() {
        let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
        bail!("the configuration has {} fault(s):\n  {}", lines.len(), lines.join("\n  "));
    }
    let state_dir = match &config.state_dir {
        Some(dir) => PathBuf::from(dir),
        None => default_state_dir()?,
    };
    if !state_dir.is_absolute() {
        bail!("state_dir: {} is relative; give the folder from the root", state_dir.display());
    }
    let capacity = Override {
        cpus_milli: config.capacity.cpus.map(cpus_milli).transpose().context("capacity.cpus")?,
        memory_bytes: config
            .capacity
            .memory
            .as_deref()
            .map(parse_bytes)
            .transpose()
            .context("capacity.memory")?,
        gpus: config.capacity.gpus.map(u64::from),
        named: config.capacity.named.clone(),
    };
    Ok(Settings {
        user: task_user(&config.task_user, config.task_uid_min)?,
        as_submitter: geteuid().is_root() && config.task_user_from == TASK_USERS[1],
        uid_min: config.task_uid_min,
        groups: GroupSettings {
            root: config.cgroup_root.map(PathBuf::from),
            cpu_limit: config.cpu_limit,
            pids_max: u64::from(config.pids_max),
        },
        name: config.name,
        master: config.master.parse().context("master")?,
        state_dir,
        task_address: config.task_address,
        task_ports: config.task_ports,
        filters: config.filter != "off",
        python_package: config.python_package.map(PathBuf::from).or_else(installed_package),
        beat_ms: config.beat.0,
        stop_grace_ms: config.stop_grace.0,
        disconnect_stop_ms: config.disconnect_stop.0,
        log_bytes_max: parse_bytes(&config.log_bytes_max).context("log_bytes_max")?.max(4096),
        spool_bytes_max: parse_bytes(&config.spool_bytes_max).context("spool_bytes_max")?,
        hdfs: HdfsSettings::by(config.hadoop_conf_dir.map(PathBuf::from))?
            .as_principal(config.kerberos_principal, config.kerberos_keytab.map(PathBuf::from))?,
        tls: TlsConfig { enrolment: config.tls.enrolment.or_else(handed_over), ..config.tls },
        capacity,
    })
}

fn read(path: Option<&Path>) -> Result<AgentConfig> {
    let given = path.is_some();
    let path = path.unwrap_or_else(|| Path::new(CONFIG_PATH));
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound && !given => {
            return Ok(AgentConfig::default());
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    toml::from_str(&text).with_context(|| format!("{} is not a configuration", path.display()))
}

#[expect(clippy::disallowed_methods, reason = "this is the place that reads the environment")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What to log, as `OPTIMUS_LOG` has it: a level, or directives such as `optimus_agent=debug`.
pub(crate) fn log_filter() -> String {
    variable("OPTIMUS_LOG").unwrap_or_else(|| "info".to_owned())
}

/// The bundle that systemd hands over by `LoadCredential`, where it does.
fn handed_over() -> Option<String> {
    let path = PathBuf::from(variable("CREDENTIALS_DIRECTORY")?).join("enrolment");
    path.exists().then(|| path.display().to_string())
}

/// What the agent that started this process wants it to become; see [`crate::task::launcher`].
pub(crate) fn launch_orders() -> Option<String> {
    variable(crate::task::launcher::VARIABLE)
}

fn default_state_dir() -> Result<PathBuf> {
    if geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/optimus/agent"));
    }
    let base = match (variable("XDG_STATE_HOME"), variable("HOME")) {
        (Some(state), _) => PathBuf::from(state),
        (None, Some(home)) => Path::new(&home).join(".local/state"),
        (None, None) => bail!("state_dir: no default without HOME; set it in the configuration"),
    };
    Ok(base.join("optimus/agent"))
}

/// The package where an installation puts it: `../share/optimus/python` beside the binary's
/// folder.
fn installed_package() -> Option<PathBuf> {
    let binary = std::env::current_exe().ok()?;
    let folder = binary.parent()?.parent()?.join("share/optimus/python");
    folder.is_dir().then_some(folder)
}

/// Resolves the user of tasks: the configured one for an agent that is root, else the agent's.
fn task_user(name: &str, uid_min: u32) -> Result<TaskUser> {
    let own = geteuid();
    let switch = own.is_root();
    let found = if switch { User::from_name(name) } else { User::from_uid(own) };
    let user = found.context("cannot read the user database")?;
    let user = match (user, switch) {
        (Some(user), _) => user,
        (None, true) => bail!("task_user: there is no user {name:?}; create it or name another"),
        (None, false) => {
            // A container's bare uid has no entry, yet it can run tasks.
            let home = variable("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
            let name = own.to_string();
            return Ok(TaskUser {
                name,
                uid: own,
                gid: nix::unistd::getegid(),
                home,
                switch,
                helpers: None,
            });
        }
    };
    if user.uid.is_root() {
        bail!("task_user: {name:?} is root; name an unprivileged user");
    }
    if switch && user.uid.as_raw() < uid_min {
        bail!(
            "task_user: {name:?} has the number {}, below task_uid_min, {uid_min}; \
             name another user, or lower that",
            user.uid
        );
    }
    Ok(TaskUser {
        name: user.name,
        uid: user.uid,
        gid: user.gid,
        home: user.dir,
        switch,
        helpers: None,
    })
}

/// The user of this machine who bears a submitter's name.
///
/// # Errors
/// Where there is none, or he may not run tasks; says why and what to do.
pub(crate) fn submitter(name: &str, uid_min: u32) -> Result<TaskUser, String> {
    let found = User::from_name(name)
        .map_err(|error| format!("cannot read the user database for {name:?}: {error}"))?;
    let Some(user) = found else {
        return Err(format!("there is no user {name:?} here; create him, or set task_user_from"));
    };
    if user.uid.is_root() || user.gid.as_raw() == 0 || user.uid.as_raw() < uid_min {
        let uid = user.uid;
        return Err(format!(
            "user {name:?} has the number {uid}, and no task runs as root or below task_uid_min, \
             {uid_min}"
        ));
    }
    Ok(TaskUser {
        name: user.name,
        uid: user.uid,
        gid: user.gid,
        home: user.dir,
        switch: true,
        helpers: None,
    })
}

/// The user of a number, whom an earlier life of the agent has looked up by name.
pub(crate) fn user_of(uid: u32, gid: u32) -> TaskUser {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let switch = geteuid().is_root();
    match User::from_uid(uid) {
        Ok(Some(user)) => {
            TaskUser { name: user.name, uid, gid, home: user.dir, switch, helpers: None }
        }
        // Removed meanwhile; his tasks still are his.
        Ok(None) | Err(_) => TaskUser {
            name: uid.to_string(),
            uid,
            gid,
            home: PathBuf::from("/"),
            switch,
            helpers: None,
        },
    }
}

/// The certificate files: as configured, or `<parent of state_dir>/pki/{ca.pem, agent-<name>.*}`.
///
/// # Errors
/// Where neither names exactly one certificate; says where it looked.
pub(crate) fn tls_files(settings: &Settings) -> Result<[PathBuf; 3]> {
    let tls = &settings.tls;
    if let (Some(ca), Some(certificate), Some(key)) = (&tls.ca, &tls.certificate, &tls.key) {
        return Ok([ca, certificate, key].map(PathBuf::from));
    }
    let parent = settings.state_dir.parent().unwrap_or_else(|| Path::new("/"));
    let pki = parent.join("pki");
    let stem = match &settings.name {
        Some(name) => format!("agent-{name}"),
        None => only_agent(&pki)?,
    };
    let files =
        [pki.join("ca.pem"), pki.join(format!("{stem}.pem")), pki.join(format!("{stem}.key"))];
    for file in &files {
        if !file.is_file() {
            bail!("there is no {}; issue it with the cluster's CA, or set tls", file.display());
        }
    }
    Ok(files)
}

/// The one agent certificate of a folder, or the one that is named after this host.
fn only_agent(pki: &Path) -> Result<String> {
    let listing = fs::read_dir(pki)
        .with_context(|| format!("cannot list the certificates in {}", pki.display()))?;
    let found: Vec<String> = listing
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".pem").map(str::to_owned))
        .filter(|stem| stem.starts_with("agent-"))
        .collect();
    let host = nix::unistd::gethostname().ok().and_then(|host| host.into_string().ok());
    let own = format!("agent-{}", host.unwrap_or_default().to_lowercase());
    match found.as_slice() {
        _ if found.contains(&own) => Ok(own),
        [only] => Ok(only.clone()),
        [] => bail!("there is no agent certificate in {}", pki.display()),
        several => bail!(
            "{} has {} agent certificates, none named after this host; set name",
            pki.display(),
            several.len()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_an_unknown_key_or_a_fault_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        let state = dir.path().join("state").display().to_string();
        fs::write(&path, format!("state_dir = \"{state}\"\nbeat = \"1s\"\n")).unwrap();
        let settings = load(Some(&path)).unwrap();
        assert_eq!(settings.beat_ms, 1000);
        assert!(!settings.user.uid.is_root());
        for (text, word) in [
            ("beet = \"1s\"", "beet"),
            ("beat = \"1\"", "unit"),
            ("task_user = \"root\"", "task_user"),
            ("master = \"somewhere\"\ntask_address = \"n1\"", "2 fault(s)"),
            ("state_dir = \"here\"", "relative"),
        ] {
            fs::write(&path, text).unwrap();
            let error = format!("{:#}", load(Some(&path)).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
        assert!(load(Some(&dir.path().join("missing.toml"))).is_err());
    }

    #[test]
    fn certificates_are_found_by_name_or_where_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.toml");
        fs::write(&path, format!("state_dir = \"{}/agent\"", dir.path().display())).unwrap();
        let mut settings = load(Some(&path)).unwrap();
        let pki = dir.path().join("pki");
        assert!(tls_files(&settings).is_err());
        fs::create_dir(&pki).unwrap();
        for file in ["ca.pem", "agent-n1.pem", "agent-n1.key"] {
            fs::write(pki.join(file), "").unwrap();
        }
        assert_eq!(tls_files(&settings).unwrap()[1], pki.join("agent-n1.pem"));
        fs::write(pki.join("agent-n2.pem"), "").unwrap();
        assert!(format!("{:#}", tls_files(&settings).unwrap_err()).contains("set name"));
        settings.name = Some("n1".to_owned());
        assert_eq!(tls_files(&settings).unwrap()[2], pki.join("agent-n1.key"));
        settings.name = Some("n2".to_owned());
        assert!(tls_files(&settings).is_err(), "its key is missing");
    }
}
