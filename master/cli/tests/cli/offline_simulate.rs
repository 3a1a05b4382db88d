//! `optimus simulate` and `optimus experiment` on files.

use std::path::Path;

use serde_json::{Value, json};

use crate::fake::Ran;
use crate::golden::compare;
use crate::offline_world::Folder;

const HEADER: &str = "id,arrival_s,model,mode,work_steps,min_workers,max_workers,max_servers";
const RUN: &str = "simulate --cluster cluster.json --trace trace.csv";

/// The examples' cluster and trace.
fn folder() -> Folder {
    let folder = Folder::new();
    for name in ["cluster.json", "trace.csv"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
        folder.write(name, &std::fs::read_to_string(path).unwrap());
    }
    folder
}

fn done(ran: Ran) -> Ran {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran
}

fn simulated(words: &str) -> Value {
    done(folder().run(&format!("{RUN} {words} -o json"))).json()
}

#[test]
fn a_simulation_is_as_recorded() {
    let ran = done(folder().run(&format!("{RUN} --policy fifo -o json")));
    compare("simulate.json", &ran.out);
    assert!(ran.err.starts_with("simulated 8 jobs under 1 policy, 1 run of each, in "), "{ran:?}");
    let table = done(folder().run(&format!("{RUN} --policy fifo --policy drf -o wide")));
    compare("simulate.tsv", &table.out);
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let words = |threads: u32| {
        format!(
            "{RUN} --runs 6 --seed 3 --policy drf --policy optimus --estimates errors --jobs {threads} -o json"
        )
    };
    let first = done(folder().run(&words(1))).out;
    assert_eq!(first, done(folder().run(&words(5))).out);
    let json: Value = serde_json::from_str(&first).unwrap();
    let runs = json["policies"][1]["runs"].as_array().unwrap();
    let seeds: Vec<u64> = runs.iter().map(|run| run["seed"].as_u64().unwrap()).collect();
    assert_eq!(seeds, [3, 4, 5, 6, 7, 8]);
    let alone = simulated("--seed 5 --policy drf --estimates errors");
    assert_eq!(alone["jobs"], json["policies"][0]["runs"][2]["jobs"]);
}

#[test]
fn several_runs_have_a_mean_and_a_schema_on_top() {
    let json = simulated("--runs 2 --estimates errors");
    assert_eq!(json["schema"], "optimus.simulation/1");
    let mean = |of: &str| {
        let of = |run: usize| json["runs"][run][of].as_f64().unwrap();
        f64::midpoint(of(0), of(1))
    };
    for number in ["mean_jct_s", "p99_jct_s", "makespan_s", "rescale_share"] {
        let told = json["mean"][number].as_f64().unwrap();
        assert!((told - mean(number)).abs() <= 1e-9 * told, "{number}");
    }
    assert!(json["runs"][0]["schema"].is_null());
    assert_eq!(simulated("--runs 1")["runs"].as_array().unwrap().len(), 1);
    let lines = done(folder().run(&format!("{RUN} --runs 2 -o jsonl"))).out;
    for line in lines.lines() {
        let run: Value = serde_json::from_str(line).unwrap();
        assert_eq!(run["schema"], "optimus.simulation/1");
    }
    assert_eq!(lines.lines().count(), 2);
}

#[test]
fn percentiles_and_makespan_follow_from_the_jobs() {
    let json = simulated("");
    let jobs = json["jobs"].as_array().unwrap();
    let at = |job: &Value, of: &str| job[of].as_f64().unwrap();
    let mut times: Vec<f64> =
        jobs.iter().map(|job| at(job, "completion_s") - at(job, "arrival_s")).collect();
    times.sort_by(f64::total_cmp);
    let near = |name: &str, value: f64| {
        assert!((json[name].as_f64().unwrap() - value).abs() < 1e-6, "{name} {json}");
    };
    near("mean_jct_s", times.iter().sum::<f64>() / 8.0);
    near("p50_jct_s", f64::midpoint(times[3], times[4]));
    near("p99_jct_s", times[6] + (times[7] - times[6]) * 0.93);
    let last = jobs.iter().map(|job| at(job, "completion_s")).fold(0.0, f64::max);
    near("makespan_s", last - at(&jobs[0], "arrival_s"));
}

#[test]
fn a_timeline_and_the_jobs_are_listed() {
    let json = simulated("--timeline image-2");
    let with: Vec<&str> = json["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|job| job["timeline"].is_array())
        .map(|job| job["id"].as_str().unwrap())
        .collect();
    assert_eq!(with, ["image-2"]);
    let spans = done(folder().run(&format!("{RUN} --timeline image-2"))).out;
    assert!(spans.starts_with("ID\tPOLICY\tSEED\tFROM\tSERVERS\tWORKERS\tNODES\nimage-2\t"));
    assert!(spans.trim_end().ends_with("\t0\t0\t0"), "{spans}");
    let jobs = done(folder().run(&format!("{RUN} --list-jobs"))).out;
    assert_eq!(jobs.lines().count(), 9);
    let names = done(folder().run(&format!("{RUN} -o name"))).out;
    assert!(names.starts_with("image-1\ntext-1\n"), "{names}");
    let ran = folder().run(&format!("{RUN} --timeline image-9"));
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.err.contains("did you mean image-"), "{ran:?}");
}

#[test]
fn an_svg_holds_every_policy() {
    let folder = folder();
    done(folder.run(&format!("{RUN} --policy optimus --policy tetris --svg plot.svg")));
    let svg = std::fs::read_to_string(folder.path("plot.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for part in [">optimus<", ">tetris<", ">trace.csv, seed 1<", "Utilisation"] {
        assert!(svg.contains(part), "{part}");
    }
    let ran = folder.run(&format!("{RUN} --svg nowhere/plot.svg"));
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("there is no folder"), "{ran:?}");
}

#[test]
fn wrong_arguments_are_told() {
    for (words, code, part) in [
        ("--policy optimos", 2, "did you mean optimus?"),
        ("--policy", 2, "--policy"),
        ("--interval 600", 2, "600s"),
        ("--interval 0s", 2, "more than 0s"),
        ("--spacing 5", 2, "5s"),
        ("--runs 0", 2, "--runs"),
        ("--runs 1000000", 2, "--runs"),
        ("--jobs 0", 2, "--jobs"),
        ("--seed -1", 2, "-1"),
        ("--seed 18446744073709551616", 2, "--seed"),
        ("--estimates guess", 2, "oracle"),
        ("--error-work 0.2", 2, "--error-work has no meaning"),
        ("--estimates errors --error-work nan", 2, "0 to 0.99"),
        ("--estimates errors --error-work 1", 2, "0 to 0.99"),
        ("--interference 0.1", 2, "--interference has no meaning"),
        ("--profiles .", 2, "--profiles has no meaning"),
        ("--failures mtbf=1", 2, "1s"),
        ("--failures lost=1h", 2, "slow-mtbf"),
        ("--limit 1e9s", 2, "not a duration"),
        ("--svg .", 2, "is a folder"),
    ] {
        let ran = folder().run(&format!("{RUN} {words}"));
        assert_eq!(ran.code, Some(code), "{words}: {ran:?}");
        assert!(ran.err.contains(part) && ran.out.is_empty(), "{words}: {ran:?}");
    }
}

#[test]
fn a_wrong_trace_is_told_by_line_and_column() {
    let folder = folder();
    for (rows, part) in [
        ("a,-1,wlm,sync,10,1,2,2", "line 2: arrival_s: is \"-1\""),
        (
            "a,0,wlmm,sync,10,1,2,2",
            "line 2: model: \"wlmm\" is not a known model; did you mean wlm?",
        ),
        ("a,0,wlm,sync,nan,1,2,2", "line 2: work_steps: is \"nan\""),
        ("a,0,wlm,sync,10,1,2,2\na,0,wlm,sync,10,1,2,2", "line 3: id: \"a\" is the id of line 2"),
        ("a,0,wlm,sync,10,1,2", "line 2: line: has 7 columns"),
        (
            "a,0,wlm,sync,10,50,60,2",
            "line 2: min_workers: is 50: needs 50 workers, the cluster holds 12",
        ),
        ("", "file: holds no job"),
    ] {
        folder.write("wrong.csv", &format!("{HEADER}\n{rows}\n"));
        let words = "simulate --cluster cluster.json --trace wrong.csv";
        let ran = folder.run(words);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(part) && ran.out.is_empty(), "{rows}: {ran:?}");
        let error = folder.run(&format!("{words} -o json")).error();
        assert_eq!(
            (&error["code"], error["faults"].as_array().map(Vec::len)),
            (&json!(2), Some(1))
        );
    }
    let row = "a,-1,wlm,sync,10,1,2,2\n".repeat(30);
    folder.write("wrong.csv", &format!("{HEADER}\n{row}"));
    let ran = folder.run("simulate --cluster cluster.json --trace wrong.csv");
    assert!(ran.err.contains("has 59 faults, the first 20 are"), "{ran:?}");
    folder.write("wrong.csv", "id,arrival_s,model\n");
    let ran = folder.run("simulate --cluster cluster.json --trace wrong.csv");
    for column in ["mode", "work_steps", "min_workers", "max_workers", "max_servers"] {
        assert!(ran.err.contains(&format!("line 1: {column}: is missing")), "{ran:?}");
    }
}

#[test]
fn a_philly_trace_is_known_by_its_header() {
    let folder = folder();
    let rows = "2017-10-09 07:01:55,600,2,1200,11cb48\n2017-10-09 06:01:55,60,1,60,11cb48\n";
    folder.write("philly.csv", &format!("timestamp,duration,num_gpus,gpu_time,cluster\n{rows}"));
    let words = "simulate --cluster cluster.json --trace philly.csv --policy fifo -o json";
    let json = done(folder.run(words)).json();
    assert_eq!(json["jobs"][0]["id"], "philly-3");
    assert_eq!(json["jobs"][1]["arrival_s"], 3600.0);
    // Each alone at its own GPUs, it takes its duration.
    for (job, took) in [(0, 60.0), (1, 600.0)] {
        let jct = json["jobs"][job]["jct_s"].as_f64().unwrap();
        assert!((jct / took - 1.0).abs() < 0.05, "{jct} {took}");
    }
}

#[test]
fn a_workload_of_the_pollux_paper_needs_its_profiles_and_nodes_of_four() {
    let folder = folder();
    folder.write("w.csv", "name,time,application,num_replicas,batch_size\nx-0,5,ncf,1,256\n");
    folder.write("four.json", r#"{"nodes": [{"id": "g", "count": 16, "resources": {"gpus": 4}}]}"#);
    for (words, part) in [
        ("--cluster four.json", "--profiles"),
        ("--cluster four.json --profiles .", "--profiles"),
        ("--cluster four.json --estimates oracle", "--estimates has no meaning"),
        ("--cluster four.json --failures mtbf=1h", "--failures has no meaning"),
    ] {
        let ran = folder.run(&format!("simulate --trace w.csv {words}"));
        assert_eq!(ran.code, Some(2), "{words}: {ran:?}");
        assert!(ran.err.contains(part), "{words}: {ran:?}");
    }
}

#[test]
fn the_pollux_workload_is_replayed_where_its_data_is() {
    let data = std::env::var_os("OPTIMUS_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        Into::into,
    );
    let trace = data.join("pollux/workloads/workload-6.csv");
    if !trace.is_file() {
        eprintln!("skipped: there is no {}", trace.display());
        return;
    }
    let folder = folder();
    folder.write("four.json", r#"{"nodes": [{"id": "g", "count": 16, "resources": {"gpus": 4}}]}"#);
    let trace = trace.display();
    let words = format!("simulate --cluster four.json --trace {trace} --policy tiresias -o json");
    let json = done(folder.run(&words)).json();
    for (name, published) in [
        ("mean_jct_s", 3469.7),
        ("p50_jct_s", 1247.5),
        ("p99_jct_s", 46_335.5),
        ("makespan_s", 78_556.0),
    ] {
        let ours = json[name].as_f64().unwrap();
        assert!((ours / published - 1.0).abs() < 0.01, "{name}: {ours}, published {published}");
    }
}

#[test]
fn experiments_are_listed_and_run() {
    let folder = Folder::new();
    let list = done(folder.run("experiment list"));
    assert!(list.out.starts_with("NAME\tFIGURE\tRUNS\tTITLE\n"), "{list:?}");
    assert!(list.out.contains("\nfig12\tFigure 12\t"), "{list:?}");
    assert_eq!(
        done(folder.run("experiment list -o json")).json()["schema"],
        "optimus.experiments/1"
    );
    let ran = folder.run("experiment overhaed");
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.err.contains("did you mean overhead?"), "{ran:?}");
    let ran = folder.run("experiment fig12 --data nowhere");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let ran = done(folder.run("experiment overhead --runs 1 --svg overhead.svg"));
    assert!(ran.out.starts_with("WHAT\tPAPER\tOURS\t"), "{ran:?}");
    assert!(ran.out.contains("\t2.54\t"), "{ran:?}");
    let svg = std::fs::read_to_string(folder.path("overhead.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("Section 6.2"), "{svg}");
    let again = || done(folder.run("experiment overhead --runs 1 --seed 5 -o json")).out;
    assert_eq!(again(), again());
}
