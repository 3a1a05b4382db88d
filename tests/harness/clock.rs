//! Wall clocks of single daemons that a test sets, as a person sets the date.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};

use crate::binaries::checkout;
use crate::cluster::Daemon;

/// The wall clock of one daemon.
#[derive(Clone, Debug)]
pub struct WallClock {
    offset: PathBuf,
}

/// Builds the library, once for all tests of a run.
fn library() -> Result<&'static Path> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(path) = BUILT.get() {
        return Ok(path);
    }
    let folder = checkout().join("target/clock");
    fs::create_dir_all(&folder)?;
    // Another run may have it open: a finished one takes its place at once.
    let fresh = folder.join(format!("fresh.{}", std::process::id()));
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&fresh)
        .arg(checkout().join("tests/harness/clock/clock.c"))
        .arg("-ldl")
        .output()
        .context("cannot run cc; install a C compiler")?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot build the clock:\n{words}");
    let path = folder.join("libclock.so");
    fs::rename(&fresh, &path)?;
    Ok(BUILT.get_or_init(|| path))
}

impl WallClock {
    /// Gives a daemon that does not run yet a clock of its own, which is right at first. `folder`
    /// is where it is kept, under `name`.
    ///
    /// # Errors
    /// Where the library cannot be built.
    pub fn give(daemon: &mut Daemon, folder: &Path, name: &str) -> Result<Self> {
        let clock = Self { offset: folder.join(format!("{name}.clock")) };
        clock.set_ahead_ms(0)?;
        let preload = library()?.display().to_string();
        daemon.environment.push(("LD_PRELOAD".to_owned(), preload));
        daemon.environment.push(("OPTIMUS_CLOCK".to_owned(), clock.offset.display().to_string()));
        Ok(clock)
    }

    /// Sets it so far ahead of the right time; negative for behind.
    ///
    /// # Errors
    /// Where that cannot be written.
    pub fn set_ahead_ms(&self, ms: i64) -> Result<()> {
        let fresh = self.offset.with_extension("fresh");
        fs::write(&fresh, ms.to_string())?;
        fs::rename(&fresh, &self.offset)?;
        Ok(())
    }
}
