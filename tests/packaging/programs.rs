//! The three programs as files, and what they say of themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::Binaries;

/// Of Debian 12, the oldest system that is supported.
const GLIBC_MINOR_MAX: u32 = 36;

fn programs() -> [(&'static str, &'static Path); 3] {
    let built = Binaries::build().unwrap();
    [
        ("optimus", built.optimus.as_path()),
        ("optimus-master", built.master.as_path()),
        ("optimus-agent", built.agent.as_path()),
    ]
}

fn said(program: &Path, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program:?} {words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What the linker noted in a program: libraries and their versions. readelf comes with the linker.
fn noted(path: &Path) -> String {
    let mut command = Command::new("readelf");
    command.args(["--wide", "--version-info", "--program-headers"]).arg(path);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn programs_run_on_the_oldest_system_and_load_its_libraries() {
    for (name, path) in programs() {
        let noted = noted(path);
        let versions = noted.split("Name: GLIBC_2.").skip(1);
        let minors = versions.filter_map(|rest| {
            rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse::<u32>().ok()
        });
        let minor = minors.max().expect("a program that is linked with glibc names its versions");
        assert!(
            minor <= GLIBC_MINOR_MAX,
            "{name} needs glibc 2.{minor}: build what hosts run on Debian 12"
        );
        // A static program could not load NVML, and every server would have no GPUs.
        assert!(noted.contains("Requesting program interpreter"), "{name} is linked statically");
    }
}

#[test]
fn programs_tell_version_commit_and_protocols() {
    for (name, path) in programs() {
        let line = said(path, &["--version"]);
        let rest = line.strip_prefix(&format!("{name} {} (commit ", env!("CARGO_PKG_VERSION")));
        let rest = rest.unwrap_or_else(|| panic!("{line:?}"));
        let (commit, protocols) = rest.split_once(", protocol ").unwrap();
        let hex = commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(hex || ["of development", "unknown"].contains(&commit), "{line:?}");
        let (oldest, newest) =
            protocols.trim_end().strip_suffix(')').unwrap().split_once(" to ").unwrap();
        assert!(oldest.parse::<u16>().unwrap() <= newest.parse::<u16>().unwrap(), "{line:?}");
    }
}

/// Commands as `--help` lists them, each with its words.
fn commands(program: &Path, words: &[&str]) -> Vec<(Vec<String>, String)> {
    let help = said(program, &[words, &["--help"]].concat());
    let Some((_, listed)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = listed.lines().take_while(|line| !line.is_empty());
    let mut found = Vec::new();
    for (name, told) in lines.filter_map(|line| line.trim().split_once("  ")) {
        let mut path: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        path.push(name.to_owned());
        let inner: Vec<&str> = path.iter().map(String::as_str).collect();
        found.extend(commands(program, &inner));
        found.push((path, told.trim().to_owned()));
    }
    found
}

#[test]
fn every_command_has_a_manual_page() {
    let [(_, optimus), ..] = programs();
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("man1");
    said(optimus, &["man", "--dir", place.to_str().unwrap()]);
    let listed = commands(optimus, &[]);
    assert!(listed.len() > 30, "{listed:?}");
    for (words, told) in &listed {
        let page = place.join(format!("optimus-{}.1", words.join("-")));
        let text = fs::read_to_string(&page).unwrap_or_else(|_| panic!("no {}", page.display()));
        // As roff writes hyphens and apostrophes.
        let plain = text.replace("\\*(Aq", "'").replace('\\', "");
        let first = told.split(['(', ',', ';']).next().unwrap().trim();
        assert!(plain.contains(first), "{words:?} is not told: {first}");
    }
    let pages: Vec<PathBuf> =
        fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(pages.len(), listed.len() + 1, "{pages:?}");
    let main = said(optimus, &["man"]);
    assert_eq!(main, fs::read_to_string(place.join("optimus.1")).unwrap());
    assert!(main.contains(env!("CARGO_PKG_VERSION")));
}
