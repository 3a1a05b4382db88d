//! What the command line takes from its environment. The only reader of variables.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where the master is sought where nothing says otherwise.
pub(crate) const MASTER: &str = "127.0.0.1:7600";
/// Port of a master whose address has none.
pub(crate) const PORT: u16 = 7600;

/// The environment of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// `NO_COLOR` is there and not empty, or the terminal is dumb.
    pub plain: bool,
    pub dumb: bool,
    pub user: Option<String>,
    home: Option<PathBuf>,
    state_home: Option<PathBuf>,
}

impl Environment {
    #[must_use]
    pub(crate) fn read() -> Self {
        let filled = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let text = |name: &str| filled(name).and_then(|value: OsString| value.into_string().ok());
        let dumb = text("TERM").is_none_or(|term| term == "dumb");
        Self {
            plain: dumb || filled("NO_COLOR").is_some(),
            dumb,
            user: text("USER").or_else(|| text("LOGNAME")),
            home: filled("HOME").map(PathBuf::from),
            state_home: filled("XDG_STATE_HOME").map(PathBuf::from),
        }
    }

    /// The folder of certificates: beside the master's state, whose place depends on the user.
    #[must_use]
    pub(crate) fn pki(&self) -> PathBuf {
        if nix::unistd::geteuid().is_root() {
            return PathBuf::from("/var/lib/optimus/pki");
        }
        let home = self.home.as_deref().unwrap_or_else(|| Path::new("/"));
        let state = self.state_home.clone().filter(|path| path.is_absolute());
        state.unwrap_or_else(|| home.join(".local/state")).join("optimus/pki")
    }
}
