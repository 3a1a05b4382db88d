//! Seeded streams of chance, one for each purpose: a further node or job changes no other's luck.

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

/// A stream of its own for a purpose of a seed.
#[must_use]
pub fn stream(seed: u64, purpose: &str) -> Pcg64Mcg {
    // FNV-1a, so that the text spreads over all bits; the generator scrambles the rest.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for byte in purpose.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    Pcg64Mcg::seed_from_u64(hash)
}
