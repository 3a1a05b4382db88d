//! A stand-in for NVIDIA's library, whose state a test writes: GPUs on a machine without any.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

use crate::binaries::checkout;
use crate::cluster::Cluster;

/// The GPUs of one server.
#[derive(Clone, Debug)]
pub struct Nvml {
    state: PathBuf,
    server: u32,
    /// Lines of the state after the first.
    lines: Vec<String>,
}

/// Builds the library, once for all tests of a run.
fn library() -> Result<&'static Path> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(folder) = BUILT.get() {
        return Ok(folder);
    }
    let folder = checkout().join("target/nvml");
    fs::create_dir_all(&folder)?;
    // Another run may have it open: a finished one takes its place at once.
    let fresh = folder.join(format!("fresh.{}", std::process::id()));
    let source = checkout().join("tests/harness/nvml/nvml.c");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&fresh)
        .arg(source)
        .output()
        .context("cannot run cc; install a C compiler")?;
    if !output.status.success() {
        bail!("cannot build the stand-in:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    fs::rename(&fresh, folder.join("libnvidia-ml.so.1"))?;
    Ok(BUILT.get_or_init(|| folder))
}

impl Nvml {
    /// Gives an agent that has not started yet so many GPUs.
    ///
    /// # Errors
    /// Where the library cannot be built.
    pub fn give(cluster: &mut Cluster, agent: usize, count: u32) -> Result<Self> {
        let state = cluster.folder.join(format!("nvml-{agent}"));
        let server = u32::try_from(agent)? + 1;
        let mut nvml = Self { state, server, lines: vec![format!("count {count}")] };
        nvml.write()?;
        let environment = &mut cluster.agents[agent].environment;
        environment.push(("LD_LIBRARY_PATH".to_owned(), library()?.display().to_string()));
        environment.push(("OPTIMUS_NVML".to_owned(), nvml.state.display().to_string()));
        Ok(nvml)
    }

    /// The name of a GPU.
    #[must_use]
    pub fn uuid(&self, index: u32) -> String {
        format!("GPU-{:08x}-0000-4000-8000-{index:012x}", self.server)
    }

    /// The place of a GPU with this name.
    #[must_use]
    pub fn index(&self, uuid: &str) -> Option<u32> {
        (0..16).find(|index| self.uuid(*index) == uuid)
    }

    /// Adds a line to the state, such as `lost.2`; see the head of nvml.c.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn add(&mut self, line: &str) -> Result<()> {
        self.lines.push(line.to_owned());
        self.write()
    }

    /// Takes a line out again.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn remove(&mut self, line: &str) -> Result<()> {
        self.lines.retain(|known| known != line);
        self.write()
    }

    /// Puts a whole state in place, so that no call reads half of one.
    fn write(&mut self) -> Result<()> {
        let text = format!("server {}\n{}\n", self.server, self.lines.join("\n"));
        let fresh = self.state.with_extension("fresh");
        fs::write(&fresh, text)?;
        fs::rename(&fresh, &self.state)?;
        Ok(())
    }
}
