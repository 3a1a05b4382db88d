//! The live view: a table that redraws itself on a terminal, a line for each change elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use harness::process::say;
use serde_json::Value;

#[derive(Debug)]
pub(crate) struct Table {
    terminal: bool,
    lines_drawn: usize,
    said: BTreeMap<String, String>,
}

fn number(value: &Value, digits: usize, unit: &str) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}{unit}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn shape(row: &Value) -> String {
    format!("{}+{}", row["shape"]["servers"], row["shape"]["workers"])
}

impl Table {
    pub(crate) fn new() -> Self {
        Self { terminal: std::io::stdout().is_terminal(), lines_drawn: 0, said: BTreeMap::new() }
    }

    pub(crate) fn show(&mut self, elapsed: Duration, rows: &[Value]) {
        if self.terminal {
            self.draw(elapsed, rows);
        } else {
            self.tell(elapsed, rows);
        }
    }

    fn draw(&mut self, elapsed: Duration, rows: &[Value]) {
        // Without automatic wrapping: a long line is cut, or the next frame would begin too low.
        let mut frame = String::from("\x1b[?7l");
        if self.lines_drawn > 0 {
            let _infallible = write!(frame, "\x1b[{}A", self.lines_drawn);
        }
        let seconds = elapsed.as_secs();
        let header = "job          phase      PS+W   step   epoch   loss    steps/s   left";
        let _infallible = writeln!(frame, "\x1b[K{seconds} s\n\x1b[K{header}");
        for row in rows {
            let mut reason = text(&row["reason"]).to_owned();
            reason.truncate(reason.char_indices().nth(60).map_or(reason.len(), |(at, _)| at));
            let _infallible = writeln!(
                frame,
                "\x1b[K{:<12} {:<10} {:<6} {:<6} {:<7} {:<7} {:<9} {:<7} {reason}",
                text(&row["name"]),
                text(&row["phase"]),
                shape(row),
                row["step"].to_string(),
                row["epoch"].to_string(),
                number(&row["loss"], 4, ""),
                number(&row["steps_per_s"], 1, ""),
                number(&row["remaining_s"], 0, " s"),
            );
        }
        frame.push_str("\x1b[?7h");
        self.lines_drawn = rows.len() + 2;
        let mut out = std::io::stdout().lock();
        let _closed = out.write_all(frame.as_bytes()).and_then(|()| out.flush());
    }

    fn tell(&mut self, elapsed: Duration, rows: &[Value]) {
        for row in rows {
            let state = format!("{} {} {}", text(&row["phase"]), shape(row), text(&row["reason"]));
            if self.said.get(text(&row["id"])) == Some(&state) {
                continue;
            }
            say(&format!(
                "{:4} s  {:<11} {state} (step {}, loss {})",
                elapsed.as_secs(),
                text(&row["name"]),
                row["step"],
                number(&row["loss"], 4, ""),
            ));
            self.said.insert(text(&row["id"]).to_owned(), state);
        }
    }
}
