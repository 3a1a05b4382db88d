//! Goodput from outside: its formulas against recorded inputs and outputs of Pollux's own
//! simulator, its fit, the genetic search, and rounds of the policy.

#![expect(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod fits;
mod formulas;
mod genetic;
mod horizon;
mod hostile;
mod recorded;
