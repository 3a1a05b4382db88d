//! ansible as an operator has it, for the tests of the rollout.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::setup::{base, install_packages, run, system_python};

/// The last ansible-core for Debian 12's own Python, and the linter that goes with it.
const WHEELS: [&str; 2] = ["ansible-core==2.19.14", "ansible-lint==26.10.1"];

/// Debian packages and a file that shows each to be there. A container has no systemd; its
/// programs that judge units run without it.
const PACKAGES: [(&str, &str); 4] = [
    ("systemd", "/usr/bin/systemd-analyze"),
    ("openssh-client", "/usr/bin/ssh"),
    ("openssl", "/usr/bin/openssl"),
    ("git", "/usr/bin/git"),
];

/// Installs ansible, its linter and systemd's judge of units where they are missing.
///
/// # Returns
/// The folder of ansible's programs.
///
/// # Errors
/// Names, in one line, what is missing and cannot be installed by this user.
pub fn ready() -> Result<PathBuf> {
    install_packages(&PACKAGES)?;
    let venv = base()?.join("optimus-ansible");
    let programs = venv.join("bin");
    let stamp = venv.join("optimus-ready");
    let wanted = WHEELS.join(" ");
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(programs);
    }
    crate::process::talk(&format!("making a Python environment with {wanted}"));
    let _absent = fs::remove_dir_all(&venv);
    run(Command::new(system_python()?).args(["-m", "venv"]).arg(&venv))
        .context("cannot make a virtual environment")?;
    run(Command::new(programs.join("python"))
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(WHEELS))
    .context("cannot install ansible from the Python package index")?;
    fs::write(&stamp, wanted)?;
    Ok(programs)
}
