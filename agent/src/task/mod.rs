//! Tasks of this node: what they are started with, how they are started, ended, found again.

pub(crate) mod adopt;
pub(crate) mod environment;
pub(crate) mod forkserver;
pub(crate) mod launch;
pub(crate) mod launcher;
pub(crate) mod output;
pub(crate) mod process;
mod recipe;
pub(crate) mod stop;
