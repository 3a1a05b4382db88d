//! Moves the cuts of blocks that are cut, so that the servers under their parts are level.

use std::collections::BTreeMap;

use super::search::State;

/// Most passes over all cut blocks. A pass that changes nothing is the last; where blocks share
/// servers, each pass brings them nearer to one level.
const PASSES_MAX: usize = 64;

impl State {
    /// Cuts every cut block anew, its parts on the same servers and none of them empty. No load
    /// leaves the range that the loads were in.
    pub(super) fn level(&mut self) {
        let mut cuts: BTreeMap<usize, Vec<(usize, u64)>> = BTreeMap::new();
        for (server, here) in self.pieces.iter().enumerate() {
            for piece in here.iter().filter(|piece| piece.cut) {
                cuts.entry(piece.block).or_default().push((server, piece.size));
            }
        }
        for _ in 0..PASSES_MAX {
            let mut is_still = true;
            for parts in cuts.values_mut() {
                is_still &= !self.fill(parts);
            }
            if is_still {
                break;
            }
        }
        for (server, here) in self.pieces.iter_mut().enumerate() {
            for piece in here.iter_mut().filter(|piece| piece.cut) {
                let parts = &cuts[&piece.block];
                let part = parts.binary_search_by_key(&server, |(server, _)| *server);
                piece.size = parts[part.expect("each piece was entered above")].1;
            }
            here.sort_unstable_by_key(super::search::order);
        }
    }

    /// Pours one block over its servers anew, one parameter each and the rest to the lowest
    /// level; true where that lowers the sum of squared loads.
    fn fill(&mut self, parts: &mut [(usize, u64)]) -> bool {
        let base = |(server, size): &(usize, u64)| self.loads[*server] - size + 1;
        let mut bases: Vec<(u64, usize)> =
            parts.iter().enumerate().map(|(at, part)| (base(part), at)).collect();
        bases.sort_unstable();
        // Wide: a sum of levels is larger than the total.
        let mut rest: u128 = parts.iter().map(|(_, size)| u128::from(*size) - 1).sum();
        // Of the lowest bases, as many as come up to one level.
        let (mut count, mut sum) = (0_u64, 0_u128);
        for (base, _) in &bases {
            if u128::from(*base) * u128::from(count) > sum + rest {
                break;
            }
            sum += u128::from(*base);
            count += 1;
        }
        rest += sum;
        let level = u64::try_from(rest / u128::from(count)).expect("a level is below the total");
        let mut more = u64::try_from(rest % u128::from(count)).expect("below its divisor");
        let mut new: Vec<u64> = parts.iter().map(|_| 1).collect();
        for (base, at) in bases.iter().take(usize::try_from(count).expect("of a list")) {
            let one_more = u64::from(more > 0);
            more -= one_more;
            new[*at] = 1 + level + one_more - base;
        }
        let loads = |size_of: &dyn Fn(usize) -> u64| -> Vec<u64> {
            let load = |at: usize| self.loads[parts[at].0] - parts[at].1 + size_of(at);
            let mut loads: Vec<u64> = (0..parts.len()).map(load).collect();
            loads.sort_unstable();
            loads
        };
        // Level loads that only change places are no gain, and would go on for ever.
        if loads(&|at| new[at]) == loads(&|at| parts[at].1) {
            return false;
        }
        for ((server, size), new) in parts.iter_mut().zip(new) {
            self.loads[*server] = self.loads[*server] - *size + new;
            *size = new;
        }
        true
    }
}
