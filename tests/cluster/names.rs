//! Hostile names and values in every field that a user can fill: taken or refused by rule, shown
//! without breaking a table, run without a shell. All under `LC_ALL=C`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use harness::jobs::JobFile;
use harness::{Binaries, Cluster, ClusterOptions, wait};
use serde_json::Value;

use crate::common::MINUTE;

/// Odd, but text: taken where any text is.
const ODD: [&str; 17] = [
    "$(touch PWNED)",
    "`touch PWNED`",
    "a; touch PWNED; b",
    "a && touch PWNED || touch PWNED",
    "a | tee PWNED > PWNED",
    "'\"\\ \"$HOME\"",
    "../../../PWNED",
    "/etc/passwd",
    "-rf",
    "--help",
    "%s%n{}{0}",
    "é",
    "漢字",
    "👩‍🔬🚂",
    "שלום",
    "' OR 1=1 --",
    "<script>x</script>",
];

/// Never part of a name.
const WRONG: [&str; 11] = [
    "",
    " ",
    "a\nb",
    "a\tb\rc",
    "\u{1b}[2J\u{1b}]0;x\u{7}",
    "a\u{202e}b",
    "a\0b",
    "\u{200f}",
    "\u{200b}",
    "\u{ad}\u{ad}",
    "\u{e0041}\u{e0042}",
];

struct Shell<'a> {
    cluster: &'a Cluster,
    optimus: PathBuf,
    /// Where it is run: nothing may appear there.
    folder: PathBuf,
}

impl Shell<'_> {
    fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<Output> {
        Command::new(&self.optimus)
            .args(args)
            .current_dir(&self.folder)
            .env("LC_ALL", "C")
            .env("LANG", "C")
            .env_remove("PYTHONIOENCODING")
            .env("OPTIMUS_MASTER", &self.cluster.address)
            .env("OPTIMUS_TLS_DIR", self.cluster.folder.join("pki"))
            .output()
            .context("cannot run optimus")
    }

    /// Taken, or refused with a code that says so and words that name the field.
    fn expect(&self, args: &[&str], taken: bool, word: &str) -> Result<Output> {
        let output = self.run(args)?;
        let words = String::from_utf8(output.stderr.clone()).context("stderr is not UTF-8")?;
        let code = output.status.code();
        if taken {
            ensure!(code == Some(0), "{args:?} is refused: {code:?} {words}");
        } else {
            ensure!(matches!(code, Some(2 | 3 | 5)), "{args:?} is not refused: {code:?} {words}");
            ensure!(words.to_lowercase().contains(word), "{args:?}: no {word:?} in {words}");
        }
        ensure!(!has_controls(&words), "{args:?}: control characters on stderr: {words:?}");
        Ok(output)
    }

    fn json(&self, args: &[&str]) -> Result<Value> {
        let output = self.run(&[args, &["-o", "json"]].concat())?;
        ensure!(output.status.success(), "{args:?}: {output:?}");
        serde_json::from_slice(&output.stdout).with_context(|| format!("{args:?} is not JSON"))
    }

    /// Submits a job of this text: its id, or none where it was refused as it should.
    fn submit(&self, text: &str, taken: bool, word: &str) -> Result<Option<String>> {
        let path = self.cluster.folder.join("odd.toml");
        fs::write(&path, text)?;
        let path = path.display().to_string();
        let submitted = self.expect(&["submit", &path, "-o", "json"], taken, word);
        let output = submitted.with_context(|| format!("of {text:?}"))?;
        if !taken {
            return Ok(None);
        }
        let answer: Value = serde_json::from_slice(&output.stdout)?;
        Ok(answer["id"].as_str().map(str::to_owned))
    }
}

fn has_controls(text: &str) -> bool {
    text.chars().any(|c| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
    })
}

fn quoted(text: &str) -> String {
    // A basic string of TOML is a string of JSON, but for DEL, which none has here.
    Value::from(text).to_string()
}

/// A job that cannot be placed, so that nothing of it runs, with one line of its file changed.
fn changed(cluster: &Cluster, key: &str, value: &str) -> String {
    let mut file = JobFile::new("plain", "linear_probe.py", &cluster.checkpoints());
    file.worker_cpus = 500.0;
    let text = file.text(&cluster.environment);
    let line = format!("{key} = {value}");
    let lines: Vec<&str> = text
        .lines()
        .map(|old| if old.starts_with(&format!("{key} = ")) { line.as_str() } else { old })
        .collect();
    let changed = lines.join("\n") + "\n";
    if changed.contains(&line) { changed } else { format!("{line}\n{changed}") }
}

/// Files below a folder, with those that a shell would have made.
fn pwned(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name == "PWNED") {
            found.push(path.clone());
        }
        if path.is_dir() && !path.is_symlink() {
            found.extend(pwned(&path)?);
        }
    }
    Ok(found)
}

fn job_fields(shell: &Shell<'_>) -> Result<()> {
    let cluster = shell.cluster;
    let long = "x".repeat(300);
    for name in ODD {
        let id = shell.submit(&changed(cluster, "name", &quoted(name)), true, "")?;
        let id = id.context("no id")?;
        ensure!(shell.json(&["show", &id])?["name"] == name, "{name:?} came out otherwise");
    }
    for name in WRONG.into_iter().chain([long.as_str()]) {
        shell.submit(&changed(cluster, "name", &quoted(name)), false, "name")?;
    }
    for (key, values) in [
        // A relative one counts from the folder of the job's file.
        ("working_directory", ["/a\0b"].as_slice()),
        ("checkpoint", &["/etc", "s3://b", "file://$(x)/a", "file:///a/../b", "file:///a\0b", ""]),
        ("assignment", &["$(x)", "", "PAA\n"]),
        ("framework", &["../mxnet", "\u{1b}[2J"]),
        ("model_key", &["", "a\nb", "\u{202e}", &long]),
        ("on_disconnect", &["; reboot", ""]),
    ] {
        for value in values {
            shell.submit(&changed(cluster, key, &quoted(value)), false, key)?;
        }
    }
    for key in ["LD PRELOAD", "A=B", "", "1A", "é", "OPTIMUS_X", "DMLC_ROLE", "A\nB", "$(x)"] {
        let text = changed(cluster, "name", "\"env\"") + &format!("{} = \"x\"\n", quoted(key));
        shell.submit(&text, false, "environment")?;
    }
    let text = changed(cluster, "name", "\"env\"") + "A = \"a\\u0000b\"\n";
    shell.submit(&text, false, "environment.a")?;
    Ok(())
}

/// Words of a command, values of the environment and folders go to the process byte for byte.
fn run_one(shell: &Shell<'_>) -> Result<()> {
    let cluster = shell.cluster;
    let folder = cluster.folder.join("work $(touch PWNED) 'é\n\"");
    fs::create_dir(&folder)?;
    if harness::setup::is_root() {
        let user = harness::setup::task_user()?;
        nix::unistd::chown(&folder, Some(user.uid), Some(user.gid))?;
    }
    let values: Vec<String> = ODD
        .into_iter()
        .map(str::to_owned)
        .chain(["\u{1}\u{1f}\n\t\r".to_owned(), "\u{1b}[31m".to_owned(), "z".repeat(300)])
        .collect();
    let code = "import json, os, sys\n\
                told = [sys.argv[1:], [os.environ['ODD%d' % i] for i in range(int(os.environ['COUNT']))]]\n\
                name = 'told.%d' % os.getpid()\n\
                json.dump(told, open(name + '.part', 'w'))\n\
                os.rename(name + '.part', name + '.json')\n";
    let python = cluster.environment.python.display().to_string();
    let mut words = vec![python, "-c".to_owned(), code.to_owned()];
    words.extend(values.iter().cloned());
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    let mut file = JobFile::new("odd words", "x", &cluster.checkpoints());
    (file.workers, file.servers, file.restarts_max) = ((1, 1), (1, 1), 0);
    file.environment =
        (0..).zip(&values).map(|(i, value)| (format!("ODD{i}"), value.clone())).collect();
    file.environment.push(("COUNT".to_owned(), values.len().to_string()));
    let text: Vec<String> = file
        .text(&cluster.environment)
        .lines()
        .map(|line| match line.split_once(" = ") {
            Some(("command", _)) => format!("command = [{}]", words.join(", ")),
            Some(("working_directory", _)) => {
                format!("working_directory = {}", quoted(&folder.display().to_string()))
            }
            _ => line.to_owned(),
        })
        .collect();
    let id = shell.submit(&(text.join("\n") + "\n"), true, "")?.context("no id")?;
    let told = wait::until("a task to tell what it was given", 2 * MINUTE, || {
        let mut files = fs::read_dir(&folder)?.filter_map(Result::ok).map(|entry| entry.path());
        Ok(files.find(|path| path.extension().is_some_and(|end| end == "json")))
    })?;
    let told: Value = serde_json::from_slice(&fs::read(told)?)?;
    ensure!(told[0] == Value::from(values.clone()), "arguments: {told}");
    ensure!(told[1] == Value::from(values.clone()), "environment: {told}");
    let shown = shell.json(&["show", &id])?;
    for (i, value) in values.iter().enumerate() {
        ensure!(shown["spec"]["environment"][format!("ODD{i}")] == *value, "{value:?}: {shown}");
    }
    let _ended = shell.run(&["cancel", &id, "--now", "--yes"])?;
    Ok(())
}

fn words_of_commands(shell: &Shell<'_>) -> Result<()> {
    let cluster = shell.cluster;
    let text = changed(cluster, "name", "\"victim\"");
    let job = shell.submit(&text, true, "")?.context("no id")?;
    let path = cluster.folder.join("odd.toml").display().to_string();
    let long = "y".repeat(2_000);
    for reason in ODD.into_iter().chain(["a\nb\tc", "\u{1b}[2J", "a\u{202e}b", &long]) {
        let reason = format!("--reason={reason}");
        shell.expect(&["pause", &job, &reason, "--dry-run"], true, "")?;
        shell.expect(&["update", &job, "--priority", "2", &reason], true, "")?;
    }
    for id in ODD {
        shell.expect(&["submit", &path, &format!("--request-id={id}")], true, "")?;
    }
    for id in ["", "a\nb", "\u{1b}[2J", &long] {
        shell.expect(&["submit", &path, &format!("--request-id={id}")], false, "request id")?;
    }
    for name in ODD.into_iter().filter(|name| !name.starts_with('-')) {
        shell.expect(&["node", "show", name], false, "node")?;
        shell.expect(&["node", "lost", name, "--yes"], false, "node")?;
        shell.expect(&["show", name], false, "job")?;
    }
    let odd: Vec<OsString> = vec![OsString::from_vec(vec![b'a', 0xff, 0xfe])];
    for args in [vec!["show"], vec!["submit"], vec!["cancel", "job-1", "--reason"]] {
        let args: Vec<OsString> = args.into_iter().map(OsString::from).chain(odd.clone()).collect();
        let output = shell.run(&args)?;
        let code = output.status.code();
        ensure!(matches!(code, Some(2 | 3)), "bytes that are no UTF-8: {code:?} {args:?}");
    }
    Ok(())
}

/// Names become files only in their own folder.
fn names_of_files(shell: &Shell<'_>) -> Result<()> {
    let cluster = shell.cluster;
    let dir = cluster.folder.join("pki").display().to_string();
    let count = || -> Result<usize> { Ok(fs::read_dir(&dir)?.count()) };
    let before = count()?;
    let long = "z".repeat(300);
    for name in ODD.into_iter().chain(["..", ".", "a/b", "a\nb", &long]) {
        for role in ["agent", "operator", "user", "admin"] {
            let args = ["cert", "issue", "--dir", &dir, role, "--", name];
            shell.expect(&args, false, "name")?;
        }
    }
    ensure!(count()? == before, "a certificate was made");
    let place = cluster.folder.join("copies");
    fs::create_dir(&place)?;
    for name in ODD.into_iter().filter(|name| !name.contains('/')) {
        let path = place.join(name).display().to_string();
        shell.expect(&["snapshot", "save", &path], true, "")?;
        shell.expect(&["snapshot", "verify", &path], true, "")?;
    }
    let names = ODD.into_iter().filter(|name| !name.contains('/')).count();
    ensure!(fs::read_dir(&place)?.count() == names, "a copy lies elsewhere");
    for path in ["..", "/", "", "/no/such/folder/x"] {
        shell.expect(&["snapshot", "save", path], false, "")?;
    }
    let config = cluster.folder.join("odd-master.toml");
    for policy in ODD.into_iter().chain(["", "a\nb", "\u{1b}[2J"]) {
        fs::write(&config, format!("[rounds]\npolicy = {}\n", quoted(policy)))?;
        let path = config.display().to_string();
        shell.expect(&["config", "check", "--master", &path], false, "policy")?;
    }
    Ok(())
}

/// Every table keeps its columns, every JSON parses, and nothing moves the cursor.
fn listings(shell: &Shell<'_>) -> Result<()> {
    for command in ["ps", "nodes", "events", "audit", "rounds", "roles"] {
        for format in ["table", "wide"] {
            let output = shell.run(&[command, "-o", format])?;
            ensure!(output.status.success(), "{command}: {output:?}");
            let text = String::from_utf8(output.stdout)?;
            ensure!(!has_controls(&text), "{command} shows control characters");
            let columns = |line: &str| line.matches('\t').count();
            let heading = text.lines().next().map(columns).context("no heading")?;
            for line in text.lines() {
                ensure!(columns(line) == heading, "{command} -o {format}: {line:?}");
            }
            ensure!(heading > 0 && text.lines().count() > 1, "{command} shows nothing: {text}");
        }
        shell.json(&[command])?;
    }
    for job in shell.json(&["ps"])?["jobs"].as_array().context("no jobs")? {
        let id = job["id"].as_str().context("no id")?;
        for command in ["show", "why"] {
            let output = shell.run(&[command, id])?;
            ensure!(output.status.success(), "{command} {id}: {output:?}");
            let text = String::from_utf8(output.stdout)?;
            ensure!(!has_controls(&text), "{command} {id}: {text:?}");
            shell.json(&[command, id])?;
        }
    }
    Ok(())
}

#[test]
fn hostile_names_in_every_field_break_nothing() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[2.0]))?;
    let folder = cluster.folder.join("elsewhere");
    fs::create_dir(&folder)?;
    let optimus = Binaries::build()?.optimus.clone();
    let shell = Shell { cluster: &cluster, optimus, folder: folder.clone() };
    job_fields(&shell)?;
    run_one(&shell)?;
    words_of_commands(&shell)?;
    names_of_files(&shell)?;
    listings(&shell)?;
    ensure!(fs::read_dir(&folder)?.next().is_none(), "a file was made where optimus was run");
    ensure!(pwned(&cluster.folder)? == Vec::<PathBuf>::new(), "a shell was at work");
    for log in [cluster.master.log(), cluster.agents[0].log()] {
        ensure!(!log.contains('\u{1b}'), "an escape sequence in a log");
    }
    Ok(())
}
