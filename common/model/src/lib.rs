//! The words of Optimus as plain data: identifiers, resources, jobs, shapes, messages and views.
//!
//! Nothing here reads a clock, a socket or a file; every other crate speaks in these types.
//! Types that cross the wire or lie on disk are append-only: fields and variants are added at
//! the end under a new protocol or record version, never reordered.

pub mod access;
pub mod agent;
pub mod client;
pub mod config;
pub mod diverged;
pub mod ids;
pub mod job;
pub mod location;
pub mod nodes;
pub mod notes;
pub mod options;
pub mod reason;
pub mod resources;
pub mod shape;
pub mod text;
pub mod time;
pub mod units;
pub mod view;
pub mod weight;

pub use ids::{
    BootId, CheckpointId, Generation, Incarnation, InvalidName, JobId, NodeId, Revision, RoundId,
};
pub use job::{Batch, Bounds, Fault, Finish, Framework, JobSpec, Mode, OnDisconnect};
pub use location::Location;
pub use options::JobOptions;
pub use resources::Resources;
pub use shape::{NodeShare, Placement, Role, Shape, Task};
pub use time::{Millis, UnixMs};
