//! Writers that die by SIGKILL, at known points of a save, and what they leave.
//!
//! The writer is this very program, started again for one "test" that no run takes by itself. At
//! each point it says so on stdout and waits for a line, so that it dies where it is meant to.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use model::agent::Part;
use model::{CheckpointId, Generation, JobId};
use storage::checkpoint::{self, Manifest};
use storage::{HdfsSettings, Storage, UploadOptions, open_with};

use crate::support::{Pattern, healthy, names, settings, storage};

const BLOCK: u64 = 64 * 1024;
const SMALL: UploadOptions =
    UploadOptions { replication: None, block_bytes: Some(BLOCK), spread_later: false };
const JOB: JobId = JobId(3);
const PARTS: [(&str, u64); 2] = [("parameters.npz", 2 * BLOCK + 77), ("server-0.npz", 1000)];

/// What a writer says at a point, apart from what the test runner says.
const POINT: &str = "@ ";

fn variable(name: &str) -> String {
    std::env::var_os(name).unwrap().into_string().unwrap()
}

/// Says where it is and waits to be let on.
fn point(what: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "\n{POINT}{what}").unwrap();
    out.flush().unwrap();
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line).unwrap();
    assert!(read > 0, "the one who started it is gone");
}

/// A source that stops at a point before every piece.
struct Stepwise(Pattern);

impl Read for Stepwise {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        point("piece");
        // Three pieces for a block, so that some end within it.
        let count = buffer.len().min(usize::try_from(BLOCK / 3 + 1).unwrap());
        self.0.read(&mut buffer[..count])
    }
}

/// The writer: one save, from an empty folder to the published manifest.
#[test]
#[ignore = "the child of a_kill_at_any_point_of_a_save_never_costs_the_last_whole_checkpoint"]
fn writer() {
    let base = variable("WRITER_BASE");
    let checkpoint = CheckpointId(variable("WRITER_CHECKPOINT").parse().unwrap());
    let conf_dir = Some(PathBuf::from(variable("WRITER_CONF")));
    let settings = HdfsSettings { conf_dir, ..HdfsSettings::default() };
    let storage = open_with(&base, &settings).unwrap();
    let generation = Generation(1);
    let directory = checkpoint::directory(JOB, generation, checkpoint);
    point("begin");
    storage.make_dir(&directory).unwrap();
    let mut parts = Vec::new();
    for (file, bytes) in PARTS {
        let path = format!("{directory}/{file}");
        let sum = storage.upload(&path, &mut Stepwise(Pattern::new(bytes)), SMALL).unwrap();
        parts.push(Part { file: file.to_owned(), bytes: sum.bytes, crc32: sum.crc32 });
        point("part");
    }
    let (step, epoch, epoch_position) = (checkpoint.0, 0, 0);
    let url = format!("{base}/{directory}");
    let manifest = Manifest {
        job: JOB,
        generation,
        checkpoint,
        step,
        epoch,
        epoch_position,
        directory,
        parts,
    };
    checkpoint::publish_manifest(storage.as_ref(), &base, &url, manifest).unwrap();
    point("published");
}

struct Writer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Writer {
    fn start(path: &str, checkpoint: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::writer", "--ignored", "--nocapture"])
            .env("WRITER_BASE", healthy().url(path))
            .env("WRITER_CHECKPOINT", checkpoint.to_string())
            .env("WRITER_CONF", healthy().conf_dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdin, stdout }
    }

    /// Its next point; none once it has ended.
    fn next(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.stdout.read_line(&mut line).unwrap() > 0 {
            if let Some(point) = line.trim_end().strip_prefix(POINT) {
                return Some(point.to_owned());
            }
            line.clear();
        }
        None
    }

    fn go_on(&mut self) {
        writeln!(self.stdin).unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The newest whole checkpoint of the job, which must be readable at every time.
fn newest(storage: &dyn Storage) -> u64 {
    let (found, _) = checkpoint::newest_valid(storage, JOB).unwrap();
    found.map_or(0, |manifest| manifest.checkpoint.0)
}

#[test]
fn a_kill_at_any_point_of_a_save_never_costs_the_last_whole_checkpoint() {
    let path = "/killed/points";
    let storage = storage(healthy(), path);
    // An undisturbed save first: it tells how many points there are.
    let mut points = Vec::new();
    let mut writer = Writer::start(path, 1);
    while let Some(point) = writer.next() {
        points.push(point);
        writer.go_on();
    }
    assert!(writer.child.wait().unwrap().success());
    assert_eq!(points.last().map(String::as_str), Some("published"));
    assert!(points.len() >= 12, "{points:?}");
    assert_eq!(newest(storage.as_ref()), 1);
    let (mut last, mut number) = (1, 1);
    // At the point itself, and running towards the next one.
    for (kill_at, running) in (0..points.len()).flat_map(|at| [(at, false), (at, true)]) {
        number += 1;
        let mut writer = Writer::start(path, number);
        for _ in 0..kill_at {
            writer.next().unwrap();
            writer.go_on();
        }
        writer.next().unwrap();
        if running {
            writer.go_on();
        }
        writer.kill();
        let found = newest(storage.as_ref());
        let at = &points[kill_at];
        assert!(found == last || found == number, "{at} {kill_at}: {found} after {last}");
        // Not published before the point of that name, and there after it.
        match at.as_str() {
            "published" => assert_eq!(found, number),
            _ if !running || points[kill_at + 1] != "published" => assert_eq!(found, last),
            _ => {}
        }
        last = found;
    }
    // A healthy save is whole again.
    let mut writer = Writer::start(path, number + 1);
    while writer.next().is_some() {
        writer.go_on();
    }
    assert_eq!(newest(storage.as_ref()), number + 1);
}

/// The writer dies in the middle of a block and leaves an open file, held for it for an hour: the
/// next try at the same part does not touch that.
#[test]
fn the_next_try_after_a_kill_writes_elsewhere_and_never_appends() {
    let path = "/killed/block";
    let storage = storage(healthy(), path);
    let mut writer = Writer::start(path, 1);
    for _ in 0..4 {
        assert_ne!(writer.next().unwrap(), "part");
        writer.go_on();
    }
    assert_eq!(writer.next().unwrap(), "piece");
    writer.kill();
    let directory = checkpoint::directory(JOB, Generation(1), CheckpointId(1));
    let left = names(storage.as_ref(), &directory);
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].starts_with(".unpublished-parameters.npz."), "{left:?}");
    let look = |name: &str| healthy().look(&format!("{path}/{directory}/{name}")).unwrap().unwrap();
    let before = look(&left[0]);
    assert!(!before.closed, "the dead writer still holds it: {before:?}");
    let part = format!("{directory}/parameters.npz");
    let sum = storage.upload(&part, &mut Pattern::new(BLOCK + 5), SMALL).unwrap();
    assert_eq!(storage.size_and_crc32(&part).unwrap(), sum);
    assert_eq!(look(&left[0]), before, "nobody touched it");
    // The folder goes as a whole, open file and all.
    let url = healthy().url(&format!("{path}/{directory}"));
    checkpoint::remove_with(&settings(healthy()), JOB, None, &url).unwrap();
    assert_eq!(names(storage.as_ref(), "j3"), Vec::<String>::new());
}
