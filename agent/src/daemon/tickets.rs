//! Warns ahead of the end of the tickets that HDFS is asked with.

use model::Millis;
use nix::unistd::geteuid;
use storage::tickets::{Tickets, tickets};

use super::Agent;
use crate::clock;

const LOOK_MS: u64 = 60_000;
const HOUR_S: u64 = 3600;
const DAY_S: u64 = 24 * HOUR_S;

/// What is known of the tickets.
#[derive(Debug, Default)]
pub(super) struct Watch {
    look_at: Millis,
    alert: Option<String>,
}

impl Agent {
    pub(super) fn look_at_tickets(&mut self, now: Millis) {
        if now < self.tickets.look_at {
            return;
        }
        self.tickets.look_at = now.plus(LOOK_MS);
        let found = tickets(&self.settings.hdfs, geteuid().as_raw());
        let alert = found.and_then(|found| words(&found, clock::unix_ms() / 1000));
        if alert.is_some() && self.tickets.alert.is_none() {
            tracing::warn!(alert, "tickets for HDFS");
        }
        self.tickets.alert = alert;
    }

    pub(super) fn ticket_alert(&self) -> Option<String> {
        self.tickets.alert.clone()
    }
}

/// What to tell of tickets; nothing while they serve for longer than a day.
fn words(found: &Tickets, now_s: u64) -> Option<String> {
    const REMEDY: &str = "renew them, or give kerberos_principal and kerberos_keytab in agent.toml";
    let cache = found.cache.display();
    let Some(ends_s) = found.ends_s else {
        return Some(format!("no Kerberos ticket for HDFS in {cache}: {REMEDY}"));
    };
    let left_s = ends_s.saturating_sub(now_s);
    let when = match left_s {
        0 => "have ended".to_owned(),
        1..HOUR_S => format!("end in {} min", left_s.div_ceil(60)),
        HOUR_S..DAY_S => format!("end in {} h", left_s / HOUR_S),
        _ => return None,
    };
    Some(format!("the Kerberos tickets for HDFS in {cache} {when}: {REMEDY}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_told_of_a_day_ahead() {
        let at = |ends_s| words(&Tickets { cache: "/tmp/krb5cc_0".into(), ends_s }, 1_000_000);
        assert_eq!(at(Some(1_000_000 + DAY_S)), None);
        for (left_s, word) in
            [(DAY_S - 1, "in 23 h"), (HOUR_S, "in 1 h"), (61, "in 2 min"), (0, "ended")]
        {
            let told = at(Some(1_000_000 + left_s)).unwrap();
            assert!(told.contains(word) && told.contains("kerberos_keytab"), "{told}");
        }
        assert!(at(None).unwrap().contains("/tmp/krb5cc_0"));
    }
}
