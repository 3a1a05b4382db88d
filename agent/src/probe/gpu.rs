//! GPUs, through NVML on a thread of its own.
//!
//! A call into the driver may never return. The thread waits for it; the daemon does not: after
//! a deadline every GPU is reported with that fault, and heartbeats go on. A missing library or
//! driver means "no GPUs" and is tried again later. One GPU's error is its own.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use model::Millis;
use model::agent::GpuReport;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::error::NvmlError;

use crate::config::Override;

/// How long a reading may take. One of eight GPUs takes some ms; a driver that reloads, seconds.
const DEADLINE_MS: u64 = 5000;
/// How often a node without GPUs looks again: loading a library that is not there costs little.
const RETRY_MS: u64 = 60_000;
/// More than any server holds; bounds what a changing inventory can pile up.
const GPUS_MAX: usize = 64;

/// What one look at NVML gave.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reading {
    /// No library, or no driver: normal on a CPU node.
    Absent,
    /// NVML is there and fails as a whole.
    Broken(String),
    /// Each GPU by its index, or what it answered instead.
    Gpus(Vec<Result<GpuReport, String>>),
}

/// The daemon's side of the probe.
#[derive(Debug)]
pub(crate) struct Gpus {
    ask: SyncSender<()>,
    asked_at: Option<Millis>,
    answered_at: Option<Millis>,
    /// NVML was there at some time: asked at every beat then.
    present: bool,
    known: BTreeMap<String, GpuReport>,
    uuid_of_index: BTreeMap<usize, String>,
}

impl Gpus {
    /// Starts the thread; `answer` is called on it with each reading.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub(crate) fn start(answer: impl FnMut(Reading) + Send + 'static) -> std::io::Result<Self> {
        let (ask, asked) = sync_channel(1);
        std::thread::Builder::new()
            .name("nvml".to_owned())
            .stack_size(512 * 1024)
            .spawn(move || serve(&asked, answer))?;
        Ok(Self::asking(ask))
    }

    fn asking(ask: SyncSender<()>) -> Self {
        Self {
            ask,
            asked_at: None,
            answered_at: None,
            present: false,
            known: BTreeMap::new(),
            uuid_of_index: BTreeMap::new(),
        }
    }

    /// Asks for a reading where one is due and none is under way.
    pub(crate) fn poll(&mut self, now: Millis) {
        let due = self.present || self.answered_at.is_none_or(|at| RETRY_MS <= now.since(at));
        if due && self.asked_at.is_none() && self.ask.try_send(()).is_ok() {
            self.asked_at = Some(now);
        }
    }

    /// True once NVML has said anything, or has had its time.
    pub(crate) fn is_settled(&self, now: Millis) -> bool {
        self.answered_at.is_some() || self.is_overdue(now)
    }

    fn is_overdue(&self, now: Millis) -> bool {
        self.asked_at.is_some_and(|at| DEADLINE_MS <= now.since(at))
    }

    pub(crate) fn take(&mut self, reading: Reading, now: Millis) {
        self.asked_at = None;
        self.answered_at = Some(now);
        match reading {
            Reading::Absent => self.fault_all("the driver is gone; load it or reboot"),
            Reading::Broken(why) => {
                tracing::warn!(why, "NVML fails");
                self.fault_all(&format!("NVML fails: {why}; reload the driver or reboot"));
            }
            Reading::Gpus(list) => {
                self.present = true;
                self.take_list(list);
            }
        }
    }

    fn fault_all(&mut self, why: &str) {
        for gpu in self.known.values_mut() {
            gpu.fault = Some(why.to_owned());
        }
    }

    fn take_list(&mut self, list: Vec<Result<GpuReport, String>>) {
        let before = std::mem::take(&mut self.known);
        let mut missing = before.clone();
        let mut unnamed = Vec::new();
        for (index, gpu) in list.into_iter().enumerate().take(GPUS_MAX) {
            match gpu {
                Ok(gpu) => {
                    missing.remove(&gpu.uuid);
                    self.uuid_of_index.insert(index, gpu.uuid.clone());
                    self.known.insert(gpu.uuid.clone(), gpu);
                }
                Err(why) => unnamed.push((index, why)),
            }
        }
        for (index, why) in unnamed {
            // A lost GPU does not even say its name; it had one before.
            let uuid = self.uuid_of_index.get(&index).filter(|uuid| missing.contains_key(*uuid));
            let mut gpu = uuid.and_then(|uuid| missing.remove(uuid)).unwrap_or_else(|| GpuReport {
                uuid: format!("index-{index}"),
                name: "unknown".to_owned(),
                memory_bytes_total: 0,
                memory_bytes_used: 0,
                utilisation: None,
                fault: None,
            });
            gpu.fault = Some(why);
            self.known.insert(gpu.uuid.clone(), gpu);
        }
        for (uuid, mut gpu) in missing {
            if self.known.len() < GPUS_MAX && !uuid.starts_with("index-") {
                gpu.fault = Some("NVML no longer lists it".to_owned());
                self.known.insert(uuid, gpu);
            }
        }
    }

    /// Every GPU that was ever seen, with what is wrong with it now.
    pub(crate) fn reports(&self, now: Millis) -> Vec<GpuReport> {
        let mut reports: Vec<GpuReport> = self.known.values().cloned().collect();
        if self.is_overdue(now) {
            let waited_s = self.asked_at.map_or(0, |at| now.since(at) / 1000);
            for gpu in &mut reports {
                // The last good numbers are not shown as present ones.
                gpu.utilisation = None;
                gpu.fault = Some(format!("no answer from NVML for {waited_s} s"));
            }
        }
        reports
    }

    /// Identifiers for `CUDA_VISIBLE_DEVICES` of the GPUs that can be used, least used first.
    ///
    /// Where NVML never answered, the operator's number is believed and the GPUs are called by
    /// their index; where it did, that number can only lower what was found.
    pub(crate) fn usable(&self, told: &Override, now: Millis) -> Vec<String> {
        if !self.present {
            return (0..told.gpus.unwrap_or(0)).map(|index| index.to_string()).collect();
        }
        let mut good: Vec<GpuReport> = self.reports(now);
        good.retain(|gpu| gpu.fault.is_none());
        good.sort_by(|a, b| (a.memory_bytes_used, &a.uuid).cmp(&(b.memory_bytes_used, &b.uuid)));
        let bound =
            told.gpus.map_or(usize::MAX, |gpus| usize::try_from(gpus).unwrap_or(usize::MAX));
        good.into_iter().map(|gpu| gpu.uuid).take(bound).collect()
    }
}

fn serve(asked: &Receiver<()>, mut answer: impl FnMut(Reading)) {
    let mut nvml = None;
    while asked.recv().is_ok() {
        answer(read(&mut nvml));
    }
}

/// One look. The library stays loaded for as long as it answers.
fn read(nvml: &mut Option<Nvml>) -> Reading {
    if nvml.is_none() {
        match Nvml::init() {
            Ok(loaded) => *nvml = Some(loaded),
            Err(error) => return absent_or_broken(&error),
        }
    }
    let Some(loaded) = nvml else { return Reading::Absent };
    match loaded.device_count() {
        Ok(count) => Reading::Gpus((0..count).map(|index| device(loaded, index)).collect()),
        Err(error) => {
            // Loaded anew at the next look: one failure must not stick.
            *nvml = None;
            absent_or_broken(&error)
        }
    }
}

fn absent_or_broken(error: &NvmlError) -> Reading {
    if matches!(
        error,
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded
    ) {
        return Reading::Absent;
    }
    Reading::Broken(error.to_string())
}

fn device(nvml: &Nvml, index: u32) -> Result<GpuReport, String> {
    let words = |error: NvmlError| error.to_string();
    let device = nvml.device_by_index(index).map_err(words)?;
    let uuid = device.uuid().map_err(words)?;
    let name = device.name().unwrap_or_else(|_| "unknown".to_owned());
    let memory = device.memory_info();
    let fault = match &memory {
        Err(error) if !is_not_supported(error) => Some(error.to_string()),
        Ok(_) | Err(_) => {
            match device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile) {
                Ok(errors) if 0 < errors => {
                    Some(format!("{errors} uncorrected memory errors since the driver was loaded"))
                }
                Ok(_) => None,
                Err(error) => is_lost(&error).then(|| error.to_string()),
            }
        }
    };
    Ok(GpuReport {
        uuid,
        name,
        memory_bytes_total: memory.as_ref().map_or(0, |memory| memory.total),
        memory_bytes_used: memory.as_ref().map_or(0, |memory| memory.used),
        utilisation: device
            .utilization_rates()
            .ok()
            .map(|rates| f64::from(rates.gpu.min(100)) / 100.0),
        fault,
    })
}

/// A reading that this GPU, driver or library does not have is no fault of the GPU.
fn is_not_supported(error: &NvmlError) -> bool {
    matches!(error, NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_))
}

fn is_lost(error: &NvmlError) -> bool {
    matches!(error, NvmlError::GpuLost)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: &str, memory_bytes_used: u64) -> GpuReport {
        GpuReport {
            uuid: uuid.to_owned(),
            name: "H".to_owned(),
            memory_bytes_total: 80,
            memory_bytes_used,
            utilisation: Some(0.5),
            fault: None,
        }
    }

    fn gpus() -> (Gpus, Receiver<()>) {
        let (ask, asked) = sync_channel(1);
        (Gpus::asking(ask), asked)
    }

    fn four() -> Reading {
        Reading::Gpus((0..4).map(|n| Ok(gpu(&format!("GPU-{n}"), 10 - n))).collect())
    }

    #[test]
    fn this_machine_answers_with_or_without_a_library() {
        let (tx, rx) = std::sync::mpsc::channel();
        let mut gpus = Gpus::start(move |reading| tx.send(reading).unwrap()).unwrap();
        gpus.poll(Millis(0));
        let reading = rx.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
        let without = matches!(reading, Reading::Absent);
        gpus.take(reading, Millis(5));
        assert!(gpus.is_settled(Millis(5)));
        let reports = gpus.reports(Millis(5));
        println!("{reports:?}");
        assert_eq!(without, reports.is_empty() && !gpus.present);
        let good = reports.iter().filter(|gpu| gpu.fault.is_none()).count();
        for gpu in reports {
            let sound = gpu.uuid.starts_with("GPU-") && 0 < gpu.memory_bytes_total;
            assert!(sound || gpu.fault.is_some(), "{gpu:?}");
        }
        assert_eq!(gpus.usable(&Override::default(), Millis(5)).len(), good);
    }

    #[test]
    fn absence_is_normal_and_looked_at_again_later() {
        let (mut gpus, asked) = gpus();
        gpus.poll(Millis(0));
        asked.try_recv().unwrap();
        gpus.take(Reading::Absent, Millis(1));
        gpus.poll(Millis(59_000));
        assert!(asked.try_recv().is_err(), "not before its time");
        gpus.poll(Millis(60_001));
        asked.try_recv().unwrap();
        gpus.take(four(), Millis(60_002));
        assert_eq!(gpus.reports(Millis(60_002)).len(), 4, "a first failure does not stick");
        let told = Override { gpus: Some(2), ..Override::default() };
        assert_eq!(gpus.usable(&told, Millis(60_002)), ["GPU-3", "GPU-2"], "least used first");
    }

    #[test]
    fn a_lost_gpu_keeps_its_name_and_the_others_their_place() {
        let (mut gpus, _asked) = gpus();
        gpus.take(four(), Millis(0));
        let list = (0..4).map(|n| match n {
            2 => Err("the GPU is lost".to_owned()),
            _ => Ok(gpu(&format!("GPU-{n}"), 0)),
        });
        gpus.take(Reading::Gpus(list.collect()), Millis(1));
        let reports = gpus.reports(Millis(1));
        let faults: Vec<_> = reports.iter().map(|gpu| gpu.fault.as_deref()).collect();
        assert_eq!(faults, [None, None, Some("the GPU is lost"), None]);
        assert_eq!(gpus.usable(&Override::default(), Millis(1)), ["GPU-0", "GPU-1", "GPU-3"]);
        gpus.take(Reading::Gpus(vec![Ok(gpu("GPU-0", 0))]), Millis(2));
        assert_eq!(gpus.usable(&Override::default(), Millis(2)), ["GPU-0"]);
        assert_eq!(gpus.reports(Millis(2)).len(), 4, "what was there stays listed");
        gpus.take(four(), Millis(3));
        assert_eq!(gpus.usable(&Override::default(), Millis(3)).len(), 4, "and may come back");
    }

    #[test]
    fn a_call_that_never_returns_is_a_fault_of_all_and_stops_nothing() {
        let (mut gpus, _asked) = gpus();
        gpus.take(four(), Millis(0));
        gpus.poll(Millis(1000));
        assert!(gpus.reports(Millis(5999)).iter().all(|gpu| gpu.fault.is_none()));
        let late = gpus.reports(Millis(8000));
        assert!(late.iter().all(|gpu| gpu.fault.as_deref() == Some("no answer from NVML for 7 s")));
        assert!(gpus.usable(&Override::default(), Millis(8000)).is_empty());
        gpus.take(four(), Millis(9000));
        assert_eq!(gpus.usable(&Override::default(), Millis(9000)).len(), 4);
    }

    #[test]
    fn a_driver_that_goes_away_faults_what_was_there() {
        let (mut gpus, _asked) = gpus();
        gpus.take(four(), Millis(0));
        gpus.take(Reading::Broken("version mismatch".to_owned()), Millis(1));
        let words = gpus.reports(Millis(1))[0].fault.clone().unwrap();
        assert!(words.contains("version mismatch") && words.contains("reboot"), "{words}");
    }

    #[test]
    fn an_operators_number_is_believed_where_nvml_says_nothing() {
        let (mut gpus, _asked) = gpus();
        gpus.take(Reading::Absent, Millis(0));
        let told = Override { gpus: Some(2), ..Override::default() };
        assert_eq!(gpus.usable(&told, Millis(0)), ["0", "1"]);
    }
}
