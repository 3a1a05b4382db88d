//! What ansible and its linter say of the playbooks.

use std::process::Command;

use harness::binaries::checkout;

/// A program of ansible that leaves nothing in the checkout and speaks to no terminal.
fn ansible(program: &str, home: &std::path::Path) -> Command {
    let mut command = Command::new(harness::ansible::ready().unwrap().join(program));
    command
        .current_dir(checkout().join("ansible"))
        .env("ANSIBLE_HOME", home)
        .env("ANSIBLE_LOCAL_TEMP", home.join("tmp"))
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env("NO_COLOR", "1")
        // Its programs call each other by name.
        .env("PATH", path(&harness::ansible::ready().unwrap()));
    command
}

fn path(first: &std::path::Path) -> String {
    format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", first.display())
}

fn passes(command: &mut Command) {
    let output = command.output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}:\n{out}\n{err}");
}

#[test]
fn the_linter_finds_nothing_by_its_strictest_rules() {
    let home = tempfile::tempdir().unwrap();
    passes(ansible("ansible-lint", home.path()).args([
        "--profile",
        "production",
        "--offline",
        "--strict",
        "--nocolor",
    ]));
}

#[test]
fn every_playbook_reads_with_the_example_inventory() {
    let home = tempfile::tempdir().unwrap();
    passes(ansible("ansible-playbook", home.path()).args([
        "--syntax-check",
        "--inventory",
        "inventory/example/hosts.yml",
        "site.yml",
        "upgrade.yml",
        "certificates.yml",
        "remove.yml",
    ]));
}
