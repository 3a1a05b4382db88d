//! README.md says nothing that does not work.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use harness::binaries::checkout;
use harness::{Binaries, Cluster, ClusterOptions};

/// The fenced blocks of a language, in order.
fn blocks(text: &str, language: &str) -> Vec<String> {
    text.split("```")
        .skip(1)
        .step_by(2)
        .filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_of_the_readme_works() -> Result<()> {
    let text = fs::read_to_string(checkout().join("README.md"))?;
    let cluster = Cluster::start(&ClusterOptions::quick(&[2.0]))?;
    let folder = cluster.folder.join("readme");
    fs::create_dir(&folder)?;
    // Each file's block begins with a comment that names it.
    let files = blocks(&text, "toml");
    ensure!(files.len() == 3, "{} files in README.md", files.len());
    for file in files {
        let name = file.lines().next().and_then(|line| line.strip_prefix("# "));
        // The one folder of the examples that must be there for a job to be accepted here.
        let file = file.replace("file:///srv/checkpoints", &cluster.checkpoints());
        fs::write(folder.join(name.context("a file has a name")?), file)?;
    }
    // The files of the offline commands are named from the checkout.
    std::os::unix::fs::symlink(checkout().join("master"), folder.join("master"))?;
    let mut ran = 0;
    for line in blocks(&text, "sh").iter().flat_map(|block| block.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        let words: Vec<_> = line.split_whitespace().collect();
        match words.split_first() {
            // This test is part of the one, and the other has a step of its own.
            Some((&"cargo", rest)) => {
                ensure!(matches!(rest, ["quickstart"] | ["verify"]), "{line}")
            }
            Some((&"optimus", rest)) => {
                let output = Command::new(&Binaries::build()?.optimus)
                    .args(rest)
                    .current_dir(&folder)
                    .env("OPTIMUS_MASTER", &cluster.address)
                    .env("OPTIMUS_TLS_DIR", cluster.folder.join("pki"))
                    .output()?;
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                ensure!(output.status.success(), "{line}: {:?} {said}", output.status.code());
                ran += 1;
            }
            Some((other, _)) => anyhow::bail!("README.md runs {other}, which no test does"),
            None => {}
        }
    }
    ensure!(ran >= 19, "only {ran} commands were found");
    cluster.run(["cancel", "j1", "--now"])?;
    cluster.wait_no_task()
}
