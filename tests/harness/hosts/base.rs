//! The tree that every host is an overlay of: a small Debian with systemd, sshd, and a Python
//! that has MXNet. Made once and kept below the target folder.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::output_of;
use crate::process::talk;
use crate::setup::{self, Environment};

/// Debian packages of this machine, and what shows each to be there.
const PACKAGES: [(&str, &str); 5] = [
    ("debootstrap", "/usr/sbin/debootstrap"),
    ("systemd-container", "/usr/bin/systemd-nspawn"),
    ("nftables", "/usr/sbin/nft"),
    ("openssh-client", "/usr/bin/ssh"),
    ("iproute2", "/sbin/ip"),
];

/// What a server of a real cluster has before anything of ours is on it: no more than that.
const INCLUDE: &str = "systemd,systemd-sysv,dbus,iproute2,openssh-server,python3,python3-apt,\
                       procps,ca-certificates,nftables,libgomp1,libquadmath0";

const SUITE: &str = "bookworm";

/// Grows with every change of what is made below.
const RECIPE: u32 = 2;

/// The Python of the hosts that has MXNet.
pub const PYTHON: &str = "/opt/train/bin/python";

/// Who trains, of one number everywhere, as a site's directory of users gives it. The shared
/// folder belongs to this user's group.
pub const TASK_USER: &str = "train";
pub const TASK_UID: u32 = 1500;

/// Units that would only keep a host of the test busy, or wait for the world outside.
const MASKED: [&str; 6] = [
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "fstrim.timer",
    "e2scrub_all.timer",
    "systemd-networkd-wait-online.service",
];

/// Where everything of the hosts lies.
pub(crate) fn folder() -> Result<PathBuf> {
    let folder = setup::base()?.join("optimus-hosts");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Finds or makes the tree, and removes what an earlier run left when it was killed.
///
/// # Returns
/// The tree's folder.
///
/// # Errors
/// Names what is missing and cannot be installed by this user.
pub fn ready() -> Result<PathBuf> {
    setup::install_packages(&PACKAGES)?;
    let folder = folder()?;
    super::leftovers::remove(&folder)?;
    let base = folder.join("base");
    let stamp = base.join("optimus-ready");
    let wanted = format!("{RECIPE} {SUITE} {INCLUDE} {}", setup::WHEELS.join(" "));
    // Two runs beside each other make it once.
    let lock = fs::File::create(folder.join("base.lock"))?;
    lock.lock().context("cannot lock the hosts' tree")?;
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(base);
    }
    talk("making the tree of the hosts: a Debian of 700 MB, some minutes");
    let _absent = fs::remove_dir_all(&base);
    make(&base)?;
    fs::write(&stamp, wanted)?;
    Ok(base)
}

fn make(base: &Path) -> Result<()> {
    output_of(
        Command::new("/usr/sbin/debootstrap")
            .args(["--variant=minbase", &format!("--include={INCLUDE}"), SUITE])
            .arg(base),
    )
    .context("cannot make a Debian tree for the hosts")?;
    add_mxnet(base)?;
    settle(base)
}

/// An environment in the tree with the very wheels of this machine's own: the packages are
/// copied, so that nothing is fetched twice.
fn add_mxnet(base: &Path) -> Result<()> {
    let environment = Environment::ready()?;
    let own = environment.python.ancestors().nth(2).context("the environment has a folder")?;
    chroot(base, &["/usr/bin/python3", "-m", "venv", "--without-pip", "/opt/train"])?;
    let packages = |root: &Path| -> Result<PathBuf> {
        let lib = root.join("lib");
        let found =
            fs::read_dir(&lib)?.filter_map(Result::ok).map(|entry| entry.path()).find(|path| {
                path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3."))
            });
        found.with_context(|| format!("{} holds no python3", lib.display()))
    };
    let (from, to) = (packages(own)?, packages(&base.join("opt/train"))?);
    ensure!(
        from.file_name() == to.file_name(),
        "the hosts have {} and this machine {}: MXNet's packages cannot be copied",
        to.display(),
        from.display()
    );
    output_of(
        Command::new("cp")
            .arg("--archive")
            .arg(from.join("site-packages/."))
            .arg(to.join("site-packages")),
    )?;
    chroot(base, &[PYTHON, "-c", "import mxnet"])
        .context("MXNet is in the hosts' tree but cannot be imported")
}

/// Settings that all hosts share, and less to read at boot.
fn settle(base: &Path) -> Result<()> {
    fs::write(
        base.join("etc/ssh/sshd_config.d/test.conf"),
        "UseDNS no\nUsePAM no\nPermitRootLogin prohibit-password\nMaxStartups 100\n",
    )?;
    chroot(base, &["/usr/bin/systemctl", "enable", "--quiet", "systemd-networkd", "ssh"])?;
    let uid = TASK_UID.to_string();
    chroot(base, &["/usr/sbin/useradd", "--uid", &uid, "--user-group", "-M", TASK_USER])?;
    for unit in MASKED {
        let link = base.join("etc/systemd/system").join(unit);
        let _absent = fs::remove_file(&link);
        symlink("/dev/null", &link)?;
    }
    // A journal on disk is still there after a power cut.
    fs::create_dir_all(base.join("var/log/journal"))?;
    let ssh = base.join("root/.ssh");
    fs::create_dir_all(&ssh)?;
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o700))?;
    for garbage in ["var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man"]
    {
        let _absent = fs::remove_dir_all(base.join(garbage));
    }
    fs::create_dir_all(base.join("var/cache/apt/archives/partial"))?;
    fs::create_dir_all(base.join("var/lib/apt/lists/partial"))?;
    Ok(())
}

fn chroot(base: &Path, command: &[&str]) -> Result<()> {
    let mut chroot = Command::new("/usr/sbin/chroot");
    chroot.arg(base).args(command).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    output_of(&mut chroot).map(drop)
}
