//! Until when this process's Kerberos tickets serve, where HDFS asks for some and no keytab gives
//! new ones: whoever renews them may have stopped to.
//!
//! Read by hand from the ticket cache, as MIT's and Heimdal's libraries write it (format 4, `FILE:`
//! caches alone): big-endian numbers, and texts behind their length.

use std::path::PathBuf;

use crate::HdfsSettings;

/// A cache larger than this is none.
const BYTES_MAX: u64 = 1 << 20;

/// Tickets that HDFS is asked with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tickets {
    pub cache: PathBuf,
    /// When the newest ticket-granting ticket ends, in s since 1970; none where there is none, or
    /// the cache cannot be read.
    pub ends_s: Option<u64>,
}

/// The tickets of this process, whose user has this number; none where HDFS asks for no tickets,
/// a keytab gives them, or they are not kept in a file.
#[must_use]
pub fn tickets(settings: &HdfsSettings, uid: u32) -> Option<Tickets> {
    let site = crate::hdfs::site(settings.conf_dir.as_deref())?;
    let asked = site.value("hadoop.security.authentication") == Some("kerberos");
    // The library takes tickets by a keytab of its own as well.
    let keytab = settings.keytab.is_some() || std::env::var_os("KRB5_CLIENT_KTNAME").is_some();
    if !asked || keytab {
        return None;
    }
    let named = std::env::var_os("KRB5CCNAME").map(|name| name.to_string_lossy().into_owned());
    let named = named.unwrap_or_else(|| format!("/tmp/krb5cc_{uid}"));
    let cache = match named.split_once(':') {
        None => PathBuf::from(named),
        Some(("FILE", path)) => PathBuf::from(path),
        Some(_) => return None,
    };
    let small = std::fs::metadata(&cache).is_ok_and(|found| found.len() <= BYTES_MAX);
    let bytes = std::fs::read(&cache).ok().filter(|_| small);
    let ends_s = bytes.as_deref().and_then(|bytes| Cache { rest: bytes }.ends());
    Some(Tickets { cache, ends_s })
}

/// What is left to read of a cache.
struct Cache<'a> {
    rest: &'a [u8],
}

impl<'a> Cache<'a> {
    /// The latest end of a ticket-granting ticket.
    fn ends(mut self) -> Option<u64> {
        if self.take(2)? != [5, 4] {
            return None;
        }
        let header = usize::from(u16::from_be_bytes(self.take(2)?.try_into().ok()?));
        self.take(header)?;
        self.principal()?;
        let mut ends = None;
        while !self.rest.is_empty() {
            let (granting, end) = self.ticket()?;
            if granting {
                ends = ends.max(Some(u64::from(end)));
            }
        }
        ends
    }

    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let bytes = usize::try_from(self.number()?).ok()?;
        self.take(bytes)
    }

    /// The first part of a principal's name.
    fn principal(&mut self) -> Option<&'a [u8]> {
        self.number()?;
        let parts = self.number()?;
        self.text()?;
        let mut first = None;
        for _ in 0..parts {
            let part = self.text()?;
            first.get_or_insert(part);
        }
        Some(first.unwrap_or_default())
    }

    /// Whether it grants others, and when it ends.
    fn ticket(&mut self) -> Option<(bool, u32)> {
        self.principal()?;
        let granting = self.principal()? == b"krbtgt";
        self.take(2)?;
        self.text()?;
        let (_, _, end, _) = (self.number()?, self.number()?, self.number()?, self.number()?);
        self.take(5)?;
        // Addresses, then what authorises it.
        for _ in 0..2 {
            for _ in 0..self.number()? {
                self.take(2)?;
                self.text()?;
            }
        }
        self.text()?;
        self.text()?;
        Some((granting, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        let length = u32::try_from(text.len()).unwrap().to_be_bytes();
        [&length[..], text.as_bytes()].concat()
    }

    fn principal(parts: &[&str]) -> Vec<u8> {
        let count = u32::try_from(parts.len()).unwrap().to_be_bytes();
        let parts: Vec<u8> = parts.iter().flat_map(|part| text(part)).collect();
        [&[0, 0, 0, 1][..], &count, &text("LAB"), &parts].concat()
    }

    fn ticket(server: &[&str], end: u32) -> Vec<u8> {
        let times = [1, 2, end, 9].map(u32::to_be_bytes).concat();
        let address = [&[0, 0, 0, 1, 0, 2][..], &text("\x7f\0\0\x01")].concat();
        let key = [&[0, 18][..], &text("secret")].concat();
        let none = [0; 4];
        [
            principal(&["ada"]),
            principal(server),
            key,
            times,
            vec![0; 5],
            address,
            none.to_vec(),
            text("ticket"),
            text(""),
        ]
        .concat()
    }

    fn cache(tickets: &[Vec<u8>]) -> Vec<u8> {
        let head = [&[5, 4, 0, 12][..], &[0; 12], &principal(&["ada"])].concat();
        [head, tickets.concat()].concat()
    }

    #[test]
    fn the_last_ticket_that_grants_others_counts() {
        let tickets = [
            ticket(&["krbtgt", "LAB"], 1_000),
            ticket(&["krbtgt", "LAB"], 3_000),
            ticket(&["nn", "host"], 9_000),
        ];
        let bytes = cache(&tickets);
        assert_eq!(Cache { rest: &bytes }.ends(), Some(3_000));
        assert_eq!(Cache { rest: &cache(&tickets[2..]) }.ends(), None);
        for cut in 0..bytes.len() {
            // Never more than there is, and no panic.
            let found = Cache { rest: &bytes[..cut] }.ends();
            assert!(found.is_none_or(|end| end <= 3_000), "{cut}: {found:?}");
        }
    }

    #[test]
    fn only_a_site_that_asks_for_tickets_has_some() {
        let folder = tempfile::tempdir().unwrap();
        let conf_dir = Some(folder.path().to_owned());
        let settings = HdfsSettings { conf_dir, ..HdfsSettings::default() };
        let property = |value: &str| {
            format!(
                "<configuration><property><name>hadoop.security.authentication</name>\
                 <value>{value}</value></property></configuration>"
            )
        };
        std::fs::write(folder.path().join("core-site.xml"), property("simple")).unwrap();
        assert_eq!(tickets(&settings, 4_000_000_000), None);
        std::fs::write(folder.path().join("core-site.xml"), property("kerberos")).unwrap();
        // Set for the tests themselves, it would speak of other tickets.
        if std::env::var_os("KRB5CCNAME").is_none() {
            let cache = PathBuf::from("/tmp/krb5cc_4000000000");
            assert_eq!(tickets(&settings, 4_000_000_000), Some(Tickets { cache, ends_s: None }));
        }
        let keytab = Some(PathBuf::from("/etc/krb5.keytab"));
        assert_eq!(tickets(&HdfsSettings { keytab, ..settings }, 4_000_000_000), None);
    }
}
