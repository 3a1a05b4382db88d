use std::path::Path;

use model::options::DataFormat;

use super::*;

const GOOD: &str = r#"
name = "digits-cnn"
command = ["python3", "train.py", "--lr", "0.05"]
framework = "mxnet"
mode = "sync"
epochs_max = 60
checkpoint = "file:///srv/ckpt"
[batch]
global = 256
[worker]
cpus = 1.0
memory = "512MiB"
count = { min = 1, max = 4 }
[server]
cpus = 0.5
memory = "256MiB"
[convergence]
threshold = 0.01
patience = 3
"#;

fn read(text: &str) -> Result<JobSpec, Vec<Located>> {
    parse(text, Path::new("/home/anna/job")).map(|(spec, _, _)| spec)
}

/// Faults of the good file with one piece replaced, as `line field: problem; remedy`.
fn with(piece: &str, other: &str) -> Vec<String> {
    assert!(GOOD.contains(piece), "{piece:?} is not in the good file");
    faults(&GOOD.replacen(piece, other, 1))
}

fn faults(text: &str) -> Vec<String> {
    let found = read(text).err().unwrap_or_default();
    let line = |line: Option<usize>| line.map_or_else(|| "-".to_owned(), |line| line.to_string());
    found.iter().map(|located| format!("{} {}", line(located.line), located.fault)).collect()
}

#[test]
fn a_good_file_becomes_a_job_with_defaults() {
    let job = read(GOOD).unwrap();
    assert_eq!(job.name, "digits-cnn");
    assert_eq!(job.working_directory, "/home/anna/job");
    assert_eq!(job.batch, Batch::Global(256));
    assert_eq!(job.worker, Resources::new(1000, 512 << 20, 0));
    assert_eq!(job.workers, Bounds { min: 1, max: 4 });
    assert_eq!(job.servers, Bounds { min: 1, max: 16 });
    assert_eq!(job.finish, Finish::Convergence { threshold: 0.01, patience: 3 });
    assert_eq!((job.checkpoint_interval_s, job.restarts_max), (600, 10));
    assert_eq!(job.on_disconnect, OnDisconnect::Keep);
    assert_eq!(job.model_key, None);
}

#[test]
fn every_optional_key_is_read() {
    let text = GOOD.replace(
        "epochs_max = 60",
        "epochs_max = 60\nworking_directory = '../data/./x'\npriority = 2\nmodel_key = 'm'\n\
         checkpoint_interval = '1m30s'\non_disconnect = 'replace'\nrestarts_max = 0",
    );
    let text = text.replace("cpus = 0.5", "cpus = 0.5\ngpus = 1\nnamed = { licence = 2 }")
        + "[environment]\nLR = \"0.1 \\\"x\\\" \\\\ \\u0001\"\n";
    let job = read(&text).unwrap();
    assert_eq!(job.working_directory, "/home/anna/data/x");
    assert!((job.priority - 2.0).abs() < 1e-9);
    assert_eq!(job.checkpoint_interval_s, 90);
    assert_eq!(job.on_disconnect, OnDisconnect::Replace);
    assert_eq!(job.restarts_max, 0);
    assert_eq!(job.server.gpus, 1);
    assert_eq!(job.server.named("licence"), 2);
    assert_eq!(job.environment["LR"], "0.1 \"x\" \\ \u{1}");
}

#[test]
fn a_curve_of_the_users_own_is_read_and_its_syntax_checked() {
    let own = |curve: &str| GOOD.replace("patience = 3", &format!("patience = 4\ncurve = {curve}"));
    let curve = "a/(k+b)+c".to_owned();
    let job = read(&own("'a/(k+b)+c'")).unwrap();
    assert_eq!(job.finish, Finish::ConvergenceBy { threshold: 0.01, patience: 4, curve });
    let line = own("").lines().position(|line| line.starts_with("curve")).unwrap() + 1;
    for (curve, words) in [
        ("'a/(k+b'", "character "),
        ("'2k'", "write 2*k"),
        ("'0.5'", "no free constant"),
        ("''", "is empty"),
        ("7", "is a number, not a text"),
    ] {
        // Beside another fault, and once.
        let found = faults(&own(curve).replace("patience = 4", "patience = 0"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("convergence.patience"), "{found:?}");
        let start = format!("{line} convergence.curve: ");
        assert!(found[1].starts_with(&start) && found[1].contains(words), "{found:?}");
    }
    let long = faults(&own(&format!("'{}a'", "a+".repeat(300))));
    assert_eq!(long.len(), 1, "{long:?}");
    let alone = own("'a/k'").replace("threshold = 0.01\n", "");
    assert!(faults(&alone)[0].contains("convergence.threshold: is missing"));
}

#[test]
fn a_job_of_so_many_epochs_needs_no_convergence() {
    let start = GOOD.split("[convergence]").next().unwrap();
    let job = read(&start.replace("epochs_max = 60", "epochs = 7")).unwrap();
    assert_eq!((job.finish, job.epochs_max), (Finish::Epochs(7), 7));
}

#[test]
fn the_default_bounds_follow_a_small_batch() {
    let text = GOOD.replace("count = { min = 1, max = 4 }", "").replace("256\n", "8\n");
    assert_eq!(read(&text).unwrap().workers, Bounds { min: 1, max: 8 });
}

/// A piece of the good file, what stands there instead, and the one fault.
const WRONG: &[(&str, &str, &str)] = &[
    (
        "epochs_max = 60",
        "epoch_max = 60",
        "6 epoch_max: is not a known key; did you mean epochs_max?",
    ),
    ("\"sync\"", "\"synch\"", "5 mode: \"synch\" is not known; did you mean \"sync\"?"),
    ("\"mxnet\"", "\"tensorflow\"", "4 framework: \"tensorflow\" is not known; write \"mxnet\""),
    ("name = \"digits-cnn\"", "name = 7", "2 name: is a number, not a text; put it in quotes"),
    (
        "\"512MiB\"",
        "512",
        "12 worker.memory: 512 has no unit; write \"512MiB\", \"512GiB\" or \"512B\"",
    ),
    (
        "\"512MiB\"",
        "\"512\"",
        "12 worker.memory: \"512\" is not a size; write 512MiB, 1.5GB or 1024B",
    ),
    (
        "cpus = 1.0",
        "cpus = 0.0001",
        "11 worker.cpus: 0.0001 is not a number of CPUs; give a decimal of at most three places, such as 1.5",
    ),
    (
        "cpus = 1.0",
        "cpus = 0",
        "11 worker.cpus: is zero; give the cores of one task, at least 0.001",
    ),
    ("cpus = 1.0", "cpus = 'one'", "11 worker.cpus: a text is not a number; write such as 1.5"),
    ("global = 256", "global = 0", "9 batch.global: 0 is out of range; give 1 to 16777216"),
    ("global = 256", "global = -1", "9 batch.global: -1 is out of range; give 0 to 4294967295"),
    ("global = 256", "global = 2.5", "9 batch.global: 2.5 is not a whole number; write such as 4"),
    (
        "global = 256",
        "global = 3",
        "9 batch.global: 3 samples cannot feed worker.count.max = 4; raise the batch or lower worker.count.max to at most the batch",
    ),
    (
        "global = 256",
        "global = 256\nper_worker = 4",
        "8 batch: has both global and per_worker; keep one: global is shared among the workers, per_worker is each worker's own",
    ),
    (
        "min = 1, max = 4",
        "min = 5, max = 4",
        "13 worker.count: min 5 is over max 4; swap or correct them",
    ),
    (
        "min = 1, max = 4",
        "min = 1, maximum = 4",
        "13 worker.count.maximum: is not a known key; did you mean worker.count.max?",
    ),
    (
        "file:///srv/ckpt",
        "/srv/ckpt",
        "7 checkpoint: \"/srv/ckpt\" is not a checkpoint location; write file:// or hdfs:// and an absolute folder without '..', such as file:///srv/ckpt or hdfs://nameservice/ckpt",
    ),
    (
        "epochs_max = 60",
        "epochs_max = 60\ncheckpoint_interval = 600",
        "7 checkpoint_interval: 600 has no unit; write \"600s\", \"600m\" or \"600h\"",
    ),
    (
        "epochs_max = 60",
        "epochs_max = 60\ncheckpoint_interval = '1s'",
        "7 checkpoint_interval: 1 is out of range; give 5 to 86400",
    ),
    (
        "epochs_max = 60",
        "epochs_max = 60\ncheckpoint_interval = '9500ms'",
        "7 checkpoint_interval: 9500 ms is not whole seconds; write such as \"90s\"",
    ),
    (
        "epochs_max = 60",
        "epochs_max = 60\nepochs = 3",
        "7 epochs: stands beside [convergence]; keep one: a job ends when it converges, or after a number of epochs",
    ),
    (
        "threshold = 0.01",
        "threshold = nan",
        "18 convergence.threshold: NaN is not a share of the largest loss; give a number between 0 and 1, such as 0.01",
    ),
    ("threshold = 0.01", "", "17 convergence.threshold: is missing; add threshold = 0.01"),
    (
        "epochs_max = 60\n",
        "",
        "- epochs_max: is missing; add epochs_max = 100: a job that never converges must end too",
    ),
    ("name = \"digits-cnn\"\n", "", "- name: is missing; add name = \"…\""),
    (
        "[server]\ncpus = 0.5\nmemory = \"256MiB\"\n",
        "[server]\ncpus = 1\n",
        "- server.memory: is missing; add memory = \"512MiB\" below [server]",
    ),
    (
        "patience = 3",
        "patience = 3\n[environment]\nDMLC_ROLE = \"x\"",
        "20 environment.DMLC_ROLE: is set by the agent; remove it: OPTIMUS_*, DMLC_* and PS_* are reserved",
    ),
    (
        "patience = 3",
        "patience = 3\n[worker.named]\ncpus = 1",
        "20 worker.named.cpus: is not a named resource; write it as worker.cpus",
    ),
];

#[test]
fn wrong_values_name_line_and_remedy() {
    for (piece, other, expected) in WRONG {
        assert_eq!(with(piece, other), [*expected], "{piece:?} -> {other:?}");
    }
}

#[test]
fn all_faults_come_at_once_and_in_order() {
    let text = "name = \"a\\nb\"\ncommand = []\nframework = 'mxnet'\nmode = 'sync'\ncolour = 1\n\
                epochs_max = 0\ncheckpoint = 3\n[worker]\ncpus = '2'\n[server]\nmemory = 5\n\
                [convergence]\nthreshold = 2\n";
    let found = faults(text);
    let fields: Vec<&str> = found.iter().map(|fault| fault.split(": ").next().unwrap()).collect();
    assert_eq!(
        fields,
        [
            "1 name",
            "2 command",
            "5 colour",
            "6 epochs_max",
            "7 checkpoint",
            "9 worker.cpus",
            "11 server.memory",
            "13 convergence.threshold",
            "- worker.memory",
            "- server.cpus",
            "- batch",
        ]
    );
}

#[test]
fn broken_toml_is_a_fault_and_no_panic() {
    for text in [
        "name = ",
        "[worker",
        "= 3",
        "name = 'a' 'b'",
        "a.b.c = {",
        "\u{0}",
        "name = 'a'\nname = 'b'",
    ] {
        let found = faults(text);
        assert!(!found.is_empty(), "{text:?} was taken");
        assert!(found.iter().any(|fault| fault.contains("syntax")), "{text:?}: {found:?}");
    }
}

#[test]
fn odd_names_are_taken_or_refused_by_rule() {
    for name in ["café", "漢字", "🚂", "\u{5d0}\u{5d1}"] {
        assert_eq!(read(&GOOD.replace("digits-cnn", name)).unwrap().name, name);
    }
    for name in ["\\n", "\\t", "\\u202E", "\\u0000", &"x".repeat(300)] {
        assert_eq!(with("digits-cnn", name).len(), 1, "{name:?}");
    }
}

#[test]
fn a_file_cut_anywhere_is_refused_until_nothing_needed_is_missing() {
    let needed = GOOD
        .find(
            "
patience",
        )
        .unwrap();
    for end in (0..needed).filter(|end| GOOD.is_char_boundary(*end)) {
        let whole = GOOD[end..needed].chars().all(|c| "01".contains(c));
        assert!(read(&GOOD[..end]).is_err() || whole, "{end}");
    }
}

#[test]
fn a_data_set_is_read_and_all_its_faults_are_named() {
    let data = |lines: &str| {
        let text = format!("{GOOD}[data]\n{lines}");
        let parsed = parse(&text, Path::new("/x")).map(|(_, options, _)| options.data);
        parsed.map_err(|faults| {
            let words: Vec<_> = faults.iter().map(|located| located.fault.to_string()).collect();
            words.join("\n")
        })
    };
    let spec = |url: &str, format, chunk_bytes| {
        Ok(Some(model::options::DataSpec { url: url.to_owned(), format, chunk_bytes }))
    };
    assert_eq!(
        data("url = 'file:///srv/a b'\nformat = 'recordio'"),
        spec("file:///srv/a b", DataFormat::RecordIo, 128 << 20)
    );
    assert_eq!(
        data("url = 'hdfs://ns/x'\nformat = 'fixed'\nrecord_bytes = 12\nchunk = '1MiB'"),
        spec("hdfs://ns/x", DataFormat::Fixed(12), 1 << 20)
    );
    assert_eq!(parse(GOOD, Path::new("/x")).unwrap().1.data, None);
    let on_nan = |text: &str| parse(text, Path::new("/x")).map(|(_, _, on_nan)| on_nan);
    assert_eq!(on_nan(GOOD).unwrap(), OnNan::Alert);
    assert_eq!(on_nan(&format!("on_nan = \"roll_back\"\n{GOOD}")).unwrap(), OnNan::RollBack);
    assert_eq!(on_nan(&format!("on_nan = \"hope\"\n{GOOD}")).unwrap_err().len(), 1);
    let all = |lines: &str, words: &[&str]| {
        let faults = data(lines).unwrap_err();
        assert_eq!(faults.lines().count(), words.len(), "{faults}");
        for word in words {
            assert!(faults.contains(word), "{faults}");
        }
    };
    all("", &["data.url: is missing", "data.format: is missing"]);
    all(
        "chunk = '1KiB'\nformat = 'fixed'",
        &[
            "data.url: is missing",
            "data.record_bytes: is missing",
            "data.chunk: 1024 bytes are out of range",
        ],
    );
    all(
        "url = 's3://x/y'\nformat = 'lines'\nrecord_bytes = 3",
        &[
            "data.url: \"s3://x/y\" is not a place",
            "data.record_bytes: stands beside format = \"lines\"",
        ],
    );
    all(
        "url = 'file:///a/../b'\nformat = 'fixed'\nrecord_bytes = 0",
        &["data.url", "data.record_bytes: 0 is out of range"],
    );
    all("url = 'file:///a'\nformat = 'parquet'", &["data.format"]);
}
