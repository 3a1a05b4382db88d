//! The packet filter's rules as text for `nft`.
//!
//! The table judges nothing but packets to an address and port that a task of this agent listens
//! at: whatever else the host runs is not touched, and no other table is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use model::NodeId;

/// Who may reach the tasks of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) ports: BTreeMap<SocketAddr, Admitted>,
}

/// Who may reach one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// From outside: addresses of the servers that have tasks of its generation.
    pub(crate) peers: BTreeSet<IpAddr>,
    /// From this host: the user of its generation, beside root.
    pub(crate) uid: u32,
}

/// A table of this agent alone, also where several run on one machine.
pub(crate) fn table_name(node: &NodeId, state_dir: &Path) -> String {
    let folder = crc32fast::hash(state_dir.as_os_str().as_encoded_bytes());
    format!("optimus-{node}-{folder:08x}")
}

/// A script that replaces the whole table, at once or not at all; without ports it removes it.
pub(crate) fn script(table: &str, rules: &Rules) -> String {
    // Removing a table that is not there is an error, so it is made first.
    let mut text = format!("table inet {table}\ndelete table inet {table}\n");
    if rules.ports.is_empty() {
        return text;
    }
    let mut sets = String::new();
    let (mut from_outside, mut from_here) = (String::new(), String::new());
    for (version, family, is_own) in
        [(4, "ip", IpAddr::is_ipv4 as fn(&IpAddr) -> bool), (6, "ip6", IpAddr::is_ipv6)]
    {
        let own = || rules.ports.iter().filter(|(at, _)| is_own(&at.ip()));
        if own().next().is_none() {
            continue;
        }
        let kind = format!("ipv{version}_addr");
        let held = own().map(|(at, _)| element(*at));
        set(&mut sets, &format!("held{version}"), &format!("type {kind} . inet_service"), held);
        let peers = own().flat_map(|(at, admitted)| {
            let peers = admitted.peers.iter().filter(|peer| is_own(peer));
            peers.map(|peer| format!("{peer} . {}", element(*at)))
        });
        let types = format!("type {kind} . {kind} . inet_service");
        set(&mut sets, &format!("peers{version}"), &types, peers);
        let users = own().flat_map(|(at, admitted)| {
            let users = BTreeSet::from([0, admitted.uid]);
            users.into_iter().map(|uid| format!("{uid} . {}", element(*at)))
        });
        let types = format!("typeof meta skuid . {family} daddr . tcp dport");
        set(&mut sets, &format!("users{version}"), &types, users);
        let held = format!("{family} daddr . tcp dport @held{version}");
        // A stranger is refused rather than left waiting: so is a peer that was taken for one,
        // and then its operator sees at once what it is.
        let _infallible = writeln!(
            from_outside,
            "\t\t{held} {family} saddr . {family} daddr . tcp dport != @peers{version} \
             counter reject with tcp reset"
        );
        let _infallible = writeln!(
            from_here,
            "\t\t{held} tcp flags & (fin | syn | rst | ack) == syn \
             meta skuid . {family} daddr . tcp dport != @users{version} \
             counter reject with tcp reset"
        );
    }
    // Packets of this host to itself are judged where they leave, by whose they are: their source
    // may be any address of the host.
    let _infallible = writeln!(
        text,
        "table inet {table} {{\n{sets}\tchain from_outside {{\n\
         \t\ttype filter hook input priority filter - 5; policy accept;\n\
         \t\tiif \"lo\" accept\n{from_outside}\t}}\n\tchain from_here {{\n\
         \t\ttype filter hook output priority filter - 5; policy accept;\n{from_here}\t}}\n}}"
    );
    text
}

fn element(at: SocketAddr) -> String {
    format!("{} . {}", at.ip(), at.port())
}

fn set(text: &mut String, name: &str, types: &str, elements: impl Iterator<Item = String>) {
    let elements: Vec<String> = elements.collect();
    let _infallible = write!(text, "\tset {name} {{\n\t\t{types}\n");
    if !elements.is_empty() {
        let _infallible = writeln!(text, "\t\telements = {{ {} }}", elements.join(", "));
    }
    text.push_str("\t}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(ports: &[(&str, &[&str], u32)]) -> Rules {
        let ports = ports.iter().map(|(at, peers, uid)| {
            let peers = peers.iter().map(|peer| peer.parse().unwrap()).collect();
            (at.parse().unwrap(), Admitted { peers, uid: *uid })
        });
        Rules { ports: ports.collect() }
    }

    #[test]
    fn a_table_is_the_agents_own_and_goes_with_its_last_port() {
        let node: NodeId = "node-7.lab".parse().unwrap();
        let name = table_name(&node, Path::new("/var/lib/optimus/agent"));
        assert!(name.starts_with("optimus-node-7.lab-"), "{name}");
        assert_ne!(name, table_name(&node, Path::new("/var/lib/optimus/other")));
        let gone = script(&name, &Rules::default());
        assert_eq!(gone, format!("table inet {name}\ndelete table inet {name}\n"));
    }

    #[test]
    fn only_ports_of_tasks_are_judged_and_each_by_its_own_peers() {
        let rules = rules(&[
            ("10.0.0.7:10000", &["10.0.0.7", "10.0.0.8", "fd00::8"], 1001),
            ("10.0.0.7:10001", &[], 1002),
            ("[fd00::7]:10002", &["fd00::8", "10.0.0.8"], 0),
        ]);
        let text = script("optimus-n1-0", &rules);
        for line in [
            "elements = { 10.0.0.7 . 10000, 10.0.0.7 . 10001 }",
            "elements = { 10.0.0.7 . 10.0.0.7 . 10000, 10.0.0.8 . 10.0.0.7 . 10000 }",
            "elements = { 0 . 10.0.0.7 . 10000, 1001 . 10.0.0.7 . 10000, \
             0 . 10.0.0.7 . 10001, 1002 . 10.0.0.7 . 10001 }",
            "elements = { fd00::7 . 10002 }",
            "elements = { fd00::8 . fd00::7 . 10002 }",
            "elements = { 0 . fd00::7 . 10002 }",
            "type ipv6_addr . ipv6_addr . inet_service",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
        assert_eq!(text.matches("counter reject").count(), 4, "{text}");
        assert!(!text.contains("drop") && !text.contains("flush"), "{text}");
    }
}
