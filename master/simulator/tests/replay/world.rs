//! Where the measurements are.

use std::path::{Path, PathBuf};

use simulator::replay::{Folders, Profiles, Row, read_rows};

/// The folder of the Pollux data; none, with a line that says so, where it is not there.
#[expect(clippy::print_stderr, reason = "who runs the tests is to see what was left out")]
pub(crate) fn data() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let told = std::env::var_os("OPTIMUS_DATA");
    let data = told.map_or_else(|| root.join("../shared/data"), PathBuf::from);
    let pollux = data.join("pollux");
    if pollux.is_dir() {
        return Some(pollux);
    }
    eprintln!(
        "{} is not there: this test needs the larger data and was left out",
        pollux.display()
    );
    None
}

pub(crate) fn golden(name: &str) -> Option<Vec<serde_json::Value>> {
    let text = std::fs::read_to_string(data()?.join("golden").join(name)).unwrap();
    Some(serde_json::from_str(&text).unwrap())
}

pub(crate) fn number(value: &serde_json::Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field} of {value}"))
}

pub(crate) fn count(value: &serde_json::Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

pub(crate) fn all_apps(data: &Path) -> Profiles {
    let folders = Folders::of(data);
    let names = folders.names();
    Profiles::load(&folders, names.iter().map(String::as_str)).unwrap()
}

pub(crate) fn workload(data: &Path, name: &str) -> Vec<Row> {
    read_rows(std::fs::File::open(data.join(name)).unwrap()).unwrap()
}
