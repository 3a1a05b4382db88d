//! Counts who is in, and says who may come in.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::identity::Identity;

/// Bounds of a server. A peer over one of them is refused; the others never notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections after the handshake: 40 KiB each.
    pub connections_max: usize,
    /// Of these, from one IP address: agents behind one address, and operators' commands.
    pub per_address_max: usize,
    /// Of these, with certificates of one holder: nobody may take all places of an address, which
    /// a host of many people or a gateway shares.
    pub per_holder_max: usize,
    /// Handshakes under way: each is some 0.6 ms of a core, and lasts 10 s at most while many are
    /// under way.
    pub handshakes_max: usize,
    /// From so many handshakes on, an address must first prove that it receives (QUIC Retry), and
    /// has less time.
    pub unproven_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 20_000,
            per_address_max: 1_024,
            per_holder_max: 256,
            handshakes_max: 512,
            unproven_max: 64,
        }
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Count {
    connections: usize,
    handshakes: usize,
}

#[derive(Debug, Default)]
struct Counts {
    all: Count,
    by_address: BTreeMap<IpAddr, Count>,
    /// Connections of each holder of a certificate.
    by_holder: BTreeMap<Identity, usize>,
}

#[derive(Debug)]
pub(crate) struct Gate {
    limits: Limits,
    counts: Mutex<Counts>,
}

/// What becomes of one that knocks.
#[derive(Debug)]
pub(crate) enum Verdict {
    Enter(Slot),
    /// Prove the address first.
    Prove,
    /// No more handshakes now.
    Full,
}

impl Gate {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, counts: Mutex::default() })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Nothing in here panics half-way; counts are whole whatever happened.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn connections(&self) -> usize {
        self.counts().all.connections
    }

    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr, proven: bool) -> Verdict {
        let mut counts = self.counts();
        let here = counts.by_address.get(&address).copied().unwrap_or_default();
        // One address may not take every handshake: it would lock out all others.
        let here_max = self.limits.handshakes_max.div_ceil(2);
        if counts.all.handshakes >= self.limits.handshakes_max || here.handshakes >= here_max {
            return Verdict::Full;
        }
        if !proven && counts.all.handshakes >= self.limits.unproven_max {
            return Verdict::Prove;
        }
        counts.all.handshakes += 1;
        counts.by_address.entry(address).or_default().handshakes += 1;
        Verdict::Enter(Slot { gate: Arc::clone(self), address, holder: None })
    }
}

/// One place among the handshakes, later among the connections; given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    gate: Arc<Gate>,
    address: IpAddr,
    /// Whose connection it is, once the handshake is over.
    holder: Option<Identity>,
}

impl Slot {
    /// True while so many handshakes are under way that none may take long.
    pub(crate) fn is_crowded(&self) -> bool {
        self.gate.limits.unproven_max < self.gate.counts().all.handshakes
    }

    /// From the handshakes to the connections.
    ///
    /// # Errors
    /// In words for the peer, where a limit is reached.
    pub(crate) fn settle(&mut self, holder: &Identity) -> Result<(), String> {
        let limits = self.gate.limits;
        let mut counts = self.gate.counts();
        let here = counts.by_address.get(&self.address).copied().unwrap_or_default();
        if counts.all.connections >= limits.connections_max {
            let most = limits.connections_max;
            return Err(format!("this master holds its most connections, {most}; try later"));
        }
        if here.connections >= limits.per_address_max {
            let most = limits.per_address_max;
            return Err(format!(
                "{} holds the most connections of one address, {most}; close some or try later",
                self.address
            ));
        }
        if counts.by_holder.get(holder).is_some_and(|held| *held >= limits.per_holder_max) {
            let most = limits.per_holder_max;
            return Err(format!(
                "{holder} holds the most connections of one holder, {most}; close some or try later"
            ));
        }
        counts.all.connections += 1;
        counts.by_address.entry(self.address).or_default().connections += 1;
        *counts.by_holder.entry(holder.clone()).or_default() += 1;
        leave(&mut counts, self.address, None);
        drop(counts);
        self.holder = Some(holder.clone());
        Ok(())
    }
}

/// Gives back a holder's connection, or a handshake where there is no holder yet.
fn leave(counts: &mut Counts, address: IpAddr, holder: Option<&Identity>) {
    let less =
        |place: usize| place.checked_sub(1).expect("every slot was counted when it was made");
    let take = |count: &mut Count| {
        let place = if holder.is_some() { &mut count.connections } else { &mut count.handshakes };
        *place = less(*place);
    };
    take(&mut counts.all);
    let here = counts.by_address.get_mut(&address).expect("every slot counts for its address");
    take(here);
    if here.connections == 0 && here.handshakes == 0 {
        counts.by_address.remove(&address);
    }
    if let Some(holder) = holder {
        let held = counts.by_holder.get_mut(holder).expect("every connection counts for a holder");
        *held = less(*held);
        if *held == 0 {
            counts.by_holder.remove(holder);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        leave(&mut self.gate.counts(), self.address, self.holder.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        connections_max: 3,
        per_address_max: 2,
        per_holder_max: 9,
        handshakes_max: 4,
        unproven_max: 1,
    };

    fn holder(name: &str) -> Identity {
        Identity::new(crate::Role::User, name).unwrap()
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn slot(gate: &Arc<Gate>, last: u8) -> Slot {
        match gate.enter(address(last), true) {
            Verdict::Enter(slot) => slot,
            other @ (Verdict::Prove | Verdict::Full) => panic!("{last} got {other:?}"),
        }
    }

    #[test]
    fn limits_hold_and_places_come_back() {
        let gate = Gate::new(LIMITS);
        let mut first = slot(&gate, 1);
        first.settle(&holder("uma")).unwrap();
        let mut second = slot(&gate, 1);
        second.settle(&holder("uma")).unwrap();
        let words = slot(&gate, 1).settle(&holder("uma")).unwrap_err();
        assert!(words.contains("10.0.0.1"), "{words}");
        let mut third = slot(&gate, 2);
        third.settle(&holder("uma")).unwrap();
        let words = slot(&gate, 3).settle(&holder("uma")).unwrap_err();
        assert!(words.contains("most connections, 3"), "{words}");
        drop(first);
        slot(&gate, 3).settle(&holder("uma")).unwrap();
        drop((second, third));
        assert_eq!(gate.connections(), 0);
        assert!(gate.counts().by_address.is_empty(), "no address is remembered");
        assert!(gate.counts().by_holder.is_empty(), "no holder is remembered");
    }

    #[test]
    fn one_holder_cannot_take_every_place_of_an_address() {
        let gate = Gate::new(Limits { per_holder_max: 1, ..LIMITS });
        let mut first = slot(&gate, 1);
        first.settle(&holder("uma")).unwrap();
        for address in [1, 2] {
            let words = slot(&gate, address).settle(&holder("uma")).unwrap_err();
            assert!(words.contains("user uma holds the most"), "{words}");
        }
        slot(&gate, 1).settle(&holder("vic")).unwrap();
        drop(first);
        slot(&gate, 2).settle(&holder("uma")).unwrap();
    }

    #[test]
    fn one_address_cannot_take_every_handshake() {
        let gate = Gate::new(LIMITS);
        let held = (slot(&gate, 1), slot(&gate, 1));
        assert!(held.0.is_crowded(), "two of the one that may be unproven");
        assert!(matches!(gate.enter(address(1), true), Verdict::Full));
        assert!(matches!(gate.enter(address(2), false), Verdict::Prove));
        let _other = (slot(&gate, 2), slot(&gate, 3));
        assert!(matches!(gate.enter(address(4), true), Verdict::Full));
    }
}
