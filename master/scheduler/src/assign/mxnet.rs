//! MXNet's default assignment, as its `kvstore_dist` encodes keys.

use super::{Assignment, Part};

/// Blocks from this many parameters on are cut (`MXNET_KVSTORE_BIGARRAY_BOUND`).
const CUT_FROM: u64 = 1_000_000;

/// Spreads keys over servers.
const KEY_FACTOR: u64 = 9973;

/// How many parts the blocks would come in, at most.
pub(super) fn parts(parameters: &[u64], servers: u32) -> u64 {
    parameters
        .iter()
        .map(|size| if *size < CUT_FROM { 1 } else { u64::from(servers) })
        .fold(0, u64::saturating_add)
}

pub(super) fn assign(parameters: &[u64], servers: u32) -> Assignment {
    let blocks = (0_u64..).zip(parameters).map(|(key, size)| block(key, *size, servers)).collect();
    Assignment::new(blocks, servers)
}

fn block(key: u64, size: u64, servers: u32) -> Vec<Part> {
    if size < CUT_FROM {
        // The remainder first: the product of a large key must not wrap.
        let server = key % u64::from(servers) * KEY_FACTOR % u64::from(servers);
        let server = u32::try_from(server).expect("a remainder is below its divisor");
        return vec![Part { server, parameters: size }];
    }
    // The remainder is spread by rounding each border to the nearest whole parameter.
    let border = |cut: u32| {
        let twice = 2 * u128::from(size) * u128::from(cut);
        let border = (twice + u128::from(servers)) / (2 * u128::from(servers));
        u64::try_from(border).expect("a border is within the block")
    };
    (0..servers)
        .map(|server| Part { server, parameters: border(server + 1) - border(server) })
        .filter(|part| part.parameters > 0)
        .collect()
}
