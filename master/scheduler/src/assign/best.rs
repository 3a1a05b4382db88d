//! The best assignment that a bounded search finds, never worse than the paper's.

use super::search::{Random, State, slices};
use super::{Assignment, Part, paa};

/// Most turns of levelling cut blocks and exchanging pieces.
const TURNS_MAX: usize = 32;

/// Most random departures from the best so far.
const KICKS_MAX: usize = 400;

/// Pieces that the search may look at from one start: a floor for small models, and so many for
/// each piece and server of a large one. A few milliseconds for a model of today.
const LOOKS_MIN: u64 = 1_000_000;
const LOOKS_EACH: u64 = 32;

/// Where all assignments of whole blocks are at most so many, each is tried.
const ALL_MAX: u64 = 4096;

/// The three measures, in the order of section 5.3.
type Measures = [u64; 3];

fn measures(assignment: &Assignment) -> Measures {
    [assignment.size_difference(), assignment.requests(), assignment.request_difference()]
}

/// What is better comes first, among those that are no worse than the paper's: requests further
/// apart than by one, which none need be, are worse than any gain in size.
fn rank(measures: Measures) -> (bool, Measures) {
    (measures[2] > 1, measures)
}

/// The first by rank that is no worse than the paper's in any: searched from
/// the paper's own, from even ones of the same pieces and of pieces cut otherwise, and among all
/// assignments of whole blocks where these are few.
///
/// Parts of a block that meet on a server could be one request, which the paper leaves open. What
/// is no worse than the paper's assignment by either count comes first.
pub(super) fn assign(parameters: &[u64], servers: u32, total: u64) -> Assignment {
    let paper = paa::assign(parameters, servers, total);
    let joined = joined(&paper);
    let (bound, joined_bound) = (measures(&paper), measures(&joined));
    let strict = std::array::from_fn(|at| bound[at].min(joined_bound[at]));
    let own = State::of(&joined);
    let even = |slices: &[u64]| State::apart(parameters, slices, servers).even();
    let count = |assignment: &Assignment| assignment.blocks.iter().map(Vec::len).sum::<usize>();
    let mut starts = vec![own.even(), even(&slices(parameters, count(&joined), servers))];
    if count(&joined) < count(&paper) {
        let paper_slices: Vec<u64> = paper.blocks.iter().map(|parts| wide(parts.len())).collect();
        if paper_slices.iter().all(|slices| *slices <= u64::from(servers)) {
            starts.push(even(&paper_slices));
        }
        starts.push(even(&slices(parameters, count(&paper), servers)));
    }
    starts.push(Some(own));
    let searched = starts.into_iter().flatten().map(|start| improved(start).assignment());
    let found = searched.chain(least_whole(parameters, servers, bound)).map(|found| {
        let measures = measures(&found);
        ((!is_no_worse(measures, strict), rank(measures)), measures, found)
    });
    found
        .filter(|(_, measures, _)| is_no_worse(*measures, bound))
        .min_by_key(|(order, ..)| *order)
        .map_or(paper, |(.., found)| found)
}

/// With the parts of each block that lie on one server as one.
fn joined(assignment: &Assignment) -> Assignment {
    let join = |parts: &Vec<Part>| {
        let mut parts = parts.clone();
        parts.sort_by_key(|part| part.server);
        parts.dedup_by(|part, kept| {
            let meets = part.server == kept.server;
            kept.parameters += if meets { part.parameters } else { 0 };
            meets
        });
        parts
    };
    let servers = u32::try_from(assignment.servers.len()).expect("made from such a number");
    Assignment::new(assignment.blocks.iter().map(join).collect(), servers)
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn is_no_worse(measures: Measures, than: Measures) -> bool {
    measures.iter().zip(than).all(|(measure, than)| *measure <= than)
}

/// A local optimum, and then the best of those that a few random exchanges away from the best so
/// far lead to.
fn improved(state: State) -> State {
    let size = state.pieces.iter().map(|here| here.len() + 1).sum::<usize>();
    let size = wide(size);
    let mut budget = size.saturating_mul(LOOKS_EACH).max(LOOKS_MIN);
    let mut random = Random::default();
    let mut best = descended(state, &mut budget);
    for _ in 0..KICKS_MAX {
        if budget == 0 || best.difference() <= 1 {
            break;
        }
        budget = budget.saturating_sub(size);
        let mut next = best.clone();
        next.kick(&mut random);
        let next = descended(next, &mut budget);
        // One as good is taken too: from there the next kick leads elsewhere.
        if next.difference() <= best.difference() {
            best = next;
        }
    }
    best
}

/// Levels and exchanges in turn, until that gains nothing.
fn descended(mut state: State, budget: &mut u64) -> State {
    let mut best = state.clone();
    for _ in 0..TURNS_MAX {
        state.level();
        state.even_out(budget);
        if state.difference() >= best.difference() {
            break;
        }
        best.clone_from(&state);
    }
    best
}

/// The first by rank of all assignments of whole blocks that are no worse than `bound`; none where there
/// are too many to try, or no such.
fn least_whole(parameters: &[u64], servers: u32, bound: Measures) -> Option<Assignment> {
    let blocks = u32::try_from(parameters.len()).ok()?;
    let all = u64::from(servers).checked_pow(blocks).filter(|all| *all <= ALL_MAX)?;
    let assignment = |mut number: u64| {
        let parts = parameters.iter().map(|size| {
            let server = u32::try_from(number % u64::from(servers)).expect("a remainder");
            number /= u64::from(servers);
            vec![Part { server, parameters: *size }]
        });
        Assignment::new(parts.collect(), servers)
    };
    (0..all)
        .map(assignment)
        .map(|assignment| (measures(&assignment), assignment))
        .filter(|(measures, _)| is_no_worse(*measures, bound))
        .min_by_key(|(measures, _)| rank(*measures))
        .map(|(_, assignment)| assignment)
}
