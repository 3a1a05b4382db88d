//! CPUs, memory, disk and load of the host.

use std::num::NonZero;
use std::path::{Path, PathBuf};

use model::Resources;
use model::agent::NodeLoad;
use nix::sys::statvfs::statvfs;
use sysinfo::System;

use crate::config::Override;

/// Reads the host; keeps what sysinfo needs to compute a share of time from one reading to the
/// next. One refresh reads `/proc/stat` and `/proc/meminfo`, nothing of any process.
#[derive(Debug)]
pub(crate) struct Host {
    system: Option<System>,
    disk_of: PathBuf,
    found: Resources,
}

impl Host {
    /// `disk_of` is any path on the file system whose free space is reported.
    pub(crate) fn new(disk_of: &Path) -> Self {
        let mut system = match System::new() {
            Ok(system) => Some(system),
            Err(error) => {
                tracing::warn!(%error, "cannot read the host's load; set capacity if it shows none");
                None
            }
        };
        if let Some(system) = &mut system {
            system.refresh_memory();
            system.refresh_cpu_usage();
        }
        // Unlike the number of CPUs in /proc, this one honours CPU sets and quotas.
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let cpus_milli = u64::try_from(cpus).unwrap_or(1).saturating_mul(1000);
        let memory_bytes = system.as_ref().map_or(0, System::total_memory);
        let found = Resources::new(cpus_milli, memory_bytes, 0);
        Self { system, disk_of: disk_of.to_owned(), found }
    }

    /// What the node offers: as found, unless the operator says otherwise.
    pub(crate) fn capacity(&self, told: &Override, gpus: u64) -> Resources {
        Resources {
            cpus_milli: told.cpus_milli.unwrap_or(self.found.cpus_milli),
            memory_bytes: told.memory_bytes.unwrap_or(self.found.memory_bytes),
            gpus,
            named: told.named.clone(),
        }
    }

    pub(crate) fn load(&mut self) -> NodeLoad {
        let disk_bytes_free = statvfs(&self.disk_of)
            .map_or(0, |disk| disk.blocks_available().saturating_mul(disk.fragment_size()));
        let Some(system) = &mut self.system else {
            return NodeLoad { disk_bytes_free, ..NodeLoad::default() };
        };
        system.refresh_memory();
        system.refresh_cpu_usage();
        NodeLoad {
            cpu_share: share(f64::from(system.global_cpu_usage()) / 100.0),
            memory_bytes_used: system.used_memory(),
            memory_bytes_total: system.total_memory(),
            disk_bytes_free,
            load_1m: System::load_average().map_or(0.0, |load| load.one),
        }
    }
}

/// Two readings at nearly the same moment can give anything.
fn share(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, 1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_something_and_an_override_is_believed() {
        let mut host = Host::new(Path::new("/"));
        let found = host.capacity(&Override::default(), 0);
        assert!(1000 <= found.cpus_milli && 1 << 20 < found.memory_bytes);
        let load = host.load();
        assert!((0.0..=1.0).contains(&load.cpu_share) && 0 < load.disk_bytes_free);
        assert_eq!(load.memory_bytes_total, found.memory_bytes);
        let mut told =
            Override { cpus_milli: Some(1500), memory_bytes: Some(7), ..Override::default() };
        told.named.insert("licence".to_owned(), 2);
        let capacity = host.capacity(&told, 3);
        assert_eq!((capacity.cpus_milli, capacity.memory_bytes, capacity.gpus), (1500, 7, 3));
        assert_eq!(capacity.named("licence"), 2);
    }

    #[test]
    fn shares_of_nothing_are_zero() {
        for (value, expected) in [(f64::NAN, 0.0), (f64::INFINITY, 0.0), (-1.0, 0.0), (7.0, 1.0)] {
            assert!((share(value) - expected).abs() < 1e-12);
        }
    }
}
