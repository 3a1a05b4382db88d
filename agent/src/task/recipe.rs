//! What jobs a fork server can serve, and what it is started from.

use std::collections::BTreeMap;
use std::path::Path;

/// What a fork server is started from; another one cannot stand in for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// The interpreter and its flags.
    pub(super) words: Vec<String>,
    /// The job's own.
    environment: BTreeMap<String, String>,
}

/// Flags that say nothing of what is imported from where.
const PLAIN_FLAGS: [&str; 5] = ["-u", "-B", "-O", "-OO", "-q"];

/// How many words of a command come before its script; none where it is not a Python interpreter
/// with plain flags and a script.
pub(super) fn script_of(command: &[String]) -> Option<usize> {
    let program = Path::new(command.first()?).file_name()?.to_str()?;
    let version = program.strip_prefix("python")?;
    let plain = version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let flags = command[1..].iter().take_while(|word| PLAIN_FLAGS.contains(&word.as_str()));
    let script = 1 + flags.count();
    let is_script = command.get(script).is_some_and(|word| {
        !word.starts_with('-') && Path::new(word).extension().is_some_and(|end| end == "py")
    });
    (plain && is_script).then_some(script)
}

impl Recipe {
    /// None where the tasks of such a job can only be started from nothing.
    pub(crate) fn of(command: &[String], environment: &BTreeMap<String, String>) -> Option<Self> {
        let script = script_of(command)?;
        // Taken from the working directory, which the server does not start in: a module that
        // lies there must not come before one that it imports.
        let relative = |path: &String| path.split(':').any(|part| !part.starts_with('/'));
        if environment.get("PYTHONPATH").is_some_and(relative) {
            return None;
        }
        Some(Self { words: command[..script].to_vec(), environment: environment.clone() })
    }

    /// The job's own variables.
    pub(crate) fn environment(&self) -> &BTreeMap<String, String> {
        &self.environment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(command: &[&str], path: Option<&str>) -> Option<Recipe> {
        let command: Vec<_> = command.iter().map(|word| (*word).to_owned()).collect();
        let path = path.map(|path| ("PYTHONPATH".to_owned(), path.to_owned()));
        Recipe::of(&command, &path.into_iter().collect())
    }

    #[test]
    fn only_an_interpreter_with_plain_flags_and_a_script_is_forked() {
        for command in [
            &["python3", "train.py", "--rate", "1"][..],
            &["/opt/env/bin/python3.11", "-u", "-B", "a/b.py"],
            &["python", "x.py"],
        ] {
            assert!(recipe(command, None).is_some(), "{command:?}");
        }
        for command in [
            &["sh", "-c", "python3 train.py"][..],
            &["python3"],
            &["python3", "-m", "train"],
            &["python3", "-c", "import train"],
            &["python3", "-I", "train.py"],
            &["python3", "-X", "dev", "train.py"],
            &["python3", "-"],
            &["python3", "folder"],
            &["pythonic", "train.py"],
            &["ipython", "train.py"],
            &[],
        ] {
            assert!(recipe(command, None).is_none(), "{command:?}");
        }
        assert!(recipe(&["python3", "a.py"], Some("/a:/b")).is_some());
        assert!(recipe(&["python3", "a.py"], Some("/a:b")).is_none());
        assert!(recipe(&["python3", "a.py"], Some("/a:")).is_none());
    }
}
