//! The daemon's side of the GPUs: what is known of each, and since when nothing was heard.
//!
//! A call into the driver may never return. The threads of [`super::nvml`] wait for it; the daemon
//! does not: after a deadline a GPU is reported with that fault, without its last good numbers,
//! and heartbeats go on. A missing library or driver means "no GPUs" and is tried again later.
//! One GPU's error is its own.

mod told;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use model::agent::GpuReport;
use model::nodes::{GpuTrouble, XidReport};
use model::{Millis, UnixMs};

use super::nvml::{self, Failure, Look, Reading, Sources};

/// How long a reading may take. One of eight GPUs takes some ms; a driver that reloads, seconds.
pub(super) const DEADLINE_MS: u64 = 5000;
/// Least time between two looks, however often the daemon beats.
const LOOK_MS: u64 = 500;
/// How often a node without GPUs looks again: loading a library that is not there costs little.
const RETRY_MS: u64 = 60_000;
/// More than any server holds, instances of split ones included; bounds what a changing inventory
/// can pile up.
pub(crate) const GPUS_MAX: usize = 128;
/// Events kept of one GPU, and processes named.
const XIDS_MAX: usize = 16;
const STRANGERS_MAX: usize = 16;

const MISMATCH: &str = "NVIDIA's driver was changed under its library: processes that run go on, \
                        new ones fail; reboot, or reload the nvidia modules once no task uses them";

/// A GPU that was ever seen.
#[derive(Clone, Debug)]
struct Known {
    report: GpuReport,
    ecc_uncorrected: Option<u64>,
    pids: Vec<u32>,
    failure: Option<Failure>,
    /// Seen by the newest look.
    fresh: bool,
    xids: VecDeque<XidReport>,
    strangers: Vec<u32>,
    /// A task of ours has it, so that a stranger keeps nobody waiting yet.
    held: bool,
}

impl Known {
    fn new(report: GpuReport) -> Self {
        Self {
            report,
            ecc_uncorrected: None,
            pids: Vec::new(),
            failure: None,
            fresh: false,
            xids: VecDeque::new(),
            strangers: Vec::new(),
            held: false,
        }
    }
}

/// A place in NVML's list.
#[derive(Clone, Debug, Default)]
struct Slot {
    asked_at: Option<Millis>,
    uuids: Vec<String>,
    failed: Option<Failed>,
}

/// That the newest look failed, and whether the GPU is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failed {
    lost: bool,
}

#[derive(Debug)]
pub(crate) struct Gpus {
    ask: SyncSender<()>,
    asked_at: Option<Millis>,
    answered_at: Option<Millis>,
    looked_at: Option<Millis>,
    /// NVML was there at some time: asked at every beat then.
    present: bool,
    /// Every place of the list has answered once.
    complete: bool,
    slots: Vec<Slot>,
    known: BTreeMap<String, Known>,
    trouble: Option<GpuTrouble>,
    /// A process that starts now finds that library and driver do not fit.
    unfit: bool,
    xids: u64,
    /// A master that judges memory errors itself has spoken.
    judged: bool,
}

impl Gpus {
    /// Starts the threads; `answer` is called on them with each reading.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub(crate) fn start(
        sources: Sources,
        answer: impl Fn(Reading) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        Ok(Self::asking(nvml::start(sources, Arc::new(answer))?))
    }

    pub(super) fn asking(ask: SyncSender<()>) -> Self {
        Self {
            ask,
            asked_at: None,
            answered_at: None,
            looked_at: None,
            present: false,
            complete: false,
            slots: Vec::new(),
            known: BTreeMap::new(),
            trouble: None,
            unfit: false,
            xids: 0,
            judged: false,
        }
    }

    /// Asks for a reading where one is due and none is under way.
    pub(crate) fn poll(&mut self, now: Millis) {
        let every = if self.present { LOOK_MS } else { RETRY_MS };
        let due = self.looked_at.is_none_or(|at| every <= now.since(at));
        if due && self.asked_at.is_none() && self.ask.try_send(()).is_ok() {
            self.asked_at = Some(now);
            self.looked_at = Some(now);
        }
    }

    /// True once NVML has said anything of every GPU, or has had its time.
    pub(crate) fn is_settled(&self, now: Millis) -> bool {
        let waits = self.slots.iter().any(|slot| !slot.has_answered() && !slot.is_overdue(now));
        self.answered_at.is_some() && !waits || self.is_overdue(now)
    }

    fn is_overdue(&self, now: Millis) -> bool {
        self.asked_at.is_some_and(|at| DEADLINE_MS <= now.since(at))
    }

    /// Whether a master says which GPUs memory errors take out.
    pub(crate) fn leave_judgement(&mut self, judged: bool) {
        self.judged = judged;
    }

    /// Takes a reading; true where it changes which GPUs can be used.
    pub(crate) fn take(&mut self, reading: Reading, now: Millis, unix: UnixMs) -> bool {
        let news = matches!(reading, Reading::Xid { .. });
        let faulty = |gpus: &Self| -> Vec<(String, bool)> {
            let faults = gpus.known.iter().map(|(id, gpu)| (id.clone(), gpus.fault(gpu, now)));
            faults.map(|(id, fault)| (id, fault.is_some())).collect()
        };
        let before = faulty(self);
        self.take_any(reading, now, unix);
        news || before != faulty(self)
    }

    fn take_any(&mut self, reading: Reading, now: Millis, unix: UnixMs) {
        match reading {
            Reading::Absent { pci } => {
                self.answered(now);
                self.trouble = match (self.present, pci.first()) {
                    (true, _) => {
                        let words = "NVIDIA's driver is gone; load it or reboot";
                        Some(GpuTrouble::Other(words.to_owned()))
                    }
                    (false, Some(first)) => Some(GpuTrouble::Unseen(unseen(pci.len(), first))),
                    (false, None) => None,
                };
                self.fail_all("the driver is gone; load it or reboot");
            }
            Reading::Broken(why) => {
                self.answered(now);
                let words = format!("NVML fails: {why}; reload the driver or reboot");
                tracing::warn!(why, "NVML fails");
                self.fail_all(&words);
                self.trouble = Some(GpuTrouble::Other(words));
            }
            Reading::Mismatch => {
                self.answered(now);
                self.fail_all(MISMATCH);
                self.trouble = Some(GpuTrouble::Mismatch(MISMATCH.to_owned()));
            }
            Reading::Listed(count) => {
                self.answered(now);
                self.trouble = None;
                self.take_list(count, now);
            }
            Reading::Device(index, looks) => self.take_device(index, looks),
            Reading::Xid { uuid, xid } => self.take_xid(uuid, xid, unix),
            Reading::Anew { mismatch } => {
                if mismatch && !self.unfit {
                    tracing::warn!("{MISMATCH}");
                }
                self.unfit = mismatch;
            }
        }
    }

    fn answered(&mut self, now: Millis) {
        self.asked_at = None;
        self.answered_at = Some(now);
    }

    fn fail_all(&mut self, why: &str) {
        for slot in &mut self.slots {
            slot.asked_at = None;
        }
        for gpu in self.known.values_mut() {
            gpu.failure = Some(Failure { lost: false, words: why.to_owned() });
        }
    }

    fn take_list(&mut self, count: usize, now: Millis) {
        self.present = true;
        self.slots.resize_with(count.min(GPUS_MAX), Slot::default);
        for slot in &mut self.slots {
            slot.asked_at.get_or_insert(now);
        }
        if self.slots.is_empty() {
            self.settle();
        }
    }

    fn take_device(&mut self, index: usize, looks: Result<Vec<Look>, Failure>) {
        let Some(slot) = self.slots.get_mut(index) else { return };
        slot.asked_at = None;
        match looks {
            Ok(looks) => {
                slot.failed = None;
                slot.uuids = looks.iter().map(|look| look.report.uuid.clone()).collect();
                for look in looks.into_iter().take(GPUS_MAX) {
                    self.see(look);
                }
            }
            Err(failure) => {
                slot.failed = Some(Failed { lost: failure.lost });
                // A lost GPU does not even say its name; it had one before.
                if slot.uuids.is_empty() {
                    let unnamed = format!("index-{index}");
                    slot.uuids = vec![unnamed.clone()];
                    let report = GpuReport { name: "unknown".to_owned(), ..blank(&unnamed) };
                    self.known.entry(unnamed).or_insert_with(|| Known::new(report));
                }
                for uuid in &slot.uuids {
                    if let Some(gpu) = self.known.get_mut(uuid) {
                        gpu.failure = Some(failure.clone());
                    }
                }
            }
        }
        if self.slots.iter().all(|slot| slot.asked_at.is_none()) {
            self.settle();
        }
    }

    fn see(&mut self, look: Look) {
        let uuid = look.report.uuid.clone();
        if GPUS_MAX <= self.known.len() && !self.known.contains_key(&uuid) {
            return;
        }
        let gpu = self.known.entry(uuid).or_insert_with(|| Known::new(look.report.clone()));
        gpu.report = look.report;
        gpu.ecc_uncorrected = look.ecc_uncorrected;
        gpu.pids = look.pids;
        gpu.failure = None;
        gpu.fresh = true;
    }

    /// Every place of the list has answered: what none of them named is not there any more.
    fn settle(&mut self) {
        self.complete = true;
        let (good, bad): (Vec<&mut Slot>, Vec<&mut Slot>) =
            self.slots.iter_mut().partition(|slot| slot.failed.is_none());
        let named: BTreeSet<&String> = good.iter().flat_map(|slot| &slot.uuids).collect();
        let mut silent = BTreeSet::new();
        for slot in bad {
            // Others moved up in the list.
            slot.uuids.retain(|uuid| !named.contains(uuid));
            silent.extend(slot.uuids.iter().cloned());
        }
        self.known.retain(|uuid, gpu| {
            if named.contains(uuid) || silent.contains(uuid) {
                return true;
            }
            // Instances come and go as an operator splits GPUs; a whole GPU does not.
            let words = "NVML no longer lists it".to_owned();
            gpu.failure = Some(Failure { lost: true, words });
            uuid.starts_with("GPU-")
        });
    }

    fn take_xid(&mut self, uuid: Option<String>, xid: u64, unix: UnixMs) {
        self.xids += 1;
        tracing::warn!(gpu = uuid, xid, "a GPU told of an error");
        // An event of a split GPU is one of all its instances.
        let of_instance = |slot: &Slot| slot.uuids.iter().any(|own| own.starts_with("MIG-"));
        let whole = uuid.filter(|uuid| self.known.contains_key(uuid));
        let uuids: Vec<String> = match whole {
            Some(uuid) => vec![uuid],
            None => {
                let split = self.slots.iter().filter(|slot| of_instance(slot));
                split.flat_map(|slot| slot.uuids.clone()).collect()
            }
        };
        let event = XidReport { number: self.xids, xid, at: unix };
        for uuid in uuids {
            let Some(gpu) = self.known.get_mut(&uuid) else { continue };
            gpu.xids.push_back(event);
            while XIDS_MAX < gpu.xids.len() {
                gpu.xids.pop_front();
            }
        }
    }

    /// Processes on each GPU, by its UUID.
    pub(crate) fn processes(&self) -> Vec<(String, Vec<u32>)> {
        self.known.iter().map(|(uuid, gpu)| (uuid.clone(), gpu.pids.clone())).collect()
    }

    /// Says which of a GPU's processes are none of our tasks', and whether a task has it. True
    /// where that has changed.
    pub(crate) fn set_strangers(
        &mut self,
        uuid: &str,
        mut strangers: Vec<u32>,
        held: bool,
    ) -> bool {
        let Some(gpu) = self.known.get_mut(uuid) else { return false };
        strangers.truncate(STRANGERS_MAX);
        let news = gpu.strangers != strangers;
        gpu.strangers = strangers;
        gpu.held = held;
        news
    }
}

impl Slot {
    fn has_answered(&self) -> bool {
        self.asked_at.is_none() || !self.uuids.is_empty()
    }

    fn is_overdue(&self, now: Millis) -> bool {
        self.asked_at.is_some_and(|at| DEADLINE_MS <= now.since(at))
    }
}

fn blank(uuid: &str) -> GpuReport {
    GpuReport {
        uuid: uuid.to_owned(),
        name: String::new(),
        memory_bytes_total: 0,
        memory_bytes_used: 0,
        utilisation: None,
        fault: None,
    }
}

fn unseen(count: usize, first: &str) -> String {
    format!(
        "the PCI bus shows {count} NVIDIA device(s), the first at {first}, and NVML is not to be \
         had: install the driver with libnvidia-ml.so.1, and use an agent that is not static"
    )
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
