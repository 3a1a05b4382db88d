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

/// The highest `GLIBC_2.N` that a program names.
fn glibc_minor(bytes: &[u8]) -> u32 {
    let word = b"GLIBC_2.";
    let found = bytes.windows(word.len() + 2).filter(|window| window.starts_with(word));
    let numbers = found.filter_map(|window| {
        let digits: String = window[word.len()..]
            .iter()
            .map(|byte| char::from(*byte))
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse().ok()
    });
    numbers.max().expect("a program that is linked with glibc names its versions")
}

#[test]
fn programs_run_on_the_oldest_system_and_load_its_libraries() {
    for (name, path) in programs() {
        let bytes = fs::read(path).unwrap();
        let minor = glibc_minor(&bytes);
        assert!(
            minor <= GLIBC_MINOR_MAX,
            "{name} needs glibc 2.{minor}: build what hosts run on Debian 12"
        );
        // A static program could not load NVML, and every server would have no GPUs.
        let loader = bytes.windows(9).any(|window| window == b"/ld-linux");
        assert!(loader, "{name} is linked statically");
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
        // Roff writes a hyphen with a backslash; long help is broken over lines.
        let plain = text.replace('\\', "");
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
