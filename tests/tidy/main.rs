//! Rules of this repository that neither rustc nor clippy can check.

#![expect(clippy::unwrap_used, reason = "a broken checkout should stop the test at once")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const FILE_LINES_MAX: usize = 500;

/// What each crate may depend on inside the workspace. A new arrow is a design decision: add it
/// here in the same commit, with its reason.
const ARROWS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("net", &["model"]),
    ("storage", &["model"]),
    ("scheduler", &["model"]),
    ("control", &["model", "scheduler"]),
    ("master", &["control", "model", "net", "scheduler", "storage"]),
    ("simulator", &["control", "model", "scheduler"]),
    ("cli", &["model", "net", "scheduler", "simulator"]),
    ("agent", &["model", "net", "storage"]),
    // Real binaries only: a test that links a daemon's code tests something that nobody runs.
    ("cluster-tests", &[]),
];

/// Crates that decide. A clock, a socket, a file or a thread in one of them could not be
/// tested in virtual time, where every fault can be had at every step.
const PURE: &[&str] = &["common/model", "master/scheduler", "master/control"];

const IMPURE: &[&str] = &[
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::process",
    "std::thread",
    "std::time",
    "std::env",
    "tokio::",
    "HashMap",
    "HashSet",
];

/// The visible top level, and nothing else.
const TOP_LEVEL: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "README.md",
    "common",
    "master",
    "agent",
    "systemd",
    "ansible",
    "tests",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn tracked_files() -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "git ls-files failed");
    let text = String::from_utf8(output.stdout).unwrap();
    let files: Vec<_> =
        text.lines().map(PathBuf::from).filter(|path| root().join(path).is_file()).collect();
    assert!(files.len() > 30, "only {} files found", files.len());
    files
}

fn with_extension(wanted: &[&str]) -> Vec<PathBuf> {
    tracked_files()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| wanted.iter().any(|w| e == *w)))
        .collect()
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn no_file_is_too_long() {
    let long: Vec<_> = with_extension(&["rs", "py"])
        .into_iter()
        .map(|path| (fs::read_to_string(root().join(&path)).unwrap().lines().count(), path))
        .filter(|(lines, _)| FILE_LINES_MAX < *lines)
        .collect();
    assert!(long.is_empty(), "split these files: {long:#?}");
}

#[test]
fn the_top_level_is_the_drawn_one() {
    let found: BTreeSet<String> = tracked_files()
        .iter()
        .map(|path| path.iter().next().unwrap().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .collect();
    for name in &found {
        assert!(TOP_LEVEL.contains(&name.as_str()), "{name} does not belong at the top level");
    }
}

#[test]
fn dependencies_point_one_way() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let mut drawn: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let allowed = drawn.remove(name).unwrap_or_else(|| panic!("draw {name} in ARROWS"));
        // All kinds count: a build or test dependency is an arrow as well.
        for dependency in package["dependencies"].as_array().unwrap() {
            if dependency["path"].is_string() {
                let to = dependency["name"].as_str().unwrap();
                assert!(allowed.contains(&to), "{name} must not depend on {to}");
            }
        }
    }
    assert!(drawn.is_empty(), "drawn, but not members: {:?}", drawn.keys());
}

#[test]
fn every_member_takes_the_workspace_lints() {
    for package in metadata()["packages"].as_array().unwrap() {
        let manifest = fs::read_to_string(package["manifest_path"].as_str().unwrap()).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{} lacks it", package["name"]);
    }
}

#[test]
fn dependencies_are_named_once_and_with_a_reason() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let section = manifest.split("[workspace.dependencies]").nth(1).unwrap();
    let section = section.split("\n[").next().unwrap();
    let mut reason = false;
    for line in section.lines() {
        if line.starts_with('#') {
            reason = true;
        } else if line.trim().is_empty() {
            reason = false;
        } else {
            assert!(reason, "no reason stands above {line:?}");
        }
    }
    for package in metadata()["packages"].as_array().unwrap() {
        let path = package["manifest_path"].as_str().unwrap();
        for line in fs::read_to_string(path).unwrap().lines() {
            let direct = line.contains("version = \"") || line.contains("= \"=");
            assert!(!direct, "{path}: take it from the workspace: {line:?}");
        }
    }
}

#[test]
fn deciding_crates_are_pure() {
    for file in with_extension(&["rs"]) {
        if !PURE.iter().any(|dir| file.starts_with(format!("{dir}/src"))) {
            continue;
        }
        let text = fs::read_to_string(root().join(&file)).unwrap();
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap();
            for word in IMPURE {
                assert!(!code.contains(word), "{}:{}: {word}", file.display(), number + 1);
            }
        }
    }
}

#[test]
fn nothing_is_left_behind() {
    // Spelt in pieces, so that this file does not find itself.
    let words = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("#[ig", "nore"),
        concat!("FIX", "ME"),
    ];
    for file in with_extension(&["rs", "py"]) {
        let text = fs::read_to_string(root().join(&file)).unwrap();
        for (number, line) in text.lines().enumerate() {
            // A process that a test starts of itself is marked so, and runs inside that test.
            if line.contains("= \"the child of a_") || line.contains("by hand with --ignored") {
                continue;
            }
            for word in words {
                assert!(!line.contains(word), "{}:{}: {word}", file.display(), number + 1);
            }
        }
    }
}
