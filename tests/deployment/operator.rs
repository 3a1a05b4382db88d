//! The operator: the command line with a certificate, on a machine that no cut touches.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use harness::cluster::rows;
use harness::hosts::Site;
use serde_json::Value;

#[derive(Debug)]
pub(crate) struct Operator {
    pub(crate) program: PathBuf,
    /// Holds ca.pem and the certificate.
    pub(crate) certificates: PathBuf,
    pub(crate) master: String,
}

impl Operator {
    pub(crate) fn output(&self, site: &Site, args: &[&str]) -> Result<Output> {
        site.command(&self.program)
            .args(args)
            .env("OPTIMUS_MASTER", &self.master)
            .env("OPTIMUS_TLS_DIR", &self.certificates)
            .stdin(Stdio::null())
            .output()
            .context("cannot run optimus")
    }

    /// Runs a command that must exit with 0; returns its stdout.
    pub(crate) fn run(&self, site: &Site, args: &[&str]) -> Result<String> {
        let output = self.output(site, args)?;
        if !output.status.success() {
            bail!(
                "optimus {} exited with {:?}: {}",
                args.join(" "),
                output.status.code(),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub(crate) fn json(&self, site: &Site, args: &[&str]) -> Result<Value> {
        let text = self.run(site, &[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("not JSON: {text}"))
    }

    /// Runs a command that must be refused; returns what it said.
    pub(crate) fn refused(&self, site: &Site, args: &[&str]) -> Result<String> {
        let output = self.output(site, args)?;
        ensure!(!output.status.success(), "optimus {} was not refused", args.join(" "));
        Ok(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// The line of a node in `nodes`.
    pub(crate) fn node(&self, site: &Site, name: &str) -> Result<Value> {
        let nodes = self.json(site, &["nodes"])?;
        let found = rows(&nodes, "nodes").iter().find(|node| node["id"] == name);
        found.cloned().with_context(|| format!("no node {name} in {nodes}"))
    }
}
