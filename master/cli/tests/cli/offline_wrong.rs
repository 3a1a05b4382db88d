//! Wrong input of the commands on files: refused with its place, and never a panic.

use serde_json::{Value, json};

use crate::offline_world::{Folder, job, node, small, with};

/// Runs a plan of one job that must be refused at this path.
fn refused(job: &Value, path: &str) {
    let folder = Folder::of(&json!([node("n1"), node("n2")]), &json!([small("first"), job]));
    let ran = folder.plan("-o json");
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{path}: {ran:?}");
    let error = ran.error();
    assert_eq!(error["code"], 2);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains(&format!("jobs[1]{path}: ")), "{path}: {message}");
    assert!(message.starts_with("jobs.json has"), "{message}");
    let field = error["faults"][0]["field"].as_str().unwrap();
    assert!(field.starts_with("jobs[1]"), "{error}");
}

#[test]
fn every_required_field_is_missed() {
    for (field, path) in [
        ("id", ".id"),
        ("mode", ".mode"),
        ("theta", ".theta"),
        ("remaining_steps", ".remaining_steps"),
        ("worker", ".worker"),
        ("server", ".server"),
        ("global_batch", ".global_batch"),
    ] {
        refused(&with(job("a"), &[(field, Value::Null)]), path);
    }
    let folder = Folder::of(&json!([node("n")]), &json!([{}]));
    let error = folder.plan("-o json").error();
    let faults = error["faults"].as_array().unwrap();
    assert_eq!(faults.len(), 6, "all at once: {error}");
}

#[test]
fn wrong_fields_are_refused_with_their_path() {
    let current = |shares: Value, servers: u64, workers: u64| json!({"servers": servers, "workers": workers, "placement": shares});
    let share = |node: &str, servers: u64, workers: u64| json!({"node": node, "servers": servers, "workers": workers});
    let twice = json!([share("n1", 1, 0), share("n1", 0, 1)]);
    for (field, value, path) in [
        ("id", json!(""), ".id"),
        ("id", json!(7), ".id"),
        ("id", json!("a\u{7}"), ".id"),
        ("id", json!("first"), ".id"),
        ("mode", json!("bsp"), ".mode"),
        ("theta", json!([0, 0, 0, 0, 0]), ".theta"),
        ("theta", json!([1, 1, 1, 1]), ".theta"),
        ("theta", json!([1, 1, 1, 1, 1, 1]), ".theta"),
        ("theta", json!([]), ".theta"),
        ("theta", json!([1, 1, -1, 1, 1]), ".theta[2]"),
        ("theta", json!([1, 1, 1, "x", 1]), ".theta[3]"),
        ("theta", json!(1), ".theta"),
        ("model", json!({}), ".model"),
        ("remaining_steps", json!(-1), ".remaining_steps"),
        ("remaining_steps", json!("10"), ".remaining_steps"),
        ("remaining_samples", json!(10), ".remaining_samples"),
        ("remaining_range", json!([10]), ".remaining_range"),
        ("remaining_range", json!([10, 5]), ".remaining_range"),
        ("remaining_range", json!([-1, 5]), ".remaining_range[0]"),
        ("worker", json!({"cpus": 0.0005}), ".worker.cpus"),
        ("worker", json!({"cpus": -1}), ".worker.cpus"),
        ("worker", json!({"gpus": 0.5}), ".worker.gpus"),
        ("worker", json!([]), ".worker"),
        ("server", json!({"memory_bytes": "1GB"}), ".server.memory_bytes"),
        ("server", json!({"licence": -3}), ".server.licence"),
        ("global_batch", json!(0), ".global_batch"),
        ("global_batch", json!(1.5), ".global_batch"),
        ("worker_batch", json!(10), ".worker_batch"),
        ("min_workers", json!(0), ".min_workers"),
        ("min_servers", json!(4097), ".min_servers"),
        ("max_workers", json!(0), ".max_workers"),
        ("priority_factor", json!(0), ".priority_factor"),
        ("priority_factor", json!(-1), ".priority_factor"),
        ("rescale_cost_s", json!(-1), ".rescale_cost_s"),
        ("arrival_s", json!(-0.5), ".arrival_s"),
        ("arrival_s", json!(1e300), ".arrival_s"),
        ("attained_gpu_s", json!(-1), ".attained_gpu_s"),
        ("requested", json!({"servers": 1}), ".requested.workers"),
        ("requested", json!({"servers": 0, "workers": 1}), ".requested.servers"),
        ("requested", json!(3), ".requested"),
        ("goodput", json!(3), ".goodput"),
        ("goodput", json!({"anything": 1}), ".goodput.anything"),
        ("goodput", json!({"initial_batch": 8}), ".goodput.gradient"),
        ("goodput", json!({"initial_batch": 8, "max_batch": 4}), ".goodput.max_batch"),
        ("goodput", json!({"local_min": 8, "local_max": 4}), ".goodput.local_max"),
        ("goodput", json!({"local_min": 0}), ".goodput.local_min"),
        ("goodput", json!({"gradient": {"sqr": -1, "var": 1}}), ".goodput.gradient.sqr"),
        ("goodput", json!({"throughput": {"gamma": 0.5}}), ".goodput.throughput.gamma"),
        ("goodput", json!({"accumulation": 1}), ".goodput.accumulation"),
        ("goodput", json!({"age_s": -1}), ".goodput.age_s"),
        ("gpus", json!(3), ".gpus"),
        ("current", json!(3), ".current"),
        ("current", json!({"servers": 1, "workers": 1}), ".current.placement"),
        ("current", current(json!([share("n1", 1, 1)]), 1, 2), ".current.placement"),
        ("current", current(json!([share("n\n3", 1, 1)]), 1, 1), ".current.placement[0].node"),
        ("current", current(json!([share("n1", 0, 0)]), 0, 0), ".current.placement[0]"),
        ("current", current(twice, 1, 1), ".current.placement[1].node"),
        ("current", current(json!([share("n1", 2, 0)]), 2, 0), ".current"),
    ] {
        refused(&with(job("a"), &[(field, value)]), path);
    }
    let bounds = [("min_workers", json!(5)), ("max_workers", json!(4))];
    refused(&with(job("a"), &bounds), ".max_workers");
    let outside = [("max_workers", json!(1)), ("requested", json!({"servers": 1, "workers": 2}))];
    refused(&with(job("a"), &outside), ".requested");
    let steps_of_no_work = [("global_batch", Value::Null), ("worker_batch", json!(10))];
    refused(&with(job("a"), &steps_of_no_work), ".remaining_steps");
}

#[test]
fn files_that_are_no_json_are_refused_with_their_line() {
    let folder = Folder::of(&json!([node("n")]), &json!([job("a")]));
    let good = std::fs::read_to_string(folder.path("jobs.json")).unwrap();
    for (text, part) in [
        (String::new(), "line 1"),
        ("{\n\"jobs\": [\n".to_owned(), "line 3"),
        (good.replace("1000", "NaN"), "line 1"),
        (good.replace("1000", "1e999"), "line 1"),
        (good.replace("1000", "Infinity"), "line 1"),
        (good.clone() + "x", "line 1"),
        ("[".repeat(1_000_000), "line 1"),
        ("[]".to_owned(), "file: is a list"),
        (good.replace("\"jobs\"", "\"job\""), "did you mean jobs?"),
        (good.replace("{\"jobs\"", "{\"jobs\":[],\"jobs\""), "jobs: comes twice"),
    ] {
        folder.write("jobs.json", &text);
        let ran = folder.plan("");
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{part}: {}", ran.err);
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    std::fs::write(folder.path("jobs.json"), b"\xff\xfe{}").unwrap();
    assert!(folder.plan("").err.contains("UTF-8"));
    std::fs::remove_file(folder.path("jobs.json")).unwrap();
    let ran = folder.plan("-o json");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.error()["message"].as_str().unwrap().contains("jobs.json"));
    folder.write("jobs.json", &format!("\u{feff}{good}"));
    assert_eq!(folder.plan("").code, Some(0), "a byte-order mark is none of the text");
}

#[test]
fn many_faults_are_told_in_part() {
    let jobs: Vec<Value> = (0..100).map(|_| json!({"id": 1, "mod": 2})).collect();
    let ran = Folder::of(&json!([]), &json!(jobs)).plan("-o json");
    let error = ran.error();
    assert_eq!(error["faults"].as_array().unwrap().len(), 20);
    assert!(error["message"].as_str().unwrap().starts_with("jobs.json has 700 faults"), "{error}");
}

#[test]
fn a_wrong_cluster_is_refused_with_its_path() {
    let folder = Folder::of(&json!([node("n1"), node("n1")]), &json!([]));
    let ran = folder.plan("-o json");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let message = ran.error()["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("cluster.json has 1 fault: nodes[1].id"), "{message}");
}

/// Whatever a number is, the answer is a plan or a refusal.
#[test]
fn hostile_numbers_never_break_a_plan() {
    let numbers = [
        "0",
        "1",
        "-1",
        "0.001",
        "1e-308",
        "5e-324",
        "1e308",
        "1.7976931348623157e308",
        "4294967296",
        "9223372036854775808",
        "18446744073709551615",
        "1e999",
        "NaN",
    ];
    let full = with(
        job("a"),
        &[
            ("min_workers", json!("@")),
            ("max_workers", json!("@")),
            ("min_servers", json!("@")),
            ("max_servers", json!("@")),
            ("priority_factor", json!("@")),
            ("rescale_cost_s", json!("@")),
            ("arrival_s", json!("@")),
            ("remaining_steps", json!("@")),
            ("remaining_range", json!(["@", "@"])),
            ("global_batch", json!("@")),
            ("theta", json!(["@", "@", "@", "@", "@"])),
            ("worker", json!({"cpus": "@", "memory_bytes": "@", "gpus": "@", "x": "@"})),
            ("server", json!({"cpus": "@", "memory_bytes": "@", "gpus": "@", "x": "@"})),
        ],
    );
    // Each place in turn, the others as they should be.
    let template = json!({ "jobs": [full, small("b")] }).to_string();
    let places = template.matches("\"@\"").count();
    let folder = Folder::of(&json!([node("n"), node("m")]), &json!([]));
    let mut plans = 0;
    for place in 0..places {
        for number in numbers {
            let mut text = String::new();
            for (at, part) in template.split("\"@\"").enumerate() {
                if at > 0 {
                    text.push_str(if at == place + 1 { number } else { "1" });
                }
                text.push_str(part);
            }
            folder.write("jobs.json", &text);
            let ran = folder.plan("-o json");
            assert!(matches!(ran.code, Some(0 | 2)), "{number} at {place}: {ran:?}\n{text}");
            if ran.code == Some(0) {
                assert!(ran.json()["jobs"].is_array());
                plans += 1;
            }
        }
    }
    assert!(plans > places * 3, "only {plans} of {places} places");
}

#[test]
fn hostile_nodes_never_break_a_plan() {
    let folder = Folder::of(&json!([]), &json!([job("a"), job("b")]));
    for amount in ["0", "1e308", "18446744073709551615", "9223372036854775808", "1000000"] {
        for kind in ["cpus", "memory_bytes", "gpus", "x"] {
            for count in ["1", "3", "0", "18446744073709551615"] {
                let rest = "\"cpus\": 4, \"memory_bytes\": 18446744073709551615";
                let rest = if rest.contains(kind) { "\"y\": 1" } else { rest };
                folder.write(
                    "cluster.json",
                    &format!(
                        r#"{{"nodes": [{{"id": "n", "count": {count},
                            "resources": {{"{kind}": {amount}, {rest}}}}}]}}"#
                    ),
                );
                let ran = folder.plan("-o json");
                assert!(matches!(ran.code, Some(0 | 2)), "{count} {amount} {kind}: {ran:?}");
            }
        }
    }
}
