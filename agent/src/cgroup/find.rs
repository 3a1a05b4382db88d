//! Which part of the machine's tree of control groups is this agent's, and what it limits there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use model::NodeId;
use model::nodes::Isolation;
use nix::unistd::geteuid;

use super::{CONTROLLERS, Found, Group, GroupSettings, Tree};

/// The unit whose groups are delegated to tasks; `hold-tasks` runs in it.
const UNIT: &str = "optimus-tasks.service";
/// Its slices below the mount. The tree is not searched for it: a container of this machine may
/// have a unit of that name, which is another server's.
const UNIT_PLACES: [&str; 3] =
    ["optimus.slice/optimus-tasks.slice", "optimus-tasks.slice", "system.slice"];
/// The group of the unit's own process; made once the unit is ready.
pub(super) const HOLDER: &str = "holder";

const REBOOT: &str = "boot with systemd.unified_cgroup_hierarchy=1";

/// What the kernel says of groups on this machine.
#[derive(Clone, Debug)]
struct Machine {
    /// `/proc/self/mounts`, `/proc/self/cgroup` and `/proc/cgroups`.
    mounts: String,
    own: String,
    controllers: String,
    root: bool,
}

impl Machine {
    fn read() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            mounts: read("/proc/self/mounts"),
            own: read("/proc/self/cgroup"),
            controllers: read("/proc/cgroups"),
            root: geteuid().is_root(),
        }
    }

    /// Where the v2 tree is mounted.
    fn mount(&self) -> Option<PathBuf> {
        let mut mounts = self.mounts.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (place, kind) = (words.next()?, words.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(place))
        });
        mounts.next()
    }

    /// This process's own group, from the root of the tree.
    fn own(&self) -> &str {
        self.own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/")
    }

    /// Why a controller is not in the v2 tree at `base`, and what to do.
    fn why_without(&self, name: &str, mount: &Path, base: &Path) -> String {
        let fields = self.controllers.lines().find_map(|line| {
            let mut fields = line.split('\t');
            (fields.next()? == name).then(|| (fields.next() == Some("0"), fields.nth(1)))
        });
        match fields {
            None | Some((_, Some("0"))) => {
                format!("this kernel has no {name} controller; boot with cgroup_enable={name}")
            }
            Some((false, _)) => {
                format!("this kernel has the {name} controller on cgroup v1; {REBOOT}")
            }
            Some((true, _)) if base == mount => {
                format!("the root of {} does not offer the {name} controller", mount.display())
            }
            Some((true, _)) => format!(
                "{} has no {name} controller; let the unit above it have Delegate=yes",
                base.display()
            ),
        }
    }
}

/// Finds the tree to use: the configured one, that of the unit for tasks, else a folder at the
/// root of the machine's. Never within the agent's own group.
///
/// # Errors
/// Where the configured one cannot be used: says why and what to do.
pub(crate) fn find(settings: &GroupSettings, node: &NodeId, state_dir: &Path) -> Result<Found> {
    let machine = Machine::read();
    let base = match place(settings, &machine)? {
        Ok(base) => base,
        Err(why) => return Ok(without(why)),
    };
    let mount = machine.mount().unwrap_or_else(|| base.clone());
    let name = name_of(node, state_dir);
    // Tasks from before the unit was there are found, and ended, where they lie.
    let stay =
        settings.root.is_none() && Group::new(mount.join(&name).join("tasks")).is_populated();
    let base = if stay { mount.clone() } else { base };
    let outside = settings.root.is_none() && base == mount;
    let root = base.join(name);
    let mut tree = Tree { base, root, controllers: Vec::new(), settings: settings.clone() };
    let mut isolation = Isolation { groups: true, ..Isolation::default() };
    for name in CONTROLLERS {
        match offer(&tree.base, name) {
            Ok(true) => tree.controllers.push(name),
            Ok(false) => isolation.missing.push(format!(
                "{} limits are not enforced: {}",
                told(name),
                machine.why_without(name, &mount, &tree.base)
            )),
            Err(error) => isolation.missing.push(format!(
                "{} limits are not enforced: cannot enable them in {}: {error}; \
                 no process may lie in that group itself",
                told(name),
                tree.base.display()
            )),
        }
    }
    // Made and given limits once, so that what does not work shows now and not with a task.
    if let Err(error) = tree.make(&tree.helpers(), &super::Limits::default()) {
        return Ok(without(format!("{error}; tasks have no control groups")));
    }
    isolation.cpu = tree.has("cpu");
    isolation.memory = tree.has("memory");
    isolation.pids = tree.has("pids");
    Ok(Found { tree: Some(tree), isolation, outside })
}

/// Two agents of a machine may bear one name, in two clusters: each ends what it does not know.
fn name_of(node: &NodeId, state_dir: &Path) -> String {
    let sum = crc32fast::hash(state_dir.as_os_str().as_encoded_bytes());
    format!("optimus-{node}-{sum:08x}")
}

/// True once the unit for tasks is there to be used.
pub(crate) fn is_unit_ready() -> bool {
    let machine = Machine::read();
    machine.root && machine.mount().is_some_and(|mount| unit_of(&machine, &mount).is_some())
}

fn told(controller: &str) -> &str {
    match controller {
        "cpu" => "CPU",
        "pids" => "process",
        other => other,
    }
}

fn without(why: String) -> Found {
    let isolation = Isolation { missing: vec![why], ..Isolation::default() };
    Found { tree: None, isolation, outside: false }
}

/// The folder to begin at, or why there is none.
fn place(settings: &GroupSettings, machine: &Machine) -> Result<Result<PathBuf, String>> {
    let Some(mount) = machine.mount() else {
        if let Some(root) = &settings.root {
            bail!("cgroup_root: {}: no cgroup v2 tree is mounted here; {REBOOT}", root.display());
        }
        return Ok(Err(format!(
            "tasks have no control groups: no cgroup v2 tree is mounted; {REBOOT}"
        )));
    };
    let own = mount.join(machine.own().trim_start_matches('/'));
    if let Some(root) = &settings.root {
        let root = root.canonicalize().with_context(|| {
            format!("cgroup_root: cannot use {}; make it, or leave the setting out", root.display())
        })?;
        if !root.starts_with(&mount) || !root.join("cgroup.procs").is_file() {
            bail!("cgroup_root: {} is no group of {}", root.display(), mount.display());
        }
        if own != mount && root.starts_with(&own) {
            bail!(
                "cgroup_root: {} lies in the agent's own group, where a restart of its service \
                 ends it; name a group of another unit",
                root.display()
            );
        }
        return Ok(Ok(root));
    }
    if !machine.root {
        let why = "tasks have no control groups: the agent does not run as root; \
                   run it as root, or set cgroup_root to a group that its user may change";
        return Ok(Err(why.to_owned()));
    }
    Ok(Ok(unit_of(machine, &mount).unwrap_or(mount)))
}

/// The unit's group, unless this process lies above it.
fn unit_of(machine: &Machine, mount: &Path) -> Option<PathBuf> {
    let own = mount.join(machine.own().trim_start_matches('/'));
    unit_below(mount).filter(|unit| own == *mount || !unit.starts_with(&own))
}

/// The group of the unit for tasks, once that is ready.
fn unit_below(mount: &Path) -> Option<PathBuf> {
    let usual = UNIT_PLACES.iter().map(|place| mount.join(place).join(UNIT));
    let mut found = usual.filter(|unit| unit.join(HOLDER).is_dir());
    found.next()
}

/// True where a controller limits what lies below a folder; enables it there.
fn offer(base: &Path, name: &str) -> std::io::Result<bool> {
    let group = Group::new(base.to_owned());
    let has = |file: &str| {
        let names = group.read(file).unwrap_or_default();
        names.split_ascii_whitespace().any(|there| there == name)
    };
    if !has("cgroup.controllers") {
        return Ok(false);
    }
    if !has("cgroup.subtree_control") {
        fs::write(base.join("cgroup.subtree_control"), format!("+{name}"))?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            mounts: "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                     cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
                .to_owned(),
            own: "4:memory:/x\n0::/system.slice/optimus-agent.service\n".to_owned(),
            controllers: "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t1\t1\n\
                          memory\t4\t33\t1\npids\t0\t9\t0\n"
                .to_owned(),
            root: true,
        }
    }

    fn settings(root: Option<&Path>) -> GroupSettings {
        GroupSettings { root: root.map(Path::to_owned), cpu_limit: true, pids_max: 100 }
    }

    #[test]
    fn each_missing_controller_has_its_remedy() {
        let machine = machine();
        let mount = machine.mount().unwrap();
        assert_eq!(mount, Path::new("/sys/fs/cgroup/unified"));
        let why = |name: &str, base: &Path| machine.why_without(name, &mount, base);
        assert!(why("memory", &mount).contains("on cgroup v1; boot with systemd.unified"));
        assert!(why("pids", &mount).contains("cgroup_enable=pids"));
        assert!(why("io", &mount).contains("no io controller"));
        assert!(why("cpu", &mount.join("a.slice")).contains("Delegate=yes"));
    }

    #[test]
    fn without_a_tree_or_the_right_to_it_the_words_say_what_to_do() {
        let mut none = machine();
        none.mounts.clear();
        let why = place(&settings(None), &none).unwrap().unwrap_err();
        assert!(why.contains("no cgroup v2 tree is mounted; boot with"), "{why}");
        place(&settings(Some(Path::new("/sys/fs/cgroup/x"))), &none).unwrap_err();
        let user = Machine { root: false, ..machine() };
        let why = place(&settings(None), &user).unwrap().unwrap_err();
        assert!(why.contains("does not run as root"), "{why}");
    }

    /// Folders as a tree of groups has them.
    fn tree() -> (tempfile::TempDir, Machine) {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().canonicalize().unwrap();
        let machine = Machine {
            mounts: format!("cgroup2 {} cgroup2 rw 0 0\n", mount.display()),
            ..machine()
        };
        (dir, machine)
    }

    fn make(group: &Path) {
        fs::create_dir_all(group).unwrap();
        fs::write(group.join("cgroup.procs"), "").unwrap();
    }

    #[test]
    fn the_unit_of_tasks_comes_before_the_root_once_it_is_ready() {
        let (_dir, machine) = tree();
        let mount = machine.mount().unwrap();
        let found = || place(&settings(None), &machine).unwrap().unwrap();
        assert_eq!(found(), mount);
        make(&mount.join("machine.slice/n1/optimus.slice").join(UNIT).join(HOLDER));
        assert_eq!(found(), mount, "a container's");
        for place in UNIT_PLACES {
            let unit = mount.join(place).join(UNIT);
            make(&unit);
            assert_eq!(found(), mount, "not ready yet");
            make(&unit.join(HOLDER));
            assert_eq!(found(), unit);
            fs::remove_dir_all(mount.join(place)).unwrap();
        }
    }

    #[test]
    fn no_group_within_the_agents_own_is_taken() {
        let (_dir, machine) = tree();
        let mount = machine.mount().unwrap();
        let own = mount.join("system.slice/optimus-agent.service");
        make(&own.join("tasks"));
        make(&mount.join("other"));
        fs::create_dir(mount.join("plain")).unwrap();
        let place = |root: &Path| place(&settings(Some(root)), &machine);
        for wrong in [own.join("tasks"), own, mount.join("plain"), mount.join("none"), "/".into()] {
            let error = format!("{:#}", place(&wrong).unwrap_err());
            assert!(error.starts_with("cgroup_root: "), "{error}");
        }
        assert_eq!(place(&mount.join("other")).unwrap().unwrap(), mount.join("other"));
    }
}
