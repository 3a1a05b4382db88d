//! Where the settings come from: a file, the environment, the user. The only place that reads
//! the environment.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use model::config::{MasterConfig, TlsConfig};
use model::job::Fault;
use toml::{Table, Value};

const CONFIG_PATH: &str = "/etc/optimus/master.toml";

/// Settings that obey every rule.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) config: MasterConfig,
    /// The file that was read; none where the defaults serve.
    pub(crate) source: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the settings in {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not TOML: {words}")]
    Syntax { path: PathBuf, words: String },
    #[error("{path} has {} fault(s):{}", faults.len(), listed(faults))]
    Faults { path: PathBuf, faults: Vec<Fault> },
    #[error("cannot tell where the state folder is: set state_dir, HOME or XDG_STATE_HOME")]
    NoStateDir,
}

fn listed(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("\n  {fault}")).collect()
}

/// Reads the settings: from `given`, else from /etc/optimus/master.toml where it exists.
///
/// # Errors
/// With every fault at once.
pub(crate) fn load(given: Option<&Path>) -> Result<Loaded, ConfigError> {
    let standard = Path::new(CONFIG_PATH);
    let path = match given {
        Some(path) => path,
        None if standard.exists() => standard,
        None => return Ok(Loaded { config: MasterConfig::default(), source: None }),
    };
    let text = fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| ConfigError::Syntax {
        path: path.to_owned(),
        words: error.to_string().trim_end().to_owned(),
    })?;
    match read(table) {
        Ok(config) => Ok(Loaded { config, source: Some(path.to_owned()) }),
        Err(faults) => Err(ConfigError::Faults { path: path.to_owned(), faults }),
    }
}

/// Settings from a table, or everything that is wrong with it.
fn read(mut table: Table) -> Result<MasterConfig, Vec<Fault>> {
    let mut faults = Vec::new();
    remove_unknown(&mut table, &known(), "", &mut faults);
    remove_unreadable(&mut table, &mut faults);
    let config: MasterConfig =
        Value::Table(table).try_into().map_err(|error: toml::de::Error| {
            let words = error.message().to_owned();
            vec![Fault::new("settings", words, "correct it")]
        })?;
    faults.extend(config.faults());
    if faults.is_empty() { Ok(config) } else { Err(faults) }
}

/// Every key there is, with some value.
fn known() -> Table {
    let text = Some(String::new());
    let config = MasterConfig {
        state_dir: text.clone(),
        hadoop_conf_dir: text.clone(),
        kerberos_principal: text.clone(),
        kerberos_keytab: text.clone(),
        store_key: text.clone(),
        tls: TlsConfig {
            ca: text.clone(),
            certificate: text.clone(),
            key: text.clone(),
            enrolment: text.clone(),
            revocations: text,
        },
        ..MasterConfig::default()
    };
    Table::try_from(config).expect("settings are plain data")
}

fn remove_unknown(table: &mut Table, known: &Table, within: &str, faults: &mut Vec<Fault>) {
    table.retain(|key, value| {
        let field = format!("{within}{key}");
        match (known.get(key), value) {
            (Some(Value::Table(below)), Value::Table(inner)) => {
                remove_unknown(inner, below, &format!("{field}."), faults);
                true
            }
            (Some(_), _) => true,
            (None, _) => {
                let names: Vec<&str> = known.keys().map(String::as_str).collect();
                let remedy = format!("remove it, or use one of {}", names.join(", "));
                faults.push(Fault::new(field, "is not a setting", remedy));
                false
            }
        }
    });
}

/// Tries each value alone, so that one of a wrong type does not hide the next. Keys of a section
/// that is a value, and values of a key that is a section, are found here too.
fn remove_unreadable(table: &mut Table, faults: &mut Vec<Fault>) {
    let defaults = known();
    let mut try_alone = |field: &str, alone: Table| {
        let tried: Result<MasterConfig, toml::de::Error> = Value::Table(alone).try_into();
        tried.map_err(|error| {
            let words = error.message().lines().next().unwrap_or_default().to_owned();
            let mut parts = field.splitn(2, '.');
            let section = parts.next().and_then(|name| defaults.get(name));
            let value = match parts.next() {
                Some(inner) => section.and_then(|section| section.get(inner)),
                None => section,
            };
            let remedy = match value {
                Some(Value::Table(_)) => format!("write it as a section, [{field}]"),
                Some(value) => format!("write it like its default, {value}"),
                None => "remove it".to_owned(),
            };
            faults.push(Fault::new(field, words, remedy));
        })
    };
    let single = |key: &str, value: Value| Table::from_iter([(key.to_owned(), value)]);
    table.retain(|key, value| {
        let Value::Table(section) = value else {
            return try_alone(key, single(key, value.clone())).is_ok();
        };
        section.retain(|inner, value| {
            let alone = single(key, Value::Table(single(inner, value.clone())));
            try_alone(&format!("{key}.{inner}"), alone).is_ok()
        });
        true
    });
}

/// Where everything of this master lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) state_dir: PathBuf,
    /// Certificates where none are configured.
    pub(crate) pki_dir: PathBuf,
}

/// What of the environment and the user counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    pub(crate) root: bool,
    pub(crate) home: Option<PathBuf>,
    pub(crate) state_home: Option<PathBuf>,
    pub(crate) user: Option<String>,
    pub(crate) log: Option<String>,
    /// Where systemd put what `LoadCredential` names.
    pub(crate) credentials: Option<PathBuf>,
}

impl Environment {
    #[expect(clippy::disallowed_methods, reason = "this is the place that reads the environment")]
    pub(crate) fn read() -> Self {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let folder = |name| text(name).map(PathBuf::from).filter(|path| path.is_absolute());
        // The owner of this process's folder in /proc is its effective user.
        let root = fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0);
        Self {
            root,
            home: folder("HOME"),
            state_home: folder("XDG_STATE_HOME"),
            user: text("USER"),
            log: text("OPTIMUS_LOG"),
            credentials: folder("CREDENTIALS_DIRECTORY"),
        }
    }

    /// The state folder: as configured, /var/lib/optimus/master for root, else below
    /// `XDG_STATE_HOME` or ~/.local/state.
    pub(crate) fn places(&self, config: &MasterConfig) -> Result<Places, ConfigError> {
        let state_dir = match &config.state_dir {
            Some(given) => PathBuf::from(given),
            None if self.root => PathBuf::from("/var/lib/optimus/master"),
            None => {
                let below_home = || Some(self.home.as_ref()?.join(".local/state"));
                let state_home = self.state_home.clone().or_else(below_home);
                state_home.ok_or(ConfigError::NoStateDir)?.join("optimus/master")
            }
        };
        let pki_dir = state_dir.parent().unwrap_or(&state_dir).join("pki");
        Ok(Places { state_dir, pki_dir })
    }

    /// The bundle to enrol with: as configured, else that of systemd where it hands one over.
    pub(crate) fn enrolment(&self, config: &MasterConfig) -> Option<PathBuf> {
        let configured = config.tls.enrolment.as_ref().map(PathBuf::from);
        let handed = || Some(self.credentials.as_ref()?.join("enrolment"));
        configured.or_else(|| handed().filter(|path| path.exists()))
    }

    /// A name for this user's operator certificate.
    pub(crate) fn operator(&self) -> String {
        let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let name: String = self.user.iter().flat_map(|user| user.chars()).filter(allowed).collect();
        let name = name.trim_start_matches(['.', '-', '_']);
        match name {
            "" if self.root => "root".to_owned(),
            "" => "local".to_owned(),
            name => name.chars().take(63).collect(),
        }
    }
}

/// This host's name as a node's: lower case, up to the first character that a node name cannot
/// have.
pub(crate) fn node_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().to_lowercase();
    let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let name: String = name.trim().chars().take_while(allowed).take(63).collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
