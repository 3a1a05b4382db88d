//! A data set that a job's file names, served to its workers over rescales: counted.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, ensure};
use harness::binaries::{Binaries, checkout};
use harness::hdfs::{Hdfs, HdfsOptions};
use harness::jobs::{Finish, JobFile};
use harness::setup::Environment;
use harness::{Cluster, ClusterOptions};

use crate::common::{MINUTE, show, submit, wait_job, wait_phase, wait_shape, wait_steps};

const RECORDS: usize = 240_000;
const EPOCHS: usize = 2;

/// One step of one worker, as the counting script wrote it down.
struct Row {
    generation: i64,
    step: i64,
    epoch: usize,
    records: Vec<usize>,
}

/// What all workers of all generations were given.
fn rows(folder: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
        let generation = name.trim_start_matches('g').split('-').next().context("no generation")?;
        let bytes = fs::read(&path)?;
        let number = |word: &[u8]| Ok(i64::from_le_bytes(word.try_into()?));
        let numbers: Vec<i64> = bytes.chunks_exact(8).map(number).collect::<Result<_>>()?;
        let mut at = 0;
        while let Some([step, epoch, count]) = numbers.get(at..at + 3) {
            let end = at + 3 + usize::try_from(*count)?;
            // A process that was ended may have left half a row, of a step that led nowhere.
            let Some(records) = numbers.get(at + 3..end) else { break };
            rows.push(Row {
                generation: generation.parse()?,
                step: *step,
                epoch: usize::try_from(*epoch)?,
                records: records.iter().map(|n| Ok(usize::try_from(*n)?)).collect::<Result<_>>()?,
            });
            at = end;
        }
    }
    Ok(rows)
}

/// Every record once in every epoch, along the line of steps that led to the end: those of a
/// generation up to the checkpoint that the next one went on from.
fn each_once(rows: &[Row]) -> Result<()> {
    let mut first: BTreeMap<i64, i64> = BTreeMap::new();
    for row in rows {
        let step = first.entry(row.generation).or_insert(row.step);
        *step = row.step.min(*step);
    }
    let mut times = vec![vec![0_u32; RECORDS]; EPOCHS];
    for row in rows {
        let mut later = first.range(row.generation + 1..).map(|(_, step)| *step);
        if later.any(|begun| begun <= row.step) {
            continue;
        }
        let epoch = times.get_mut(row.epoch).context("an epoch too many")?;
        for record in &row.records {
            *epoch.get_mut(*record).context("a record that is none")? += 1;
        }
    }
    for (epoch, times) in times.iter().enumerate() {
        let wrong = times.iter().enumerate().find(|(_, times)| **times != 1);
        ensure!(wrong.is_none(), "epoch {epoch}, record and times: {wrong:?}");
    }
    Ok(())
}

/// The script that counts, where the tasks' user may read it, and the folder for what it counts.
/// Its 600 steps take half a minute at least, so that every rescale comes before the end.
fn counting(cluster: &Cluster, name: &str, data: String) -> Result<JobFile> {
    let script = cluster.environment.scripts.join("count_records.py");
    fs::copy(checkout().join("agent/python/tests/scripts/count_records.py"), &script)?;
    let counted = cluster.folder.join(format!("counted-{name}"));
    fs::create_dir(&counted)?;
    fs::set_permissions(&counted, Permissions::from_mode(0o777))?;
    let mut file = JobFile::new(name, "count_records.py", &cluster.checkpoints());
    file.arguments = vec![counted.display().to_string(), "0.05".to_owned()];
    file.batch = "global = 800".to_owned();
    file.finish = Finish::Epochs(u32::try_from(EPOCHS)?);
    file.data = data;
    Ok(file)
}

/// A set of numbered lines in three files.
fn numbers(cluster: &Cluster) -> Result<PathBuf> {
    let set = cluster.folder.join("numbers");
    fs::create_dir(&set)?;
    for part in 0..3 {
        let numbers = (part * RECORDS / 3..(part + 1) * RECORDS / 3).map(|n| format!("{n}\n"));
        fs::write(set.join(format!("part {part}")), numbers.collect::<String>())?;
    }
    Ok(set)
}

/// Trains through some shapes to the end, and counts.
fn counted(cluster: &Cluster, file: &JobFile, url: &str, shapes: &[(u32, u32)]) -> Result<()> {
    let job = submit(cluster, file)?;
    for (servers, workers) in shapes {
        wait_steps(cluster, &job, 20)?;
        let (p, w) = (servers.to_string(), workers.to_string());
        cluster.run(["resize", &job, "--servers", &p, "--workers", &w, "--pin"])?;
        wait_shape(cluster, &job, &format!("{servers}+{workers}"))?;
    }
    wait_phase(cluster, &job, "COMPLETED", 4 * MINUTE)?;
    let shown = &show(cluster, &job)?["data"];
    ensure!(shown["url"] == url && shown["format"] == "lines", "{shown}");
    ensure!(shown["records"] == RECORDS, "{shown}");
    ensure!(shown["chunks"].as_u64() > Some(20), "{shown}");
    each_once(&rows(&cluster.folder.join(format!("counted-{}", file.name)))?)
}

#[test]
fn every_record_is_served_once_over_three_rescales() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[3.0, 3.0]))?;
    let url = format!("file://{}", numbers(&cluster)?.display());
    let data = format!("url = \"{url}\"\nformat = \"lines\"\nchunk = \"64KiB\"");
    let mut file = counting(&cluster, "data", data)?;
    file.workers = (1, 4);
    counted(&cluster, &file, &url, &[(1, 4), (2, 2), (1, 3)])
}

#[test]
fn a_set_that_was_imported_into_hdfs_is_served_over_rescales() -> Result<()> {
    let hdfs = Hdfs::start(&HdfsOptions::default()).map_err(|words| anyhow!(words))?;
    hdfs.make_dir("/ckpt").map_err(|words| anyhow!(words))?;
    let conf = hdfs.conf_dir().display().to_string();
    let mut options = ClusterOptions::quick(&[3.0, 3.0]);
    let line = format!("hadoop_conf_dir = {conf:?}\n");
    options.master_toml = line.clone() + &options.master_toml;
    options.agent_toml = line + &options.agent_toml;
    let cluster = Cluster::start(&options)?;
    let url = hdfs.url("/data/numbers");
    let imported = Command::new(&Binaries::build()?.agent)
        .arg("import-data")
        .arg(numbers(&cluster)?)
        .args([url.as_str(), "--format", "lines", "--chunk", "64KiB"])
        .env("HADOOP_CONF_DIR", &conf)
        .output()?;
    ensure!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    let chunk = hdfs.look("/data/numbers/chunk-000000").map_err(|words| anyhow!(words))?;
    ensure!(chunk.is_some_and(|found| found.closed && found.replication == 2), "{chunk:?}");
    let data = format!("url = \"{url}\"\nformat = \"lines\"");
    let mut file = counting(&cluster, "far", data)?;
    file.checkpoint = hdfs.url("/ckpt");
    file.workers = (1, 4);
    counted(&cluster, &file, &url, &[(1, 3), (2, 2)])
}

#[test]
fn a_set_that_is_damaged_or_not_the_users_fails_the_job_in_words() -> Result<()> {
    let cluster = Cluster::start(&ClusterOptions::quick(&[3.0]))?;
    let damaged = cluster.folder.join("damaged.rec");
    fs::write(&damaged, "no RecordIO at all")?;
    let secret = cluster.folder.join("secret");
    fs::write(&secret, "1\n2\n")?;
    fs::set_permissions(&secret, Permissions::from_mode(0o600))?;
    let mut cases = vec![("damaged", damaged, "recordio", "damaged at byte 0")];
    // The agent may read everything; a job may not read by it what it may not read itself.
    if harness::setup::is_root() {
        cases.push(("secret", secret, "lines", "Permission denied"));
    }
    for (name, place, format, words) in cases {
        let data = format!("url = \"file://{}\"\nformat = \"{format}\"", place.display());
        let mut file = counting(&cluster, name, data)?;
        file.restarts_max = 0;
        let job = submit(&cluster, &file)?;
        wait_job(&cluster, &job, "the job to fail", MINUTE, |shown| shown["phase"] == "FAILED")?;
        let shown = show(&cluster, &job)?.to_string();
        ensure!(shown.contains(words) && shown.contains(name), "{shown}");
    }
    Ok(())
}

/// A script alone makes the same index as an agent, so that what is tried at a desk holds.
#[test]
fn the_package_and_the_agent_index_alike() -> Result<()> {
    let environment = Environment::ready()?;
    let agent = &Binaries::build()?.agent;
    let folder = tempfile::tempdir()?;
    let python = |arguments: &[&str]| -> Result<Vec<u8>> {
        let output = Command::new(&environment.python)
            .args(arguments)
            .env("PYTHONPATH", &environment.package)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(output.stdout)
    };
    let digits = folder.path().join("digits.rec").display().to_string();
    let script = environment.scripts.join("digits_records.py").display().to_string();
    python(&[&script, "--write", &digits, "--samples", "300"])?;
    let fixed = folder.path().join("fixed").display().to_string();
    fs::write(&fixed, vec![7; 7000])?;
    let scripts = environment.scripts.display().to_string();
    let scan = "import sys; from optimus import index; place, format, size = sys.argv[1:]; \
                found = index.scan(place, format, int(size) or None, 4096); \
                sys.stdout.buffer.write(found.encode())";
    for (place, format, size) in [
        (&digits, "recordio", "0"),
        (&fixed, "fixed", "7"),
        (&scripts, "lines", "0"),
        (&scripts, "files", "0"),
    ] {
        let mut command = Command::new(agent);
        command.args(["index-data", place, "--format", format, "--chunk", "4096B"]);
        if size != "0" {
            command.args(["--record-bytes", size]);
        }
        let output = command.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let by_package = python(&["-c", scan, place, format, size])?;
        ensure!(output.stdout == by_package, "{format}: the two indexes differ");
    }
    Ok(())
}
