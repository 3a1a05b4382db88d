//! Tests of the whole crate from outside: printed cases of the paper, fits on its figures, rounds
//! as stories, and properties from both sides.

mod fits;
mod golden;
mod placing;
mod properties;
mod rounds;
mod scale;
mod tmp;
mod world;
