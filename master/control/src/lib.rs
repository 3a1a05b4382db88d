//! The state machine at the heart of the master: [`Control::step`] takes the time and an event
//! and returns commands. It has no clock, socket, file, thread or hash map, so that the daemon and
//! the simulator run the same decisions.
//!
//! The ways through it: agents' reports come in `session.rs` and go on to `job/`; operators'
//! wishes come in `change.rs`; rounds are called in `round.rs` and applied in `apply.rs`. A job
//! changes its phase in `job/phase.rs` alone. What is kept is in `record.rs`, how it is taken up
//! again in `restore.rs`.

mod access;
mod apply;
mod budget;
mod change;
pub mod command;
mod desired;
pub mod doctor;
pub mod event;
mod explain;
mod gpu;
mod invariants;
pub mod job;
mod node;
mod node_more;
mod node_notes;
mod ops;
pub mod ports;
pub mod record;
mod restore;
mod room;
mod round;
mod session;
mod settings;
mod slow;
mod slow_nodes;
mod step;
mod submit;
#[cfg(test)]
mod testing;
mod timers;
mod told;
mod view;
mod view_cluster;
mod warm;

pub use access::HIDDEN;
pub use command::{Command, Publish};
pub use event::{Event, Now, Published, Refused, RequestKey, SessionId};
pub use gpu::{GpuRules, Xids};
pub use record::{Key, Record, Write};
pub use restore::RestoreError;
pub use settings::Settings;
pub use step::Control;
pub use told::TOLD_BYTES_MAX;
