//! Amounts of resources as numbers in a row, and what the tasks of a job take.

use std::collections::BTreeSet;

use model::{Resources, Shape};

use crate::allocate::dominant_share;
use crate::snapshot::JobInput;

/// Amounts by kind, as [`Kinds`] numbers them. Wide and signed: sums of absurd amounts neither
/// wrap nor saturate, so that everything taken can be given back exactly.
pub(crate) type Amounts = Vec<i128>;

/// The kinds of resource that some job asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kinds {
    named: Vec<String>,
}

impl Kinds {
    pub(crate) fn of<'a>(asked: impl Iterator<Item = &'a Resources>) -> Self {
        let named: BTreeSet<&String> = asked
            .flat_map(|resources| &resources.named)
            .filter(|(_, amount)| **amount > 0)
            .map(|(kind, _)| kind)
            .collect();
        Self { named: named.into_iter().cloned().collect() }
    }

    /// True where all of these ask for no other kinds.
    pub(crate) fn holds_all_of<'a>(&self, mut asked: impl Iterator<Item = &'a Resources>) -> bool {
        asked.all(|resources| {
            let mut named = resources.named.iter().filter(|(_, amount)| **amount > 0);
            named.all(|(kind, _)| self.named.binary_search(kind).is_ok())
        })
    }

    pub(crate) fn count(&self) -> usize {
        3 + self.named.len()
    }

    /// An amount of a kind as people write it: `1.5 CPUs`, `512 MiB of memory`, `2 GPUs`.
    #[expect(clippy::cast_precision_loss, reason = "only shown, to three places")]
    pub(crate) fn shown(&self, kind: usize, amount: i128) -> String {
        match kind {
            0 => format!("{} CPUs", amount as f64 / 1000.0),
            1 => format!("{:.0} MiB of memory", (amount as f64 / f64::from(1 << 20)).ceil()),
            2 => format!("{amount} GPUs"),
            _ => format!("{amount} {}", self.named[kind - 3]),
        }
    }

    pub(crate) fn amounts(&self, resources: &Resources) -> Amounts {
        let mut amounts = Amounts::with_capacity(self.count());
        self.push_amounts(resources, &mut amounts);
        amounts
    }

    pub(crate) fn add_amounts(&self, resources: &Resources, sum: &mut [i128]) {
        let first = [resources.cpus_milli, resources.memory_bytes, resources.gpus];
        let named = self.named.iter().map(|kind| resources.named(kind));
        for (sum, amount) in sum.iter_mut().zip(first.into_iter().chain(named)) {
            *sum += i128::from(amount);
        }
    }

    pub(crate) fn push_amounts(&self, resources: &Resources, amounts: &mut Amounts) {
        let first = [resources.cpus_milli, resources.memory_bytes, resources.gpus];
        let named = self.named.iter().map(|kind| resources.named(kind));
        amounts.extend(first.into_iter().chain(named).map(i128::from));
    }
}

/// What one server and one worker of a job take.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Demand {
    /// The server's amounts, then the worker's.
    amounts: Box<[i128]>,
}

impl Demand {
    pub(crate) fn new(kinds: &Kinds, server: &Resources, worker: &Resources) -> Self {
        let mut amounts = Vec::with_capacity(2 * kinds.count());
        kinds.push_amounts(server, &mut amounts);
        kinds.push_amounts(worker, &mut amounts);
        Self { amounts: amounts.into() }
    }

    pub(crate) fn of_job(kinds: &Kinds, job: &JobInput) -> Self {
        Self::new(kinds, &job.server, &job.worker)
    }

    pub(crate) fn dominant(&self, total: &[i128]) -> [f64; 2] {
        [self.server(), self.worker()].map(|need| dominant_share(need, total))
    }

    pub(crate) fn server(&self) -> &[i128] {
        &self.amounts[..self.amounts.len() / 2]
    }

    pub(crate) fn worker(&self) -> &[i128] {
        &self.amounts[self.amounts.len() / 2..]
    }

    pub(crate) fn of_kind(&self, kind: usize, shape: Shape) -> i128 {
        self.server()[kind] * i128::from(shape.servers)
            + self.worker()[kind] * i128::from(shape.workers)
    }

    pub(crate) fn of(&self, shape: Shape) -> impl Iterator<Item = i128> + Clone {
        (0..self.amounts.len() / 2).map(move |kind| self.of_kind(kind, shape))
    }

    /// True where no kind is asked for more by the other's tasks of the other shape.
    pub(crate) fn covers(&self, shape: Shape, other: &Self, other_shape: Shape) -> bool {
        let more = |mine: &[i128], his: &[i128]| mine.iter().zip(his).all(|(a, b)| b <= a);
        more(self.server(), other.server())
            && more(self.worker(), other.worker())
            && other_shape.servers <= shape.servers
            && other_shape.workers <= shape.workers
    }
}
