//! `optimus plan` on files.

use serde_json::{Value, json};

use crate::fake::{Ran, optimus};
use crate::golden::compare;
use crate::offline_world::{Folder, job, keys, node, small, with};

/// The plan with what differs from run to run, or is said in words, left out.
fn masked(mut plan: Value) -> Value {
    plan["elapsed_s"] = json!({"allocate": "…", "place": "…", "check": "…"});
    for list in ["jobs", "unplaced"] {
        for job in plan[list].as_array_mut().unwrap() {
            job["reason"] = json!("…");
        }
    }
    if plan["then"].is_object() {
        plan["then"] = masked(plan["then"].take());
    }
    plan
}

fn recorded() -> Folder {
    let large = with(small("too large"), &[("worker", json!({"cpus": 9}))]);
    Folder::of(&json!([node("n1")]), &json!([large, small("a"), small("b é")]))
}

#[test]
fn a_plan_is_as_recorded() {
    let folder = recorded();
    let plan = masked(folder.planned("--policy optimus"));
    compare("plan.json", &(serde_json::to_string_pretty(&plan).unwrap() + "\n"));
    let ran = folder.plan("--policy optimus -o wide");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines = ran.out.lines().map(|line| {
        let (values, reason) = line.rsplit_once('\t').unwrap();
        format!("{values}\t{}\n", if reason == "REASON" { reason } else { "…" })
    });
    compare("plan-wide.tsv", &lines.collect::<String>());
    assert!(ran.err.starts_with("optimus: 2 of 3 jobs placed, 2 servers and 2 workers"), "{ran:?}");
}

#[test]
fn the_order_of_fields_is_that_of_the_contract() {
    let text = recorded().plan("-o jsonl --then jobs.json").out;
    assert_eq!(text.lines().count(), 1);
    let mut rest = text.as_str();
    for name in [
        "schema",
        "policy",
        "jobs",
        "id",
        "allocated",
        "servers",
        "workers",
        "servers",
        "workers",
        "steps_per_s",
        "remaining_s",
        "placement",
        "transfer_time",
        "cross_node_share",
        "reason",
        "unplaced",
        "elapsed_s",
        "allocate",
        "place",
        "check",
        "used",
        "then",
        "schema",
    ] {
        let name = format!("\"{name}\":");
        let place = rest.find(&name).unwrap_or_else(|| panic!("{name} is not in {rest}"));
        rest = &rest[place + name.len()..];
    }
}

#[test]
fn names_are_listed_in_the_order_of_the_file() {
    let ran = recorded().plan("-o name");
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "too large\na\nb é\n"), "{ran:?}");
}

#[test]
fn no_jobs_and_no_nodes_are_answers() {
    let plan = Folder::of(&json!([node("n")]), &json!([])).planned("--then jobs.json");
    assert_eq!(plan["jobs"], json!([]));
    assert_eq!(plan["used"], json!({"cpus": 0.0, "gpus": 0.0, "memory_bytes": 0.0}));
    assert_eq!(plan["then"]["jobs"], json!([]));
    let plan = Folder::of(&json!([]), &json!([job("a")])).planned("");
    assert_eq!(plan["unplaced"][0]["id"], "a");
    assert_eq!(plan["used"], json!({}));
    let ran = Folder::of(&json!([]), &json!([])).plan("");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("0 of 0 jobs placed"), "{ran:?}");
}

#[test]
fn a_job_larger_than_the_cluster_waits_and_others_run() {
    let large = with(job("large"), &[("min_workers", json!(4096))]);
    let plan = Folder::of(&json!([node("n")]), &json!([large, small("a")])).planned("");
    assert_eq!(plan["jobs"][0]["servers"], 0);
    assert_eq!(plan["jobs"][1]["workers"], 1);
}

#[test]
fn thousandths_of_a_cpu_and_named_kinds_count() {
    let nodes = json!([{"id": "n", "resources": {"cpus": 2.5, "licence": 3}}]);
    for (cpus, licence, placed) in
        [(1.25, 2, 1), (1.251, 2, 0), (1.25, 3, 0), (0.001, 0, 1), (1.2, 1, 1)]
    {
        let task = |licence: u64| json!({"cpus": cpus, "licence": licence});
        let job = with(small("a"), &[("worker", task(licence)), ("server", task(1))]);
        let plan = Folder::of(&nodes, &json!([job])).planned("");
        assert_eq!(plan["jobs"][0]["workers"], placed, "{cpus} {licence}: {plan}");
        if placed == 1 {
            let share = (cpus * 2.0) / 2.5;
            assert!((plan["used"]["cpus"].as_f64().unwrap() - share).abs() < 1e-12, "{plan}");
        }
    }
}

#[test]
fn counted_nodes_have_names_of_their_own() {
    let mut nodes = node("rack/7 é");
    nodes["count"] = json!(12);
    let jobs: Vec<Value> = (0..12).map(|at| small(&at.to_string())).collect();
    let plan = Folder::of(&json!([nodes]), &json!(jobs)).planned("");
    for job in plan["jobs"].as_array().unwrap() {
        for share in job["placement"].as_array().unwrap() {
            let name = share["node"].as_str().unwrap();
            let number: u32 = name.strip_prefix("rack/7 é-").unwrap().parse().unwrap();
            assert!(number < 12, "{name}");
        }
    }
    assert_eq!(plan["unplaced"], json!([]));
}

#[test]
fn predictions_are_those_of_the_model_at_the_placed_shape() {
    let shapes = [("max_servers", json!(1)), ("max_workers", json!(2)), ("min_workers", json!(2))];
    let global = with(job("global"), &shapes);
    let per_worker = with(
        with(job("worker"), &shapes),
        &[
            ("global_batch", Value::Null),
            ("worker_batch", json!(10)),
            ("remaining_steps", Value::Null),
            ("remaining_samples", json!(2000)),
        ],
    );
    let asynchronous = with(
        with(job("async"), &shapes),
        &[
            ("global_batch", Value::Null),
            ("mode", json!("async")),
            ("theta", json!([0.1, 0.2, 0.05, 0.05])),
        ],
    );
    let in_samples = with(
        global.clone(),
        &[
            ("id", json!("samples")),
            ("remaining_steps", Value::Null),
            ("remaining_samples", json!(40_000)),
        ],
    );
    let jobs = json!([global, per_worker, asynchronous, in_samples]);
    let nodes = json!([node("a"), node("b"), node("c"), node("d")]);
    let plan = Folder::of(&nodes, &jobs).planned("");
    let per_step = 0.01 * 20.0 + 0.1 + 0.2 * 2.0 + 0.05 * 2.0 + 0.05;
    // θ1 counts, though it cannot be told from θ0·m.
    let per_step_worker = 0.01 * 10.0 + 0.1 + 0.2 * 2.0 + 0.05 * 2.0 + 0.05;
    let async_speed = 2.0 / (0.1 + 0.2 * 2.0 + 0.05 * 2.0 + 0.05);
    for (at, speed, left) in [
        (0, 1.0 / per_step, 1000.0 * per_step),
        (1, 1.0 / per_step_worker, 2000.0 / 20.0 * per_step_worker),
        (2, async_speed, 1000.0 / async_speed),
        (3, 1.0 / per_step, 1000.0 * per_step),
    ] {
        let job = &plan["jobs"][at];
        assert_eq!((&job["servers"], &job["workers"]), (&json!(1), &json!(2)), "{job}");
        let near = |value: &Value, wanted: f64| {
            (value.as_f64().unwrap() - wanted).abs() < wanted.abs() * 1e-9
        };
        assert!(near(&job["steps_per_s"], speed), "{speed}: {job}");
        assert!(near(&job["remaining_s"], left), "{left}: {job}");
    }
}

/// The jobs with what the plan gave them.
fn running(jobs: &Value, plan: &Value) -> Value {
    let pairs = jobs.as_array().unwrap().iter().zip(plan["jobs"].as_array().unwrap());
    let held = pairs.map(|(job, planned)| {
        let mut current = json!({});
        for name in ["servers", "workers", "placement"] {
            current[name] = planned[name].clone();
        }
        with(job.clone(), &[("current", current), ("rescale_cost_s", json!(1e9))])
    });
    Value::Array(held.collect())
}

#[test]
fn what_a_plan_placed_stays_where_it_is() {
    let nodes = json!([node("a"), node("b"), node("c")]);
    let jobs = json!([job("x"), job("y"), job("z"), with(job("w"), &[("min_workers", json!(99))])]);
    let folder = Folder::of(&nodes, &jobs);
    let first = folder.planned("");
    let jobs = running(&jobs, &first);
    folder.write("jobs2.json", &json!({ "jobs": jobs }).to_string());
    let both = folder.planned("--then jobs2.json");
    let then = &both["then"];
    assert_eq!(keys(then).len() + 1, keys(&both).len(), "{both}");
    for at in 0..4 {
        for name in ["id", "servers", "workers", "placement"] {
            assert_eq!(then["jobs"][at][name], first["jobs"][at][name], "{then}");
        }
    }
    assert_eq!(then["unplaced"][0]["id"], "w");
}

#[test]
fn a_second_round_knows_jobs_by_name() {
    let folder = Folder::of(&json!([node("a"), node("b")]), &json!([small("x"), small("y")]));
    folder.write("then.json", &json!({"jobs": [small("new"), small("y")]}).to_string());
    let plan = folder.planned("--then then.json");
    let names = |plan: &Value| {
        let jobs = plan["jobs"].as_array().unwrap();
        jobs.iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&plan), ["x", "y"]);
    assert_eq!(names(&plan["then"]), ["new", "y"]);
    let ran = folder.plan("--then then.json");
    assert_eq!(ran.out.lines().count(), 6, "{ran:?}");
    assert_eq!(ran.err.lines().count(), 2, "{ran:?}");
}

#[test]
fn policies_take_their_fields() {
    let asked = json!({"servers": 1, "workers": 2});
    let full = |id: &str, arrival: f64| {
        with(job(id), &[("requested", asked.clone()), ("arrival_s", json!(arrival))])
    };
    let folder = Folder::of(&json!([node("a")]), &json!([full("x", 2.0), full("y", 1.5)]));
    for policy in ["horizon", "optimus", "drf", "tetris", "fifo", "tiresias"] {
        let plan = folder.planned(&format!("--policy {policy}"));
        assert_eq!(plan["policy"], policy);
        assert_eq!(plan["jobs"][0]["id"], "x");
    }
    assert_eq!(folder.planned("")["policy"], "horizon");
    let lacking = json!([
        full("x", 0.0),
        with(full("y", 0.0), &[("requested", Value::Null)]),
        with(full("z", 0.0), &[("arrival_s", Value::Null)]),
    ]);
    let folder = Folder::of(&json!([node("a")]), &lacking);
    assert_eq!(folder.plan("").code, Some(0));
    for policy in ["fifo", "tiresias"] {
        let ran = folder.plan(&format!("--policy {policy} -o json"));
        assert_eq!(ran.code, Some(2), "{ran:?}");
        let message = ran.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("jobs[1].requested") && message.contains("jobs[2].arrival_s"));
    }
    let ran = folder.plan("--policy pollux -o json");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let message = ran.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("jobs[0].goodput") && message.contains("jobs[2].goodput"));
    assert_eq!(folder.plan("--policy nothing").code, Some(2));
}

fn goodput() -> Value {
    json!({
        "throughput": {"alpha_c": 0.05, "beta_c": 0.002, "alpha_n": 0.06, "beta_n": 0.002,
                       "alpha_r": 0.03, "beta_r": 0.001, "gamma": 1.6},
        "gradient": {"sqr": 1.0, "var": 100.0},
        "initial_batch": 64, "max_batch": 2048, "local_min": 16, "local_max": 256,
        "accumulation": true, "replicas_max": 4, "restarts": 1, "age_s": 3600,
    })
}

/// Jobs of Pollux need no speed function, no servers and no mode; a job may begin without a model.
#[test]
fn pollux_shares_out_by_goodput() {
    let trainer = |id: &str, goodput: Value, current: Value| json!({"id": id, "worker": {"cpus": 1, "gpus": 1}, "goodput": goodput, "current": current});
    let node = |id: &str| json!({"id": id, "resources": {"cpus": 8, "gpus": 4}});
    let new = with(goodput(), &[("throughput", Value::Null), ("replicas_max", json!(1))]);
    let held = json!({"servers": 0, "workers": 2,
                      "placement": [{"node": "a", "servers": 0, "workers": 2}]});
    let jobs = json!([
        trainer("new", new, Value::Null),
        trainer("grown", goodput(), Value::Null),
        trainer("runs", goodput(), held),
    ]);
    let folder = Folder::of(&json!([node("a"), node("b"), node("c")]), &jobs);
    let plan = folder.planned("--policy pollux --then jobs.json");
    let jobs = plan["jobs"].as_array().unwrap();
    assert!(jobs.iter().all(|job| job["servers"] == 0), "{plan}");
    assert_eq!(jobs[0]["workers"], 1);
    assert_eq!((&jobs[1]["workers"], &jobs[2]["workers"]), (&json!(4), &json!(4)));
    assert!(jobs[1]["reason"].as_str().unwrap().contains("goodput"), "{plan}");
    assert_eq!(plan["unplaced"], json!([]));
    assert_eq!(jobs[1]["transfer_time"], Value::Null);
    // Other policies still want theta of them.
    let ran = folder.plan("--policy optimus -o json");
    assert_eq!(ran.code, Some(2));
    assert!(ran.error()["message"].as_str().unwrap().contains("jobs[0].theta"));
}

/// Our own policy does without a speed function too, but not without the work that is left.
#[test]
fn horizon_shares_out_by_goodput_and_work() {
    let trainer = |id: &str, steps: Value| {
        let goodput = with(goodput(), &[("replicas_max", json!(64))]);
        json!({"id": id, "worker": {"cpus": 1, "gpus": 1}, "goodput": goodput,
               "remaining_steps": steps})
    };
    let node = |id: &str| json!({"id": id, "resources": {"cpus": 8, "gpus": 4}});
    let nodes = json!([node("a"), node("b")]);
    let jobs = json!([trainer("long", json!(1e7)), trainer("short", json!(20_000))]);
    let plan = Folder::of(&nodes, &jobs).planned("--policy horizon --then jobs.json");
    let jobs = plan["jobs"].as_array().unwrap();
    assert!(jobs.iter().all(|job| job["servers"] == 0), "{plan}");
    assert!(jobs[1]["workers"].as_u64() > jobs[0]["workers"].as_u64(), "{plan}");
    let reason = jobs[1]["reason"].as_str().unwrap();
    assert!(reason.contains("goodput") && reason.contains("projected to end"), "{plan}");
    let jobs = json!([trainer("a", json!(1e7)), trainer("b", Value::Null)]);
    let ran = Folder::of(&nodes, &jobs).plan("--policy horizon -o json");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let message = ran.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("jobs[1].remaining_steps"), "{message}");
}

/// Beside jobs with servers, one that states nothing but its goodput waits.
#[test]
fn horizon_tells_why_a_job_with_goodput_alone_waits_beside_others() {
    let alone = json!({"id": "alone", "worker": {"cpus": 1}, "goodput": goodput(),
                       "remaining_steps": 1000});
    let folder = Folder::of(&json!([node("a")]), &json!([job("a"), alone]));
    let plan = folder.planned("--policy horizon");
    assert!(plan["jobs"][0]["servers"].as_u64() > Some(0), "{plan}");
    let told = plan["unplaced"][0]["reason"].as_str().unwrap();
    assert!(told.contains("every job states one"), "{plan}");
}

#[test]
fn fields_of_other_policies_are_taken() {
    let job = with(
        job("a"),
        &[
            ("attained_gpu_s", json!(12.5)),
            ("goodput", goodput()),
            ("remaining_range", json!([0, 2000])),
            ("priority_factor", json!(0.5)),
        ],
    );
    let plan = Folder::of(&json!([node("a")]), &json!([job])).planned("");
    assert_eq!(plan["unplaced"], json!([]));
}

#[test]
fn a_file_may_come_from_stdin() {
    let folder = recorded();
    let file = std::fs::File::open(folder.path("jobs.json")).unwrap();
    let mut command = optimus("plan --cluster cluster.json --jobs - -o json");
    command.current_dir(folder.path("."));
    let ran = Ran::of(&command.stdin(file).output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(masked(ran.json()), masked(folder.planned("")));
}

#[test]
fn a_large_cluster_is_read() {
    let mut nodes = node("n");
    nodes["count"] = json!(64_000);
    let plan = Folder::of(&json!([nodes]), &json!([small("a")])).planned("");
    assert_eq!(plan["jobs"][0]["workers"], 1);
}

#[test]
fn a_job_whose_node_is_gone_moves() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = json!({"nodes": [{"id": "left", "resources": {"cpus": 4}}]});
    let jobs = json!({"jobs": [{
        "id": "moving", "mode": "async", "theta": [1.0, 0.1, 0.1, 0.1], "remaining_steps": 100,
        "worker": {"cpus": 1}, "server": {"cpus": 1}, "max_workers": 1, "max_servers": 1,
        "current": {"servers": 1, "workers": 1,
                    "placement": [{"node": "gone", "servers": 1, "workers": 1}]},
    }]});
    let path = |name: &str, json: &serde_json::Value| {
        let path = folder.path().join(name);
        std::fs::write(&path, json.to_string()).unwrap();
        path.to_string_lossy().into_owned()
    };
    let (cluster, jobs) = (path("c.json", &cluster), path("j.json", &jobs));
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_optimus"))
        .args(["plan", "--cluster", &cluster, "--jobs", &jobs, "-o", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["jobs"][0]["placement"][0]["node"], "left");
    assert!(plan["jobs"][0]["reason"].as_str().unwrap().contains("is gone"), "{plan}");
}
