//! Checks how a daemon shows itself to a Kerberos realm.

use crate::job::Fault;

/// Longer is no principal.
const PRINCIPAL_BYTES_MAX: usize = 256;

pub(super) fn check(principal: Option<&str>, keytab: Option<&str>, faults: &mut Vec<Fault>) {
    if let Some(principal) = principal
        && (principal.is_empty()
            || PRINCIPAL_BYTES_MAX < principal.len()
            || principal.chars().any(|c| c.is_control() || c.is_whitespace()))
    {
        faults.push(Fault::new(
            "kerberos_principal",
            "is not a principal",
            "give such as optimus/node-7@LAB, or leave it out",
        ));
    }
    let Some(keytab) = keytab else { return };
    if !keytab.starts_with('/') {
        faults.push(Fault::new(
            "kerberos_keytab",
            format!("{keytab:?} is not a path from the root"),
            "give such as /etc/optimus/optimus.keytab",
        ));
    }
    if principal.is_none() {
        faults.push(Fault::new(
            "kerberos_keytab",
            "stands without kerberos_principal",
            "name the principal of the keytab that counts, as klist -k lists them",
        ));
    }
}
