//! Tests of the whole crate from outside: printed cases of the paper, fits on its figures, rounds
//! as stories, and properties from both sides.

#![expect(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod assign;
mod baseline;
mod baseline_gpus;
mod by_goodput;
mod check;
mod golden;
mod horizon;
mod lookahead;
mod loss;
mod loss_curve;
mod loss_forecast;
mod loss_robust;
mod loss_world;
mod placing;
mod policies;
mod pollux;
mod properties;
mod rounds;
mod scale;
mod shrinking;
mod speed;
mod speed_bars;
mod speed_data;
mod speed_next;
mod warm;
mod world;
