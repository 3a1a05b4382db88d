//! A round of any other pair of an allocation and a placement than the paper's: simpler, as
//! these schedulers look at each round by itself. A running job whose allocation is what it holds
//! stays where it is; others are placed anew, or give everything up.

use model::Shape;

use crate::allocate::within;
use crate::baseline::{
    Ask, Nodes, Placer, Rule, drf, fifo, fill, first_fit, pack, spread, tetris, tiresias,
};
use crate::entry::Standing;
use crate::place::{Effort, Shrink, find_first};
use crate::plan::Words;
use crate::room::{Spots, View};
use crate::round::{Made, Round, Stage};
use crate::snapshot::{Allocation, Placing};

/// Times that everything is placed anew without those who cannot be placed.
const TRIES_MAX: u32 = 3;

impl Round<'_> {
    /// The whole round for a pair that is not the paper's.
    pub(crate) fn run_rival(mut self, watch: &mut dyn FnMut(Stage)) -> Made {
        if self.policy.allocation == Allocation::Tiresias {
            return self.run_queues(watch);
        }
        self.serve_fixed(|_| true);
        for attempt in 1..=TRIES_MAX {
            self.allocate();
            watch(Stage::Allocated);
            self.start_by_rule();
            let out = self.left_out(|entry| entry.is_share() && !entry.placed);
            let fifo = self.policy.allocation == Allocation::Fifo;
            if fifo || out.is_empty() || attempt == TRIES_MAX {
                break;
            }
            // The share of who cannot be placed goes to the others.
            let unplaced: Vec<usize> =
                out.into_iter().filter(|job| !self.allocated[*job].is_empty()).collect();
            if unplaced.is_empty() {
                break;
            }
            let placed = self.left_out(|entry| entry.is_share() && entry.placed);
            for job in placed {
                self.entries[job].placed = false;
                let idle = self.idle(job);
                self.room.set(job, idle);
            }
            for job in unplaced {
                self.admitted[job] = true;
                self.room.set(job, Spots::default());
            }
        }
        self.change_running();
        self.idle_rest();
        self.made()
    }

    /// Who found no place holds what can be kept: nothing, where a node under it is gone.
    pub(crate) fn idle_rest(&mut self) {
        let out = |job: &usize| {
            let entry = &self.entries[*job];
            entry.is_share() && entry.needs_place() && !entry.placed
        };
        for job in self.order.iter().copied().filter(out).collect::<Vec<_>>() {
            let idle = self.idle(job);
            self.room.set(job, idle);
        }
    }

    /// What an allocation other than by marginal gain gives these jobs.
    pub(crate) fn share_simply(&self, jobs: &[usize], free: &[i128]) -> Vec<Shape> {
        let (total, free) = (narrow_room(self.room.total()), narrow_room(free));
        let demands: Vec<(Vec<i64>, Vec<i64>)> = jobs
            .iter()
            .map(|job| self.room.demand(*job))
            .map(|demand| (narrow(demand.server()), narrow(demand.worker())))
            .collect();
        let left: Vec<_> = jobs
            .iter()
            .map(|job| {
                let gains = &self.entries[*job].gains;
                move |shape: Shape| gains.seconds_left(shape)
            })
            .collect();
        let asks: Vec<Ask<'_>> = jobs
            .iter()
            .zip(demands.iter().zip(&left))
            .map(|(job, ((server, worker), seconds_left))| {
                let entry = &self.entries[*job];
                Ask {
                    least: entry.gains.least,
                    max: entry.gains.max,
                    server,
                    worker,
                    weight: entry.input.priority,
                    requested: entry.input.requested,
                    arrival_ms: entry.input.arrival.0,
                    attained_gpu_s: entry.input.attained_s,
                    seconds_left,
                }
            })
            .collect();
        match self.policy.allocation {
            // Pollux has rounds of its own.
            Allocation::Drf
            | Allocation::MarginalGain
            | Allocation::Horizon
            | Allocation::Pollux => drf(&total, &free, &asks),
            Allocation::Tetris => tetris(&total, &free, &asks),
            Allocation::Fifo => fifo(&total, &free, &asks),
            Allocation::Tiresias => tiresias::shapes(&total, &free, &asks, self.policy.queue_gpu_s),
        }
    }

    /// Running jobs go to their allocation where it fits beside everything that is there now.
    fn change_running(&mut self) {
        for job in self.order.clone() {
            let entry = &self.entries[job];
            let (allocated, held) = (self.allocated[job], self.current_shape(job));
            if !entry.is_share() || entry.standing != Standing::Running || allocated == held {
                continue;
            }
            let before = self.room.hold(job).next.clone();
            self.room.lift(job);
            let spots = if allocated.is_empty() {
                self.notes.insert(job, Words::Plain("its share went to other jobs".to_owned()));
                Spots::default()
            } else {
                self.place_alone(job, allocated).unwrap_or(before)
            };
            self.room.lower(job, spots.clone(), spots);
        }
    }

    /// Places one lifted job by the policy's rule, beside all that is there now.
    pub(crate) fn place_alone(&mut self, job: usize, shape: Shape) -> Option<Spots> {
        let rule = match self.policy.placing {
            Placing::Transfer => {
                let shapes = (shape, Shrink::Along(Vec::new()));
                return find_first(&self.room, job, shapes, Effort::Full, self.scratch)
                    .map(|(_, spots)| spots);
            }
            Placing::Spread => spread,
            Placing::Pack => pack,
            Placing::FirstFit => first_fit,
            Placing::Fill => fill,
        };
        let (capacity, mut left, open) = self.books();
        let kinds = self.room.kinds.count();
        let mut nodes = Nodes { kinds, capacity: &capacity, left: &mut left, open: &open };
        let demand = self.room.demand(job);
        rule(&mut nodes, &narrow(demand.server()), &narrow(demand.worker()), shape).map(Spots::from)
    }

    /// As [`Self::place_alone`], the first of ever smaller shapes that fits.
    pub(crate) fn place_along(&mut self, job: usize, shapes: &[Shape]) -> Option<Spots> {
        let (first, rest) = shapes.split_first()?;
        if self.policy.placing != Placing::Transfer {
            return shapes.iter().find_map(|shape| self.place_alone(job, *shape));
        }
        let shapes = (*first, Shrink::Along(rest.to_vec()));
        find_first(&self.room, job, shapes, Effort::Full, self.scratch).map(|(_, spots)| spots)
    }

    /// Places what starts, in the order of its policy.
    fn start_by_rule(&mut self) {
        let starting = match self.policy.allocation {
            Allocation::MarginalGain | Allocation::Horizon => self.starting(),
            Allocation::Drf
            | Allocation::Tetris
            | Allocation::Fifo
            | Allocation::Tiresias
            | Allocation::Pollux => {
                let starts = |job: &usize| {
                    let entry = &self.entries[*job];
                    entry.is_share() && entry.needs_place()
                };
                self.order.iter().copied().filter(starts).collect()
            }
        };
        let rule = match self.policy.placing {
            Placing::Transfer => return self.start_near(&starting),
            Placing::Spread => Rule::Spread,
            Placing::Pack => Rule::Pack,
            Placing::FirstFit => Rule::FirstFit,
            Placing::Fill => Rule::Fill,
        };
        // Where jobs are profiled, everybody's least shape was put somewhere first. Left there, a
        // job would be in its own way: the only GPU would be taken by itself.
        for job in &starting {
            let idle = self.idle(*job);
            self.room.set(*job, idle);
        }
        let (capacity, mut left, open) = self.books();
        let kinds = self.room.kinds.count();
        let nodes = Nodes { kinds, capacity: &capacity, left: &mut left, open: &open };
        let mut placer = Placer::new(nodes);
        for job in starting {
            if self.is_behind(job) {
                continue;
            }
            let demand = self.room.demand(job);
            let (server, worker) = (narrow(demand.server()), narrow(demand.worker()));
            let mut shapes = std::iter::once(self.allocated[job]).chain(self.smaller_by_rule(job));
            let found = shapes.find_map(|shape| placer.place(rule, &server, &worker, shape));
            self.put(job, found.map(Spots::from));
        }
    }

    fn start_near(&mut self, starting: &[usize]) {
        for job in starting.iter().copied() {
            if self.is_behind(job) {
                continue;
            }
            let whole = self.allocated[job];
            let smaller = self.smaller_by_rule(job);
            let before = self.room.hold(job).next.clone();
            self.room.lift(job);
            let shapes = (whole, Shrink::Along(smaller));
            let found = find_first(&self.room, job, shapes, Effort::Full, self.scratch);
            self.room.lower(job, before.clone(), before);
            self.put(job, found.map(|(_, spots)| spots));
        }
    }

    /// Under FIFO whoever comes after a job that waits, waits; and who has no share is not placed.
    fn is_behind(&mut self, job: usize) -> bool {
        if self.allocated[job].is_empty() {
            if self.policy.allocation == Allocation::Fifo {
                let first = self.order.iter().find(|other| {
                    self.entries[**other].needs_place()
                        && self.room.hold(**other).next.is_empty()
                        && **other != job
                });
                if let Some(first) = first.filter(|first| self.arrived(**first) < self.arrived(job))
                {
                    let words = format!("waits behind {}", self.entries[*first].input.id);
                    self.notes.insert(job, Words::Plain(words));
                }
            }
            return true;
        }
        let blocked = self.policy.allocation == Allocation::Fifo && self.head.is_some();
        if let Some(head) = self.head.filter(|_| blocked) {
            let words = format!("waits behind {}", self.entries[head].input.id);
            self.notes.insert(job, Words::Plain(words));
        }
        blocked
    }

    fn put(&mut self, job: usize, spots: Option<Spots>) {
        match spots {
            Some(spots) => {
                self.room.set(job, spots);
                self.entries[job].placed = true;
            }
            None => {
                self.head.get_or_insert(job);
                if self.policy.allocation == Allocation::Fifo {
                    let asked = self.allocated[job];
                    let words = format!("no room on the nodes for its requested {asked}");
                    self.notes.insert(job, Words::Plain(words));
                }
            }
        }
    }

    /// Shapes that are tried where the allocation does not fit on the nodes, ever smaller.
    fn smaller_by_rule(&self, job: usize) -> Vec<Shape> {
        let (whole, gains) = (self.allocated[job], &self.entries[job].gains);
        match self.policy.allocation {
            Allocation::MarginalGain | Allocation::Horizon => gains.shrinking(whole),
            // What was requested, or nothing.
            Allocation::Fifo | Allocation::Tiresias | Allocation::Pollux => Vec::new(),
            Allocation::Drf | Allocation::Tetris => {
                let least = gains.least;
                let mut shapes = Vec::new();
                let mut shape = whole;
                while shape != least && within(least, shape) {
                    // One server to one worker, as far as the bounds let it.
                    let worker = shape.workers > least.workers
                        && (shape.workers >= shape.servers || shape.servers == least.servers);
                    shape = if worker {
                        Shape::new(shape.servers, shape.workers - 1)
                    } else {
                        Shape::new(shape.servers - 1, shape.workers)
                    };
                    shapes.push(shape);
                }
                shapes
            }
        }
    }

    /// Capacity, what is left beside all that is there now, and whether a node is open.
    pub(crate) fn books(&self) -> (Vec<i64>, Vec<i64>, Vec<bool>) {
        let mut capacity = Vec::new();
        let mut left = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            capacity.extend(narrow_room(&self.room.kinds.amounts(&node.capacity)));
            left.extend(narrow_room(&self.room.left(at, View::Both).collect::<Vec<_>>()));
        }
        let open = (0..self.nodes.len()).map(|node| self.room.is_open(node)).collect();
        (capacity, left, open)
    }
}

/// Amounts in the numbers that the baselines count in. A demand beyond them fits nowhere, as what
/// there is of a kind counts as one less.
pub(crate) fn narrow(amounts: &[i128]) -> Vec<i64> {
    let narrow = |amount: &i128| i64::try_from((*amount).max(0)).unwrap_or(i64::MAX);
    amounts.iter().map(narrow).collect()
}

pub(crate) fn narrow_room(amounts: &[i128]) -> Vec<i64> {
    narrow(amounts).into_iter().map(|amount| amount.min(i64::MAX - 1)).collect()
}
