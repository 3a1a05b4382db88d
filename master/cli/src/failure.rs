//! How a command ends other than well: one exit code for each meaning.

use std::fmt;

use model::Fault;
use model::client::{ErrorKind, Refusal};
use serde::Serialize;

use crate::text::escape_lines;

/// Exit codes of the command line; a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// The reader of our output is gone: nobody is left to tell.
    PipeClosed = 0,
    /// The job ended FAILED or CANCELLED.
    JobFailed = 1,
    /// Usage or invalid input.
    Invalid = 2,
    NotFound = 3,
    NotAllowed = 4,
    Conflict = 5,
    /// The master does not answer, or cannot take it now.
    Unavailable = 6,
    TimedOut = 7,
    /// Valid, but cannot be placed.
    CannotPlace = 8,
    /// A fault of this program: what it arrived at breaks its own rules. As `EX_SOFTWARE`.
    Internal = 70,
    Interrupted = 130,
}

impl Exit {
    #[must_use]
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }
}

impl From<ErrorKind> for Exit {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid => Self::Invalid,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::NotAllowed => Self::NotAllowed,
            ErrorKind::Conflict => Self::Conflict,
            ErrorKind::Unavailable => Self::Unavailable,
            ErrorKind::CannotPlace => Self::CannotPlace,
        }
    }
}

/// A fault and the line of the file that it stands on, where known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub line: Option<usize>,
    pub fault: Fault,
}

/// What could not be done, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub exit: Exit,
    pub message: String,
    /// Empty where there is nothing to advise.
    pub hint: String,
    pub faults: Vec<Located>,
}

impl Failure {
    #[must_use]
    pub(crate) fn new(exit: Exit, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { exit, message: message.into(), hint: hint.into(), faults: Vec::new() }
    }

    /// A usage error or a wrong input.
    #[must_use]
    pub(crate) fn invalid(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(Exit::Invalid, message, hint)
    }

    /// A job or configuration file with everything that is wrong in it.
    #[must_use]
    pub(crate) fn faulty(file: &str, faults: Vec<Located>) -> Self {
        let count = crate::text::count(faults.len(), "fault", "faults");
        Self {
            faults,
            ..Self::invalid(format!("{file} has {count}"), "correct them all and try again")
        }
    }

    /// The one JSON object that `-o json` promises on stderr.
    #[must_use]
    pub(crate) fn json(&self) -> String {
        #[derive(Serialize)]
        struct FaultJson<'a> {
            field: &'a str,
            problem: &'a str,
            remedy: &'a str,
            line: Option<usize>,
        }
        #[derive(Serialize)]
        struct Json<'a> {
            code: u8,
            message: &'a str,
            hint: &'a str,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            faults: Vec<FaultJson<'a>>,
        }
        let mut message = self.message.clone();
        for (at, located) in self.faults.iter().enumerate() {
            message.push_str(if at == 0 { ": " } else { "; " });
            let line = located.line.map(|line| format!("line {line}: ")).unwrap_or_default();
            message.extend([&*line, &*located.fault.field, ": ", &located.fault.problem]);
        }
        let faults = self.faults.iter().map(|located| FaultJson {
            field: &located.fault.field,
            problem: &located.fault.problem,
            remedy: &located.fault.remedy,
            line: located.line,
        });
        let json = Json {
            code: self.exit.code(),
            message: &message,
            hint: &self.hint,
            faults: faults.collect(),
        };
        serde_json::to_string(&json).expect("strings and numbers always make JSON")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", escape_lines(&self.message))?;
        for Located { line, fault } in &self.faults {
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            write!(f, "\n  {place}{}", escape_lines(&fault.to_string()))?;
        }
        if !self.hint.is_empty() {
            write!(f, "\nhint: {}", escape_lines(&self.hint))?;
        }
        Ok(())
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let faults = refusal.faults.into_iter().map(|fault| Located { line: None, fault });
        Self {
            faults: faults.collect(),
            ..Self::new(refusal.kind.into(), refusal.message, refusal.hint)
        }
    }
}

/// Where stdout cannot be written to.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::new(Exit::PipeClosed, "the reader of the output is gone", "");
        }
        Self::invalid(format!("cannot write the output: {error}"), "check where stdout goes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_refusal_has_its_own_exit_code() {
        for (kind, code) in [
            (ErrorKind::Invalid, 2),
            (ErrorKind::NotFound, 3),
            (ErrorKind::NotAllowed, 4),
            (ErrorKind::Conflict, 5),
            (ErrorKind::Unavailable, 6),
            (ErrorKind::CannotPlace, 8),
        ] {
            assert_eq!(Failure::from(Refusal::new(kind, "m", "h")).exit.code(), code);
        }
        assert_eq!(Exit::JobFailed.code(), 1);
        assert_eq!(Exit::TimedOut.code(), 7);
        assert_eq!(Exit::Interrupted.code(), 130);
    }

    #[test]
    fn an_error_is_one_json_object() {
        let plain = Failure::new(Exit::NotFound, "no job \"j9\"\n", "see `optimus ps`");
        assert_eq!(
            plain.json(),
            r#"{"code":3,"message":"no job \"j9\"\n","hint":"see `optimus ps`"}"#
        );
        let fault = Located { line: Some(4), fault: Fault::new("name", "is empty", "name it") };
        let faulty = Failure::faulty("job.toml", vec![fault]);
        let json: serde_json::Value = serde_json::from_str(&faulty.json()).unwrap();
        assert_eq!(json["faults"][0]["line"], 4);
        assert_eq!(
            faulty.to_string(),
            "error: job.toml has 1 fault\n  line 4: name: is empty; name it\nhint: correct them \
             all and try again"
        );
    }

    #[test]
    fn a_message_cannot_move_the_cursor() {
        let failure = Failure::new(Exit::NotFound, "no job \u{1b}[2J", "");
        assert_eq!(failure.to_string(), "error: no job \\u{1b}[2J");
    }
}
