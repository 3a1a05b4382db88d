//! The paper's parameter assignment algorithm.
//!
//! Blocks are taken by falling size, equal ones in their order. With avg the real average of
//! parameters a server:
//!
//! - below 1 % of avg: to the server with the fewest requests;
//! - up to avg: to the server with the least room left under avg that still has room, or, where
//!   it fits under avg nowhere, to the least loaded one;
//! - above: cut into the fewest equal parts that are no larger than avg, each to the least loaded
//!   server, where two of them may meet; each is a request of its own.
//!
//! Ties go to the lower server.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::{Assignment, Load, Part, at};

/// Below this part of the average a block is very small: one over this.
const VERY_SMALL: u128 = 100;

/// Servers in the two orders that the rules ask for.
struct Books {
    loads: Vec<Load>,
    /// By parameters, of equal ones the lower server last: the end of a range is then the fullest
    /// server in it, and of these the lowest.
    by_size: BTreeSet<(u64, Reverse<u32>)>,
    by_requests: BTreeSet<(u64, u32)>,
}

impl Books {
    fn new(servers: u32) -> Self {
        Self {
            loads: (0..servers).map(|_| Load::default()).collect(),
            by_size: (0..servers).map(|server| (0, Reverse(server))).collect(),
            by_requests: (0..servers).map(|server| (0, server)).collect(),
        }
    }

    fn fewest_requests(&self) -> u32 {
        self.by_requests.first().expect("there is a server").1
    }

    /// The fullest server with at most this many parameters.
    fn fullest_up_to(&self, parameters: u64) -> Option<u32> {
        let range = ..=(parameters, Reverse(0));
        self.by_size.range(range).next_back().map(|(_, Reverse(server))| *server)
    }

    fn least_loaded(&self) -> u32 {
        let (least, _) = *self.by_size.first().expect("there is a server");
        self.fullest_up_to(least).expect("the least loaded one is in this range")
    }

    /// Adds a part to a block's parts.
    fn put(&mut self, server: u32, parameters: u64, parts: &mut Vec<Part>) {
        let load = &mut self.loads[at(server)];
        self.by_size.remove(&(load.parameters, Reverse(server)));
        load.parameters += parameters;
        self.by_size.insert((load.parameters, Reverse(server)));
        self.by_requests.remove(&(load.requests, server));
        load.requests += 1;
        self.by_requests.insert((load.requests, server));
        parts.push(Part { server, parameters });
    }
}

/// Indexes of blocks by falling size, equal ones in their order.
fn by_falling_size(parameters: &[u64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..parameters.len()).collect();
    order.sort_by_key(|block| Reverse(parameters[*block]));
    order
}

pub(super) fn assign(parameters: &[u64], servers: u32, total: u64) -> Assignment {
    let (wide_servers, wide_total) = (u128::from(servers), u128::from(total));
    // Whole parameters fit under the real average where they fit under its floor.
    let floor = total / u64::from(servers);
    let mut books = Books::new(servers);
    let mut blocks: Vec<Vec<Part>> = parameters.iter().map(|_| Vec::new()).collect();
    for block in by_falling_size(parameters) {
        let size = parameters[block];
        let parts = &mut blocks[block];
        let over = u128::from(size) * wide_servers;
        // Where all blocks are empty there is no average to be one hundredth of.
        if size == 0 || over * VERY_SMALL < wide_total {
            books.put(books.fewest_requests(), size, parts);
        } else if over <= wide_total {
            let fits = floor.checked_sub(size).and_then(|room| books.fullest_up_to(room));
            books.put(fits.unwrap_or_else(|| books.least_loaded()), size, parts);
        } else {
            let slices = u64::try_from(over.div_ceil(wide_total)).unwrap_or(u64::MAX).min(size);
            for slice in 0..slices {
                books.put(books.least_loaded(), slice_size(size, slice, slices), parts);
            }
        }
    }
    Assignment::new(blocks, servers)
}

/// Parameters of one of so many equal parts; the remainder goes one each to the first.
pub(super) fn slice_size(size: u64, slice: u64, slices: u64) -> u64 {
    size / slices + u64::from(slice < size % slices)
}
