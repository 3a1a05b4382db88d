//! Stragglers (section 5.2): which worker is slow, told from what agents report and nothing else.
//!
//! [`judge`] looks at one window of all workers of a job; [`watch`] cuts reports into windows and
//! counts in how many of them in a row a worker was slow. What follows is in `job/straggler.rs`.

pub(crate) mod judge;
pub(crate) mod links;
#[cfg(test)]
mod tests;
pub(crate) mod watch;

/// How slow counts as slow, and how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) window_ms: u64,
    /// Windows in a row that confirm it; 0 where nobody is watched.
    pub(crate) windows: u32,
    /// Below this share of the others' median speed a worker is slow.
    pub(crate) ratio: f64,
}
