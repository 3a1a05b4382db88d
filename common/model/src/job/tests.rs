use super::*;

fn good() -> JobSpec {
    JobSpec {
        name: "digits".to_owned(),
        command: vec!["python3".to_owned(), "train.py".to_owned()],
        working_directory: "/srv".to_owned(),
        framework: Framework::Mxnet,
        mode: Mode::Sync,
        batch: Batch::Global(64),
        worker: Resources::new(1000, 1 << 28, 0),
        server: Resources::new(500, 1 << 28, 0),
        workers: Bounds { min: 1, max: 8 },
        servers: Bounds { min: 1, max: 4 },
        finish: Finish::Convergence { threshold: 0.01, patience: 3 },
        epochs_max: 100,
        checkpoint: "file:///srv/ckpt".to_owned(),
        checkpoint_interval_s: 600,
        environment: BTreeMap::new(),
        priority: 1.0,
        on_disconnect: OnDisconnect::Keep,
        restarts_max: 5,
        model_key: None,
    }
}

#[test]
fn a_good_job_has_no_fault() {
    assert_eq!(good().faults(), []);
}

#[test]
fn all_faults_come_at_once() {
    let mut job = good();
    job.name = "a\u{1b}[31m".to_owned();
    job.command.clear();
    job.priority = f64::NAN;
    job.epochs_max = 0;
    job.finish = Finish::Convergence { threshold: f64::INFINITY, patience: 0 };
    job.workers = Bounds { min: 3, max: 2 };
    job.checkpoint = "file:///srv/../etc".to_owned();
    job.environment.insert("DMLC_ROLE".to_owned(), "worker".to_owned());
    job.worker.cpus_milli = u64::MAX;
    let fields: Vec<_> = job.faults().into_iter().map(|fault| fault.field).collect();
    for field in [
        "name",
        "command",
        "priority",
        "epochs_max",
        "convergence.threshold",
        "convergence.patience",
        "workers",
        "checkpoint",
        "environment.DMLC_ROLE",
        "worker.cpus",
    ] {
        assert!(fields.iter().any(|found| found == field), "{field} missing in {fields:?}");
    }
}

#[test]
fn checkpoints_may_lie_on_hdfs() {
    let with = |checkpoint: &str| JobSpec { checkpoint: checkpoint.to_owned(), ..good() };
    for fine in ["hdfs://prod/user/ml/ckpt", "hdfs://nn1.lan:8020/ckpt", "file:///srv/ckpt"] {
        assert_eq!(with(fine).faults(), [], "{fine}");
    }
    for wrong in ["hdfs://prod", "hdfs:///ckpt", "hdfs://prod/../etc", "webhdfs://prod/ckpt"] {
        let fields: Vec<_> = with(wrong).faults().into_iter().map(|f| f.field).collect();
        assert_eq!(fields, ["checkpoint"], "{wrong}");
    }
}

#[test]
fn a_curve_of_the_users_own_is_bounded_and_converges_alike() {
    let by = |threshold: f64, curve: &str| {
        let mut job = good();
        job.finish = Finish::ConvergenceBy { threshold, patience: 3, curve: curve.to_owned() };
        job
    };
    let job = by(0.01, "a/(k+b)+c");
    assert_eq!(job.faults(), []);
    assert_eq!(job.finish.convergence(), good().finish.convergence());
    assert_eq!(job.finish.curve(), Some("a/(k+b)+c"));
    let long = "a+".repeat(CURVE_BYTES_MAX);
    for curve in ["", " ", "a/k\n", "a/k\u{202e}", long.as_str()] {
        let fields: Vec<_> = by(2.0, curve).faults().into_iter().map(|f| f.field).collect();
        assert_eq!(fields, ["convergence.threshold", CURVE_FIELD], "{curve:?}");
    }
}

#[test]
fn odd_names_are_refused_and_plain_unicode_is_taken() {
    for (name, taken) in [
        ("café 漢字 🚂", true),
        ("", false),
        ("  ", false),
        ("a\nb", false),
        ("a\tb", false),
        ("a\0b", false),
        ("a\u{202e}b", false),
    ] {
        let mut job = good();
        job.name = name.to_owned();
        assert_eq!(job.faults().is_empty(), taken, "{name:?}");
    }
}

#[test]
fn no_text_of_a_job_is_without_a_bound() {
    let long = "a".repeat(PATH_BYTES_MAX);
    let fields =
        |job: &JobSpec| -> Vec<_> { job.faults().into_iter().map(|fault| fault.field).collect() };
    let mut job = good();
    job.working_directory = format!("/{long}");
    assert_eq!(fields(&job), ["working_directory"]);
    let mut job = good();
    job.checkpoint = format!("file:///{long}");
    assert_eq!(fields(&job), ["checkpoint"]);
    let mut job = good();
    job.worker.named.insert(long, 1);
    assert_eq!(fields(&job), ["worker"]);
}
