//! The fresh folder of a checkpoint, made for the task's user before its workers hear of it.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::process::Stdio;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::fchown;

use crate::config::TaskUser;
use crate::task::environment::local_path;
use crate::task::launcher;
use model::agent::ProbeAct;

/// Makes a folder and all above it that is missing. Blocks for as long as the file system does.
///
/// An agent that is root first tries as the task's user: on a shared file system root is often
/// nobody, and within folders of the task's user root must not be led astray by a link. Only
/// where that is not allowed, and every folder on the way belongs to root alone, it makes the
/// missing ones itself and gives them to the user.
///
/// Below a folder with the set-group-id bit, which its group shares, that group may write too: a
/// master of another user puts manifests beside the parts and removes old ones.
///
/// # Errors
/// In words, with the folder and the remedy.
pub(crate) fn make_folder(path: &Path, user: &TaskUser) -> Result<(), String> {
    let cannot = |why: String| {
        format!(
            "cannot make the checkpoint folder {} for user {}: {why}",
            path.display(),
            user.name
        )
    };
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(cannot("its path contains '..'".to_owned()));
    }
    if !user.switch {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
        return made.map_err(|error| cannot(error.to_string()));
    }
    let Err(why) = as_user(path, user) else { return Ok(()) };
    if !is_roots_alone(path) || is_of_the_system(path) {
        return Err(cannot(format!("{why}; let that user write there")));
    }
    as_root(path, user).map_err(|error| cannot(error.to_string()))
}

/// Start of the name of a folder that shows whether hosts share the one above it.
const PROBE: &str = ".optimus-probe-";

/// Makes, looks for or removes such a folder below a `file://` folder. Blocks.
///
/// # Returns
/// Whether it is there now.
///
/// # Errors
/// In words.
pub(crate) fn probe(
    folder: &str,
    name: &str,
    act: ProbeAct,
    user: &TaskUser,
) -> Result<bool, String> {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    if !name.starts_with(PROBE) || !plain || 80 < name.len() {
        return Err(format!("{name:?} is not a probe's name"));
    }
    let path = local_path(folder)?.join(name);
    match act {
        ProbeAct::Make => make_folder(&path, user).map(|()| true),
        ProbeAct::Look => Ok(fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir())),
        ProbeAct::Remove if user.switch => {
            let removed = run_as(user, &["/bin/rmdir", "--"], &path);
            // Where root made it, only root may take it away: nobody can have put another folder
            // on the way there.
            let made_by_root = || path.parent().is_some_and(is_roots_alone);
            match removed {
                Err(_) if made_by_root() => fs::remove_dir(&path).map_err(|e| e.to_string())?,
                removed => removed?,
            }
            Ok(false)
        }
        ProbeAct::Remove => fs::remove_dir(&path).map(|()| false).map_err(|e| e.to_string()),
    }
}

fn as_user(path: &Path, user: &TaskUser) -> Result<(), String> {
    if is_shared_by_group(path) {
        let script = "umask 002 && exec /bin/mkdir -p -- \"$0\"";
        return run_as(user, &["/bin/sh", "-c", script], path);
    }
    run_as(user, &["/bin/mkdir", "-p", "--"], path)
}

/// True where the nearest folder that exists gives its group to what is made in it.
fn is_shared_by_group(path: &Path) -> bool {
    let nearest = path.ancestors().find_map(|folder| fs::metadata(folder).ok());
    nearest.is_some_and(|found| found.mode() & 0o2000 != 0)
}

/// Runs a small program on a path as the tasks' user.
fn run_as(user: &TaskUser, program: &[&str], path: &Path) -> Result<(), String> {
    let mut words: Vec<String> = program.iter().map(|word| (*word).to_owned()).collect();
    words.push(path.to_str().ok_or("its path is no text")?.to_owned());
    let environment = BTreeMap::from([("LC_ALL".to_owned(), "C".to_owned())]);
    let child = launcher::helper(user, &words, &environment)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(crate::telemetry::printable(&words, 300).replace('\n', "; "))
}

/// Where the system itself lives: a folder there that belongs to the user of tasks could hold rules,
/// units or modules that root runs. Whoever submits a job names its checkpoint folder.
const OF_THE_SYSTEM: [&str; 12] =
    ["bin", "boot", "dev", "etc", "opt", "proc", "root", "run", "sbin", "sys", "usr", "var"];

/// True where root must make nothing for others, but for `/var/tmp`.
fn is_of_the_system(path: &Path) -> bool {
    let mut names = path.components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
            None
        }
    });
    match names.next() {
        Some("var") => names.next() != Some("tmp"),
        Some(first) => OF_THE_SYSTEM.contains(&first) || first.starts_with("lib"),
        None => true,
    }
}

/// True where nobody but root could have put anything on the way to `path`.
fn is_roots_alone(path: &Path) -> bool {
    let above: Vec<PathBuf> = path.ancestors().map(Path::to_owned).collect();
    above.iter().rev().map_while(|folder| fs::symlink_metadata(folder).ok()).all(|found| {
        let (others, sticky) = (found.mode() & 0o022 != 0, found.mode() & 0o1000 != 0);
        found.uid() == 0 && found.is_dir() && (!others || sticky)
    })
}

fn as_root(path: &Path, user: &TaskUser) -> io::Result<()> {
    let mut missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    missing.reverse();
    for folder in missing {
        match DirBuilder::new().mode(0o755).create(folder) {
            Ok(()) => {}
            // Another node's agent was faster on a shared file system; it gives it away.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
        }
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        fchown(open(folder, flags, Mode::empty())?, Some(user.uid), Some(user.gid))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use nix::unistd::{Gid, Uid, User, geteuid};

    use super::*;

    fn user() -> TaskUser {
        let own = geteuid();
        let nobody = User::from_name("nobody").unwrap().unwrap();
        let (uid, gid) =
            if own.is_root() { (nobody.uid, nobody.gid) } else { (own, Gid::current()) };
        let home = PathBuf::from("/");
        TaskUser { name: "nobody".to_owned(), uid, gid, home, switch: own.is_root(), helpers: None }
    }

    #[test]
    fn folders_are_made_for_the_user_of_tasks_and_once_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c/j1/g00000001-c00000001");
        make_folder(&path, &user()).unwrap();
        make_folder(&path, &user()).unwrap();
        let found = fs::metadata(&path).unwrap();
        assert!(found.is_dir() && found.mode() & 0o700 == 0o700);
        assert_eq!(Uid::from_raw(found.uid()), user().uid);
        assert_eq!(Uid::from_raw(fs::metadata(path.parent().unwrap()).unwrap().uid()), user().uid);
    }

    #[test]
    fn a_probe_is_seen_where_the_folder_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (here, there) = (dir.path().join("here"), dir.path().join("there"));
        for folder in [&here, &there] {
            fs::create_dir(folder).unwrap();
            std::os::unix::fs::chown(folder, Some(user().uid.as_raw()), None).unwrap();
        }
        let ask = |folder: &Path, act| {
            let url = format!("file://{}", folder.display());
            probe(&url, ".optimus-probe-0a", act, &user())
        };
        assert_eq!(ask(&here, ProbeAct::Make), Ok(true));
        assert_eq!(ask(&here, ProbeAct::Look), Ok(true));
        assert_eq!(ask(&there, ProbeAct::Look), Ok(false));
        assert_eq!(ask(&here, ProbeAct::Remove), Ok(false));
        assert_eq!(fs::read_dir(&here).unwrap().count(), 0);
        // Where only root may write, root makes it for the tasks' user, and takes it away.
        let rootly = tempfile::Builder::new().prefix("optimus-probe-").tempdir_in("/srv").ok();
        let rootly = rootly.filter(|_| geteuid().is_root());
        if let Some(folder) = &rootly {
            assert_eq!(ask(folder.path(), ProbeAct::Make), Ok(true));
            assert_eq!(ask(folder.path(), ProbeAct::Remove), Ok(false));
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
        for name in ["j1", ".optimus-probe-/../../j1", ".optimus-probe-\0"] {
            let url = format!("file://{}", here.display());
            probe(&url, name, ProbeAct::Remove, &user()).unwrap_err();
        }
    }

    #[test]
    fn root_makes_nothing_where_the_system_lives() {
        for path in ["/", "/etc/systemd/system-generators/j1", "/run/udev/rules.d", "/lib64/x"] {
            assert!(is_of_the_system(Path::new(path)), "{path}");
        }
        for path in ["/srv/checkpoints/j1", "/var/tmp/c", "/data", "/home/c", "/runs/j1"] {
            assert!(!is_of_the_system(Path::new(path)), "{path}");
        }
        if geteuid().is_root() {
            let path = PathBuf::from(format!("/run/optimus-{}.d/j1", std::process::id()));
            assert!(make_folder(&path, &user()).is_err());
            assert!(!path.parent().unwrap().exists());
        }
    }

    #[test]
    fn what_a_group_shares_is_made_for_the_group() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let group = Gid::from_raw(4711);
        for (name, mode, wanted) in [("shared", 0o3777, 0o020), ("own", 0o1777, 0)] {
            let base = dir.path().join(name);
            fs::create_dir(&base).unwrap();
            nix::unistd::chown(&base, None, Some(group)).unwrap();
            fs::set_permissions(&base, fs::Permissions::from_mode(mode)).unwrap();
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            make_folder(&base.join("j1/g00000001-c00000001"), &user()).unwrap();
            let made = fs::metadata(base.join("j1")).unwrap();
            assert_eq!(made.mode() & 0o020, wanted, "{name}");
            assert_eq!(made.gid() == 4711, wanted != 0, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let path = dir.path().join("file/j1");
        let error = make_folder(&path, &user()).unwrap_err();
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert!(make_folder(&dir.path().join("a/../b"), &user()).unwrap_err().contains("'..'"));
    }

    #[test]
    fn root_is_not_led_astray_by_a_link_of_the_user() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (victim, theirs) = (dir.path().join("victim"), dir.path().join("theirs"));
        fs::create_dir(&victim).unwrap();
        fs::create_dir(&theirs).unwrap();
        nix::unistd::chown(&theirs, Some(user().uid), Some(user().gid)).unwrap();
        std::os::unix::fs::symlink(&victim, theirs.join("j1")).unwrap();
        assert!(make_folder(&theirs.join("j1/new"), &user()).is_err());
        assert!(!victim.join("new").exists());
    }
}
