//! Fingerprints of jobs: two jobs with the same one are taken to ask for the same. 64 bits well
//! mixed: among the jobs of a cluster's lifetime two different ones do not meet.

use model::{Resources, Shape};

use crate::estimate::speed::{Residual, SpeedForm, SpeedModel};
use crate::snapshot::{JobInput, Want};

/// Of everything that an allocation and a first placement depend on, but not of what the job
/// holds now.
pub(crate) fn print_of(job: &JobInput) -> u64 {
    let mut print = Print(0x9e37_79b9_7f4a_7c15);
    print.word(job.id.0);
    print.word(job.arrival.0);
    print.resources(&job.worker);
    print.resources(&job.server);
    print.shape(job.min);
    print.shape(job.max);
    print.number(job.priority);
    print.want(&job.want);
    print.0
}

struct Print(u64);

impl Print {
    /// The product carries each bit upwards, the turn brings it down again.
    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0xa076_1d64_78bd_642f).rotate_left(29);
    }

    fn number(&mut self, number: f64) {
        self.word(number.to_bits());
    }

    fn shape(&mut self, shape: Shape) {
        self.word((u64::from(shape.servers) << 32) | u64::from(shape.workers));
    }

    fn text(&mut self, text: &str) {
        self.word(u64::try_from(text.len()).unwrap_or(u64::MAX));
        for chunk in text.as_bytes().chunks(8) {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(bytes));
        }
    }

    fn resources(&mut self, resources: &Resources) {
        self.word(resources.cpus_milli);
        self.word(resources.memory_bytes);
        self.word(resources.gpus);
        for (kind, amount) in &resources.named {
            self.text(kind);
            self.word(*amount);
        }
    }

    fn model(&mut self, model: &SpeedModel) {
        match model.form {
            SpeedForm::Async => self.word(1),
            SpeedForm::SyncGlobal { batch } => self.word(2 + (u64::from(batch) << 8)),
            SpeedForm::SyncPerWorker { batch } => self.word(3 + (u64::from(batch) << 8)),
        }
        for theta in &model.theta {
            self.number(*theta);
        }
        for word in model.residual.iter().flat_map(Residual::words) {
            self.word(word);
        }
    }

    fn want(&mut self, want: &Want) {
        match want {
            Want::Share { speed, remaining } => {
                self.word(1);
                self.model(speed);
                match remaining {
                    Some(remaining) => self.number(remaining.value),
                    None => self.word(u64::MAX),
                }
            }
            Want::Profile { shapes } => {
                self.word(2);
                for shape in shapes {
                    self.shape(*shape);
                }
            }
            Want::Pinned { shape } => {
                self.word(3);
                self.shape(*shape);
            }
        }
    }
}
