//! What an Xid says about a GPU.
//!
//! The numbers and what to do about each are from NVIDIA's Xid catalogue
//! (docs.nvidia.com/deploy/xid-errors), sorted here by what follows for a cluster. An operator's
//! lists in master.toml come before them.

use std::collections::BTreeMap;

/// What follows from an Xid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The program did something wrong, or was ended: the GPU is as good as before.
    User,
    /// It passes by itself; the GPU is looked at, idle, before it works again.
    Transient,
    /// The GPU works again only once it was reset.
    Reset,
    /// The hardware failed.
    Hardware,
}

/// The table with an operator's own entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Xids {
    own: BTreeMap<u64, Class>,
}

impl Xids {
    /// The lists of master.toml: user, transient, reset and hardware faults.
    pub(crate) fn with(user: &[u64], transient: &[u64], reset: &[u64], hardware: &[u64]) -> Self {
        let mut own = BTreeMap::new();
        // The worse one wins where a number is in two lists.
        for (list, class) in [
            (user, Class::User),
            (transient, Class::Transient),
            (reset, Class::Reset),
            (hardware, Class::Hardware),
        ] {
            own.extend(list.iter().map(|xid| (*xid, class)));
        }
        Self { own }
    }

    pub(crate) fn class(&self, xid: u64) -> Class {
        let listed = LISTED.iter().find(|(number, _, _)| *number == xid);
        let own = self.own.get(&xid).copied();
        // One that nobody knows is looked at, and takes nothing out for good.
        own.or_else(|| listed.map(|(_, class, _)| *class)).unwrap_or(Class::Transient)
    }
}

/// The number with its meaning.
pub(crate) fn words(xid: u64) -> String {
    match LISTED.iter().find(|(number, _, _)| *number == xid) {
        Some((_, _, words)) => format!("Xid {xid} ({words})"),
        None => format!("Xid {xid}"),
    }
}

const LISTED: [(u64, Class, &str); 31] = [
    (8, Class::User, "the program took too long on the GPU"),
    (13, Class::User, "the program's own fault on the graphics engine"),
    (31, Class::User, "the program used memory that is not its own"),
    (32, Class::Transient, "a damaged stream of commands"),
    (38, Class::Transient, "the driver's firmware"),
    (43, Class::User, "the program was stopped for its own fault"),
    (45, Class::User, "the program was ended and cleaned up after"),
    (48, Class::Hardware, "a memory error that could not be corrected"),
    (61, Class::Reset, "the micro-controller stopped"),
    (62, Class::Reset, "the micro-controller halted"),
    (63, Class::Transient, "a row of memory will be replaced at the next reset"),
    (64, Class::Hardware, "a bad row of memory could not be replaced"),
    (68, Class::User, "the program's own fault in video decoding"),
    (69, Class::User, "the program's own fault in a class of commands"),
    (74, Class::Hardware, "NVLink failed"),
    (79, Class::Hardware, "it has fallen off the bus"),
    (92, Class::Hardware, "many corrected memory errors"),
    (94, Class::Transient, "a memory error that ended only its own program"),
    (95, Class::Reset, "a memory error that may have touched every program"),
    (109, Class::Reset, "switching between programs took too long"),
    (110, Class::Reset, "a security fault"),
    (119, Class::Reset, "its system processor did not answer"),
    (120, Class::Reset, "its system processor failed"),
    (121, Class::Transient, "the link to the processor had errors"),
    (123, Class::Reset, "power management failed"),
    (136, Class::Reset, "its links could not be trained"),
    (140, Class::Reset, "a memory error that was not recovered"),
    (143, Class::Reset, "it could not be initialised"),
    (149, Class::Transient, "NVLink had errors"),
    (155, Class::Hardware, "NVLink's firmware failed"),
    (156, Class::Reset, "a resource will be retired at the next reset"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_faults_are_told_from_the_hardwares() {
        let xids = Xids::default();
        for xid in [13, 31, 43, 45] {
            assert_eq!(xids.class(xid), Class::User, "{xid}");
        }
        for xid in [48, 64, 74, 79] {
            assert_eq!(xids.class(xid), Class::Hardware, "{xid}");
        }
        assert_eq!(xids.class(94), Class::Transient);
        assert_eq!(xids.class(119), Class::Reset);
        assert_eq!(xids.class(4711), Class::Transient, "one that nobody knows");
        assert!(words(79).contains("bus") && words(4711) == "Xid 4711");
    }

    #[test]
    fn an_operators_list_comes_first_and_the_worse_one_wins() {
        let xids = Xids::with(&[79, 7], &[], &[], &[31, 7]);
        assert_eq!(xids.class(79), Class::User);
        assert_eq!(xids.class(31), Class::Hardware);
        assert_eq!(xids.class(7), Class::Hardware);
        assert_eq!(xids.class(13), Class::User);
    }

    #[test]
    fn the_table_is_in_order() {
        assert!(LISTED.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
