//! Who a peer is, by its certificate.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;

/// What the holder of a certificate may be in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Master,
    Agent,
    Operator,
    /// A client that may do everything.
    Admin,
    /// A client that may change its own jobs only.
    User,
}

impl Role {
    pub const ALL: [Self; 5] = [Self::Master, Self::Agent, Self::Operator, Self::Admin, Self::User];
    /// Roles of people and their programs, the one that may do most first.
    pub const CLIENTS: [Self; 3] = [Self::Admin, Self::Operator, Self::User];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Agent => "agent",
            Self::Operator => "operator",
            Self::Admin => "admin",
            Self::User => "user",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Text that is no role, or no name for a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a {what}: {remedy}")]
pub struct BadName {
    pub what: &'static str,
    pub given: String,
    pub remedy: &'static str,
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

impl FromStr for Role {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        Self::ALL.into_iter().find(|role| role.name() == text).ok_or_else(|| BadName {
            what: "role",
            given: shortened(text),
            remedy: "write master, agent, admin, operator or user",
        })
    }
}

/// Role and name, from the certificate's subject alternative name `optimus://<role>/<name>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    pub role: Role,
    pub name: String,
}

const NAME_BYTES_MAX: usize = 63;
const SCHEME: &str = "optimus://";

impl Identity {
    /// Checks the name: an agent's is a node name, so 1 to 63 of `a-z 0-9 . -`; others may also
    /// have `A-Z` and `_`. All start with a letter or digit.
    ///
    /// # Errors
    /// Where the name breaks the rule; nothing else may stand in a URI, a file name or a table.
    pub fn new(role: Role, name: &str) -> Result<Self, BadName> {
        let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-';
        let (fits, remedy) = match role {
            Role::Agent => (
                name.bytes().all(lower),
                "use 1 to 63 of a-z, 0-9, '.' and '-', starting with a letter or digit",
            ),
            Role::Master | Role::Operator | Role::Admin | Role::User => (
                name.bytes().all(|b| lower(b) || b.is_ascii_uppercase() || b == b'_'),
                "use 1 to 63 of a-z, A-Z, 0-9, '.', '-' and '_', starting with a letter or digit",
            ),
        };
        let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if fits && starts && name.len() <= NAME_BYTES_MAX {
            return Ok(Self { role, name: name.to_owned() });
        }
        let what = match role {
            Role::Master => "master's name",
            Role::Agent => "node name",
            Role::Operator => "operator's name",
            Role::Admin => "admin's name",
            Role::User => "user's name",
        };
        Err(BadName { what, given: shortened(name), remedy })
    }

    /// As it stands in the certificate.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("{SCHEME}{}/{}", self.role, self.name)
    }

    /// Reads what [`Self::uri`] writes.
    pub(crate) fn of_uri(uri: &str) -> Result<Self, String> {
        let path = uri.strip_prefix(SCHEME);
        Self::of_path(path.ok_or_else(|| format!("{:?} is no name of Optimus", shortened(uri)))?)
    }

    /// `<role>/<name>`.
    fn of_path(path: &str) -> Result<Self, String> {
        let (role, name) =
            path.split_once('/').ok_or_else(|| format!("{:?} has no name", shortened(path)))?;
        let role = role.parse().map_err(|error: BadName| error.to_string())?;
        Self::new(role, name).map_err(|error| error.to_string())
    }

    /// Reads the one `optimus://` name of a certificate.
    ///
    /// # Errors
    /// In words, where the certificate is not X.509, or has no such name, several, or a bad one.
    pub(crate) fn of_certificate(der: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der)
            .map_err(|error| format!("the certificate is not X.509: {error}"))?;
        let names = certificate
            .subject_alternative_name()
            .map_err(|error| format!("the certificate's alternative names do not read: {error}"))?;
        let mut found = None;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            if let GeneralName::URI(uri) = name
                && let Some(rest) = uri.strip_prefix(SCHEME)
            {
                if found.is_some() {
                    return Err("the certificate has more than one optimus:// name".to_owned());
                }
                found = Some(Self::of_path(rest)?);
            }
        }
        found.ok_or_else(|| "the certificate has no name optimus://<role>/<name>".to_owned())
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for (role, good) in
            [(Role::Agent, "gpu-07.rack2"), (Role::User, "Ada_L"), (Role::Master, "m1")]
        {
            assert_eq!(Identity::new(role, good).unwrap().name, good);
        }
        let long = "a".repeat(64);
        for wrong in ["", "-n", ".n", "n 1", "n\n1", "né", "../x", "a/b", long.as_str()] {
            for role in Role::ALL {
                assert!(Identity::new(role, wrong).is_err(), "{role} {wrong:?} was taken");
            }
        }
        assert!(Identity::new(Role::Agent, "N1").is_err(), "node names are lower case");
    }

    #[test]
    fn roles_read_back_what_they_print() {
        for role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
        }
        assert!("root".parse::<Role>().is_err());
    }
}
