//! `optimus fit loss` and `optimus assign` on files.

use serde_json::Value;

use crate::fake::{Ran, optimus};
use crate::golden::compare;
use crate::offline_world::{Folder, answer, folder, keys, refused};

const LOSS: &str = "fit loss --points points.csv --threshold 0.01";
const ASSIGN: &str = "assign --blocks blocks.csv";

/// 1/(0.05·k + 1) + 0.2 at 40 epochs of 10 steps.
fn curve() -> String {
    let row = |epoch: u32| {
        let step = f64::from(epoch * 10);
        format!("{step},{}\n", 1.0 / (0.05 * step + 1.0) + 0.2)
    };
    "step,loss\n".to_owned() + &(1..=40).map(row).collect::<String>()
}

const LOSS_KEYS: [&str; 11] = [
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
    "since_step",
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
    assert!(files.run(&format!("{ASSIGN} --servers 2 --where model=b")).err.contains("requests 1"));
    let huge = folder("blocks.csv", "parameters\n18446744073709551615\n18446744073709551615\n");
    for algorithm in ["best", "paa", "mxnet"] {
        let ran = huge.run(&format!("{ASSIGN} --servers 1 --algorithm {algorithm}"));
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains("hint: count parameters"), "{ran:?}");
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
