//! What an operator installs: units, playbooks, programs and their manual pages.

#![expect(clippy::unwrap_used, reason = "a broken checkout should stop the test at once")]

mod playbooks;
mod programs;
mod units;
