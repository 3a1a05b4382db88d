//! A folder of files for the commands that need no master.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fake::{Ran, optimus};

/// A folder that ends with the test.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// With these nodes and jobs in `cluster.json` and `jobs.json`.
    pub(crate) fn of(nodes: &Value, jobs: &Value) -> Self {
        let folder = Self::new();
        folder.write("cluster.json", &json!({ "nodes": nodes }).to_string());
        folder.write("jobs.json", &json!({ "jobs": jobs }).to_string());
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// `optimus` with these words, run in the folder.
    pub(crate) fn run(&self, words: &str) -> Ran {
        Ran::of(&optimus(words).current_dir(self.0.path()).output().unwrap())
    }

    /// Plans the two files with further words.
    pub(crate) fn plan(&self, words: &str) -> Ran {
        self.run(&format!("plan --cluster cluster.json --jobs jobs.json {words}"))
    }

    /// A plan that must be there.
    pub(crate) fn planned(&self, words: &str) -> Value {
        let ran = self.plan(&format!("{words} -o json"));
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
        let plan = ran.json();
        assert_sound(&plan);
        plan
    }
}

/// What holds of every plan.
fn assert_sound(plan: &Value) {
    assert_eq!(plan["schema"], "optimus.plan/1");
    let jobs = plan["jobs"].as_array().unwrap();
    let mut unplaced = Vec::new();
    for job in jobs {
        let sum = |kind: &str| -> u64 {
            let shares = job["placement"].as_array().unwrap();
            shares.iter().map(|share| share[kind].as_u64().unwrap()).sum()
        };
        assert_eq!(job["servers"], sum("servers"), "{job}");
        assert_eq!(job["workers"], sum("workers"), "{job}");
        assert!(!job["reason"].as_str().unwrap().is_empty(), "{job}");
        // Only jobs that go by their goodput have workers without servers.
        if job["servers"] == 0 && plan["policy"] != "pollux" && plan["policy"] != "horizon" {
            assert_eq!(job["workers"], 0, "{job}");
        }
        if job["workers"] == 0 {
            assert_eq!(job["servers"], 0, "{job}");
            assert!(job["steps_per_s"].is_null() && job["transfer_time"].is_null(), "{job}");
            unplaced.push(json!({"id": job["id"], "reason": job["reason"]}));
        }
    }
    assert_eq!(plan["unplaced"], Value::Array(unplaced));
    for stage in ["allocate", "place", "check"] {
        assert!(plan["elapsed_s"][stage].as_f64().unwrap() >= 0.0, "{plan}");
    }
    for share in plan["used"].as_object().unwrap().values() {
        assert!((0.0..=1.0).contains(&share.as_f64().unwrap()), "{plan}");
    }
}

/// One node of 8 CPUs, 32 GB and 2 GPUs.
pub(crate) fn node(id: &str) -> Value {
    json!({"id": id, "resources": {"cpus": 8, "memory_bytes": 32_000_000_000_u64, "gpus": 2}})
}

/// A job whose shape may be anything: sync, batch 40, a second a step.
pub(crate) fn job(id: &str) -> Value {
    json!({
        "id": id,
        "mode": "sync",
        "global_batch": 40,
        "theta": [0.01, 0.1, 0.2, 0.05, 0.05],
        "remaining_steps": 1000,
        "worker": {"cpus": 1, "memory_bytes": 1_000_000_000},
        "server": {"cpus": 1, "memory_bytes": 1_000_000_000},
    })
}

/// A job that is one server and one worker or nothing.
pub(crate) fn small(id: &str) -> Value {
    with(job(id), &[("max_servers", json!(1)), ("max_workers", json!(1))])
}

/// The same with these fields; one that is null is left out.
pub(crate) fn with(mut job: Value, fields: &[(&str, Value)]) -> Value {
    let object = job.as_object_mut().unwrap();
    for (name, value) in fields {
        if value.is_null() {
            object.remove(*name);
        } else {
            object.insert((*name).to_owned(), value.clone());
        }
    }
    job
}

/// Names of an object's fields, sorted.
pub(crate) fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// A folder with one file.
pub(crate) fn folder(name: &str, text: &str) -> Folder {
    let folder = Folder::new();
    folder.write(name, text);
    folder
}

/// What it prints as JSON; it must be well.
pub(crate) fn answer(folder: &Folder, words: &str) -> Value {
    let ran = folder.run(&format!("{words} -o json"));
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{words}: {ran:?}");
    ran.json()
}

/// Ends with 2 and says `part`.
pub(crate) fn refused(folder: &Folder, words: &str, part: &str) {
    let ran = folder.run(&format!("{words} -o json"));
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{words}: {part}: {ran:?}");
    let error = ran.error();
    assert_eq!(error["code"], 2);
    let text = format!("{} {}", error["message"], error["hint"]);
    assert!(text.contains(part), "{words}: {part}: {text}");
}
