//! `optimus fit speed` on files.

use serde_json::{Value, json};

use crate::offline_world::{Folder, answer, folder, job, keys, node, refused, with};

const SPEED: &str = "fit speed --samples samples.csv --mode sync --global-batch 40";

/// Eqn. (4) with M = 40 at some shapes.
fn samples() -> String {
    let shapes: [(u32, u32); 8] = [(1, 1), (1, 4), (4, 1), (4, 4), (2, 6), (6, 2), (8, 8), (3, 5)];
    let row = |(servers, workers): (u32, u32)| {
        let (p, w) = (f64::from(servers), f64::from(workers));
        let speed = 1.0 / (0.05 * 40.0 / w + 0.3 + 0.4 * w / p + 0.01 * w + 0.02 * p);
        format!("net,{servers},{workers},{speed}\n")
    };
    "model,servers,workers,steps_per_s\n".to_owned() + &shapes.map(row).concat()
}

#[test]
fn a_speed_function_is_fitted_and_planned_with() {
    let files = folder("samples.csv", &samples());
    let fit = answer(&files, &format!("{SPEED} --predict 5,7 --count 3"));
    let expected = [
        "best",
        "mode",
        "model",
        "next",
        "outlier_rows",
        "outliers",
        "predicted",
        "rmse_relative",
        "schema",
        "theta",
        "warning",
    ];
    assert_eq!(keys(&fit), expected);
    assert_eq!((&fit["schema"], &fit["mode"]), (&json!("optimus.speed_fit/1"), &json!("sync")));
    let truth = 1.0 / (2.0 / 7.0 + 0.3 + 0.4 * 7.0 / 5.0 + 0.07 + 0.1);
    assert!((fit["predicted"].as_f64().unwrap() / truth - 1.0).abs() < 0.02, "{fit}");
    assert_eq!(fit["theta"].as_array().unwrap().len(), 5);
    assert_eq!(fit["next"].as_array().unwrap().len(), 3);
    assert_eq!((&fit["outliers"], &fit["outlier_rows"]), (&json!([]), &json!([])));
    assert_eq!(fit["warning"], Value::Null);
    assert_eq!(keys(&fit["best"]), ["servers", "steps_per_s", "workers"]);
    assert!(fit["best"]["servers"].as_u64().unwrap() <= 8, "{fit}");
    let planned = with(job("a"), &[("theta", Value::Null), ("model", fit["model"].clone())]);
    let cluster = Folder::of(&json!([node("n")]), &json!([planned]));
    assert_eq!(cluster.planned("")["unplaced"], json!([]));
    let mut model = fit["model"].clone();
    model["speed"] = json!(1);
    for (fields, part) in [
        ([("model", fit["model"].clone()), ("global_batch", json!(41))], "was fitted for"),
        ([("model", model), ("id", json!("a"))], "unknown field speed"),
    ] {
        let wrong = with(with(job("a"), &[("theta", Value::Null)]), &fields);
        let ran = Folder::of(&json!([node("n")]), &json!([wrong])).plan("");
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains("jobs[0].model") && ran.err.contains(part), "{ran:?}");
    }
}

#[test]
fn the_forms_of_speed_have_their_coefficients() {
    let files = folder("samples.csv", &samples());
    for (words, count) in
        [("async", 4), ("sync --worker-batch 40", 5), ("sync --global-batch 40", 5)]
    {
        let words = format!("fit speed --samples samples.csv --mode {words}");
        let fit = answer(&files, &words);
        assert_eq!(fit["theta"].as_array().unwrap().len(), count, "{fit}");
        assert!(fit.get("predicted").is_none());
        assert_eq!(files.run(&words).code, Some(0));
    }
}

#[test]
fn candidates_bound_what_to_measure_next() {
    let files = folder("samples.csv", &samples());
    files.write("candidates.csv", "workers,servers\n9,2\n9,3\n9,2\n1,1\n");
    let fit = answer(&files, &format!("{SPEED} --candidates candidates.csv --count 50"));
    let next = fit["next"].as_array().unwrap();
    assert!(!next.is_empty() && next.len() <= 3, "{fit}");
    for shape in next {
        let known = [(2, 9), (3, 9), (1, 1)];
        assert!(known.iter().any(|(p, w)| shape["servers"] == *p && shape["workers"] == *w));
    }
    let fit = answer(&files, &format!("{SPEED} --max-servers 2 --max-workers 3"));
    let best = &fit["best"];
    assert!(best["servers"].as_u64() <= Some(2) && best["workers"].as_u64() <= Some(3), "{fit}");
    let fit = answer(&files, &format!("{SPEED} --max-servers 4096 --max-workers 64 --count 1000"));
    assert!(fit["next"].as_array().unwrap().len() <= 4096, "{fit}");
    let within = format!("{SPEED} --candidates candidates.csv --max-servers 2 --max-workers 8");
    assert_eq!(answer(&files, &within)["next"], json!([{"servers": 1, "workers": 1}]));
    let without = format!("{SPEED} --candidates candidates.csv --max-servers 3 --max-workers 9");
    assert_eq!(answer(&files, &without)["next"].as_array().unwrap().len(), 2);
    files.write("candidates.csv", "servers,workers\n2,9\n3,1\n");
    refused(&files, &within, "no shape within --max-servers and --max-workers");
    files.write("candidates.csv", "servers,workers\n");
    refused(&files, &format!("{SPEED} --candidates candidates.csv"), "candidates.csv has no rows");
    files.write("candidates.csv", "servers,workers\n1,0\n");
    refused(&files, &format!("{SPEED} --candidates candidates.csv"), "line 2: workers");
}

#[test]
fn without_samples_there_is_what_to_measure_first() {
    let files = folder("samples.csv", "servers,workers,steps_per_s\n");
    files.write("candidates.csv", "servers,workers\n9,2\n1,1\n");
    for (words, most) in [
        ("", (4, 4)),
        ("--max-servers 2 --max-workers 9", (2, 9)),
        ("--candidates candidates.csv", (9, 2)),
        ("--candidates candidates.csv --max-servers 8", (1, 1)),
    ] {
        let fit = answer(&files, &format!("{SPEED} {words} --predict 1,1"));
        for name in ["theta", "model", "best", "rmse_relative", "predicted"] {
            assert_eq!(fit[name], Value::Null, "{words}: {fit}");
        }
        let next = fit["next"].as_array().unwrap();
        assert!(!next.is_empty(), "{words}: {fit}");
        for shape in next {
            let (p, w) = (shape["servers"].as_u64().unwrap(), shape["workers"].as_u64().unwrap());
            assert!(p <= most.0 && w <= most.1, "{words}: {fit}");
        }
        assert_eq!(files.run(&format!("{SPEED} {words}")).code, Some(0));
    }
}

#[test]
fn what_to_measure_next_reaches_beyond_what_was_measured() {
    for (rows, most) in [("1,1,0.3\n", 4), ("5,5,1\n1,1,0.3\n", 10)] {
        let files = folder("samples.csv", &format!("servers,workers,steps_per_s\n{rows}"));
        let fit = answer(&files, SPEED);
        let next = fit["next"].as_array().unwrap();
        assert_eq!(next.len(), 5, "{fit}");
        for shape in next {
            assert_ne!(*shape, json!({"servers": 1, "workers": 1}), "{fit}");
            let (p, w) = (shape["servers"].as_u64().unwrap(), shape["workers"].as_u64().unwrap());
            assert!(p <= most && w <= most, "{fit}");
        }
        // What is best was measured so far, or lies between.
        assert!(fit["best"]["servers"].as_u64().unwrap() <= 5, "{fit}");
    }
}

#[test]
fn a_wrong_row_beside_a_right_one_is_an_outlier() {
    let clean = answer(&folder("samples.csv", &samples()), SPEED);
    let right = 1.0 / (0.05 * 40.0 / 4.0 + 0.3 + 0.4 + 0.04 + 0.08);
    let wrong = 8.0 * right;
    let files = folder("samples.csv", &format!("{}net,4,4,{wrong}\n", samples()));
    let fit = answer(&files, SPEED);
    assert_eq!(fit["theta"], clean["theta"]);
    assert_eq!(fit["outliers"], json!([{"servers": 4, "workers": 4}]));
    let row = json!([{"servers": 4, "workers": 4, "steps_per_s": wrong}]);
    assert_eq!(fit["outlier_rows"], row);
    assert!(files.run(SPEED).out.contains("outlier_rows\t4+4 at"));
    let rows = "servers,workers,steps_per_s\n1,1,0.4\n1,1,0.5\n1,1,4\n";
    let fit = answer(&folder("samples.csv", rows), SPEED);
    assert_eq!(fit["outlier_rows"], json!([{"servers": 1, "workers": 1, "steps_per_s": 4.0}]));
    assert!(fit["rmse_relative"].as_f64().unwrap() > 0.1, "of the rows, not of their median");
}

#[test]
fn terms_that_the_samples_leave_open_are_told() {
    for (shapes, part) in [
        ([(1, 1), (1, 1), (1, 1)], "the shape 1+1"),
        ([(1, 2), (2, 4), (3, 6)], "w/p = 2"),
        ([(1, 3), (2, 3), (5, 3)], "measure other numbers of workers"),
        ([(3, 1), (3, 2), (3, 5)], "measure other numbers of servers"),
        ([(1, 1), (2, 3), (3, 2)], "3 shapes cannot tell 5 terms apart"),
    ] {
        let row = |(p, w): (u32, u32)| format!("{p},{w},{}\n", 0.1 * f64::from(w));
        let rows = shapes.map(row).concat();
        let files = folder("samples.csv", &format!("servers,workers,steps_per_s\n{rows}"));
        let fit = answer(&files, SPEED);
        assert!(fit["warning"].as_str().unwrap().contains(part), "{fit}");
        assert!(files.run(SPEED).out.contains(part));
        let more = "4,9,0.9\n1,7,0.7\n6,2,0.3\n7,7,0.7\n";
        files.write("samples.csv", &format!("servers,workers,steps_per_s\n{rows}{more}"));
        assert_eq!(answer(&files, SPEED)["warning"], Value::Null);
    }
}

#[test]
fn a_mode_and_a_batch_of_the_file_are_those_of_the_command() {
    let head = "mode,global_batch,worker_batch,servers,workers,steps_per_s";
    let text = format!("{head}\nsync,256,,1,1,1\nasync,,,1,1,2\nsync,,32,1,1,3\n");
    let files = folder("samples.csv", &text);
    let speed = "fit speed --samples samples.csv --mode";
    for (words, part) in [
        ("sync --global-batch 256", "line 3: mode: is async, beside --mode sync"),
        ("sync --global-batch 99 --where mode=sync", "line 2: global_batch: is"),
        ("sync --worker-batch 31 --where mode=sync", "line 4: worker_batch: is"),
        ("async", "line 2: mode: is sync, beside --mode async"),
        ("async --where mode=async --global-batch 4", "leave --global-batch out"),
        ("async --where mode=async --worker-batch 4", "leave --worker-batch out"),
    ] {
        refused(&files, &format!("{speed} {words}"), part);
    }
    for (words, remedy) in [
        ("async", "give --mode sync"),
        ("sync --global-batch 99 --where mode=sync", "give --global-batch 256"),
    ] {
        assert!(files.run(&format!("{speed} {words}")).err.contains(remedy), "{words}");
    }
    for words in [
        "sync --global-batch 256 --where mode=sync",
        "sync --worker-batch 32 --where mode=sync",
        "async --where mode=async",
    ] {
        answer(&files, &format!("{speed} {words}"));
    }
    // A whole number may be written as a fraction, and another kind of mode is no business here.
    let files = folder("samples.csv", &format!("{head}\ntrain,256.0,,1,1,1\n"));
    answer(&files, &format!("{speed} sync --global-batch 256"));
}

#[test]
fn wrong_speeds_are_refused_with_their_line() {
    let head = "servers,workers,steps_per_s";
    for (rows, part) in [
        ("0,1,1\n", "line 2: servers"),
        ("1,1,1\n1,1.5,1\n", "line 3: workers"),
        ("1,99999,1\n", "line 2: workers"),
        ("1,-1,1\n", "line 2: workers"),
        ("1,1,fast\n", "line 2: steps_per_s"),
        ("1,1,nan\n", "line 2: steps_per_s"),
        ("1,1,inf\n", "line 2: steps_per_s"),
        ("1,1,0\n", "line 2: steps_per_s"),
        ("1,1,-3\n", "line 2: steps_per_s"),
        ("1,1,\n", "line 2: steps_per_s"),
        ("1,1\n", "line 2: line: has 2 columns"),
    ] {
        refused(&folder("samples.csv", &format!("{head}\n{rows}")), SPEED, part);
    }
    refused(&folder("samples.csv", "servers,workers\n1,1\n"), SPEED, "no column steps_per_s");
    let two = samples() + "other,1,1,1\n";
    let files = folder("samples.csv", &two);
    refused(&files, SPEED, "several models: net, other");
    assert_eq!(answer(&files, &format!("{SPEED} --where model=net"))["outliers"], json!([]));
    refused(&files, &format!("{SPEED} --where model=nets"), "no row of model=nets");
    refused(&files, &format!("{SPEED} --where modell=net"), "did you mean model?");
    for words in [
        "--mode sync",
        "--mode sync --global-batch 0",
        "--mode sync --global-batch 1 --worker-batch 1",
        "--mode neither",
        "",
        "--mode async --predict 1",
        "--mode async --predict 0,1",
        "--mode async --max-servers 0",
        "--mode async --where model",
    ] {
        let ran = files.run(&format!("fit speed --samples samples.csv {words}"));
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{words}: {ran:?}");
    }
}

#[test]
fn hostile_speeds_never_break_a_fit() {
    for speed in ["1e308", "5e-324", "1e-300", "9223372036854775808", "1"] {
        for other in ["1", "1e308", "1e-300"] {
            let rows = format!("1,1,{speed}\n2,1,{other}\n1,2,{speed}\n4096,4096,1\n3,3,{other}\n");
            let files = folder("samples.csv", &format!("servers,workers,steps_per_s\n{rows}"));
            for mode in ["async", "sync --global-batch 4294967295", "sync --worker-batch 1"] {
                let words = "--max-servers 8 --max-workers 8 --predict 4096,1 -o json";
                let ran =
                    files.run(&format!("fit speed --samples samples.csv --mode {mode} {words}"));
                assert!(matches!(ran.code, Some(0 | 2)), "{mode} {rows}: {ran:?}");
            }
        }
    }
}
