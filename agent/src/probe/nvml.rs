//! NVML itself, on threads that may wait for a driver for ever.
//!
//! One thread lists the GPUs, one for each GPU looks at it, one waits for Xid events, and one asks
//! now and then in a process of its own whether NVML would still start: a library that is loaded
//! goes on working after its driver's package was upgraded, while every new process fails. Whoever
//! waits for an answer has a deadline of its own.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use model::agent::GpuReport;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};

use super::gpu::GPUS_MAX;

/// The argument and the exit code of the process that tries NVML anew.
pub(crate) const TRY: &str = "try-nvml";
pub(crate) const TRY_MISMATCH: u8 = 18;
/// How often that is tried, and how long it may take.
const TRY_EVERY: Duration = Duration::from_secs(15);
const TRY_LIMIT: Duration = Duration::from_secs(5);
const PIECE: Duration = Duration::from_millis(100);
/// How long the wait for an event lasts at most, in ms: an end is noticed by then.
const EVENT_WAIT_MS: u32 = 500;
/// Waits after which a watch that lacks some GPUs is made anew.
const WAITS_MAX: u32 = 60;
/// Processes named of one GPU.
const PIDS_MAX: usize = 64;
const STACK_BYTES: usize = 512 * 1024;

/// Where GPUs are looked for.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    /// The library; the system's where none.
    pub(crate) library: Option<OsString>,
    /// Where the kernel shows the PCI bus, `/sys`.
    pub(crate) sysfs: PathBuf,
    /// Whether to try NVML anew in a process of this program.
    pub(crate) tries: bool,
}

impl Default for Sources {
    fn default() -> Self {
        Self { library: None, sysfs: PathBuf::from("/sys"), tries: true }
    }
}

/// What NVML said.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reading {
    /// No library, or no driver: normal on a CPU node, unless the PCI bus shows GPUs.
    Absent {
        pci: Vec<String>,
    },
    /// NVML is there and fails as a whole.
    Broken(String),
    /// The driver does not fit the library.
    Mismatch,
    /// So many GPUs are listed; a look at each follows.
    Listed(usize),
    /// The GPU at an index, or the instances that it is split in.
    Device(usize, Result<Vec<Look>, Failure>),
    Xid {
        uuid: Option<String>,
        xid: u64,
    },
    /// Whether a process that starts now finds that library and driver do not fit.
    Anew {
        mismatch: bool,
    },
}

/// Why a GPU says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// It has fallen off the bus.
    pub(crate) lost: bool,
    pub(crate) words: String,
}

/// What one look at a GPU gave.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Look {
    /// Its fault names a reading that fails.
    pub(crate) report: GpuReport,
    pub(crate) ecc_uncorrected: Option<u64>,
    /// Processes that compute on it.
    pub(crate) pids: Vec<u32>,
}

/// Takes readings, on whichever thread they come.
pub(crate) type Answer = Arc<dyn Fn(Reading) + Send + Sync>;

/// Starts the thread that looks whenever asked.
///
/// # Errors
/// Where no thread can be started.
pub(crate) fn start(sources: Sources, answer: Answer) -> std::io::Result<SyncSender<()>> {
    let (ask, asked) = sync_channel(1);
    spawn("nvml".to_owned(), move || {
        let mut side = Side { sources, answer, nvml: None, lookers: Vec::new(), watch: None };
        let mut trier = None;
        while asked.recv().is_ok() {
            side.look();
            if side.nvml.is_some() && side.sources.tries && trier.is_none() {
                trier = Trier::start(Arc::clone(&side.answer));
            }
        }
    })?;
    Ok(ask)
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name(name).stack_size(STACK_BYTES).spawn(run)
}

struct Side {
    sources: Sources,
    answer: Answer,
    nvml: Option<Arc<Nvml>>,
    lookers: Vec<SyncSender<Arc<Nvml>>>,
    watch: Option<Watch>,
}

impl Side {
    /// One look. The library stays loaded for as long as it answers.
    fn look(&mut self) {
        let nvml = match &self.nvml {
            Some(nvml) => Arc::clone(nvml),
            None => match init(self.sources.library.as_ref()) {
                Ok(loaded) => Arc::clone(self.nvml.insert(Arc::new(loaded))),
                Err(error) => return self.failed(&error),
            },
        };
        match nvml.device_count() {
            Ok(count) => {
                let count = usize::try_from(count).unwrap_or(GPUS_MAX).min(GPUS_MAX);
                (self.answer)(Reading::Listed(count));
                self.look_at_each(count, &nvml);
                self.watch_events(count, &nvml);
            }
            Err(error) => {
                // Loaded anew at the next look: one failure must not stick.
                self.nvml = None;
                self.watch = None;
                self.failed(&error);
            }
        }
    }

    fn failed(&self, error: &NvmlError) {
        (self.answer)(if matches!(error, NvmlError::LibRmVersionMismatch) {
            Reading::Mismatch
        } else if is_absent(error) {
            Reading::Absent { pci: on_pci(&self.sources.sysfs) }
        } else {
            Reading::Broken(error.to_string())
        });
    }

    /// Each GPU on a thread of its own: one that hangs holds up no other.
    fn look_at_each(&mut self, count: usize, nvml: &Arc<Nvml>) {
        for index in 0..count {
            if self.lookers.len() <= index {
                let (look, asked) = sync_channel(1);
                let answer = Arc::clone(&self.answer);
                let started = spawn(format!("nvml-{index}"), move || {
                    looks(index, &asked, &answer);
                });
                if let Err(error) = started {
                    let words = format!("no thread can be started to look at it: {error}");
                    let failure = Failure { lost: false, words };
                    return (self.answer)(Reading::Device(index, Err(failure)));
                }
                self.lookers.push(look);
            }
            // One that still waits for its last look is not asked again.
            let _ = self.lookers[index].try_send(Arc::clone(nvml));
        }
    }

    fn watch_events(&mut self, count: usize, nvml: &Arc<Nvml>) {
        let stands = self.watch.as_ref().is_some_and(|watch| watch.count == count && watch.is_on());
        if !stands && 0 < count {
            self.watch = None;
            self.watch = Watch::start(count, Arc::clone(nvml), Arc::clone(&self.answer));
        }
    }
}

fn init(library: Option<&OsString>) -> Result<Nvml, NvmlError> {
    match library {
        Some(library) => Nvml::builder().lib_path(library).init(),
        None => Nvml::init(),
    }
}

/// Tries NVML in this process and says by the exit code whether library and driver fit.
pub(crate) fn try_anew() -> u8 {
    match init(None) {
        Err(NvmlError::LibRmVersionMismatch) => TRY_MISMATCH,
        Ok(_) | Err(_) => 0,
    }
}

fn is_absent(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound | NvmlError::DriverNotLoaded
    )
}

fn looks(index: usize, asked: &Receiver<Arc<Nvml>>, answer: &Answer) {
    while let Ok(nvml) = asked.recv() {
        answer(Reading::Device(index, devices(&nvml, index)));
    }
}

fn failure(error: &NvmlError) -> Failure {
    Failure { lost: matches!(error, NvmlError::GpuLost), words: error.to_string() }
}

/// The GPU at an index, or its instances where it is split.
fn devices(nvml: &Nvml, index: usize) -> Result<Vec<Look>, Failure> {
    let number = u32::try_from(index).unwrap_or(u32::MAX);
    let whole = nvml.device_by_index(number).map_err(|error| failure(&error))?;
    let split = whole.mig_mode().is_ok_and(|mode| mode.current == 1);
    if !split {
        return Ok(vec![device(&whole)?]);
    }
    let mut looks = Vec::new();
    for place in 0..whole.mig_device_count().map_err(|error| failure(&error))? {
        // Most places have no instance.
        if let Ok(instance) = whole.mig_device_by_index(place) {
            let mut look = device(&instance)?;
            // Memory errors are counted of the whole.
            look.ecc_uncorrected = look.ecc_uncorrected.or_else(|| ecc(&whole).ok());
            looks.push(look);
        }
    }
    Ok(looks)
}

fn ecc(device: &Device<'_>) -> Result<u64, NvmlError> {
    device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
}

fn device(device: &Device<'_>) -> Result<Look, Failure> {
    let uuid = device.uuid().map_err(|error| failure(&error))?;
    let name = device.name().unwrap_or_else(|_| "unknown".to_owned());
    let memory = device.memory_info();
    let ecc = ecc(device);
    let processes = device.running_compute_processes();
    // A reading that this GPU, driver or library does not have is no fault of the GPU.
    let wrong = [memory.as_ref().err(), ecc.as_ref().err(), processes.as_ref().err()];
    let wrong: Vec<&NvmlError> = wrong.into_iter().flatten().filter(|e| !is_lacking(e)).collect();
    if let Some(lost) = wrong.iter().find(|error| matches!(error, NvmlError::GpuLost)) {
        return Err(failure(lost));
    }
    let computing = processes.as_ref().into_iter().flatten();
    let pids: BTreeSet<u32> = computing.map(|process| process.pid).collect();
    Ok(Look {
        report: GpuReport {
            uuid,
            name,
            memory_bytes_total: memory.as_ref().map_or(0, |memory| memory.total),
            memory_bytes_used: memory.as_ref().map_or(0, |memory| memory.used),
            utilisation: device
                .utilization_rates()
                .ok()
                .map(|rates| f64::from(rates.gpu.min(100)) / 100.0),
            fault: wrong.first().map(|error| error.to_string()),
        },
        ecc_uncorrected: ecc.ok(),
        pids: pids.into_iter().take(PIDS_MAX).collect(),
    })
}

fn is_lacking(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::FunctionNotFound
            | NvmlError::NoPermission
    )
}

/// Waits for Xid events of all GPUs, until it is dropped.
struct Watch {
    count: usize,
    thread: JoinHandle<()>,
    _stop: SyncSender<()>,
}

impl Watch {
    fn start(count: usize, nvml: Arc<Nvml>, answer: Answer) -> Option<Self> {
        let (stop, stopped) = sync_channel(1);
        let thread = spawn("nvml-events".to_owned(), move || {
            if let Err(error) = watch(&nvml, count, &stopped, &answer) {
                tracing::warn!(%error, "cannot watch for Xid events; tried again");
            }
        });
        Some(Self { count, thread: thread.ok()?, _stop: stop })
    }

    fn is_on(&self) -> bool {
        !self.thread.is_finished()
    }
}

/// A set of events with all GPUs that take part, and how many those are.
fn event_set(nvml: &Nvml, count: usize) -> Result<(EventSet<'_>, usize), NvmlError> {
    let mut indexes: Vec<u32> = (0..count).filter_map(|index| u32::try_from(index).ok()).collect();
    loop {
        match registered(nvml, &indexes)? {
            Ok(set) => return Ok((set, indexes.len())),
            Err(without) => indexes.retain(|index| *index != without),
        }
    }
}

/// A set with these GPUs; the set of one that does not take part is lost.
fn registered<'a>(nvml: &'a Nvml, indexes: &[u32]) -> Result<Result<EventSet<'a>, u32>, NvmlError> {
    let mut set = nvml.create_event_set()?;
    for index in indexes {
        let Ok(device) = nvml.device_by_index(*index) else { return Ok(Err(*index)) };
        match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
            Ok(with) => set = with,
            Err(_) => return Ok(Err(*index)),
        }
    }
    Ok(Ok(set))
}

fn watch(
    nvml: &Nvml,
    count: usize,
    stopped: &Receiver<()>,
    answer: &Answer,
) -> Result<(), NvmlError> {
    let (set, watched) = event_set(nvml, count)?;
    if watched == 0 {
        tracing::warn!("no GPU tells of Xid events");
    } else {
        tracing::info!(gpus = watched, "watching for Xid events");
    }
    for waits in 0_u32.. {
        let pause = match set.wait(EVENT_WAIT_MS) {
            Ok(event) => {
                let xid = match event.event_data {
                    Some(XidError::Value(xid)) => Some(xid),
                    Some(XidError::Unknown) => Some(999),
                    None => None,
                };
                if let Some(xid) = xid {
                    answer(Reading::Xid { uuid: event.device.uuid().ok(), xid });
                }
                Duration::ZERO
            }
            Err(NvmlError::Timeout) => Duration::ZERO,
            // One of them is gone; the others may still have something to tell.
            Err(NvmlError::GpuLost) => Duration::from_millis(u64::from(EVENT_WAIT_MS)),
            Err(error) => return Err(error),
        };
        if !matches!(stopped.recv_timeout(pause), Err(RecvTimeoutError::Timeout)) {
            return Ok(());
        }
        if watched < count && WAITS_MAX < waits {
            return Ok(());
        }
    }
    Ok(())
}

/// Asks now and then whether a process that starts now gets NVML.
struct Trier {
    _stop: SyncSender<()>,
}

impl Trier {
    fn start(answer: Answer) -> Option<Self> {
        let (stop, stopped) = sync_channel(1);
        let thread = spawn("nvml-try".to_owned(), move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(TRY_EVERY) {
                if let Some(code) = tried(&stopped) {
                    answer(Reading::Anew { mismatch: code == i32::from(TRY_MISMATCH) });
                }
            }
        });
        thread.ok().map(|_| Self { _stop: stop })
    }
}

/// The exit code of this program's own try; none where it did not come to an end in time.
fn tried(stopped: &Receiver<()>) -> Option<i32> {
    // This very program, even where its file was replaced meanwhile.
    let mut child = Command::new("/proc/self/exe")
        .arg(TRY)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut waited = Duration::ZERO;
    while waited < TRY_LIMIT {
        match child.try_wait() {
            Ok(Some(status)) => return status.code(),
            Ok(None) => {}
            Err(_) => break,
        }
        if !matches!(stopped.recv_timeout(PIECE), Err(RecvTimeoutError::Timeout)) {
            break;
        }
        waited += PIECE;
    }
    let _ = child.kill();
    // Where the kernel holds it, this thread waits with it, and nobody else does.
    let _ = child.wait();
    None
}

/// NVIDIA's display and compute devices on the PCI bus, by address.
pub(crate) fn on_pci(sysfs: &Path) -> Vec<String> {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let entries = fs::read_dir(sysfs.join("bus/pci/devices")).into_iter().flatten().flatten();
    let mut found: Vec<String> = entries
        .filter(|entry| {
            let is_nvidia = read(entry.path().join("vendor")) == "0x10de";
            // Class 03: display controllers, 3D ones among them; not the sound of a card.
            is_nvidia && read(entry.path().join("class")).starts_with("0x03")
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    found.sort();
    found.truncate(GPUS_MAX);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nvidias_display_devices_count_on_the_bus() {
        let dir = tempfile::tempdir().unwrap();
        for (address, vendor, class) in [
            ("0000:01:00.0", "0x10de", "0x030200"),
            ("0000:01:00.1", "0x10de", "0x040300"),
            ("0000:00:02.0", "0x8086", "0x030000"),
            ("0000:02:00.0", "0x10de", "0x030000"),
        ] {
            let device = dir.path().join("bus/pci/devices").join(address);
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(device.join("class"), format!("{class}\n")).unwrap();
        }
        assert_eq!(on_pci(dir.path()), ["0000:01:00.0", "0000:02:00.0"]);
        assert_eq!(on_pci(&dir.path().join("nothing")), Vec::<String>::new());
    }
}
