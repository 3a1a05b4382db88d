//! Names that people and programs think of.

use model::client::Answer;
use model::reason::PhaseName;

use crate::fake::Fake;
use crate::views;

/// Names of all kinds from a fixed seed: letters, wide letters, emoji, combining marks, direction
/// marks, controls.
fn names() -> Vec<String> {
    let fixed = [
        "é",
        "漢字",
        "👩‍🔬🚂",
        "\u{5e9}\u{5dc}\u{200f}",
        "a\nb",
        "a\tb",
        "\0",
        "\u{1b}[2J",
        "\"\\",
        "-",
        "",
    ];
    let mut names: Vec<String> = fixed.iter().map(|name| (*name).to_owned()).collect();
    names.push("x".repeat(300));
    let mut state = 42_u32;
    let mut next = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let ranges = [
        (0x00, 0x20),
        (0x20, 0x7f),
        (0x7f, 0x100),
        (0x300, 0x370),
        (0x590, 0x6ff),
        (0x2000, 0x2070),
        (0x4e00, 0x4f00),
        (0x1f300, 0x1f600),
        (0xfe00, 0xfeff),
        (0xe000, 0xe010),
    ];
    for _ in 0..200 {
        let mut name = String::new();
        for _ in 0..=next(12) {
            let (low, high) = ranges[next(10) as usize];
            name.extend(char::from_u32(low + next(high - low)));
        }
        names.push(name);
    }
    names
}

#[test]
fn no_name_breaks_a_list() {
    let names = names();
    let given = names.clone();
    let fake = Fake::start(move |_| {
        let rows = (1..).zip(&given).map(|(id, name)| views::row(id, name, PhaseName::Queued));
        Ok(Answer::Jobs(rows.collect())).into()
    });
    for words in ["ps", "ps -o wide", "ps --columns name,id"] {
        let out = fake.run(words).out;
        let lines: Vec<&str> = out.split('\n').collect();
        assert_eq!(lines.len(), names.len() + 2, "{words}");
        let columns = lines[0].split('\t').count();
        for line in &lines[..=names.len()] {
            assert_eq!(line.split('\t').count(), columns, "{words}: {line:?}");
            assert!(!line.chars().any(|c| c.is_control() && c != '\t'), "{words}: {line:?}");
        }
    }
    let json = fake.run("ps -o json").json();
    let read: Vec<&str> =
        json["jobs"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(read, names);
    let lines = fake.run("ps -o jsonl").out;
    assert_eq!(lines.lines().count(), names.len());
}

#[test]
fn ten_thousand_jobs_are_listed_within_a_second_or_so() {
    let fake = Fake::start(|_| {
        let rows = (1..=10_000).map(|id| views::row(id, "sweep", PhaseName::Queued));
        Ok(Answer::Jobs(rows.collect())).into()
    });
    let mut command = fake.command("ps --sort -age,id");
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = 0;
    let reader = std::io::BufReader::new(child.stdout.take().unwrap());
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        lines += std::io::BufRead::lines(reader).count();
        let _ = sender.send(lines);
    });
    // Ten times what an optimised build takes on a loaded machine.
    let counted = done.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
    assert_eq!(counted, 10_001);
    assert!(child.wait().unwrap().success());
}
