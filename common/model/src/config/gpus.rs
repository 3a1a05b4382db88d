//! Settings of the master about GPUs.

use serde::{Deserialize, Serialize};

use crate::job::Fault;
use crate::units::DurationMs;

/// How GPUs are judged by what their servers tell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuConfig {
    /// Time without a sign after which a GPU that was suspect and is idle works again.
    pub quiet: DurationMs,
    /// Suspicions in a day after which a GPU is BAD.
    pub suspicions_max: u32,
    /// Share of the cluster's GPUs that may be taken out in an hour for what they tell; one always
    /// may. Beyond it they stay in service, with an alert.
    pub out_share: f64,
    /// Uncorrected memory errors since the driver was loaded that a GPU may have.
    pub ecc_uncorrected_max: u32,
    /// Xids that are sorted otherwise than NVIDIA's catalogue has it: the program's own fault,
    /// one that passes, one that wants a reset, one of the hardware.
    pub xid_user: Vec<u64>,
    pub xid_transient: Vec<u64>,
    pub xid_reset: Vec<u64>,
    pub xid_hardware: Vec<u64>,
}

impl Default for GpuConfig {
    fn default() -> Self {
        Self {
            quiet: DurationMs::seconds(300),
            suspicions_max: 3,
            out_share: 0.25,
            ecc_uncorrected_max: 0,
            xid_user: Vec::new(),
            xid_transient: Vec::new(),
            xid_reset: Vec::new(),
            xid_hardware: Vec::new(),
        }
    }
}

impl GpuConfig {
    /// Adds everything wrong with these settings.
    pub(super) fn check(&self, faults: &mut Vec<Fault>) {
        if !(self.out_share > 0.0 && self.out_share <= 1.0) {
            faults.push(Fault::new(
                "gpus.out_share",
                format!("{} is out of range", self.out_share),
                "give more than 0 and at most 1; 0.25 is usual",
            ));
        }
        let mut seen = std::collections::BTreeSet::new();
        for (field, list) in [
            ("gpus.xid_user", &self.xid_user),
            ("gpus.xid_transient", &self.xid_transient),
            ("gpus.xid_reset", &self.xid_reset),
            ("gpus.xid_hardware", &self.xid_hardware),
        ] {
            if let Some(twice) = list.iter().find(|xid| !seen.insert(**xid)) {
                faults.push(Fault::new(field, format!("{twice} is listed twice"), "keep one"));
            }
            if list.len() > XIDS_MAX {
                let problem = format!("has {} entries", list.len());
                faults.push(Fault::new(field, problem, format!("list at most {XIDS_MAX}")));
            }
        }
    }
}

/// More than NVIDIA has numbered.
const XIDS_MAX: usize = 1000;
