//! What one node is told always fits a message, whatever runs there.
//!
//! Two bounds hold that. Each task takes places of its node, [`PLACES_MAX`] in all, more of them
//! where the orders for its job are long, and a job is given no node without enough places. And
//! of a set that is still too long only what is new goes whole: the program of a generation that
//! the agent holds already is left out, ends of generations are never, and starts that do not fit
//! follow once the agent holds those before them.

use std::collections::{BTreeMap, BTreeSet};

use model::agent::{DesiredGeneration, Order};
use model::nodes::NodeOrders;
use model::notes::{AssignmentOrder, Extras};
use model::{Generation, JobId, NodeId, NodeShare, Placement, Shape, Task, weight};
use scheduler::snapshot::{JobInput, NodeInput};

use crate::job::Job;
use crate::node::Node;
use crate::step::Control;

/// Longest message to an agent: with room below the limit of a frame, which is 4 MiB.
pub const TOLD_BYTES_MAX: usize = 3_900_000;
/// Of the jobs that may come, which are only told to save time.
const WARM_BYTES_MAX: usize = 1 << 20;
/// Places of a node: each stands for a task and what must be told of it at any time, so that all
/// of them leave room for the programs of some starts, and what the agent reports of so many
/// tasks fits a message, too.
pub(crate) const PLACES_MAX: u64 = 2_048;
const PLACE_BYTES: usize = 1_024;
/// How `why` and rounds name a place where nodes run out of them.
pub(crate) const PLACES: &str = "task places (an agent has 2048)";
/// Names of generations and checkpoints below a job's base, and the address of its root.
const NAMES_BYTES: usize = 192;

/// Places that each task of a job takes: one, but for jobs with long names and paths.
pub(crate) fn places_of_task(job: &Job) -> u64 {
    let spec = job.spec();
    let data = job.options.data.as_ref().map_or(0, |data| data.url.len() + spec.checkpoint.len());
    let bytes = 200
        + spec.name.len()
        + job.record.user.len()
        + weight::of_resources(&spec.worker)
        + weight::of_resources(&spec.server)
        + 2 * (spec.checkpoint.len() + NAMES_BYTES)
        + data;
    u64::try_from(bytes.div_ceil(PLACE_BYTES)).unwrap_or(PLACES_MAX)
}

fn tasks(shape: Shape) -> u64 {
    u64::from(shape.servers) + u64::from(shape.workers)
}

/// Places that a job of this shape takes on its node.
pub(crate) fn places(job: &Job, shape: Shape) -> u64 {
    places_of_task(job).saturating_mul(tasks(shape))
}

/// Places for an amount of something: those of the job that takes most places for it.
#[derive(Clone, Copy, Debug)]
struct Densest {
    places: u64,
    amount: u64,
}

impl Densest {
    fn of(each: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut most = Self { places: 0, amount: 1 };
        for (places, amount) in each {
            let one = Self { places, amount: amount.max(1) };
            let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
            if product(most.places, one.amount) < product(one.places, most.amount) {
                most = one;
            }
        }
        most
    }

    /// Most places that tasks could take where there is so much.
    fn within(self, has: u64) -> u64 {
        let places = u128::from(has) * u128::from(self.places) / u128::from(self.amount);
        u64::try_from(places).unwrap_or(u64::MAX)
    }
}

impl Control {
    /// Why a node has no places left for a share of a job, in words; none where it has.
    pub(crate) fn without_places(&self, job: &Job, share: &NodeShare) -> Option<String> {
        let node = self.nodes.get(&share.node)?;
        let own = places(job, job.placement().on(&share.node));
        let free = PLACES_MAX.saturating_sub(node.places.saturating_sub(own));
        let want = places(job, Shape::new(share.servers, share.workers));
        (free < want).then(|| format!("{} needs {want} {PLACES}, {free} free", share.node))
    }

    /// What the jobs on a node take of its places.
    pub(crate) fn places_taken(&self, node: &Node) -> u64 {
        let of = |id: &JobId| {
            let job = self.job(*id);
            job.life().map_or(0, |life| places(job, life.placement.on(node.id())))
        };
        node.lives.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Makes places a kind of resource of a round, where some node could run out of them: as a
    /// rule its processors or its memory are used up long before.
    pub(crate) fn count_places(&self, jobs: &mut [JobInput], nodes: &mut [NodeInput]) {
        let each: Vec<u64> = jobs.iter().map(|job| places_of_task(self.job(job.id))).collect();
        let least = |of: fn(&model::Resources) -> u64| {
            let known = each.iter().copied().zip(&*jobs);
            Densest::of(known.map(|(places, job)| (places, of(&job.worker).min(of(&job.server)))))
        };
        let cpus = least(|task| task.cpus_milli);
        let memory = least(|task| task.memory_bytes);
        let taken = |node: &NodeInput| self.nodes.get(&node.id).map_or(0, |node| node.places);
        let scarce = |node: &NodeInput| {
            let capacity = &node.capacity;
            let most = cpus.within(capacity.cpus_milli).min(memory.within(capacity.memory_bytes));
            PLACES_MAX < taken(node).saturating_add(most)
        };
        if !nodes.iter().any(scarce) {
            return;
        }
        let mut counted: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut shown: BTreeMap<(NodeId, JobId), u64> = BTreeMap::new();
        for (input, each) in jobs.iter_mut().zip(each) {
            for task in [&mut input.worker, &mut input.server] {
                task.named.insert(PLACES.to_owned(), each);
            }
            let Some(current) = &input.current else { continue };
            for share in &current.placement.0 {
                let take = each.saturating_mul(tasks(Shape::new(share.servers, share.workers)));
                let sum = counted.entry(share.node.clone()).or_default();
                *sum = sum.saturating_add(take);
                shown.insert((share.node.clone(), input.id), take);
            }
        }
        for input in nodes {
            let counted = counted.get(&input.id).copied().unwrap_or(0);
            let capacity = PLACES_MAX.max(counted);
            let lives = self.nodes.get(&input.id).into_iter().flat_map(|node| &node.lives);
            let unseen = lives.map(|id| {
                let job = self.job(*id);
                let seen = shown.get(&(input.id.clone(), *id)).copied().unwrap_or(0);
                places(job, job.placement().on(&input.id)).saturating_sub(seen)
            });
            let held = unseen.fold(0, u64::saturating_add).min(capacity - counted);
            input.capacity.named.insert(PLACES.to_owned(), capacity);
            input.held.named.insert(PLACES.to_owned(), held);
        }
    }
}

/// Generations of which the agent holds every task that is wanted.
fn held(node: &Node, generations: &[DesiredGeneration]) -> BTreeSet<(JobId, Generation)> {
    let reported: BTreeSet<(JobId, Generation, Task)> =
        node.tasks.iter().map(|report| (report.job, report.generation, report.task)).collect();
    let is_held = |one: &&DesiredGeneration| {
        let key = |task: &Task| (one.job, one.generation, *task);
        one.launch.tasks.iter().all(|task| reported.contains(&key(task)))
    };
    generations.iter().filter(is_held).map(|one| (one.job, one.generation)).collect()
}

impl Control {
    /// Cuts a node's desired set down to what fits. An agent reads the program of a launch only
    /// where it starts something.
    ///
    /// # Returns
    /// Jobs whose start is left out for now.
    pub(crate) fn cut_desired(
        &self,
        node: &Node,
        generations: &mut Vec<DesiredGeneration>,
    ) -> BTreeSet<JobId> {
        if weight::of_generations(generations) <= TOLD_BYTES_MAX {
            return BTreeSet::new();
        }
        let held = held(node, generations);
        for one in generations.iter_mut() {
            if one.order == Order::Start && held.contains(&(one.job, one.generation)) {
                one.order = Order::Keep;
            }
            if one.order != Order::Start {
                one.launch.command.clear();
                one.launch.working_directory.clear();
                one.launch.environment.clear();
            }
        }
        let is_start = |one: &DesiredGeneration| one.order == Order::Start;
        let starts: Vec<&DesiredGeneration> =
            generations.iter().filter(|one| is_start(one)).collect();
        let weights: BTreeMap<(JobId, Generation), usize> = starts
            .iter()
            .map(|one| ((one.job, one.generation), weight::of_generation(one)))
            .collect();
        // Those that were told before stay: left out, the agent would end what it has begun.
        let told = node.sent.iter().flat_map(|(_, sent)| sent).filter(|one| is_start(one));
        let told: BTreeSet<(JobId, Generation)> =
            told.map(|one| (one.job, one.generation)).collect();
        let mut order: Vec<(bool, JobId, Generation)> =
            weights.keys().map(|key| (!told.contains(key), key.0, key.1)).collect();
        order.sort_unstable();
        let mut bytes = weight::of_generations(generations) - weights.values().sum::<usize>();
        let mut left_out = BTreeSet::new();
        for (new, job, generation) in order {
            let more = weights[&(job, generation)];
            if !new || bytes + more <= TOLD_BYTES_MAX {
                bytes += more;
            } else {
                left_out.insert(job);
            }
        }
        generations.retain(|one| !is_start(one) || !left_out.contains(&one.job));
        left_out
    }

    /// Cuts down what a node is told beside its desired set. True where something must follow.
    pub(crate) fn cut_extras(&self, extras: &mut Extras) -> bool {
        let mut warm = 0;
        extras.warm.retain(|one| {
            let bytes = weight::of_warm(one);
            let fits = warm + bytes <= WARM_BYTES_MAX;
            warm += if fits { bytes } else { 0 };
            fits
        });
        if weight::of_extras(extras) <= TOLD_BYTES_MAX {
            return false;
        }
        let mut bytes = weight::of_extras(extras);
        let withhold = |one: &mut model::notes::JobExtras, bytes: &mut usize| {
            *bytes -= weight::of_assignment(&one.assignment);
            one.assignment = AssignmentOrder::Wait;
            *bytes += weight::of_assignment(&one.assignment);
        };
        // Who has made a step knows where its blocks lie.
        for one in &mut extras.jobs {
            let live = self.job(one.job).live.as_ref();
            let knows = live.is_some_and(|live| live.last_step_at.is_some());
            if knows && matches!(one.assignment, AssignmentOrder::Given(_)) {
                withhold(one, &mut bytes);
            }
        }
        let mut withheld = false;
        for one in extras.jobs.iter_mut().rev() {
            if bytes > TOLD_BYTES_MAX && matches!(one.assignment, AssignmentOrder::Given(_)) {
                withhold(one, &mut bytes);
                withheld = true;
            }
        }
        withheld
    }

    /// Cuts down the addresses of servers that may reach tasks: an agent keeps those that it was
    /// told once, so those of starts come first. True where some must follow.
    pub(crate) fn cut_orders(&self, orders: &mut NodeOrders, sent: &[DesiredGeneration]) -> bool {
        if weight::of_orders(orders) <= TOLD_BYTES_MAX {
            return false;
        }
        let starts: BTreeSet<JobId> =
            sent.iter().filter(|one| one.order == Order::Start).map(|one| one.job).collect();
        let mut room = TOLD_BYTES_MAX;
        for one in &mut orders.jobs {
            let placement = self.job(one.job).placement();
            one.peers = self.own_addresses(&placement);
        }
        let peers: usize = orders.jobs.iter().map(|one| weight::of_addresses(&one.peers)).sum();
        room = room.saturating_sub(weight::of_orders(orders).saturating_sub(peers));
        let mut withheld = false;
        for first in [true, false] {
            for one in orders.jobs.iter_mut().filter(|one| starts.contains(&one.job) == first) {
                let bytes = weight::of_addresses(&one.peers);
                if room < bytes {
                    one.peers.clear();
                    withheld |= first;
                } else {
                    room -= bytes;
                }
            }
        }
        withheld
    }

    fn own_addresses(&self, placement: &Placement) -> Vec<std::net::IpAddr> {
        let nodes = placement.0.iter().filter_map(|share| self.nodes.get(&share.node));
        nodes.filter_map(|node| node.record.task_address.parse().ok()).collect()
    }

    /// Notes what a node was not told for want of room; tells of each job once.
    pub(crate) fn note_left_out(&mut self, id: &NodeId, left_out: BTreeSet<JobId>, crowded: bool) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.crowded = crowded || !left_out.is_empty();
        let before = std::mem::replace(&mut node.left_out, left_out.clone());
        for job in left_out.difference(&before) {
            let text = format!(
                "{id} is told to start {job} a little later: the orders for it fill a message"
            );
            self.tell(Some(*job), Some(id), "held", text);
        }
    }

    /// Nodes that a job's start has not been told to, in words.
    pub(crate) fn left_out_words(&self, job: &Job) -> Option<String> {
        let life = job.life()?;
        let waits = |share: &&NodeShare| {
            self.nodes.get(&share.node).is_some_and(|node| node.left_out.contains(&job.id()))
        };
        let share = life.placement.0.iter().find(waits)?;
        Some(format!("{} is told of it once the starts before it are done there", share.node))
    }
}
