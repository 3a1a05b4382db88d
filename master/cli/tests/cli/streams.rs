//! What goes on for ever: --watch and --follow.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use model::client::{Answer, Call, ErrorKind, Read, Refusal};
use model::reason::PhaseName;
use model::view::WhyView;

use crate::fake::{Does, Fake};
use crate::views;

/// Waits for a condition, with a limit.
pub(crate) fn until(limit: Duration, condition: impl Fn() -> bool) {
    let (_keep, wait) = channel::<()>();
    let tries = limit.as_millis() / 20;
    for _ in 0..tries {
        if condition() {
            return;
        }
        // Nothing is ever sent: this only waits.
        let _ = wait.recv_timeout(Duration::from_millis(20));
    }
    panic!("not within {limit:?}");
}

/// A running command whose lines come as they are printed.
struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(20)).expect("a line within 20 s")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `ps` sees: two jobs; the same, only older; one completed; the other gone.
fn changing() -> Fake {
    let looks = AtomicUsize::new(0);
    Fake::start(move |_| {
        let mut rows =
            vec![views::row(1, "a", PhaseName::Running), views::row(2, "b", PhaseName::Queued)];
        let look = looks.fetch_add(1, Ordering::SeqCst);
        for row in &mut rows {
            row.age_s += f64::from(u32::try_from(look).unwrap());
        }
        if look >= 2 {
            rows[1].phase = PhaseName::Completed;
        }
        if look >= 3 {
            rows.remove(0);
        }
        Ok(Answer::Jobs(rows)).into()
    })
}

#[test]
fn watch_with_json_is_one_object_a_change() {
    for format in ["json", "jsonl"] {
        let fake = changing();
        let running = Running::start(fake.command(&format!("ps --watch -o {format}")));
        let next = || -> serde_json::Value { serde_json::from_str(&running.line()).unwrap() };
        assert_eq!(next()["id"], "j1");
        assert_eq!(next()["id"], "j2");
        let changed = next();
        assert_eq!((&changed["id"], &changed["phase"]), (&"j2".into(), &"COMPLETED".into()));
        let gone = next();
        assert_eq!(gone, serde_json::json!({"schema": "optimus.removed/1", "id": "j1"}));
    }
}

#[test]
fn watch_in_a_pipe_is_one_line_a_change_under_one_header() {
    let fake = changing();
    let running = Running::start(fake.command("ps --watch --columns id,phase"));
    let lines: Vec<String> = (0..4).map(|_| running.line()).collect();
    assert_eq!(lines, ["ID\tPHASE", "j1\tRUNNING", "j2\tQUEUED", "j2\tCOMPLETED"]);
}

#[test]
fn watching_a_page_in_a_pipe_prints_changed_fields_only() {
    let looks = AtomicUsize::new(0);
    let fake = Fake::start(move |request| {
        if !views::asks_job(request) {
            return views::answer(request);
        }
        let mut detail = views::detail();
        let look = looks.fetch_add(1, Ordering::SeqCst);
        detail.row.age_s += 2.0;
        if look > 0 {
            detail.row.step = 15_000;
        }
        Ok(Answer::Job(Box::new(detail))).into()
    });
    let running = Running::start(fake.command("show j1 --watch --no-header"));
    loop {
        let line = running.line();
        assert_eq!(line.split('\t').count(), 2, "{line}");
        if line.starts_with("job.model_key") {
            break;
        }
    }
    assert_eq!(running.line(), "progress.step\t15000");
}

#[test]
fn a_watcher_outlives_a_master_that_restarts() {
    let looks = AtomicUsize::new(0);
    let fake = Fake::start(move |request| match looks.fetch_add(1, Ordering::SeqCst) {
        1 => Does::Hangs,
        0 => views::answer(request),
        _ => Ok(Answer::Jobs(vec![views::row(7, "new", PhaseName::Queued)])).into(),
    });
    let running = Running::start(fake.command("ps --watch -o name"));
    let lines: Vec<String> = (0..4).map(|_| running.line()).collect();
    assert_eq!(lines, ["j1", "j2", "j10", "j7"]);
}

#[test]
fn followed_events_come_once() {
    let looks = Arc::new(AtomicUsize::new(0));
    let fake = Fake::start(move |request| {
        let Call::Read(Read::Events { after, .. }) = &request.call else { panic!("{request:?}") };
        let look = u64::try_from(looks.fetch_add(1, Ordering::SeqCst)).unwrap();
        let all = (1..=look + 2).map(|number| model::view::EventView {
            number,
            at: views::later(number),
            job: None,
            node: None,
            kind: "test".to_owned(),
            text: format!("event {number}"),
        });
        Ok(Answer::Events(all.filter(|event| event.number > *after).collect())).into()
    });
    let running = Running::start(fake.command("events --follow --no-header --columns number"));
    let lines: Vec<String> = (0..5).map(|_| running.line()).collect();
    assert_eq!(lines, ["1", "2", "3", "4", "5"]);
}

#[test]
fn followed_output_has_no_gap_and_no_repeat_over_a_restart() {
    // Generation 3 prints on after the last look at it; then generation 4 comes, and the job ends.
    let looks = AtomicUsize::new(0);
    let fake = Fake::start(move |request| {
        let look = looks.load(Ordering::SeqCst);
        match &request.call {
            Call::Read(Read::Why { .. }) => {
                looks.fetch_add(1, Ordering::SeqCst);
                let phase = if look > 4 { PhaseName::Completed } else { PhaseName::Running };
                Ok(Answer::Why(Box::new(WhyView { phase, ..views::why() }))).into()
            }
            Call::Read(Read::Log { generation, .. }) => {
                let (generation, text) = match (generation, look) {
                    (_, 0..=2) => (3, "one\n"),
                    (None, 3) => (3, "one\ntwo\n"),
                    (Some(3), _) => (3, "one\ntwo\nthree\n"),
                    (_, 4) => (4, "four\n"),
                    (_, _) => (4, "four\nfive\n"),
                };
                Ok(Answer::Log { generation, text: text.as_bytes().to_vec() }).into()
            }
            Call::Change(_) | Call::Read(_) | Call::Certificate(_) => {
                Err(Refusal::new(ErrorKind::Invalid, "not expected", "")).into()
            }
        }
    });
    let ran = fake.run("logs j1 --follow");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.out, "one\ntwo\nthree\nfour\nfive\n");
    assert!(ran.err.contains("j1 goes on as g4"), "{ran:?}");
}

#[test]
fn output_is_passed_on_byte_for_byte() {
    let fake = Fake::start(views::answer);
    let output = fake.command("logs j1").output().unwrap();
    assert_eq!(output.stdout, b"step 1\n\xff\x1b[31mred\n");
}
