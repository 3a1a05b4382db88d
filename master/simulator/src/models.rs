//! What is known of models: their speed, size and loss curve, so that a line of a trace becomes a
//! job.
//!
//! Sources: speeds of eight models that were measured on GTX 1080 Ti servers (`data/speeds.csv`,
//! and fitted to them w/(c + wp·w/p + kw·w + kp·p) worker batches a second); the paper's nine jobs
//! with their loss curves (Table 1, Figures 2 and 5). Four of the paper's jobs were not measured.
//!
//! Assumed, as neither source tells it:
//! - A model that was not measured has the speed of the measured one of its kind ([`Known::like`]),
//!   and one whose loss is not in the paper the curve of the paper's job of its kind.
//! - A worker takes 2 CPUs, 8 GB and a GPU, a server 3 CPUs and 9 GB, whatever the model.
//! - A rescale costs what [`crate::world::rescale_cost_s`] makes of the model's size.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use ::model::{Batch, Mode, Resources, Shape};
use scheduler::estimate::speed::{SpeedForm, SpeedModel};

use crate::workload::{Loss, Speed};
use crate::world::rescale_cost_s;

/// Measured speeds; `data/README.md` tells of what.
const SPEEDS: &str = include_str!("../data/speeds.csv");

/// A model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    pub name: &'static str,
    /// The measured model whose speed it has; itself where it was measured.
    pub like: &'static str,
    /// Samples of a worker's step.
    pub batch: u32,
    /// θ of Eqn. (3): a worker's step takes θ0 + θ1·w/p + θ2·w + θ3·p seconds.
    pub theta: [f64; 4],
    pub parameters_megabytes: f64,
    /// Worker steps of an epoch.
    pub steps_per_epoch: f64,
    /// β of Eqn. (1), with k in percent of the whole training.
    pub beta: [f64; 3],
    /// Training time at one server and two workers, in hours, as the policy study has it; none
    /// where it has none.
    pub hours: Option<f64>,
}

const fn known(
    (name, like): (&'static str, &'static str),
    batch: u32,
    theta: [f64; 4],
    (parameters_megabytes, steps_per_epoch): (f64, f64),
    beta: [f64; 3],
    hours: Option<f64>,
) -> Known {
    Known { name, like, batch, theta, parameters_megabytes, steps_per_epoch, beta, hours }
}

const RESNET_50: [f64; 4] = [1.003, 0.2158, 0.0, 3.1e-5];
const VGG_16: [f64; 4] = [1.34, 0.82, 0.0, 0.0];
const RESNEXT_110: [f64; 4] = [0.2035, 0.0897, 0.0, 0.0036];
const INCEPTION_BN: [f64; 4] = [0.84, 0.1274, 0.0, 0.0];
const SEQ2SEQ: [f64; 4] = [0.1333, 0.0369, 0.2004, 0.0];
const CNN_TEXT: [f64; 4] = [0.607, 0.0796, 0.0071, 0.0026];
const DSSM: [f64; 4] = [0.5447, 0.027, 0.0102, 0.0];
const WLM: [f64; 4] = [0.548, 0.393, 0.0188, 0.0];

const CURVE_RESNET_50: [f64; 3] = [0.3554, 6.8378, 0.8528];
const CURVE_CNN_RAND: [f64; 3] = [0.1098, 0.8997, 0.0];
const CURVE_RNN_LSTM: [f64; 3] = [0.1288, 1.8239, 0.3922];

/// All of them: the eight of the study in its order, then those of the paper's that are not among
/// them.
pub const KNOWN: [Known; 12] = [
    known(("resnet-50", "resnet-50"), 32, RESNET_50, (102.2, 115.0), CURVE_RESNET_50, Some(0.9)),
    known(("vgg-16", "vgg-16"), 32, VGG_16, (553.4, 115.0), CURVE_RESNET_50, Some(0.8)),
    known(
        ("resnext-110", "resnext-110"),
        128,
        RESNEXT_110,
        (6.92, 390.0),
        [0.0868, 1.2065, 0.1477],
        Some(1.4),
    ),
    known(
        ("inception-bn", "inception-bn"),
        128,
        INCEPTION_BN,
        (42.1, 120.0),
        [0.1538, 0.9208, 0.0],
        Some(1.2),
    ),
    known(("seq2seq", "seq2seq"), 64, SEQ2SEQ, (36.5, 780.0), [0.1885, 1.1128, 0.1008], Some(1.0)),
    known(
        ("cnn-text-classification", "cnn-text-classification"),
        50,
        CNN_TEXT,
        (24.0, 193.0),
        CURVE_CNN_RAND,
        Some(0.1),
    ),
    known(("dssm", "dssm"), 256, DSSM, (6.0, 349.0), [0.2887, 4.9738, 0.7877], Some(1.5)),
    known(("wlm", "wlm"), 160, WLM, (19.2, 165.0), CURVE_RNN_LSTM, Some(0.3)),
    known(
        ("kaggle", "resnext-110"),
        128,
        RESNEXT_110,
        (5.6, 296.0),
        [0.0555, 1.1213, 0.0420],
        None,
    ),
    known(
        ("cnn-rand", "cnn-text-classification"),
        50,
        CNN_TEXT,
        (24.0, 213.0),
        CURVE_CNN_RAND,
        None,
    ),
    known(("rnn-lstm", "wlm"), 160, WLM, (18.8, 165.0), CURVE_RNN_LSTM, None),
    known(("ds2", "seq2seq"), 64, SEQ2SEQ, (152.0, 703.0), [0.6540, 4.4185, 0.7702], None),
];

/// One of the paper's nine jobs (Table 1, Figure 2), with the model that it trains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperJob {
    pub name: &'static str,
    pub model: &'static str,
    pub parameters_millions: f64,
    pub examples: f64,
    /// On one TITAN X.
    pub hours: f64,
}

const fn paper(
    name: &'static str,
    model: &'static str,
    parameters_millions: f64,
    examples: f64,
    hours: f64,
) -> PaperJob {
    PaperJob { name, model, parameters_millions, examples, hours }
}

/// The paper's nine jobs.
pub const PAPER_JOBS: [PaperJob; 9] = [
    paper("ResNext-110", "resnext-110", 1.7, 60_000.0, 1.404),
    paper("ResNet-50", "resnet-50", 25.0, 1_313_788.0, 329.5),
    paper("Inception-BN", "inception-bn", 11.3, 30_607.0, 148.9),
    paper("KAGGLE", "kaggle", 1.4, 37_920.0, 0.232),
    paper("CNN-rand", "cnn-rand", 6.0, 10_662.0, 0.028),
    paper("DSSM", "dssm", 1.5, 214_288.0, 4.722),
    paper("RNN-LSTM", "rnn-lstm", 4.7, 1_002_000.0, 0.278),
    paper("Seq2Seq", "seq2seq", 9.1, 1_000_000.0, 8.0),
    paper("DS2", "ds2", 38.0, 45_000.0, 336.0),
];

/// The model of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|model| model.name == name)
}

/// What a worker takes.
#[must_use]
pub fn worker() -> Resources {
    Resources::new(2000, 8_000_000_000, 1)
}

/// What a server takes.
#[must_use]
pub fn server() -> Resources {
    Resources::new(3000, 9_000_000_000, 0)
}

/// Measured shapes of a model, and whose batch was fixed.
type Measured = (Batch, Vec<(Shape, f64)>);

/// The tables, by model.
fn tables() -> &'static BTreeMap<String, Measured> {
    static TABLES: OnceLock<BTreeMap<String, Measured>> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut tables = BTreeMap::new();
        for line in SPEEDS.lines().skip(1) {
            let cells: Vec<&str> = line.split(',').collect();
            let row = measured(&cells).expect("the file is a part of the program, with a test");
            let (model, batch, shape, per_s) = row;
            let table = tables.entry(model.to_owned()).or_insert_with(|| (batch, Vec::new()));
            table.1.push((shape, per_s));
        }
        tables
    })
}

fn measured<'a>(cells: &[&'a str]) -> Option<(&'a str, Batch, Shape, f64)> {
    let &[model, batch, servers, workers, per_s] = cells else { return None };
    let batch = match batch.split_once(' ')? {
        ("global", samples) => Batch::Global(samples.parse().ok()?),
        ("worker", samples) => Batch::PerWorker(samples.parse().ok()?),
        _ => return None,
    };
    let shape = Shape::new(servers.parse().ok()?, workers.parse().ok()?);
    Some((model, batch, shape, per_s.parse().ok()?))
}

impl Known {
    /// Training time that a rescale costs, in s.
    #[must_use]
    pub fn rescale_cost_s(&self) -> f64 {
        rescale_cost_s(self.parameters_megabytes)
    }

    /// Whose batch is fixed in a mode.
    #[must_use]
    pub fn batch(&self, mode: Mode) -> Batch {
        let table = tables().get(self.like).filter(|_| mode == Mode::Sync);
        table.map_or(Batch::PerWorker(self.batch), |(batch, _)| *batch)
    }

    /// True speed in a mode: θ for asynchronous training, in steps of all workers a second; what
    /// was measured for synchronous training, in steps a second where the batch is shared among
    /// the workers, else in samples a second.
    #[must_use]
    pub fn speed(&self, mode: Mode) -> Speed {
        let table = tables().get(self.like).filter(|_| mode == Mode::Sync);
        table.map_or_else(
            || Speed::Theta(SpeedModel::of_theta(SpeedForm::Async, self.theta.to_vec())),
            |(_, table)| Speed::Table(table.clone()),
        )
    }

    /// Work of so many steps, in the unit of the speed in a mode. Where each worker keeps its
    /// batch, a step is one worker's.
    #[must_use]
    pub fn work(&self, mode: Mode, steps: f64) -> f64 {
        match (mode, self.batch(mode)) {
            (Mode::Sync, Batch::PerWorker(samples)) => steps * f64::from(samples),
            (Mode::Async, _) | (Mode::Sync, Batch::Global(_)) => steps,
        }
    }

    /// The loss of a training that is done after so many steps: its curve stretched to them, in as
    /// many epochs as the model's data gives, 10 to 300, and a threshold that `patience` drops in
    /// a row fall below just at the end. None where the steps make no ten epochs.
    #[must_use]
    pub fn loss(&self, steps: f64) -> Option<Loss> {
        let epochs = libm::round(steps / self.steps_per_epoch).clamp(10.0, 300.0);
        let patience = 3;
        let [by_percent, base, floor] = self.beta;
        let beta = [by_percent * 100.0 / epochs, base, floor];
        let at = |epoch: f64| 1.0 / (beta[0] * epoch + beta[1]) + beta[2];
        let drop = |from: f64| (at(from) - at(from + 1.0)) / at(0.0);
        let last = epochs - f64::from(patience);
        let threshold = f64::midpoint(drop(last), drop(last - 1.0));
        let steps_per_epoch = steps / epochs;
        let loss = Loss { beta, noise: 0.01, steps_per_epoch, threshold, patience };
        (steps_per_epoch >= 1.0).then_some(loss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measured_row_is_read_and_every_model_has_a_speed() {
        let rows: usize = tables().values().map(|(_, table)| table.len()).sum();
        assert_eq!(rows, SPEEDS.lines().count() - 1);
        assert_eq!(tables().len(), 8);
        for model in &KNOWN {
            let batch = model.batch(Mode::Sync);
            let Speed::Table(table) = model.speed(Mode::Sync) else {
                panic!("{} was not measured", model.name)
            };
            assert!(table.iter().all(|(_, per_s)| per_s.is_finite() && *per_s > 0.0));
            let kept = matches!(batch, Batch::PerWorker(_));
            assert_eq!(kept, ["vgg-16", "wlm"].contains(&model.like), "{}", model.name);
            let Speed::Theta(theta) = model.speed(Mode::Async) else { panic!("no θ") };
            assert!(theta.steps_per_s(Shape::new(1, 2)) > 0.0);
            assert!((10.0..35.0).contains(&model.rescale_cost_s()), "{}", model.name);
        }
        for job in &PAPER_JOBS {
            assert!(find(job.model).is_some(), "{}", job.name);
        }
    }

    #[test]
    fn a_loss_converges_at_the_end_of_the_work() {
        for model in &KNOWN {
            assert_eq!(model.loss(9.5), None);
            for steps in [10.0, 5e4, 1e9] {
                let loss = model.loss(steps).unwrap();
                let at = |epoch: f64| 1.0 / (loss.beta[0] * epoch + loss.beta[1]) + loss.beta[2];
                let drop = |from: f64| (at(from) - at(from + 1.0)) / at(0.0);
                let epochs = steps / loss.steps_per_epoch;
                let first = epochs - f64::from(loss.patience);
                assert!(drop(first) < loss.threshold, "{}", model.name);
                assert!(drop(first - 1.0) > loss.threshold, "{}", model.name);
            }
        }
    }
}
