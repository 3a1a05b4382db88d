//! Reports that are longer than a frame lose what matters least, so that the master goes on hearing
//! from this node: no script may make its node fall silent by what it tells.

use std::collections::BTreeMap;

use model::agent::{CheckpointState, EpochReport, FromAgent, Heartbeat, TaskState};
use model::nodes::NodeNotes;
use model::notes::Notes;
use model::{Generation, JobId};
use net::{FrameError, FrameWriter};

use crate::telemetry::printable;

/// Words of which only so many bytes are left.
const WORDS_BYTES: usize = 80;

/// Sends a report, cut down where it is too long.
///
/// # Errors
/// Those of the writer; one that cannot be cut any more is not sent, and the stream is still good.
pub(crate) async fn send(
    writer: &mut FrameWriter,
    mut report: FromAgent,
) -> Result<(), FrameError> {
    loop {
        match writer.send(&report).await {
            Err(error @ FrameError::TooLong { .. }) => {
                if !cut(&mut report) {
                    tracing::error!(%error, "a report was not sent");
                    return Ok(());
                }
                tracing::debug!(%error, "a report is cut down");
            }
            other => return other,
        }
    }
}

/// Takes the next least thing away; false where nothing can go.
fn cut(report: &mut FromAgent) -> bool {
    match report {
        FromAgent::Introduction(introduction) => heartbeat(&mut introduction.first),
        FromAgent::Heartbeat(beat) => heartbeat(beat),
        FromAgent::Rates(rates) => halve(rates),
        FromAgent::Notes(told) => notes(told),
        FromAgent::Node(told) => node(told),
    }
}

/// The first half of a list stays.
fn halve<T>(list: &mut Vec<T>) -> bool {
    let some = !list.is_empty();
    list.truncate(list.len() / 2);
    some
}

fn shorten(words: &mut String) -> bool {
    let long = words.len() > WORDS_BYTES;
    if long {
        *words = printable(words, WORDS_BYTES);
    }
    long
}

/// Tasks are never cut: one that is not named is not there. Reports of workers and epochs that are
/// left out come again, as sums and as repetitions, once there is room.
fn heartbeat(beat: &mut Heartbeat) -> bool {
    let mut cut = false;
    for task in &mut beat.tasks {
        if let TaskState::Exited(exit) = &mut task.state {
            cut |= shorten(&mut exit.reason);
        }
    }
    for report in &mut beat.checkpoints {
        if let CheckpointState::Failed { error } = &mut report.state {
            cut |= shorten(error);
        }
    }
    if cut {
        return true;
    }
    let before = beat.epochs.len();
    let of = |one: &EpochReport| (one.job, one.generation, one.worker);
    let mut last: BTreeMap<(JobId, Generation, u32), u32> = BTreeMap::new();
    for one in &beat.epochs {
        let epoch = last.entry(of(one)).or_default();
        *epoch = one.epoch.max(*epoch);
    }
    beat.epochs.retain(|one| last.get(&of(one)) == Some(&one.epoch));
    beat.epochs.len() < before
        || halve(&mut beat.checkpoints)
        || halve(&mut beat.epochs)
        || halve(&mut beat.workers)
}

fn notes(told: &mut Notes) -> bool {
    halve(&mut told.arrivals)
        || halve(&mut told.links)
        || halve(&mut told.begun)
        || halve(&mut told.blocks)
        || halve(&mut told.waits)
        || halve(&mut told.troubles)
        || halve(&mut told.data)
}

fn node(told: &mut NodeNotes) -> bool {
    halve(&mut told.ends)
        || halve(&mut told.held)
        || halve(&mut told.rejects)
        || halve(&mut told.alerts)
        || halve(&mut told.stuck)
}

#[cfg(test)]
mod tests {
    use model::agent::{CheckpointReport, Exit, Part, TaskReport};
    use model::{CheckpointId, Task};

    use super::*;

    const JOB: JobId = JobId(u64::MAX);
    const GENERATION: Generation = Generation(u64::MAX);

    fn full() -> Heartbeat {
        let workers = 0..2_048;
        let exit = |worker| TaskReport {
            job: JOB,
            generation: GENERATION,
            task: Task::worker(worker),
            state: TaskState::Exited(Exit { reason: "x".repeat(2_000), ..Exit::default() }),
        };
        let epochs = workers.clone().flat_map(|worker| {
            (1_000_000..1_000_016).map(move |epoch| EpochReport {
                job: JOB,
                generation: GENERATION,
                worker,
                epoch,
                step: u64::MAX,
                loss_sum: 1.0,
                samples: u64::MAX,
            })
        });
        let saved = |worker| CheckpointReport {
            job: JOB,
            generation: GENERATION,
            checkpoint: CheckpointId(1),
            worker,
            state: CheckpointState::Saved {
                step: 1,
                epoch: 1,
                epoch_position: 1,
                parts: vec![Part { file: "f".repeat(255), bytes: 1, crc32: 1 }; 30],
            },
        };
        Heartbeat {
            tasks: workers.clone().map(exit).collect(),
            epochs: epochs.collect(),
            checkpoints: workers.map(saved).collect(),
            ..Heartbeat::default()
        }
    }

    #[test]
    fn whatever_scripts_report_fits_a_frame_and_no_task_is_lost() {
        let mut report = FromAgent::Heartbeat(full());
        let mut cuts = 0;
        while net::encode(&report, net::FRAME_BYTES_MAX).is_err() {
            assert!(cut(&mut report), "it can be cut until it fits");
            cuts += 1;
        }
        assert!(cuts > 0, "it was too long");
        let FromAgent::Heartbeat(beat) = report else { panic!("it is a heartbeat still") };
        assert_eq!(beat.tasks.len(), 2_048);
        let whole = full();
        let newest = whole.epochs.iter().map(|one| one.epoch).max();
        assert_eq!(beat.epochs.iter().map(|one| one.epoch).min(), newest, "the newest stay");
    }

    #[test]
    fn cutting_comes_to_an_end() {
        for mut report in [
            FromAgent::Heartbeat(full()),
            FromAgent::Notes(Notes::default()),
            FromAgent::Node(NodeNotes { alerts: vec!["a".to_owned(); 7], ..NodeNotes::default() }),
            FromAgent::Rates(Vec::new()),
        ] {
            let cuts = std::iter::from_fn(|| cut(&mut report).then_some(())).take(1_000).count();
            assert!(cuts < 1_000, "it ends: {cuts}");
        }
    }
}
