//! Tasks as the Unix users of those who submitted: what each may read and write, and who is refused.
//!
//! The users exist for the agent alone, in an `/etc/passwd` of its own; nothing of this machine is
//! changed. That needs root.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use harness::jobs::{Finish, JobFile};
use harness::process::talk;
use harness::setup::is_root;
use harness::{Cluster, ClusterOptions, wait};
use nix::unistd::{Gid, Uid, chown};
use serde_json::Value;

use crate::common::{MINUTE, wait_job, wait_steps};
use crate::secrets::Person;

/// Name, number of user and group.
const ADA: (&str, u32) = ("optest1", 61_001);
const BOB: (&str, u32) = ("optest2", 61_002);
/// Below `task_uid_min`.
const LOW: (&str, u32) = ("optest3", 413);
/// A second name of root.
const TOOR: (&str, u32) = ("optest4", 0);
/// Ada's and Bob's.
const TEAM: u32 = 61_500;

fn give(path: &Path, uid: u32, gid: u32, mode: u32) -> Result<()> {
    chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// A cluster of one node that knows these users and runs tasks as them; none without root.
fn cluster() -> Result<Option<Cluster>> {
    if !is_root() {
        talk("skipped: tasks of several users need root");
        return Ok(None);
    }
    let mut options = ClusterOptions::quick(&[4.0]);
    options.agent_toml += "task_user_from = \"submitter\"\n";
    let mut cluster = Cluster::prepare(&options)?;
    let people = [ADA, BOB, LOW, TOOR];
    let home = cluster.folder.join("home").display().to_string();
    let mut users = vec![fs::read_to_string("/etc/passwd")?];
    users.extend(people.map(|(name, id)| format!("{name}:x:{id}:{id}::{home}/{name}:/bin/sh\n")));
    let mut groups = vec![fs::read_to_string("/etc/group")?];
    groups.extend(people.map(|(name, id)| format!("{name}:x:{id}:\n")));
    groups.push(format!("opteam:x:{TEAM}:{},{}\n", ADA.0, BOB.0));
    fs::write(cluster.folder.join("passwd"), users.concat())?;
    fs::write(cluster.folder.join("group"), groups.concat())?;
    let script = "mount --bind \"$1/passwd\" /etc/passwd && mount --bind \"$1/group\" /etc/group \
                  && shift && exec \"$@\"";
    let folder = cluster.folder.display().to_string();
    let words = ["unshare", "--mount", "sh", "-c", script, "sh", &folder];
    cluster.agents[0].through = words.map(str::to_owned).to_vec();
    for (name, (_, id)) in [("ada", ADA), ("bob", BOB)] {
        let folder = cluster.folder.join(name);
        fs::create_dir(&folder)?;
        for inner in ["own", "checkpoints"] {
            fs::create_dir(folder.join(inner))?;
            give(&folder.join(inner), id, id, 0o700)?;
        }
        fs::write(folder.join("team.txt"), "ours\n")?;
        give(&folder.join("team.txt"), 0, TEAM, 0o640)?;
    }
    // What Ada must not read is Bob's, and the reverse.
    for (name, other) in [("ada", BOB), ("bob", ADA)] {
        let folder = cluster.folder.join(name).join("other");
        fs::create_dir(&folder)?;
        fs::write(folder.join("secret"), "not yours\n")?;
        give(&folder.join("secret"), other.1, other.1, 0o600)?;
    }
    // Bob has none, as many have none on a server.
    let home = cluster.folder.join("home").join(ADA.0);
    fs::create_dir_all(&home)?;
    give(&home, ADA.1, ADA.1, 0o700)?;
    let shared = cluster.folder.join("shared");
    fs::create_dir(&shared)?;
    give(&shared, 0, TEAM, 0o2770)?;
    fs::write(cluster.folder.join("rights.py"), include_str!("scripts/rights.py"))?;
    cluster.launch(1)?;
    Ok(Some(cluster))
}

fn job(cluster: &Cluster, name: &str, folder: &str, checkpoints: &Path) -> JobFile {
    let script = cluster.folder.join("rights.py").display().to_string();
    let mut file = JobFile::new(name, &script, &format!("file://{}", checkpoints.display()));
    file.arguments = ["--step-ms", "30"].map(str::to_owned).to_vec();
    file.finish = Finish::Epochs(4000);
    file.epochs_max = 5000;
    file.checkpoint_interval = "5s".to_owned();
    file.workers = (1, 1);
    file.servers = (1, 1);
    let probe = cluster.environment.scripts.join("linear_probe.py").display().to_string();
    let rights = cluster.folder.join(folder).display().to_string();
    file.environment = vec![("RIGHTS_SCRIPT".to_owned(), probe), ("RIGHTS".to_owned(), rights)];
    file
}

fn submit(cluster: &Cluster, person: &Person<'_>, file: &JobFile) -> Result<String> {
    let path = cluster.folder.join(format!("{}.toml", file.name));
    fs::write(&path, file.text(&cluster.environment))?;
    let answer = person.json(&["submit", &path.display().to_string()])?;
    Ok(answer["id"].as_str().with_context(|| format!("no id in {answer}"))?.to_owned())
}

/// What a worker says of its rights.
fn rights(cluster: &Cluster, job: &str) -> Result<Value> {
    wait::until("a worker to say who it is", 2 * MINUTE, || {
        let output = cluster.optimus(["logs", job])?.stdout;
        let text = String::from_utf8_lossy(&output).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix("rights "));
        Ok(line.map(serde_json::from_str).transpose()?)
    })
}

#[test]
fn a_job_has_the_rights_of_who_submitted_it_and_no_other() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let (ada, bob) = (Person::new(&cluster, "user", ADA.0)?, Person::new(&cluster, "user", BOB.0)?);
    let own = |folder: &str| cluster.folder.join(folder).join("checkpoints");
    for (person, folder, (name, id)) in [(&ada, "ada", ADA), (&bob, "bob", BOB)] {
        let id_of = submit(&cluster, person, &job(&cluster, folder, folder, &own(folder)))?;
        let said = rights(&cluster, &id_of)?;
        talk(&format!("{name}: {said}"));
        ensure!(said["uid"] == id && said["gid"] == id, "{said}");
        let groups: Vec<u64> =
            said["groups"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
        ensure!(groups.contains(&u64::from(TEAM)) && !groups.contains(&0), "{said}");
        ensure!(said["user"] == name && said["logname"] == name, "{said}");
        let home = said["home"].as_str().unwrap_or_default();
        let own = cluster.folder.join("home").join(name).display().to_string();
        ensure!(if name == ADA.0 { home == own } else { home.ends_with("/tmp") }, "{said}");
        ensure!(said["own"] == "done" && said["team"] == "done", "{said}");
        ensure!(said["other"] == "Permission denied", "{said}");
        ensure!(said["oom_score_adj"] == "0", "{said}");
        wait_steps(&cluster, &id_of, 5)?;
        wait_job(&cluster, &id_of, "a checkpoint", 2 * MINUTE, |shown| {
            shown["checkpoints"].as_array().is_some_and(|all| !all.is_empty())
        })?;
        person.optimus(&["cancel", &id_of, "--now", "--yes"])?;
        cluster.wait_no_task()?;
    }
    Ok(())
}

#[test]
fn a_checkpoint_folder_is_used_with_the_submitters_groups_or_told_in_words() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    let ada = Person::new(&cluster, "user", ADA.0)?;
    let shared = job(&cluster, "shared", "ada", &cluster.folder.join("shared"));
    let id = submit(&cluster, &ada, &shared)?;
    wait_job(&cluster, &id, "a checkpoint by a right of the group", 2 * MINUTE, |shown| {
        shown["checkpoints"].as_array().is_some_and(|all| !all.is_empty())
    })?;
    ada.optimus(&["cancel", &id, "--now", "--yes"])?;
    cluster.wait_no_task()?;
    // Bob's own.
    let wrong = job(&cluster, "wrong", "ada", &cluster.folder.join("bob/checkpoints"));
    let id = submit(&cluster, &ada, &wrong)?;
    let words = wait::until("words on the checkpoint folder", 2 * MINUTE, || {
        let found =
            [vec!["events", id.as_str()], vec!["why", id.as_str()]].into_iter().map(|args| {
                let output = cluster.optimus(&args)?;
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            });
        let texts: Vec<String> = found.collect::<Result<_>>()?;
        let mut lines = texts.iter().flat_map(|text| text.lines());
        Ok(lines.find(|line| line.contains("checkpoint folder")).map(str::to_owned))
    })?;
    talk(&words);
    ensure!(words.contains(ADA.0) && words.contains("ermission denied"), "{words}");
    Ok(())
}

#[test]
fn who_is_no_user_of_the_node_or_too_high_a_one_is_refused_in_words() -> Result<()> {
    let Some(cluster) = cluster()? else { return Ok(()) };
    for (name, word) in [
        ("nobody-here", "there is no user \"nobody-here\""),
        (LOW.0, "below task_uid_min"),
        (TOOR.0, "no task runs as root"),
    ] {
        let person = Person::new(&cluster, "user", name)?;
        let place = cluster.folder.join("shared");
        let id = submit(&cluster, &person, &job(&cluster, name, "ada", &place))?;
        let words = wait::until("a refusal in words", 2 * MINUTE, || {
            let text = cluster.run(["events", &id])?;
            Ok(text.lines().find(|line| line.contains(word)).map(str::to_owned))
        })?;
        talk(&words);
        ensure!(words.contains("n1"), "it does not name the node: {words}");
        ensure!(cluster.tasks().is_empty(), "something runs: {:?}", cluster.tasks());
        person.optimus(&["cancel", &id, "--now", "--yes"])?;
    }
    Ok(())
}
