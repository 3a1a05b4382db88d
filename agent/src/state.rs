//! The state folder: who may enter it, and that only one agent uses it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::config::TaskUser;

/// Holds the state folder for this process; freed by the kernel with it, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Makes the folder where it is missing and takes its lock.
///
/// # Errors
/// Where it cannot be made, is another agent's, or where tasks could not reach their folders
/// in it.
pub(crate) fn open(dir: &Path, user: &TaskUser) -> Result<Lock> {
    // Tasks pass through to their own folders, and see nothing else.
    for (folder, mode) in
        [(dir.to_owned(), 0o711), (dir.join("tasks"), 0o711), (dir.join("logs"), 0o700)]
    {
        let made = DirBuilder::new().recursive(true).mode(mode).create(&folder);
        made.with_context(|| format!("cannot make {}", folder.display()))?;
        // The mode of a recursive make is cut by the umask.
        if folder != *dir {
            fs::set_permissions(&folder, Permissions::from_mode(mode))
                .with_context(|| format!("cannot set the mode of {}", folder.display()))?;
        }
    }
    let path = dir.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => bail!(
            "another agent uses {}; stop it first, or give each its own state_dir",
            dir.display()
        ),
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
    check_reach(&dir.join("tasks"), user)?;
    Ok(Lock { _file: file })
}

/// A task that cannot enter its folder could never report, and its job would wait for it until
/// a timeout. Only becoming the user tells for sure: modes, lists and mounts all have a say.
fn check_reach(tasks: &Path, user: &TaskUser) -> Result<()> {
    if !user.switch {
        return Ok(());
    }
    let status = Command::new("/bin/sh")
        .args(["-c", "cd \"$1\"", "sh"])
        .arg(tasks)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .uid(user.uid.as_raw())
        .gid(user.gid.as_raw())
        .status()
        .context("cannot run /bin/sh")?;
    if !status.success() {
        bail!(
            "user {} cannot enter {}; allow it (chmod o+x) on each folder above, \
             or give another state_dir",
            user.name,
            tasks.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use nix::unistd::{Uid, User, getegid, geteuid};

    use super::*;

    fn user() -> TaskUser {
        let home = PathBuf::from("/");
        let name = "nobody".to_owned();
        if geteuid().is_root() {
            let found = User::from_name("nobody").unwrap().unwrap();
            return TaskUser {
                name,
                uid: found.uid,
                gid: found.gid,
                home,
                switch: true,
                helpers: None,
            };
        }
        TaskUser { name, uid: Uid::current(), gid: getegid(), home, switch: false, helpers: None }
    }

    #[test]
    fn a_second_agent_on_one_folder_is_refused() {
        let base = tempfile::tempdir().unwrap();
        fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
        let dir = base.path().join("a/b");
        let first = open(&dir, &user()).unwrap();
        let error = open(&dir, &user()).unwrap_err().to_string();
        assert!(error.contains("another agent uses"), "{error}");
        drop(first);
        open(&dir, &user()).unwrap();
    }

    #[test]
    fn a_folder_that_tasks_cannot_reach_is_refused_at_the_start() {
        let base = tempfile::tempdir().unwrap();
        if !geteuid().is_root() {
            return;
        }
        fs::set_permissions(base.path(), Permissions::from_mode(0o700)).unwrap();
        let error = open(&base.path().join("a"), &user()).unwrap_err().to_string();
        assert!(error.contains("chmod o+x"), "{error}");
    }
}
