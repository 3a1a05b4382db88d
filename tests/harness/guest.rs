//! A small Linux machine of its own under QEMU: where the tests' machine has no control groups
//! with limits, its kernel has. It runs from memory, with no disk of a system: a kernel of
//! Debian's, busybox, and the programs under test with their libraries.

mod archive;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::binaries::checkout;
use crate::setup::{install_packages, run};
use archive::Archive;

/// The emulator, by package and sign.
const PACKAGES: [(&str, &str); 1] = [("qemu-system-x86", "/usr/bin/qemu-system-x86_64")];
/// The package that stands for the newest kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";
const BUSYBOX: &str = "busybox-static";
/// The guest's memory, of which the programs in it take a part.
const MEMORY_MIB: u32 = 768;
/// A disk of zeros for whoever wants to read one.
const DISK_BYTES: u64 = 96 << 20;

/// What a guest is made from; kept between runs.
#[derive(Clone, Debug)]
pub struct Guest {
    kernel: PathBuf,
    busybox: PathBuf,
    folder: PathBuf,
}

impl Guest {
    /// Fetches the kernel and busybox (26 MB) where they are not there yet.
    ///
    /// # Errors
    /// Names, in one line, what is missing and cannot be installed by this user.
    pub fn ready() -> Result<Self> {
        install_packages(&PACKAGES)?;
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| checkout().join("target"), PathBuf::from);
        let folder = std::path::absolute(target)?.join("optimus-guest");
        let guest = Self {
            kernel: folder.join("vmlinuz"),
            busybox: folder.join("busybox"),
            folder: folder.clone(),
        };
        if !guest.kernel.exists() || !guest.busybox.exists() {
            fs::create_dir_all(&folder)?;
            crate::process::talk("fetching a kernel for the guest of the tests (26 MB)");
            guest.fetch().context("cannot fetch the guest's kernel and busybox from Debian")?;
        }
        Ok(guest)
    }

    fn fetch(&self) -> Result<()> {
        let newest = depends_on(KERNEL)?;
        let unpacked = self.folder.join("unpacked");
        let _absent = fs::remove_dir_all(&unpacked);
        fs::create_dir_all(&unpacked)?;
        run(Command::new("apt-get")
            .args(["-qq", "download", BUSYBOX, &newest])
            .current_dir(&unpacked))?;
        for package in files_of(&unpacked, ".deb")? {
            run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unpacked))?;
        }
        // The kernel last: it is the sign that all is there.
        fs::copy(unpacked.join("bin/busybox"), &self.busybox)?;
        let kernels = files_of(&unpacked.join("boot"), "")?;
        let kernel = kernels.iter().find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        });
        fs::copy(kernel.context("the package has no kernel")?, &self.kernel)?;
        fs::remove_dir_all(&unpacked)?;
        Ok(())
    }

    /// Boots the guest, runs a shell script in it as root, and hands each line that it prints to
    /// `hear`. Programs lie in `/bin`, under the names given.
    ///
    /// # Errors
    /// Where the guest cannot be made or started, or does not end in `limit_s`.
    pub fn run(
        &self,
        programs: &[(&str, &Path)],
        script: &str,
        limit_s: u32,
        mut hear: impl FnMut(&str),
    ) -> Result<()> {
        let place = tempfile::tempdir()?;
        let image = place.path().join("image");
        self.archive(programs, script)?.write(&image)?;
        let disk = place.path().join("disk");
        File::create(&disk)?.set_len(DISK_BYTES)?;
        let disk = format!("if=none,id=disk,format=raw,file={}", disk.display());
        // Emulated: /dev/kvm may be there and not work, and then the guest hangs.
        let mut child = Command::new("timeout")
            .args(["--kill-after=5", &limit_s.to_string(), "qemu-system-x86_64"])
            .args(["-accel", "tcg", "-m", &MEMORY_MIB.to_string()])
            .args(["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"])
            .args(["-append", "console=ttyS0 loglevel=0 panic=-1 cgroup_no_v1=all"])
            .args(["-drive", &disk, "-device", "nvme,serial=optimus,drive=disk"])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&image)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start qemu-system-x86_64")?;
        let output = child.stdout.take().context("stdout is piped")?;
        // A console is no text file: whatever bytes come, the rest is to be read.
        for line in BufReader::new(output).split(b'\n') {
            hear(String::from_utf8_lossy(&line?).trim_end());
        }
        let status = child.wait()?;
        ensure!(status.code() != Some(124), "the guest did not end in {limit_s} s");
        ensure!(status.success(), "the guest's emulator ended with {status}");
        Ok(())
    }

    fn archive(&self, programs: &[(&str, &Path)], script: &str) -> Result<Archive> {
        let mut archive = Archive::default();
        for folder in
            ["bin", "dev", "etc", "lib", "lib64", "proc", "root", "sys", "tmp", "usr", "var"]
        {
            archive.folder(folder);
        }
        archive.console("dev/console");
        archive.file("bin/busybox", &fs::read(&self.busybox)?, true);
        archive.link("bin/sh", "busybox");
        let users = "root:x:0:0::/root:/bin/sh\ndaemon:x:1:1::/:/bin/sh\n\
                     nobody:x:65534:65534::/nonexistent:/bin/sh\n";
        archive.file("etc/passwd", users.as_bytes(), false);
        archive.file("etc/group", b"root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n", false);
        let mut libraries = BTreeSet::new();
        for (name, path) in programs {
            archive.file(&format!("bin/{name}"), &stripped(path)?, true);
            libraries.extend(libraries_of(path)?);
        }
        for library in libraries {
            let name = library.to_string_lossy().into_owned();
            let content =
                fs::read(&library).with_context(|| format!("cannot read the library {name}"))?;
            archive.file_with_folders(name.trim_start_matches('/'), &content);
        }
        archive.file("init", init(script).as_bytes(), true);
        Ok(archive)
    }
}

/// What the kernel starts: makes a machine of it, runs the script, and turns it off.
fn init(script: &str) -> String {
    format!(
        "#!/bin/sh\n\
         /bin/busybox --install -s /bin\n\
         export PATH=/bin HOME=/root\n\
         mount -t proc proc /proc\n\
         mount -t sysfs sysfs /sys\n\
         mount -t devtmpfs devtmpfs /dev\n\
         mount -t cgroup2 cgroup2 /sys/fs/cgroup\n\
         mount -t tmpfs -o mode=1777 tmpfs /tmp\n\
         chmod 644 /dev/nvme0n1\n\
         ip link set lo up\n\
         {script}\n\
         poweroff -f\n"
    )
}

/// The package that another one depends on alone.
fn depends_on(package: &str) -> Result<String> {
    let output = Command::new("apt-cache").args(["depends", package]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = text.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    match found {
        Some(name) => Ok(name.trim().to_owned()),
        None => bail!("apt-cache does not know {package}; run apt-get update"),
    }
}

fn files_of(folder: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() && path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    Ok(found)
}

/// A program without what only a debugger reads: all of it is in the guest's memory.
fn stripped(path: &Path) -> Result<Vec<u8>> {
    let place = tempfile::tempdir()?;
    let copy = place.path().join("program");
    let made = run(Command::new("strip").arg("-o").arg(&copy).arg(path));
    // Without binutils it is large, and runs all the same.
    let from = if made.is_ok() { &copy } else { path };
    fs::read(from).with_context(|| format!("cannot read {}", from.display()))
}

/// Shared libraries of a program, with its loader.
fn libraries_of(path: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(path).output().context("cannot run ldd")?;
    ensure!(output.status.success(), "ldd cannot read {}", path.display());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = text.lines().filter_map(|line| {
        let place = line.split("=>").last()?.trim();
        let place = place.split(" (").next()?;
        place.starts_with('/').then(|| PathBuf::from(place))
    });
    Ok(paths.collect())
}
