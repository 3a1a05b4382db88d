//! Applications whose training was measured, and what they do on any placement.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use scheduler::goodput::{Gradient, Limits};

use super::profile::{NODE_GPUS, PLACED_NODES, Placements, Timing, Validation};
use super::tables::{NODES_MAX, Tables};

/// What the measurements alone do not tell of an application.
struct Known {
    name: &'static str,
    /// Largest local batch that fits in a GPU's memory, where more was measured.
    local_max: Option<u32>,
    /// One replica and this batch, whatever the policy: it ends within a minute.
    pinned_batch: Option<u32>,
}

const KNOWN: [Known; 2] = [
    Known { name: "yolov3", local_max: Some(8), pinned_batch: None },
    Known { name: "ncf", local_max: None, pinned_batch: Some(32_768) },
];

/// An application as it was measured.
#[derive(Clone, Debug)]
pub struct App {
    name: String,
    limits: Limits,
    replicas_max: u32,
    pinned_batch: Option<u32>,
    placements: Placements,
    tables: Tables,
    validation: Validation,
}

/// Where the times of a placement stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Curve(Place);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Placement(usize),
    Table(usize),
}

impl App {
    fn load(name: &str, profile: &Path, table: Option<&Path>) -> Result<Self, String> {
        let placements = Placements::load(&profile.join("placements.csv"))?;
        let validation = Validation::load(profile)?;
        let tables = table.map(Tables::load).transpose()?;
        let known = KNOWN.iter().find(|known| known.name == name);
        let (local_min, measured) = placements.local_range();
        let local_max = known.and_then(|known| known.local_max).unwrap_or(measured).min(measured);
        if local_min > local_max {
            return Err(format!("{}: there are no placements", profile.display()));
        }
        let (initial, batch_max) = validation.batch_range();
        let pinned_batch = known.and_then(|known| known.pinned_batch);
        let replicas_max = match (&tables, pinned_batch) {
            (_, Some(_)) => 1,
            (Some(_), None) => NODES_MAX * NODE_GPUS,
            // However they are spread, it is over no more nodes than were measured.
            (None, None) => u32::try_from(PLACED_NODES).unwrap_or(1),
        };
        let limits = Limits { initial, batch_max, local_min, local_max, accumulation: true };
        let tables = tables.unwrap_or_default();
        let name = name.to_owned();
        Ok(Self { name, limits, replicas_max, pinned_batch, placements, tables, validation })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Most replicas that a job may have.
    #[must_use]
    pub fn replicas_max(&self) -> u32 {
        self.replicas_max
    }

    /// The batch that its jobs always train with, where it does not change.
    #[must_use]
    pub fn pinned_batch(&self) -> Option<u32> {
        self.pinned_batch
    }

    /// Epochs that a job runs.
    #[must_use]
    pub fn epochs(&self) -> usize {
        self.validation.epochs()
    }

    /// Where the times of replicas on nodes, in this order, are to be found; none where such a
    /// placement was not measured. Up to four nodes count as a ring, which may be turned; of
    /// more, only the numbers of nodes and replicas count, and more than 16 nodes count as 16.
    #[must_use]
    pub fn curve(&self, counts: &[u32]) -> Option<Curve> {
        if counts.len() <= PLACED_NODES {
            return self.placements.curve(counts).map(|curve| Curve(Place::Placement(curve)));
        }
        let nodes = u32::try_from(counts.len()).ok()?;
        let replicas = counts.iter().try_fold(0_u32, |sum, count| sum.checked_add(*count))?;
        self.tables.run(nodes, replicas).map(|run| Curve(Place::Table(run)))
    }

    /// Times of a step with a local batch, in s.
    #[must_use]
    pub fn timing(&self, curve: Curve, local: u32) -> Timing {
        match curve.0 {
            Place::Placement(at) => self.placements.timing(at, f64::from(local)),
            Place::Table(run) => self.tables.timing(run, local),
        }
    }

    /// Moments of the gradient during an epoch (from 0) at a whole batch; beyond the measured
    /// batches those of the nearest.
    #[must_use]
    pub fn gradient(&self, batch: u32, epoch: usize) -> Gradient {
        let (sqr, var) = self.validation.gradient(f64::from(batch), epoch);
        Gradient { sqr, var }
    }

    /// Steps at a whole batch up to the end of an epoch (from 0).
    #[must_use]
    pub fn iteration(&self, batch: u32, epoch: usize) -> f64 {
        self.validation.iteration(f64::from(batch), epoch)
    }

    /// Progress at the end of an epoch (from 0), in steps at the initial batch.
    #[must_use]
    pub fn target(&self, epoch: usize) -> f64 {
        self.validation.target(epoch)
    }
}

/// Measured applications by name.
#[derive(Clone, Debug, Default)]
pub struct Profiles {
    apps: BTreeMap<String, App>,
}

/// The folders `profiles` and `throughput_nd` of measurements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folders {
    pub profiles: PathBuf,
    pub tables: PathBuf,
}

impl Folders {
    /// Those in one folder.
    #[must_use]
    pub fn of(data: &Path) -> Self {
        Self { profiles: data.join("profiles"), tables: data.join("throughput_nd") }
    }
}

/// The measurements that belong to a trace: in its folder, or in the one above.
#[must_use]
pub fn find_profiles(trace: &Path) -> Option<Folders> {
    let folder = trace.parent()?;
    let near = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    [near.to_owned(), near.join("..")]
        .iter()
        .map(|data| Folders::of(data))
        .find(|folders| folders.profiles.is_dir())
}

impl Profiles {
    /// Reads the applications of these names, and no others: `profiles/APP/placements.csv`,
    /// `profiles/APP/validation-M.csv`, and for placements on five nodes and more
    /// `throughput_nd/APP.csv` or `APP.csv.gz`. Without the last an application keeps to four
    /// replicas.
    ///
    /// # Errors
    /// Names the file, the line and the column that is wrong, or the names that there are.
    pub fn load<'a>(
        folders: &Folders,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, String> {
        let names: BTreeSet<&str> = names.into_iter().collect();
        let mut apps = BTreeMap::new();
        for name in names {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            let profile = folders.profiles.join(name);
            if name.is_empty() || !name.chars().all(is_plain) || !profile.is_dir() {
                let there = folders.names().join(", ");
                return Err(format!("application {name:?} was not measured: there are {there}"));
            }
            let table = ["csv", "csv.gz"]
                .map(|extension| folders.tables.join(format!("{name}.{extension}")))
                .into_iter()
                .find(|path| path.is_file());
            apps.insert(name.to_owned(), App::load(name, &profile, table.as_deref())?);
        }
        Ok(Self { apps })
    }

    #[must_use]
    pub fn app(&self, name: &str) -> Option<&App> {
        self.apps.get(name)
    }
}

impl Folders {
    /// Applications that were measured, in the order of their names.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let entries = self.profiles.read_dir().into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.path().is_dir());
        let mut names: Vec<String> =
            folders.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
}
