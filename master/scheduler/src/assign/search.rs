//! A bounded local search that evens out the parameters of servers without changing how many
//! requests there are, nor how far apart they are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Assignment, Part, at};

/// A block, or a part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) block: usize,
    pub(super) size: u64,
    /// One of several parts of its block.
    pub(super) cut: bool,
}

/// An assignment on its way.
#[derive(Clone, Debug)]
pub(super) struct State {
    blocks: usize,
    /// Of each server, by falling size, then block.
    pub(super) pieces: Vec<Vec<Piece>>,
    pub(super) loads: Vec<u64>,
    /// Fewest and most requests of a server; a move keeps within them.
    few: usize,
    many: usize,
}

/// Pieces to exchange between two servers: places in the lists of both; none for nothing.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    from: usize,
    to: usize,
    give: [Option<usize>; 2],
    take: [Option<usize>; 2],
    /// Parameters that `from` loses and `to` gains.
    shift: u64,
}

/// Most sums of two pieces looked at on one server.
const PAIRS_MAX: usize = 1 << 14;

/// Random exchanges of one kick.
const KICK: usize = 3;

/// Numbers that look random and are the same on every machine: a linear congruence with Knuth's
/// constants.
#[derive(Clone, Debug, Default)]
pub(super) struct Random(u64);

impl Random {
    /// Below a bound above 0.
    fn below(&mut self, bound: usize) -> usize {
        const FACTOR: u64 = 6_364_136_223_846_793_005;
        const STEP: u64 = 1_442_695_040_888_963_407;
        self.0 = self.0.wrapping_mul(FACTOR).wrapping_add(STEP);
        // The high bits are the good ones.
        let bound = u64::try_from(bound).unwrap_or(u64::MAX);
        usize::try_from((self.0 >> 33) % bound).expect("below the bound")
    }
}

pub(super) fn order(piece: &Piece) -> (Reverse<u64>, usize) {
    (Reverse(piece.size), piece.block)
}

impl State {
    pub(super) fn of(assignment: &Assignment) -> Self {
        let mut pieces: Vec<Vec<Piece>> = assignment.servers.iter().map(|_| Vec::new()).collect();
        for (block, parts) in assignment.blocks.iter().enumerate() {
            for part in parts {
                let cut = parts.len() > 1;
                pieces[at(part.server)].push(Piece { block, size: part.parameters, cut });
            }
        }
        Self::new(assignment.blocks.len(), pieces)
    }

    fn new(blocks: usize, mut pieces: Vec<Vec<Piece>>) -> Self {
        for here in &mut pieces {
            here.sort_unstable_by_key(order);
        }
        let loads = pieces.iter().map(|here| here.iter().map(|piece| piece.size).sum()).collect();
        let few = pieces.iter().map(Vec::len).min().unwrap_or(0);
        let many = pieces.iter().map(Vec::len).max().unwrap_or(0);
        Self { blocks, pieces, loads, few, many }
    }

    /// Blocks cut into so many equal parts each, all on the first server: a start for
    /// [`Self::even`].
    pub(super) fn apart(parameters: &[u64], slices: &[u64], servers: u32) -> Self {
        let mut pieces = Vec::new();
        for (block, (size, slices)) in parameters.iter().zip(slices).enumerate() {
            let cut = *slices > 1;
            let size_of = |slice| super::paa::slice_size(*size, slice, *slices);
            pieces.extend((0..*slices).map(|slice| Piece { block, size: size_of(slice), cut }));
        }
        let mut servers: Vec<Vec<Piece>> = (0..servers).map(|_| Vec::new()).collect();
        servers[0] = pieces;
        Self::new(parameters.len(), servers)
    }

    /// The same pieces anew: the largest first, each to the least loaded server that still takes
    /// a request, where each server takes as many as any other or one more. None where the parts
    /// of a block would meet.
    pub(super) fn even(&self) -> Option<Self> {
        let mut all: Vec<Piece> = self.pieces.iter().flatten().copied().collect();
        all.sort_unstable_by_key(order);
        let servers = self.pieces.len();
        let (each, mut more) = (all.len() / servers, all.len() % servers);
        let mut pieces: Vec<Vec<Piece>> = self.pieces.iter().map(|_| Vec::new()).collect();
        let mut open: BinaryHeap<Reverse<(u64, usize)>> =
            (0..servers).map(|server| Reverse((0, server))).collect();
        for piece in all {
            let mut passed = Vec::new();
            let chosen = loop {
                let Reverse((load, server)) = open.pop()?;
                let here = &pieces[server];
                if here.len() > each || (here.len() == each && more == 0) {
                    // Full for good: what is left to give out only shrinks.
                    continue;
                }
                if piece.cut && here.iter().any(|other| other.block == piece.block) {
                    passed.push(Reverse((load, server)));
                    continue;
                }
                break (load, server);
            };
            open.extend(passed);
            let (load, server) = chosen;
            more -= usize::from(pieces[server].len() == each);
            pieces[server].push(piece);
            open.push(Reverse((load + piece.size, server)));
        }
        Some(Self::new(self.blocks, pieces))
    }

    pub(super) fn assignment(&self) -> Assignment {
        let mut blocks: Vec<Vec<Part>> = (0..self.blocks).map(|_| Vec::new()).collect();
        for (server, here) in (0_u32..).zip(&self.pieces) {
            for piece in here {
                blocks[piece.block].push(Part { server, parameters: piece.size });
            }
        }
        let servers = u32::try_from(self.pieces.len()).expect("made from a number of this width");
        Assignment::new(blocks, servers)
    }

    pub(super) fn difference(&self) -> u64 {
        super::spread(self.loads.iter().copied())
    }

    fn fullest(&self) -> usize {
        (0..self.loads.len()).min_by_key(|server| Reverse(self.loads[*server])).unwrap_or(0)
    }

    fn emptiest(&self) -> usize {
        (0..self.loads.len()).min_by_key(|server| self.loads[*server]).unwrap_or(0)
    }

    /// Exchanges pieces while that brings the fullest or the emptiest server nearer to another,
    /// and while the budget, counted in pieces looked at, lasts. Each exchange lowers the sum of
    /// squared loads, so this ends in any case.
    pub(super) fn even_out(&mut self, budget: &mut u64) {
        while *budget > 0 && self.difference() > 1 {
            let (high, low) = (self.fullest(), self.emptiest());
            let found = self
                .single(high, low, budget)
                .or_else(|| self.best_with(high, low, budget, Self::single))
                .or_else(|| self.double(high, low, budget))
                .or_else(|| self.best_with(high, low, budget, Self::double));
            let Some(exchange) = found else { break };
            self.carry_out(exchange);
        }
    }

    /// The best exchange of the fullest server with any other, else of the emptiest.
    fn best_with(
        &self,
        high: usize,
        low: usize,
        budget: &mut u64,
        find: impl Fn(&Self, usize, usize, &mut u64) -> Option<Exchange>,
    ) -> Option<Exchange> {
        let servers = 0..self.loads.len();
        let of_high = servers.clone().filter_map(|other| find(self, high, other, budget));
        let best = of_high.max_by_key(|exchange| self.worth(exchange));
        best.or_else(|| {
            let of_low = servers.filter_map(|other| find(self, other, low, budget));
            of_low.max_by_key(|exchange| self.worth(exchange))
        })
    }

    /// Half of what the sum of squared loads falls by.
    fn worth(&self, exchange: &Exchange) -> u128 {
        let gap = self.loads[exchange.from] - self.loads[exchange.to];
        u128::from(exchange.shift) * u128::from(gap - exchange.shift)
    }

    /// The best exchange of one piece for one or for nothing.
    fn single(&self, from: usize, to: usize, budget: &mut u64) -> Option<Exchange> {
        let (gives, takes) = (&self.pieces[from], &self.pieces[to]);
        let mut best = Best::new(self.loads[from], self.loads[to])?;
        spend(budget, gives.len() + takes.len())?;
        let free = |piece: &Piece, others: &[Piece]| {
            !piece.cut || others.iter().all(|other| other.block != piece.block)
        };
        let may_move = gives.len() > self.few && takes.len() < self.many;
        for (give, piece) in gives.iter().enumerate() {
            if may_move && best.is_better(piece.size) && free(piece, takes) {
                best.take(piece.size, [Some(give), None], [None; 2]);
            }
            let ideal = piece.size.saturating_sub(best.gap / 2);
            let after = takes.partition_point(|other| other.size > ideal);
            for near in after.saturating_sub(1)..(after + 1).min(takes.len()) {
                let other = &takes[near];
                if let Some(shift) = piece.size.checked_sub(other.size)
                    && best.is_better(shift)
                    && free(piece, takes)
                    && free(other, gives)
                {
                    best.take(shift, [Some(give), None], [Some(near), None]);
                }
            }
        }
        best.exchange(from, to)
    }

    /// The best exchange of two whole blocks for two.
    fn double(&self, from: usize, to: usize, budget: &mut u64) -> Option<Exchange> {
        let mut best = Best::new(self.loads[from], self.loads[to])?;
        let gives = pairs(&self.pieces[from], budget)?;
        let takes = pairs(&self.pieces[to], budget)?;
        for (sum, a, b) in &gives {
            let ideal = sum.saturating_sub(best.gap / 2);
            let after = takes.partition_point(|(other, ..)| *other > ideal);
            for (other, c, d) in &takes[after.saturating_sub(1)..(after + 1).min(takes.len())] {
                if let Some(shift) = sum.checked_sub(*other)
                    && best.is_better(shift)
                {
                    best.take(shift, [Some(*a), Some(*b)], [Some(*c), Some(*d)]);
                }
            }
        }
        best.exchange(from, to)
    }

    /// Exchanges a few random pieces, whatever that does to the loads.
    pub(super) fn kick(&mut self, random: &mut Random) {
        for _ in 0..KICK {
            // The fullest or the emptiest one takes part: the others are not what is amiss.
            let one = if random.below(2) == 0 { self.fullest() } else { self.emptiest() };
            let other = random.below(self.loads.len());
            if one == other || self.pieces[one].is_empty() || self.pieces[other].is_empty() {
                continue;
            }
            let places = [one, other].map(|server| random.below(self.pieces[server].len()));
            let [a, b] = [self.pieces[one][places[0]], self.pieces[other][places[1]]];
            if a.cut || b.cut {
                continue;
            }
            let (from, to) = if a.size >= b.size { (one, other) } else { (other, one) };
            let [give, take] = if from == one { places } else { [places[1], places[0]] }
                .map(|at| [Some(at), None]);
            self.carry_out(Exchange { from, to, give, take, shift: a.size.abs_diff(b.size) });
        }
    }

    fn carry_out(&mut self, exchange: Exchange) {
        let Exchange { from, to, give, take, shift } = exchange;
        let mut pull = |server: usize, places: [Option<usize>; 2]| -> Vec<Piece> {
            let mut places: Vec<usize> = places.into_iter().flatten().collect();
            // From the end, so that the earlier place stays true.
            places.sort_unstable_by_key(|place| Reverse(*place));
            places.into_iter().map(|place| self.pieces[server].remove(place)).collect()
        };
        let (given, taken) = (pull(from, give), pull(to, take));
        for (server, pieces) in [(to, given), (from, taken)] {
            for piece in pieces {
                let here = &mut self.pieces[server];
                let place = here.partition_point(|other| order(other) < order(&piece));
                here.insert(place, piece);
            }
        }
        self.loads[from] -= shift;
        self.loads[to] += shift;
    }
}

/// How many parts to cut each block into for so many parts in all: the largest part is halved,
/// thirded and so on while there are parts to give.
pub(super) fn slices(parameters: &[u64], parts: usize, servers: u32) -> Vec<u64> {
    let mut slices: Vec<u64> = vec![1; parameters.len()];
    let mut heap: BinaryHeap<(u64, Reverse<usize>)> =
        parameters.iter().enumerate().map(|(block, size)| (*size, Reverse(block))).collect();
    for _ in parameters.len()..parts {
        let Some((size, Reverse(block))) = heap.pop() else { break };
        // A block has no more parts than servers or parameters.
        if size > 1 && slices[block] < u64::from(servers) {
            slices[block] += 1;
            heap.push((parameters[block].div_ceil(slices[block]), Reverse(block)));
        }
    }
    slices
}

/// Takes from the budget; none where it is spent.
fn spend(budget: &mut u64, cost: usize) -> Option<()> {
    let cost = u64::try_from(cost).unwrap_or(u64::MAX).saturating_add(1);
    let is_enough = *budget > 0;
    *budget = budget.saturating_sub(cost);
    is_enough.then_some(())
}

/// The best exchange found so far between two servers.
struct Best {
    gap: u64,
    shift: u64,
    places: [[Option<usize>; 2]; 2],
}

impl Best {
    /// None where nothing could be better than what is.
    fn new(from: u64, to: u64) -> Option<Self> {
        let gap = from.checked_sub(to).filter(|gap| *gap > 1)?;
        Some(Self { gap, shift: 0, places: [[None; 2]; 2] })
    }

    /// Half of what the sum of squared loads falls by; the most at half the gap.
    fn worth(&self, shift: u64) -> u128 {
        u128::from(shift) * u128::from(self.gap.saturating_sub(shift))
    }

    fn is_better(&self, shift: u64) -> bool {
        self.worth(shift) > self.worth(self.shift)
    }

    fn take(&mut self, shift: u64, give: [Option<usize>; 2], take: [Option<usize>; 2]) {
        self.shift = shift;
        self.places = [give, take];
    }

    fn exchange(self, from: usize, to: usize) -> Option<Exchange> {
        let [give, take] = self.places;
        (self.shift > 0).then_some(Exchange { from, to, give, take, shift: self.shift })
    }
}

/// Sums of two whole blocks, falling, with their places.
fn pairs(pieces: &[Piece], budget: &mut u64) -> Option<Vec<(u64, usize, usize)>> {
    let whole: Vec<usize> = (0..pieces.len()).filter(|place| !pieces[*place].cut).collect();
    let count = whole.len().saturating_mul(whole.len().saturating_sub(1)) / 2;
    if count == 0 || count > PAIRS_MAX {
        return None;
    }
    // A sum costs about four times a look, for the sorting.
    spend(budget, count * 4)?;
    let mut pairs = Vec::with_capacity(count);
    for (index, a) in whole.iter().enumerate() {
        for b in &whole[index + 1..] {
            pairs.push((pieces[*a].size + pieces[*b].size, *a, *b));
        }
    }
    pairs.sort_unstable_by_key(|(sum, a, b)| (Reverse(*sum), *a, *b));
    Some(pairs)
}
