//! Files of the offline commands, read whole.

use std::io::Read as _;
use std::path::Path;

use crate::failure::Failure;

/// Largest file taken: the jobs and nodes of the largest cluster take a few MiB, a loss of ten
/// million steps some hundred; more would only fill memory.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// A file's text, and its name for messages.
#[derive(Debug)]
pub(super) struct Source {
    pub name: String,
    pub text: String,
}

/// Reads a file, or stdin where it is `-`.
///
/// # Errors
/// Where it cannot be read, is too large or is not UTF-8.
pub(super) fn read(path: &Path) -> Result<Source, Failure> {
    let stdin = path == Path::new("-");
    let name = if stdin { "stdin".to_owned() } else { path.display().to_string() };
    let cannot = |error: std::io::Error| {
        Failure::invalid(format!("cannot read {name}: {error}"), "name a file that you can read")
    };
    let mut bytes = Vec::new();
    if stdin {
        std::io::stdin().take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    } else {
        let file = std::fs::File::open(path).map_err(cannot)?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    }
    if u64::try_from(bytes.len()).is_ok_and(|length| length > FILE_BYTES_MAX) {
        let limit = crate::text::bytes(FILE_BYTES_MAX);
        return Err(Failure::invalid(
            format!("{name} is larger than {limit}"),
            "give a part of it",
        ));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::invalid(format!("{name} is not UTF-8 text"), "save it as UTF-8"))?;
    // A byte-order mark is no part of the text.
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    Ok(Source { name, text })
}
