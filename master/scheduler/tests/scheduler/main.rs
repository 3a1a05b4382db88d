//! Tests of the whole crate from outside: printed cases of the paper, fits on its figures, rounds
//! as stories, and properties from both sides.

#![expect(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod fits;
mod golden;
mod placing;
mod policies;
mod properties;
mod rounds;
mod scale;
mod warm;
mod world;
