//! The binaries under test: built just now, from this very checkout.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

#[derive(Clone, Debug)]
pub struct Binaries {
    pub master: PathBuf,
    pub agent: PathBuf,
    pub optimus: PathBuf,
}

/// The root of the checkout that this harness was built from.
#[must_use]
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie one below the root")
}

impl Binaries {
    /// Builds the three binaries and takes their paths from cargo's own answer, so that a stale
    /// or foreign binary can never be what is tested.
    ///
    /// # Errors
    /// Where the build fails.
    pub fn build() -> Result<&'static Self> {
        static BUILT: OnceLock<Binaries> = OnceLock::new();
        if let Some(built) = BUILT.get() {
            return Ok(built);
        }
        let built = Self::build_now()?;
        Ok(BUILT.get_or_init(|| built))
    }

    fn build_now() -> Result<Self> {
        // Figures are of what runs in production; tests keep the checks of a debug build.
        let profile: &[&str] = if cfg!(debug_assertions) { &[] } else { &["--release"] };
        let output = Command::new(env!("CARGO"))
            .args(["build", "--message-format", "json-render-diagnostics"])
            .args(profile)
            .args(["--package", "master", "--package", "agent", "--package", "cli"])
            .current_dir(checkout())
            .output()
            .context("cannot run cargo")?;
        if !output.status.success() {
            bail!("cargo build failed:\n{}", String::from_utf8_lossy(&output.stderr));
        }
        let find = |name: &str| -> Result<PathBuf> {
            String::from_utf8_lossy(&output.stdout)
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .find(|message| {
                    message["target"]["name"] == name && message["executable"].is_string()
                })
                .and_then(|message| message["executable"].as_str().map(PathBuf::from))
                .with_context(|| format!("cargo built no {name}"))
        };
        let built = Self {
            master: find("optimus-master")?,
            agent: find("optimus-agent")?,
            optimus: find("optimus")?,
        };
        for path in [&built.master, &built.agent, &built.optimus] {
            ensure!(path.is_file(), "{} is not there", path.display());
        }
        Ok(built)
    }
}
