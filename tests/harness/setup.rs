//! What a fresh machine needs for training: a Python with MXNet that the tasks' user can reach.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::binaries::checkout;

/// MXNet's last release, and the last numpy that it can import.
pub(crate) const WHEELS: [&str; 2] = ["mxnet==1.9.1", "numpy==1.23.5"];

/// Debian packages and a file or command that shows each to be there.
const PACKAGES: [(&str, &str); 6] = [
    ("python3", "/usr/bin/python3"),
    ("python3-venv", "/usr/lib/python3*/ensurepip"),
    ("libgomp1", "/usr/lib/*/libgomp.so.1"),
    ("iproute2", "/usr/sbin/ip"),
    ("nftables", "/usr/sbin/nft"),
    ("libquadmath0", "/usr/lib/*/libquadmath.so.0"),
];

/// A Python environment with MXNet.
#[derive(Clone, Debug)]
pub struct Environment {
    pub python: PathBuf,
    /// Folder that holds the package `optimus`, reachable by the tasks' user.
    pub package: PathBuf,
    /// Folder of the training scripts.
    pub scripts: PathBuf,
}

/// Whether this process may install packages and switch users.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The user that runs tasks here: `nobody` under root, this user elsewhere.
///
/// # Errors
/// Where the user is not known to the system.
pub fn task_user() -> Result<nix::unistd::User> {
    let user = if is_root() {
        nix::unistd::User::from_name("nobody")?
    } else {
        nix::unistd::User::from_uid(nix::unistd::geteuid())?
    };
    user.context("the user that should run tasks is not known to this system")
}

/// True where any user may pass through every folder down to `path`.
fn reachable_by_all(path: &Path) -> bool {
    path.ancestors().all(|folder| {
        fs::metadata(folder).is_ok_and(|found| found.permissions().mode() & 0o001 != 0)
    })
}

/// A folder for what is kept between runs: below the target folder, or, where the tasks' user
/// cannot get there, below /var/tmp.
pub(crate) fn base() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| checkout().join("target"), PathBuf::from);
    let target = std::path::absolute(target)?;
    fs::create_dir_all(&target).with_context(|| format!("cannot make {}", target.display()))?;
    if !is_root() || reachable_by_all(&target) {
        return Ok(target);
    }
    let fallback = PathBuf::from("/var/tmp/optimus-python");
    fs::create_dir_all(&fallback)?;
    // Anyone may make a folder there, and root is about to run what lies in it.
    let owner = fs::symlink_metadata(&fallback)?.uid();
    ensure!(owner == 0, "{} belongs to user {owner}: remove it", fallback.display());
    Ok(fallback)
}

impl Environment {
    /// Finds or makes the environment; talks on stderr while it takes long.
    ///
    /// # Errors
    /// Names, in one line, what is missing and cannot be installed by this user.
    pub fn ready() -> Result<Self> {
        install_packages(&PACKAGES)?;
        let base = base()?;
        let venv = base.join("optimus-python");
        let python = venv.join("bin/python");
        let stamp = venv.join("optimus-ready");
        let wanted = WHEELS.join(" ");
        if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) && python.exists() {
            return Self::with_package(&base, python);
        }
        crate::process::talk(&format!("making a Python environment with {wanted} (64 MB)"));
        let _absent = fs::remove_dir_all(&venv);
        let made = run(Command::new(system_python()?).args(["-m", "venv"]).arg(&venv));
        made.context("cannot make a virtual environment")?;
        run(Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(WHEELS))
        .context("cannot install MXNet from the Python package index")?;
        run(Command::new(&python).args(["-c", "import mxnet"]))
            .context("MXNet is installed but cannot be imported")?;
        fs::write(&stamp, wanted)?;
        Self::with_package(&base, python)
    }

    /// Copies the package and the scripts to where the tasks' user can read them.
    fn with_package(base: &Path, python: PathBuf) -> Result<Self> {
        let source = checkout().join("agent/python");
        // A folder of its own for each process: another run may be reading the last copy.
        let copy = base.join("optimus-package").join(std::process::id().to_string());
        let _absent = fs::remove_dir_all(&copy);
        for part in ["optimus", "examples"] {
            copy_python(&source.join(part), &copy.join(part))?;
        }
        Ok(Self { python, scripts: copy.join("examples"), package: copy })
    }

    /// Removes this process's copy of the package.
    pub fn clean(&self) {
        let _absent = fs::remove_dir_all(&self.package);
    }
}

fn copy_python(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "__pycache__" {
                copy_python(&path, &target)?;
            }
        } else {
            fs::copy(&path, &target)?;
            fs::set_permissions(&target, fs::Permissions::from_mode(0o644))?;
        }
    }
    Ok(())
}

pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// True where a path with `*` in its parts exists.
fn exists(pattern: &str) -> bool {
    let mut found = vec![PathBuf::from("/")];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        let Some((head, tail)) = part.split_once('*') else {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        };
        found = found
            .iter()
            .filter_map(|folder| fs::read_dir(folder).ok())
            .flatten()
            .filter_map(Result::ok)
            .filter(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                name.starts_with(head) && name.ends_with(tail)
            })
            .map(|entry| entry.path())
            .collect();
    }
    found.iter().any(|path| path.exists())
}

/// What the tests of HDFS need beside [`Environment`]: Java, and Hadoop's jars (106 MB).
///
/// # Errors
/// Names, in one line, what is missing and cannot be installed by this user.
pub fn hdfs_ready() -> Result<()> {
    install_packages(&crate::hdfs::PACKAGES)?;
    crate::hdfs::prepare().map(drop).map_err(anyhow::Error::msg).context("cannot prepare Hadoop")
}

pub(crate) fn install_packages(packages: &[(&'static str, &str)]) -> Result<()> {
    let missing: Vec<_> =
        packages.iter().filter(|(_, sign)| !exists(sign)).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if !is_root() {
        bail!("missing: {names} (install with: sudo apt-get install {names})");
    }
    crate::process::talk(&format!("installing {names}"));
    let apt = |args: &[&str]| {
        run(Command::new("apt-get")
            .args(["-o", "DPkg::Lock::Timeout=200", "-qq"])
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update"]).context("cannot update the package lists")?;
    let mut args = vec!["install", "--yes", "--no-install-recommends"];
    args.extend(&missing);
    apt(&args).with_context(|| format!("cannot install {names}"))
}

/// A Python that the MXNet wheel supports and that every user can run.
pub(crate) fn system_python() -> Result<PathBuf> {
    let candidates = ["python3", "python3.11", "python3.10", "python3.9", "python3.8"];
    for name in candidates {
        let path = Path::new("/usr/bin").join(name);
        let supported = Command::new(&path)
            .args([
                "-c",
                "import sys, ensurepip; sys.exit(not (3, 8) <= sys.version_info[:2] <= (3, 11))",
            ])
            .output()
            .is_ok_and(|output| output.status.success());
        if supported {
            return Ok(path);
        }
    }
    bail!("missing: a Python 3.8 to 3.11 with venv in /usr/bin (MXNet 1.9.1 runs on no later one)")
}
