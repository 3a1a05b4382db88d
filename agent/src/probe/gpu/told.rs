//! What is told of the GPUs: to the master, to its operator, and to who starts a task.

use model::Millis;
use model::agent::GpuReport;
use model::nodes::{GpuNote, GpuTrouble};

use super::{Gpus, Known, MISMATCH};
use crate::config::Override;
use crate::probe::nvml::Failure;

impl Gpus {
    /// Since when nothing was heard of a GPU, where that is too long, in s.
    fn silence(&self, uuid: &str, now: Millis) -> Option<u64> {
        let slot = self.slots.iter().find(|slot| slot.uuids.iter().any(|own| own == uuid));
        let own = slot.filter(|slot| slot.is_overdue(now)).and_then(|slot| slot.asked_at);
        let all = self.asked_at.filter(|_| self.is_overdue(now));
        own.or(all).map(|since| now.since(since) / 1000)
    }

    /// Why new tasks cannot use a GPU, by what the server itself sees.
    pub(super) fn fault(&self, gpu: &Known, now: Millis) -> Option<String> {
        if let Some(seconds) = self.silence(&gpu.report.uuid, now) {
            return Some(format!("no answer from NVML for {seconds} s"));
        }
        if let Some(failure) = &gpu.failure {
            return Some(failure.words.clone());
        }
        if self.unfit {
            return Some(MISMATCH.to_owned());
        }
        if let Some(fault) = &gpu.report.fault {
            return Some(fault.clone());
        }
        if let Some(errors) = gpu.ecc_uncorrected.filter(|errors| 0 < *errors && !self.judged) {
            return Some(format!("{errors} uncorrected memory errors since the driver was loaded"));
        }
        if !gpu.held && !gpu.strangers.is_empty() {
            let pids: Vec<String> = gpu.strangers.iter().map(u32::to_string).collect();
            return Some(format!(
                "its memory is held by process {}, which is no task's; end it",
                pids.join(", ")
            ));
        }
        None
    }

    /// Every GPU that was ever seen, with what is wrong with it now.
    pub(crate) fn reports(&self, now: Millis) -> Vec<GpuReport> {
        let reports = self.known.values().map(|gpu| {
            let silent = gpu.failure.is_some() || self.silence(&gpu.report.uuid, now).is_some();
            let mut report = gpu.report.clone();
            if silent {
                // The last good numbers are not shown as present ones.
                report.utilisation = None;
                report.memory_bytes_used = 0;
            }
            report.fault = self.fault(gpu, now);
            report
        });
        reports.collect()
    }

    /// What was seen of each GPU, and of those that tasks have and that are not there.
    pub(crate) fn notes(&self, held: &[String], probed: &[String], now: Millis) -> Vec<GpuNote> {
        let mut notes: Vec<GpuNote> = self
            .known
            .iter()
            // One that has not said its name yet cannot be told of.
            .filter(|(uuid, _)| has_name(uuid))
            .map(|(uuid, gpu)| {
                let silent = self.silence(uuid, now).map(|_| {
                    let words = "NVML does not answer".to_owned();
                    Failure { lost: false, words }
                });
                let failure = silent.as_ref().or(gpu.failure.as_ref());
                let words = failure.map(|failure| &failure.words).or(gpu.report.fault.as_ref());
                GpuNote {
                    uuid: uuid.clone(),
                    answers: gpu.fresh && failure.is_none(),
                    fault: words.cloned(),
                    ecc_uncorrected: gpu.ecc_uncorrected,
                    xids: gpu.xids.iter().copied().collect(),
                    strangers: gpu.strangers.clone(),
                    lost: failure.is_some_and(|failure| failure.lost),
                    probed: probed.contains(uuid)
                        && !held.contains(uuid)
                        && self.fault(gpu, now).is_none(),
                }
            })
            .collect();
        // One that only fails to answer may be the one that a task has.
        let all_told = self.slots.iter().all(|slot| slot.failed.is_none_or(|failed| failed.lost));
        if self.complete && self.trouble(now).is_none() && all_told {
            let gone = held.iter().filter(|uuid| has_name(uuid));
            let gone = gone.filter(|uuid| !self.known.contains_key(*uuid));
            notes.extend(gone.map(|uuid| GpuNote {
                uuid: uuid.clone(),
                fault: Some("NVML does not list it any more".to_owned()),
                lost: true,
                ..GpuNote::default()
            }));
        }
        notes
    }

    /// What is wrong with all of them.
    pub(crate) fn trouble(&self, now: Millis) -> Option<GpuTrouble> {
        let waits = self.present && self.is_overdue(now);
        let all_wait = !self.slots.is_empty() && self.slots.iter().all(|slot| slot.is_overdue(now));
        if waits || all_wait || (self.answered_at.is_none() && self.is_overdue(now)) {
            let words = "NVML does not answer: a driver that hangs; look at dmesg, and reboot";
            return Some(GpuTrouble::Hangs(words.to_owned()));
        }
        let unfit = self.unfit.then(|| GpuTrouble::Mismatch(MISMATCH.to_owned()));
        self.trouble.clone().or(unfit)
    }

    /// For the operator, where fewer can be used than were configured.
    pub(crate) fn alert(&self, told: &Override, now: Millis) -> Option<String> {
        let wanted = told.gpus?;
        let found = u64::try_from(self.usable(told, now).len()).unwrap_or(u64::MAX);
        (self.present && self.complete && found < wanted).then(|| {
            format!("capacity.gpus is {wanted}, and {found} can be used: the node offers {found}")
        })
    }

    /// Identifiers for `CUDA_VISIBLE_DEVICES` of the GPUs that can be used, least used first.
    ///
    /// Where NVML never answered, the operator's number is believed and the GPUs are called by
    /// their index; where it did, that number can only lower what was found.
    pub(crate) fn usable(&self, told: &Override, now: Millis) -> Vec<String> {
        self.free(told, &[], &[], now)
    }

    /// As [`Self::usable`], without those that tasks have and those that a master takes `out`.
    pub(crate) fn free(
        &self,
        told: &Override,
        taken: &[String],
        out: &[String],
        now: Millis,
    ) -> Vec<String> {
        let other = |uuid: &String| !taken.contains(uuid) && !out.contains(uuid);
        if !self.present {
            match self.trouble(now) {
                None | Some(GpuTrouble::Unseen(_)) => {}
                Some(GpuTrouble::Hangs(_) | GpuTrouble::Mismatch(_) | GpuTrouble::Other(_)) => {
                    return Vec::new();
                }
            }
            let all = (0..told.gpus.unwrap_or(0)).map(|index| index.to_string());
            return all.filter(other).collect();
        }
        let mut good: Vec<GpuReport> = self.reports(now);
        good.retain(|gpu| gpu.fault.is_none() && other(&gpu.uuid));
        good.sort_by(|a, b| (a.memory_bytes_used, &a.uuid).cmp(&(b.memory_bytes_used, &b.uuid)));
        let bound =
            told.gpus.map_or(usize::MAX, |gpus| usize::try_from(gpus).unwrap_or(usize::MAX));
        let bound = bound.saturating_sub(taken.len());
        good.into_iter().map(|gpu| gpu.uuid).take(bound).collect()
    }
}

/// Whether it is NVIDIA's name for a GPU or an instance of one, not a place in a list.
fn has_name(uuid: &str) -> bool {
    uuid.starts_with("GPU-") || uuid.starts_with("MIG-")
}
