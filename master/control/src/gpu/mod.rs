//! GPUs as the master judges them: what agents tell of each is turned into a health state, which
//! says who gets it, what a running job does, and what an operator sees.

mod change;
mod excuse;
mod health;
mod notes;
mod view;
mod xid;

use std::collections::{BTreeMap, VecDeque};

use model::nodes::GpuHealth;
use model::{Generation, JobId, Millis, NodeId, Task, UnixMs};

pub use health::GpuRules;
pub(crate) use notes::clean;
pub use xid::Xids;

use health::Turn;

use crate::event::SessionId;
use crate::job::push_bounded;
use crate::node::Node;
use crate::record::{GpuRecord, Key, Record};
use crate::step::Control;

/// GPUs known of one node; more than any server has.
const GPUS_MAX: usize = 256;
/// How long an event is laid to the task that had the GPU before.
const HOLDER_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;

/// What is kept of the GPUs of the cluster. One without an entry is OK and has no history.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gpus {
    of: BTreeMap<NodeId, BTreeMap<String, Gpu>>,
    /// What the agents count as usable, by node.
    told: BTreeMap<NodeId, u64>,
    /// The session in which a node last noted its GPUs.
    noted: BTreeMap<NodeId, SessionId>,
    /// GPUs that answer and were taken out lately, oldest first; one that is back is not counted.
    taken_out: VecDeque<(Millis, NodeId, String)>,
    /// When it was last told that the limit keeps one in service.
    limit_told: Option<Millis>,
    /// Which task last had a GPU.
    holders: BTreeMap<(NodeId, String), Holder>,
    /// Jobs whose program made a GPU tell of an error, and when.
    blamed: BTreeMap<JobId, (Millis, String)>,
    /// Jobs whose GPU just failed under them.
    excused: BTreeMap<JobId, (Generation, Millis, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    job: JobId,
    generation: Generation,
    task: Task,
    /// When it was seen that it has it no longer.
    left: Option<Millis>,
}

#[derive(Clone, Debug)]
struct Gpu {
    record: GpuRecord,
    /// When the last sign against it came.
    quiet_since: Millis,
}

impl Gpus {
    fn get(&self, node: &NodeId, uuid: &str) -> Option<&Gpu> {
        self.of.get(node)?.get(uuid)
    }

    fn health(&self, node: &NodeId, uuid: &str) -> GpuHealth {
        self.get(node, uuid).map_or(GpuHealth::Ok, |gpu| gpu.record.health)
    }

    /// The GPUs of a node in one of these states.
    fn in_states(&self, node: &NodeId, is: impl Fn(GpuHealth) -> bool) -> Vec<String> {
        let gpus = self.of.get(node).into_iter().flatten();
        gpus.filter(|(_, gpu)| is(gpu.record.health)).map(|(uuid, _)| uuid.clone()).collect()
    }

    /// GPUs that new tasks do not get.
    pub(crate) fn out(&self, node: &NodeId) -> Vec<String> {
        self.in_states(node, |health| health != GpuHealth::Ok)
    }

    /// GPUs that are to be looked at anew.
    pub(crate) fn probed(&self, node: &NodeId) -> Vec<String> {
        self.in_states(node, |health| health == GpuHealth::Probing)
    }

    /// Something of a node's GPUs may change as time passes.
    fn concerns(&self, node: &NodeId) -> bool {
        let waits = |gpu: &Gpu| {
            matches!(gpu.record.health, GpuHealth::Suspect | GpuHealth::Probing)
                || gpu.record.kept.is_some()
        };
        self.of.get(node).is_some_and(|gpus| gpus.values().any(waits))
    }

    /// How many GPUs a node offers: of those that its agent counts as usable, the ones that are
    /// not taken out.
    fn offered(&self, node: &Node, told: u64) -> u64 {
        if node.gpus.is_empty() {
            return told;
        }
        let good = node.gpus.iter().filter(|gpu| {
            gpu.fault.is_none() && self.health(node.id(), &gpu.uuid) == GpuHealth::Ok
        });
        told.min(u64::try_from(good.count()).unwrap_or(u64::MAX))
    }
}

impl Control {
    /// The GPUs that a node offers, of those that its newest heartbeat counts.
    pub(crate) fn offer_gpus(&mut self, id: &NodeId, told: u64) -> u64 {
        self.gpus.told.insert(id.clone(), told);
        self.nodes.get(id).map_or(told, |node| self.gpus.offered(node, told))
    }

    /// Applies what has changed in the health of a node's GPUs.
    fn offer_anew(&mut self, id: &NodeId) {
        self.out.desired.insert(id.clone());
        let Some(told) = self.gpus.told.get(id).copied() else { return };
        let Some(node) = self.nodes.get_mut(id) else { return };
        let offered = self.gpus.offered(node, told);
        if node.record.capacity.gpus != offered {
            node.record.capacity.gpus = offered;
            self.out.nodes.insert(id.clone());
            self.out.room_freed = true;
            self.ask_round("a node's capacity changed");
        }
    }

    /// The entry of a GPU, made where there is none; none where a node has too many.
    fn gpu_mut(&mut self, id: &NodeId, uuid: &str) -> Option<&mut Gpu> {
        let now = self.now.mono;
        let gpus = self.gpus.of.entry(id.clone()).or_default();
        if !gpus.contains_key(uuid) && GPUS_MAX <= gpus.len() {
            return None;
        }
        Some(gpus.entry(uuid.to_owned()).or_insert_with(|| Gpu {
            record: GpuRecord::new(id.clone(), uuid.to_owned()),
            quiet_since: now,
        }))
    }

    /// Keeps an event with a GPU's history. False where it only repeats the last one.
    fn keep_gpu_event(&mut self, id: &NodeId, uuid: &str, words: &str) -> bool {
        let at = self.now.unix;
        let Some(gpu) = self.gpu_mut(id, uuid) else { return false };
        let words: String = words.chars().take(notes::WORDS_MAX).collect();
        let repeats = |(last, told): &(UnixMs, String)| {
            *told == words && at.0.saturating_sub(last.0) <= HOLDER_MS
        };
        if gpu.record.history.last().is_some_and(repeats) {
            return false;
        }
        push_bounded(&mut gpu.record.history, (at, words), health::HISTORY_MAX);
        self.out.gpus.insert((id.clone(), uuid.to_owned()));
        true
    }

    /// Puts a GPU in a state, and tells it.
    fn turn_gpu(&mut self, id: &NodeId, uuid: &str, turn: Turn, by: Option<String>) {
        let now = self.now;
        let job = self.holder_of(id, uuid).map(|holder| holder.job);
        let Some(gpu) = self.gpu_mut(id, uuid) else { return };
        gpu.quiet_since = now.mono;
        let record = &mut gpu.record;
        record.health = turn.health;
        record.since = Some(now.unix);
        record.reason = turn.reason.chars().take(notes::WORDS_MAX).collect();
        record.cause = turn.cause;
        record.by = by;
        record.kept = None;
        self.out.gpus.insert((id.clone(), uuid.to_owned()));
        self.excuse_holder(id, uuid, &turn);
        if turn.health == GpuHealth::Ok {
            self.gpus.taken_out.retain(|(_, node, gpu)| node != id || gpu != uuid);
        }
        let words = format!("{}: {}", turn.health.name(), turn.reason);
        self.keep_gpu_event(id, uuid, &words);
        let text = format!("{uuid} on {id} is {words}");
        self.tell(job, Some(id), "gpu", text);
        self.offer_anew(id);
    }

    /// The task that has a GPU, or had it until just before.
    fn holder_of(&self, id: &NodeId, uuid: &str) -> Option<Holder> {
        let holder = self.gpus.holders.get(&(id.clone(), uuid.to_owned()))?;
        let now = self.now.mono;
        let fresh = holder.left.is_none_or(|left| now.since(left) <= HOLDER_MS);
        (fresh && self.jobs.contains_key(&holder.job)).then_some(*holder)
    }

    /// A reboot is a reset: GPUs that only wanted one are looked at again.
    pub(crate) fn gpus_rebooted(&mut self, id: &NodeId) {
        let gpus = self.gpus.of.get(id).into_iter().flatten();
        let reset: Vec<String> = gpus
            .filter(|(_, gpu)| {
                let cause = gpu.record.cause;
                gpu.record.health == GpuHealth::Bad
                    && matches!(cause, Some(crate::record::GpuCause::Reset(_)))
            })
            .map(|(uuid, _)| uuid.clone())
            .collect();
        for uuid in reset {
            let reason = "its server was rebooted, which resets it".to_owned();
            let turn = Turn { health: GpuHealth::Probing, cause: None, reason };
            self.turn_gpu(id, &uuid, turn, None);
        }
    }

    pub(crate) fn restore_gpu(&mut self, record: GpuRecord) {
        let quiet_since = self.now.mono;
        let gpus = self.gpus.of.entry(record.node.clone()).or_default();
        gpus.insert(record.uuid.clone(), Gpu { record, quiet_since });
    }

    /// What is to be kept of these GPUs.
    pub(crate) fn gpu_records(&self, gpus: &crate::step::GpuNames) -> Vec<Record> {
        let known = gpus.iter().filter_map(|(node, uuid)| self.gpus.get(node, uuid));
        known.map(|gpu| Record::GpuV1(Box::new(gpu.record.clone()))).collect()
    }

    /// Forgets instances that are not there any more, and had nothing that must be kept.
    fn forget_instances(&mut self, id: &NodeId, listed: &[String]) {
        let Some(gpus) = self.gpus.of.get_mut(id) else { return };
        let gone: Vec<String> = gpus
            .iter()
            .filter(|(uuid, gpu)| {
                let out = matches!(gpu.record.health, GpuHealth::Bad | GpuHealth::Retired);
                uuid.starts_with("MIG-") && !out && !listed.contains(uuid)
            })
            .map(|(uuid, _)| uuid.clone())
            .collect();
        for uuid in gone {
            gpus.remove(&uuid);
            let name = (id.clone(), uuid.clone());
            self.gpus.holders.remove(&name);
            self.out.gpus.remove(&name);
            self.out.deleted.push(Key::Gpu(name.0, name.1));
        }
    }

    /// Whether one more GPU may be taken out for what it told.
    fn may_take_out(&mut self) -> bool {
        let now = self.now.mono;
        while self.gpus.taken_out.front().is_some_and(|(at, ..)| HOUR_MS <= now.since(*at)) {
            self.gpus.taken_out.pop_front();
        }
        let total: usize = self.nodes.values().map(|node| node.gpus.len()).sum();
        let total = crate::job::float(u64::try_from(total).unwrap_or(u64::MAX));
        let taken = u64::try_from(self.gpus.taken_out.len()).unwrap_or(u64::MAX);
        // One is always allowed: a small cluster has bad GPUs as well.
        let share = self.settings.gpus.out_share * total;
        taken == 0 || crate::job::float(taken.saturating_add(1)) <= share
    }
}

/// When something was, for a record that is new.
impl GpuRecord {
    pub(crate) fn new(node: NodeId, uuid: String) -> Self {
        Self {
            node,
            uuid,
            health: GpuHealth::Ok,
            since: None,
            reason: String::new(),
            by: None,
            cause: None,
            history: Vec::new(),
            xid_seen: (model::Incarnation(0), 0),
            suspicions: Vec::<UnixMs>::new(),
            kept: None,
        }
    }
}
