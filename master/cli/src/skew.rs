//! What a master of an earlier release does not know: it is not asked, as it could only call the
//! request malformed.

use model::JobOptions;
use model::client::{Call, Change, Read};
use model::diverged::OnNan;
use model::nodes::PROTOCOL_OF_NODES;
use model::options::AssignmentKind;

use crate::failure::{Exit, Failure};

/// The first protocol with [`Read::JobMore`] and with options of a job.
const PROTOCOL_OF_MORE: u16 = 3;

/// Refuses what a master of protocol `spoken` is too old for, by its name.
pub(crate) fn check(call: &Call, spoken: u16, software: Option<&str>) -> Result<(), Failure> {
    let needed = first_protocol(call);
    if needed <= spoken {
        return Ok(());
    }
    let software = software.unwrap_or("it");
    let (name, fields) = (model::access::Deed::of(call).row().name, new_fields(call, spoken));
    let (with, remedy) = if fields.is_empty() {
        (String::new(), "upgrade the master, or use the command of its release".to_owned())
    } else {
        let fields = fields.join(", ");
        let remedy = format!("upgrade the master, or leave {fields} out of the job's file");
        (format!(" with {fields}"), remedy)
    };
    Err(Failure::new(
        Exit::Unavailable,
        format!("{name}{with} needs a master of protocol {needed}; {software} speaks {spoken}"),
        remedy,
    ))
}

/// The fields of a job's file that such a master would not keep.
fn new_fields(call: &Call, spoken: u16) -> Vec<&'static str> {
    let (options, on_nan) = match call {
        Call::Change(Change::SubmitWith { options, .. }) => (options, OnNan::default()),
        Call::Change(Change::SubmitWatched { options, on_nan, .. }) => (options, *on_nan),
        Call::Change(_) | Call::Read(_) | Call::Certificate(_) => return Vec::new(),
    };
    let JobOptions { assignment, data, checkpoint_shared } = options;
    let new = [
        (*assignment != AssignmentKind::default(), PROTOCOL_OF_MORE, "assignment"),
        (data.is_some(), PROTOCOL_OF_MORE, "data"),
        (*checkpoint_shared, PROTOCOL_OF_MORE, "checkpoint_shared"),
        (on_nan != OnNan::default(), PROTOCOL_OF_NODES, "on_nan"),
    ];
    let unknown = new.into_iter().filter(|(is_set, since, _)| *is_set && spoken < *since);
    unknown.map(|(_, _, name)| name).collect()
}

/// The first protocol with this request.
pub(crate) const fn first_protocol(call: &Call) -> u16 {
    match call {
        Call::Certificate(_)
        | Call::Change(
            Change::NodeCordon { .. }
            | Change::NodeDrain { .. }
            | Change::NodeUndrain { .. }
            | Change::Gpu { .. }
            | Change::SubmitWatched { .. },
        )
        | Call::Read(Read::NodeMore { .. } | Read::Doctor | Read::Audit { .. }) => {
            PROTOCOL_OF_NODES
        }
        Call::Change(Change::SubmitWith { .. }) | Call::Read(Read::JobMore { .. }) => {
            PROTOCOL_OF_MORE
        }
        Call::Change(
            Change::Submit { .. }
            | Change::Cancel { .. }
            | Change::Pause { .. }
            | Change::Resume { .. }
            | Change::Checkpoint { .. }
            | Change::Resize { .. }
            | Change::Unpin { .. }
            | Change::Update { .. }
            | Change::NodeLost { .. },
        )
        | Call::Read(
            Read::Jobs
            | Read::Job { .. }
            | Read::Why { .. }
            | Read::Events { .. }
            | Read::Rounds { .. }
            | Read::Round { .. }
            | Read::Nodes
            | Read::Node { .. }
            | Read::Status
            | Read::Log { .. }
            | Read::Snapshot,
        ) => 1,
    }
}
