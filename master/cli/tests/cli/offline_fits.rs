//! `optimus fit loss`, `optimus fit speed` and `optimus assign` on files.

use serde_json::{Value, json};

use crate::fake::{Ran, optimus};
use crate::golden::compare;
use crate::offline_world::{Folder, job, keys, node, with};

const LOSS: &str = "fit loss --points points.csv --threshold 0.01";
const SPEED: &str = "fit speed --samples samples.csv --mode sync --global-batch 40";
const ASSIGN: &str = "assign --blocks blocks.csv";

/// A folder with one file.
fn folder(name: &str, text: &str) -> Folder {
    let folder = Folder::new();
    folder.write(name, text);
    folder
}

fn answer(folder: &Folder, words: &str) -> Value {
    let ran = folder.run(&format!("{words} -o json"));
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{words}: {ran:?}");
    ran.json()
}

fn refused(folder: &Folder, words: &str, part: &str) {
    let ran = folder.run(&format!("{words} -o json"));
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{words}: {part}: {ran:?}");
    let error = ran.error();
    assert_eq!(error["code"], 2);
    let text = format!("{} {}", error["message"], error["hint"]);
    assert!(text.contains(part), "{words}: {part}: {text}");
}

/// 1/(0.05·k + 1) + 0.2 at 40 epochs of 10 steps.
fn curve() -> String {
    let row = |epoch: u32| {
        let step = f64::from(epoch * 10);
        format!("{step},{}\n", 1.0 / (0.05 * step + 1.0) + 0.2)
    };
    "step,loss\n".to_owned() + &(1..=40).map(row).collect::<String>()
}

const LOSS_KEYS: [&str; 10] = [
    "beta",
    "converged_at_step",
    "outliers",
    "points_used",
    "reason",
    "remaining_range",
    "remaining_steps",
    "rmse",
    "scale",
    "schema",
];

#[test]
fn a_loss_is_fitted_in_the_units_of_its_file() {
    let fit = answer(&folder("points.csv", &curve()), &format!("{LOSS} --steps-per-epoch 10"));
    assert_eq!(keys(&fit), LOSS_KEYS);
    assert_eq!(fit["schema"], "optimus.loss_fit/1");
    for (at, wanted) in [0.05, 1.0, 0.2].into_iter().enumerate() {
        assert!((fit["beta"][at].as_f64().unwrap() - wanted).abs() < 1e-3, "{fit}");
    }
    assert_eq!(fit["reason"], Value::Null);
    let range = fit["remaining_range"].as_array().unwrap();
    let (low, high) = (range[0].as_f64().unwrap(), range[1].as_f64().unwrap());
    assert!(0.0 <= low && low <= high, "{fit}");
    assert!(fit["converged_at_step"].as_f64().unwrap() > 0.0, "{fit}");
}

#[test]
fn rows_may_lack_their_loss_and_stand_in_any_order() {
    let clean = answer(&folder("points.csv", &curve()), LOSS);
    let text = curve();
    let (header, rows) = text.split_once('\n').unwrap();
    let mut rows: Vec<String> = rows.lines().map(|row| format!("x y,{row},")).collect();
    rows.reverse();
    let missing = ["", "nan", "NaN", "inf", "-inf", "Infinity", "1e999"];
    rows.extend(missing.map(|loss| format!("\"q,\"\"\",500,{loss},")));
    let odd = format!("\u{feff}note,{header},learning_rate\r\n{}\r\n\r\n", rows.join("\r\n"));
    let fit = answer(&folder("points.csv", &odd), LOSS);
    assert_eq!(fit["beta"], clean["beta"]);
    assert_eq!(fit["points_used"], clean["points_used"]);
}

#[test]
fn no_honest_answer_is_nulls_and_a_reason() {
    let rising: String = (1..40).map(|step| format!("{step},{step}\n")).collect();
    for (text, part) in [
        ("step,loss\n".to_owned(), "points.csv has no finite loss"),
        ("step,loss\n1,nan\n2,\n".to_owned(), "points.csv has no finite loss"),
        ("step,loss\n1,2\n2,1\n".to_owned(), ""),
        (format!("step,loss\n{rising}"), ""),
        ("step,loss\n".to_owned() + &"1e308,1e308\n".repeat(20), ""),
        ("step,loss\n".to_owned() + &"5,0\n".repeat(20), ""),
        ("step,loss\n".to_owned() + &"9223372036854775808,1\n".repeat(20), ""),
    ] {
        let fit = answer(&folder("points.csv", &text), LOSS);
        assert_eq!(keys(&fit), LOSS_KEYS);
        for name in ["beta", "converged_at_step", "remaining_steps", "remaining_range"] {
            assert_eq!(fit[name], Value::Null, "{text}: {fit}");
        }
        let reason = fit["reason"].as_str().unwrap();
        assert!(!reason.is_empty() && reason.contains(part), "{fit}");
    }
    let folder = folder("points.csv", "step,loss\n");
    compare("fit-loss-unknown.json", &folder.run(&format!("{LOSS} -o json")).out);
    compare("fit-loss-unknown.tsv", &folder.run(LOSS).out);
}

#[test]
fn a_curve_of_the_user_s_own_has_constants() {
    let folder = folder("points.csv", &curve());
    let fit = answer(&folder, &format!("{LOSS} --curve a/(k+b)+c"));
    assert_eq!(fit["beta"], Value::Null);
    if fit["reason"].is_null() {
        assert!(!fit["constants"].as_object().unwrap().is_empty(), "{fit}");
    }
    refused(&folder, &format!("{LOSS} --curve )("), "the curve cannot be used");
}

#[test]
fn wrong_losses_are_refused_with_their_line() {
    for (text, part) in [
        ("", "no header line"),
        ("step,los\n1,2\n", "no column loss"),
        ("1,2\n3,4\n", "no column step"),
        ("step,loss\n1,2\nx,3\n", "line 3: step"),
        ("step,loss\n1,2\ninf,3\n", "line 3: step"),
        ("step,loss\n\n1,2\n,3\n", "line 4: step"),
        ("step,loss\r\n1,2\r\n2,low\r\n", "line 3: loss"),
        ("step,loss\n1,2,3\n", "line 2: line: has 3 columns"),
        ("step,loss\n1\n", "line 2: line: has 1 columns"),
        ("step,loss,learning_rate\n1,2,0.1\n2,1,fast\n", "line 3: learning_rate"),
        ("step,loss,model\n1,2,x\n2,1,y\n", "several models"),
    ] {
        refused(&folder("points.csv", text), LOSS, part);
    }
    let folder = folder("points.csv", &curve());
    for words in ["", "--threshold 0", "--threshold 1", "--threshold nan", "--threshold 1%"] {
        let ran = folder.run(&format!("fit loss --points points.csv {words}"));
        assert_eq!(ran.code, Some(2), "{words}: {ran:?}");
    }
    for words in ["--patience 0", "--patience -1", "--steps-per-epoch 0", "--steps-per-epoch inf"] {
        assert_eq!(folder.run(&format!("{LOSS} {words}")).code, Some(2), "{words}");
    }
    let mut command = optimus("fit loss --points - --threshold 0.01 -o json");
    command.stdin(std::fs::File::open(folder.path("points.csv")).unwrap());
    assert_eq!(Ran::of(&command.output().unwrap()).code, Some(0));
}

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
        "outliers",
        "predicted",
        "rmse_relative",
        "schema",
        "theta",
    ];
    assert_eq!(keys(&fit), expected);
    assert_eq!((&fit["schema"], &fit["mode"]), (&json!("optimus.speed_fit/1"), &json!("sync")));
    let truth = 1.0 / (2.0 / 7.0 + 0.3 + 0.4 * 7.0 / 5.0 + 0.07 + 0.1);
    assert!((fit["predicted"].as_f64().unwrap() / truth - 1.0).abs() < 0.02, "{fit}");
    assert_eq!(fit["theta"].as_array().unwrap().len(), 5);
    assert_eq!(fit["next"].as_array().unwrap().len(), 3);
    assert_eq!(fit["outliers"], json!([]));
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
    files.write("candidates.csv", "servers,workers\n");
    refused(&files, &format!("{SPEED} --candidates candidates.csv"), "candidates.csv has no rows");
    files.write("candidates.csv", "servers,workers\n1,0\n");
    refused(&files, &format!("{SPEED} --candidates candidates.csv"), "line 2: workers");
}

#[test]
fn wrong_speeds_are_refused_with_their_line() {
    let head = "servers,workers,steps_per_s";
    for (rows, part) in [
        ("", "samples.csv has no rows"),
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

#[test]
fn parameters_are_assigned_whole() {
    let files =
        folder("blocks.csv", "model,block,parameters\nm,conv,1500000\nm,bias,20\nm,fc,900\n");
    compare("assign.json", &files.run(&format!("{ASSIGN} --servers 1 -o json")).out);
    compare("assign.tsv", &files.run(&format!("{ASSIGN} --servers 1")).out);
    for algorithm in ["best", "paa", "mxnet"] {
        for servers in [1, 2, 3, 7] {
            let words = format!("{ASSIGN} --servers {servers} --algorithm {algorithm}");
            let assigned = answer(&files, &words);
            let mut loads = vec![(0, 0); servers];
            for (block, parameters) in [1_500_000, 20, 900].into_iter().enumerate() {
                let parts = assigned["blocks"][block]["parts"].as_array().unwrap();
                let mut sum = 0;
                for part in parts {
                    let server = usize::try_from(part["server"].as_u64().unwrap()).unwrap();
                    loads[server].0 += part["parameters"].as_u64().unwrap();
                    loads[server].1 += 1;
                    sum += part["parameters"].as_u64().unwrap();
                }
                assert_eq!(sum, parameters, "{assigned}");
            }
            let told: Vec<(u64, u64)> = assigned["servers"]
                .as_array()
                .unwrap()
                .iter()
                .map(|load| {
                    (load["parameters"].as_u64().unwrap(), load["requests"].as_u64().unwrap())
                })
                .collect();
            assert_eq!(told, loads, "{assigned}");
            let spread = |of: fn(&(u64, u64)) -> u64| {
                loads.iter().map(of).max().unwrap() - loads.iter().map(of).min().unwrap()
            };
            assert_eq!(assigned["size_difference"], spread(|load| load.0));
            assert_eq!(assigned["request_difference"], spread(|load| load.1));
            assert_eq!(assigned["requests"], loads.iter().map(|load| load.1).sum::<u64>());
        }
    }
}

#[test]
fn wrong_blocks_are_refused_with_their_line() {
    for (text, part) in [
        ("parameters\n", "blocks.csv has no blocks"),
        ("sizes\n5\n", "no column parameters"),
        ("parameters\n5\n-1\n", "line 3: parameters"),
        ("parameters\n1.5\n", "line 2: parameters"),
        ("parameters\nnan\n", "line 2: parameters"),
        ("parameters\n18446744073709551616\n", "line 2: parameters"),
        ("block,parameters\na,\n", "line 2: parameters"),
        ("model,parameters\na,1\nb,1\n", "several models: a, b"),
    ] {
        refused(&folder("blocks.csv", text), &format!("{ASSIGN} --servers 2"), part);
    }
    let files = folder("blocks.csv", "model,parameters\na,7\nb,1\n");
    let assigned = answer(&files, &format!("{ASSIGN} --servers 2 --where model=b"));
    assert_eq!(assigned["blocks"].as_array().unwrap().len(), 1);
    assert_eq!(assigned["blocks"][0]["block"], "0", "a block without a name has its place");
    for servers in ["0", "-1", "4097", "x", "18446744073709551615"] {
        let ran = files.run(&format!("{ASSIGN} --servers {servers}"));
        assert_eq!(ran.code, Some(2), "{servers}: {ran:?}");
    }
    let huge = folder("blocks.csv", "parameters\n18446744073709551615\n18446744073709551615\n");
    for algorithm in ["best", "paa", "mxnet"] {
        let ran = huge.run(&format!("{ASSIGN} --servers 1 --algorithm {algorithm}"));
        assert!(matches!(ran.code, Some(0 | 2)), "{ran:?}");
    }
}

#[test]
fn help_and_completions_know_the_commands() {
    let files = Folder::new();
    for words in ["plan", "fit loss", "fit speed", "assign"] {
        let ran = files.run(&format!("{words} --help"));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.out.contains("Usage: optimus"), "{ran:?}");
    }
    let script = files.run("completion bash").out;
    for word in ["--cluster", "--steps-per-epoch", "--candidates", "--algorithm"] {
        assert!(script.contains(word), "{word}");
    }
}
