//! Amounts of what a node has and a task takes. All arithmetic is checked or saturating by name:
//! a wrapped sum would admit everything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// CPUs in thousandths of a core, memory in bytes, whole GPUs, and any other named kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Resources {
    pub cpus_milli: u64,
    pub memory_bytes: u64,
    pub gpus: u64,
    pub named: BTreeMap<String, u64>,
}

/// Most distinct kinds in one bundle: bounds the cost of every comparison in a round.
pub const NAMED_MAX: usize = 16;

impl Resources {
    #[must_use]
    pub fn new(cpus_milli: u64, memory_bytes: u64, gpus: u64) -> Self {
        Self { cpus_milli, memory_bytes, gpus, named: BTreeMap::new() }
    }

    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.cpus_milli == 0
            && self.memory_bytes == 0
            && self.gpus == 0
            && self.named.values().all(|amount| *amount == 0)
    }

    #[must_use]
    pub fn named(&self, kind: &str) -> u64 {
        self.named.get(kind).copied().unwrap_or(0)
    }

    /// True where every kind of `need` is there.
    #[must_use]
    pub fn covers(&self, need: &Self) -> bool {
        self.cpus_milli >= need.cpus_milli
            && self.memory_bytes >= need.memory_bytes
            && self.gpus >= need.gpus
            && need.named.iter().all(|(kind, amount)| self.named(kind) >= *amount)
    }

    /// The first kind that `need` asks more of than is here, with both amounts.
    #[must_use]
    pub fn lacks(&self, need: &Self) -> Option<(String, u64, u64)> {
        need.kinds().into_iter().find_map(|kind| {
            let (have, want) = (self.amount(&kind), need.amount(&kind));
            (have < want).then_some((kind, have, want))
        })
    }

    /// `cpus`, `memory`, `gpus` and every named kind of this bundle.
    #[must_use]
    pub fn kinds(&self) -> Vec<String> {
        ["cpus", "memory", "gpus"]
            .into_iter()
            .map(str::to_owned)
            .chain(self.named.keys().cloned())
            .collect()
    }

    /// The amount of a kind as [`Self::kinds`] names it: CPUs in thousandths.
    #[must_use]
    pub fn amount(&self, kind: &str) -> u64 {
        match kind {
            "cpus" => self.cpus_milli,
            "memory" => self.memory_bytes,
            "gpus" => self.gpus,
            other => self.named(other),
        }
    }

    fn zip(&self, other: &Self, each: impl Fn(u64, u64) -> u64) -> Self {
        let mut named = self.named.clone();
        for kind in other.named.keys() {
            named.entry(kind.clone()).or_insert(0);
        }
        for (kind, amount) in &mut named {
            *amount = each(*amount, other.named(kind));
        }
        Self {
            cpus_milli: each(self.cpus_milli, other.cpus_milli),
            memory_bytes: each(self.memory_bytes, other.memory_bytes),
            gpus: each(self.gpus, other.gpus),
            named,
        }
    }

    /// The sum; an amount past 2^64 stays at the top, which nothing covers.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// What is left after `other`; never below zero, as when capacity shrinks under running work.
    #[must_use]
    pub fn minus_saturating(&self, other: &Self) -> Self {
        self.zip(other, u64::saturating_sub)
    }

    /// `count` times this bundle, saturating.
    #[must_use]
    pub fn times(&self, count: u32) -> Self {
        self.zip(self, |amount, _| amount.saturating_mul(u64::from(count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_saturate_and_are_then_not_covered() {
        let huge = Resources::new(u64::MAX, 1, 0).plus(&Resources::new(1, 1, 0));
        assert_eq!(huge.cpus_milli, u64::MAX);
        assert!(!Resources::new(4000, 10, 0).covers(&huge));
        assert!(Resources::new(1, 1, 0).minus_saturating(&huge).is_zero());
    }

    #[test]
    fn named_kinds_count() {
        let mut node = Resources::new(1000, 1, 0);
        let mut task = Resources::new(1000, 1, 0);
        task.named.insert("licence".to_owned(), 1);
        assert_eq!(node.lacks(&task), Some(("licence".to_owned(), 0, 1)));
        node.named.insert("licence".to_owned(), 1);
        assert!(node.covers(&task));
        assert_eq!(node.minus_saturating(&task).named("licence"), 0);
    }
}
