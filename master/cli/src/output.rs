//! The only place that writes to the terminal: data to stdout, talk to stderr.

use std::io::{self, IsTerminal, Write};

use crate::clock;
use crate::config::Environment;
use crate::failure::{Exit, Failure};
use crate::grid::Style;
use crate::text::{cut, escape, escape_lines};

/// Columns of a terminal that does not say how wide it is.
const WIDTH: usize = 100;
const HEIGHT: usize = 40;

/// Where output goes and what that can show.
#[derive(Debug)]
pub(crate) struct Output {
    /// stdout is a terminal.
    pub terminal: bool,
    /// stderr is a terminal.
    pub talk_terminal: bool,
    /// stdin is a terminal, so that questions can be answered.
    pub questions: bool,
    plain: bool,
    dumb: bool,
    width: usize,
    height: usize,
    progress: bool,
}

impl Output {
    #[must_use]
    pub(crate) fn new(environment: &Environment) -> Self {
        let size = terminal_size::terminal_size();
        Self {
            terminal: io::stdout().is_terminal(),
            talk_terminal: io::stderr().is_terminal(),
            questions: io::stdin().is_terminal(),
            plain: environment.plain,
            dumb: environment.dumb,
            width: size.map_or(WIDTH, |(width, _)| usize::from(width.0)),
            height: size.map_or(HEIGHT, |(_, height)| usize::from(height.0)),
            progress: false,
        }
    }

    /// How text for stdout looks now.
    #[must_use]
    pub(crate) fn style(&self, utc: bool) -> Style {
        Style {
            terminal: self.terminal,
            colour: self.terminal && !self.plain,
            width: self.width,
            utc,
            now: clock::now(),
        }
    }

    /// Data, already safe to show.
    ///
    /// # Errors
    /// Where stdout does not take it; a reader that left gives [`Exit::PipeClosed`].
    pub(crate) fn data(&mut self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())
    }

    /// Data as it is.
    ///
    /// # Errors
    /// As [`Self::data`].
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.end_progress();
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }

    /// A task's output: as it is for a pipe, with control characters escaped on a terminal.
    ///
    /// # Errors
    /// As [`Self::data`].
    pub(crate) fn foreign(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.terminal {
            return self.data(&escape_lines(&String::from_utf8_lossy(bytes)));
        }
        self.bytes(bytes)
    }

    /// The whole screen anew: `--watch` on a terminal.
    ///
    /// # Errors
    /// As [`Self::data`].
    pub(crate) fn redraw(&mut self, text: &str) -> Result<(), Failure> {
        if self.dumb {
            return self.data(&format!("{text}\n"));
        }
        let room = self.height.saturating_sub(1);
        let mut screen = String::from("\u{1b}[H");
        for line in text.lines().take(room) {
            screen.push_str(line);
            screen.push_str("\u{1b}[K\n");
        }
        screen.push_str("\u{1b}[J");
        self.data(&screen)
    }

    /// Clears the screen before the first [`Self::redraw`].
    ///
    /// # Errors
    /// As [`Self::data`].
    pub(crate) fn clear(&mut self) -> Result<(), Failure> {
        if self.dumb { Ok(()) } else { self.data("\u{1b}[2J") }
    }

    /// A line of talk for a person. That nobody listens is no failure.
    pub(crate) fn talk(&mut self, text: &str) {
        self.end_progress();
        let _ = writeln!(io::stderr().lock(), "{}", escape_lines(text));
    }

    /// A question without a line end; the answer is read from stdin elsewhere.
    pub(crate) fn ask(&mut self, text: &str) {
        self.end_progress();
        let mut stderr = io::stderr().lock();
        let _ = write!(stderr, "{} ", escape_lines(text));
        let _ = stderr.flush();
    }

    /// One line on a terminal's stderr that the next one replaces; nothing elsewhere.
    pub(crate) fn progress(&mut self, text: &str) {
        if self.talk_terminal && !self.dumb {
            let line = cut(&escape(text), self.width.saturating_sub(1));
            let mut stderr = io::stderr().lock();
            let _ = write!(stderr, "\r{line}\u{1b}[K");
            let _ = stderr.flush();
            self.progress = true;
        }
    }

    /// Removes the line of progress.
    pub(crate) fn end_progress(&mut self) {
        if std::mem::take(&mut self.progress) {
            let mut stderr = io::stderr().lock();
            let _ = write!(stderr, "\r\u{1b}[K");
            let _ = stderr.flush();
        }
    }

    /// How a command failed: words, or the one JSON object.
    pub(crate) fn failure(&mut self, failure: &Failure, json: bool) {
        self.end_progress();
        if failure.exit == Exit::PipeClosed {
            return;
        }
        let text = if json { failure.json() } else { failure.to_string() };
        let _ = writeln!(io::stderr().lock(), "{text}");
    }
}
