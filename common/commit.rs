//! Build script of the three programs: tells them the commit that they are built from.
//!
//! Packagers who build outside of a checkout set `OPTIMUS_COMMIT` themselves.

use std::path::Path;
use std::process::Command;

#[expect(clippy::print_stdout, reason = "cargo reads what a build script prints")]
#[expect(clippy::disallowed_methods, reason = "cargo tells a build script by its environment")]
fn main() {
    println!("cargo:rerun-if-env-changed=OPTIMUS_COMMIT");
    let given = std::env::var("OPTIMUS_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = match given {
        Some(commit) => commit,
        // Builds of a day's work: a look at each commit would compile the programs anew.
        None if std::env::var("PROFILE").as_deref() == Ok("debug") => "of development".to_owned(),
        None => {
            // Each of them changes with a commit or a checkout; one that is not there would make
            // cargo run this script for every build.
            for name in ["logs/HEAD", "HEAD", "packed-refs"] {
                if let Some(file) = git(&["rev-parse", "--git-path", name])
                    && Path::new(&file).exists()
                {
                    println!("cargo:rerun-if-changed={file}");
                }
            }
            git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned())
        }
    };
    println!("cargo:rustc-env=OPTIMUS_COMMIT={commit}");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
