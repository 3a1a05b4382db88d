//! Records of Pollux's simulator: excerpts beside this test, and the whole files where they are.

use std::path::PathBuf;

use scheduler::goodput::{Gradient, Limits, Throughput};
use serde_json::Value;

/// The records of an excerpt, and of the whole file where there is one.
#[expect(clippy::print_stderr, reason = "a part that is left out is said so")]
pub(crate) fn records(name: &str) -> Vec<Value> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/pollux").join(name);
    let mut records = read(&beside);
    let whole = data().join("pollux/golden").join(name);
    if whole.is_file() {
        records.extend(read(&whole));
    } else {
        eprintln!("{} is not here: only the excerpt is tested", whole.display());
    }
    records
}

fn read(path: &PathBuf) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "says where the larger data of tests lies")]
fn data() -> PathBuf {
    std::env::var("OPTIMUS_DATA").map_or_else(
        |_| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    )
}

/// Limits of the applications' batches, with accumulation.
pub(crate) fn limits(app: &Value) -> Limits {
    let (initial, batch_max, local_min, local_max) = match app.as_str().unwrap() {
        "cifar10" => (128, 4096, 32, 1024),
        "ncf" => (256, 32768, 32, 32768),
        "deepspeech2" => (20, 640, 10, 80),
        "bert" => (12, 384, 4, 12),
        "yolov3" => (8, 512, 4, 8),
        "imagenet" => (200, 12800, 20, 200),
        other => panic!("no application {other}"),
    };
    Limits { initial, batch_max, local_min, local_max, accumulation: true }
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

pub(crate) fn whole(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

pub(crate) fn model(value: &Value) -> Throughput {
    let at: Vec<f64> = list(value).iter().map(number).collect();
    let [alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma] = at[..] else {
        panic!("{at:?}")
    };
    Throughput { alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma }
}

pub(crate) fn gradient(value: &Value) -> Gradient {
    Gradient { sqr: number(&value[0]), var: number(&value[1]) }
}
