//! Two masters with one state: a copy of the store was promoted while this master stood still, or
//! was cut off, and it does not know. Agents refuse its sets, since they have obeyed a later life;
//! and as soon as it hears that from one of them, it starts nothing more and says so.

use model::agent::Introduction;
use model::client::Refusal;
use model::{NodeId, Revision, UnixMs};

use crate::change::conflict;
use crate::record::Meta;
use crate::step::Control;

/// 2020-01-01. Seconds since then fit the 31 bits of a life until 2088.
const LIVES_SINCE_S: u64 = 1_577_836_800;
/// A clock that is decades ahead must not use up all lives: 2054.
const LIFE_BY_CLOCK_MAX: u64 = 1 << 30;

/// The life of a master that a set came from.
fn life_of(revision: Revision) -> u64 {
    revision.0 >> 32
}

impl Meta {
    /// The counters of a store that takes another's place: a snapshot that is restored, or one
    /// that begins anew. Its lives come after each that a master on the old store can have
    /// reached by being started, so that agents obey whichever was put in place last.
    #[must_use]
    pub fn succeeding(self, now: UnixMs) -> Self {
        let since_s = (now.0 / 1000).saturating_sub(LIVES_SINCE_S);
        Self { starts: self.starts.max(since_s.min(LIFE_BY_CLOCK_MAX)), ..self }
    }
}

impl Control {
    /// Looks at what an agent obeyed last.
    ///
    /// # Errors
    /// In words, where that was another master's.
    pub(crate) fn obeys_us(
        &mut self,
        id: &NodeId,
        introduction: &Introduction,
    ) -> Result<(), String> {
        let (theirs, own) = (life_of(introduction.first.obeyed), self.meta.starts);
        if theirs <= own {
            return Ok(());
        }
        // One that was never seen may have come from another cluster, with all that it remembers.
        let known = self.nodes.get(id).map(|node| &node.record.boot_id);
        if known != Some(&introduction.boot_id) {
            return Err(format!(
                "{id} has obeyed life {theirs} of a master, and this is life {own}: it belongs to \
                 another cluster, or another master has taken this one's place; an agent that is \
                 to change its cluster needs a fresh state_dir"
            ));
        }
        let words = format!(
            "another master works with this cluster's state: {id} has obeyed its life {theirs}, \
             and this is life {own}"
        );
        if self.superseded.replace(words.clone()).is_none() {
            let text = format!("{words}; nothing is started or changed from here any more");
            self.tell(None, Some(id), "superseded", text);
        }
        Err(words)
    }

    /// True where only another master may decide anything.
    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.is_some()
    }

    /// # Errors
    /// For every change, where another master is at work.
    pub(crate) fn admits_changes(&self) -> Result<(), Refusal> {
        self.superseded.as_ref().map_or(Ok(()), |words| Err(conflict(words.clone(), REMEDY)))
    }

    /// For people, with what to do.
    pub(crate) fn superseded_alert(&self) -> Option<(String, &'static str)> {
        Some((self.superseded.clone()?, REMEDY))
    }
}

const REMEDY: &str = "stop this master and ask the other one; if this is the one to keep, stop the \
                      other, save a snapshot here and start from it with optimus snapshot restore";
