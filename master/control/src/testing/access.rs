//! Every kind of request, asked by every role, of an own job and of another's.

use model::access::{Asker, Deed, Rank, TABLE};
use model::client::{Answer, Call, Change, ErrorKind, Read};
use model::nodes::{CertificateCall, Holder};
use model::{Bounds, JobId, JobOptions, RoundId, Shape, Task};

use super::{World, clocks, job, n};
use crate::access::HIDDEN;
use crate::event::{Event, RequestKey};

/// For `user` with an own and with another's job, for `operator` and for `admin` with another's.
/// Written apart from the table that it is held against.
const EXPECTED: [(Deed, &str); 29] = [
    (Deed::Submit, "yyyy"),
    (Deed::Cancel, "ynyy"),
    (Deed::Pause, "ynyy"),
    (Deed::Resume, "ynyy"),
    (Deed::Checkpoint, "ynyy"),
    (Deed::Resize, "ynyy"),
    (Deed::Unpin, "ynyy"),
    (Deed::Update, "ynyy"),
    (Deed::NodeLost, "nnyy"),
    (Deed::NodeCordon, "nnyy"),
    (Deed::NodeDrain, "nnyy"),
    (Deed::NodeUndrain, "nnyy"),
    (Deed::Gpu, "nnyy"),
    (Deed::ReadJobs, "yyyy"),
    (Deed::ReadJob, "yyyy"),
    (Deed::ReadWhy, "yyyy"),
    (Deed::ReadEvents, "yyyy"),
    (Deed::ReadRounds, "yyyy"),
    (Deed::ReadNodes, "yyyy"),
    (Deed::ReadStatus, "yyyy"),
    (Deed::ReadLog, "ynyy"),
    (Deed::ReadEnvironment, "ynny"),
    (Deed::ReadDoctor, "nnyy"),
    (Deed::ReadSnapshot, "nnny"),
    (Deed::ReadAudit, "nnny"),
    (Deed::CertificateStatus, "nnny"),
    (Deed::CertificateAsk, "nnny"),
    (Deed::CertificateInstall, "nnny"),
    (Deed::CertificateRevoke, "nnny"),
];

const CELLS: [(Rank, &str); 4] =
    [(Rank::User, "ada"), (Rank::User, "bob"), (Rank::Operator, "bob"), (Rank::Admin, "bob")];

fn expected(deed: Deed, cell: usize) -> bool {
    let (_, row) = EXPECTED.iter().find(|(of, _)| *of == deed).expect("each deed is listed");
    row.as_bytes()[cell] == b'y'
}

fn changes(job: JobId, spec: model::JobSpec) -> Vec<Change> {
    let (node, options) = (n(1), JobOptions::default());
    vec![
        Change::Submit { spec: spec.clone(), request_id: None },
        Change::SubmitWith { spec, request_id: None, options },
        Change::Cancel { job, now: false },
        Change::Pause { job },
        Change::Resume { job },
        Change::Checkpoint { job },
        Change::Resize { job, shape: Shape::new(1, 1), pin: false },
        Change::Unpin { job },
        Change::Update {
            job,
            workers: Some(Bounds { min: 1, max: 2 }),
            servers: None,
            priority: None,
        },
        Change::NodeLost { node: node.clone() },
        Change::NodeCordon { node: node.clone() },
        Change::NodeDrain { node: node.clone(), deadline_ms: None },
        Change::NodeUndrain { node: node.clone() },
        Change::Gpu { node, uuid: "GPU-1".to_owned(), retire: true },
    ]
}

fn reads(job: JobId) -> Vec<Read> {
    let node = n(1);
    vec![
        Read::Jobs,
        Read::Job { job },
        Read::JobMore { job },
        Read::Why { job },
        Read::Events { job: None, after: 0, limit: 1 },
        Read::Rounds { limit: 1 },
        Read::Round { round: RoundId(1) },
        Read::Nodes,
        Read::Node { node: node.clone() },
        Read::NodeMore { node },
        Read::Status,
        Read::Log { job, generation: None, task: Task::worker(0), bytes_max: 1 },
        Read::Doctor,
        Read::Snapshot,
        Read::Audit { after: 0, limit: 1 },
    ]
}

fn certificates() -> Vec<CertificateCall> {
    let holder = Holder::Master;
    vec![
        CertificateCall::Status,
        CertificateCall::Ask { holder: holder.clone() },
        CertificateCall::Install { holder, pem: String::new() },
        CertificateCall::Revocations { pem: String::new() },
    ]
}

fn asker(cell: usize) -> Asker {
    let (rank, user) = CELLS[cell];
    Asker { user: user.to_owned(), rank }
}

/// A world with a job of ada's.
fn world() -> (World, JobId) {
    let mut world = World::new(1, 8);
    let mut spec = job("ada-s");
    spec.environment.insert("TOKEN".to_owned(), "hunter2".to_owned());
    let id = world.submit(spec);
    (world, id)
}

#[test]
fn each_cell_of_the_table_is_as_expected() {
    let (world, id) = world();
    let mut met: Vec<Deed> = vec![Deed::ReadEnvironment];
    let calls = changes(id, job("another")).into_iter().map(Call::Change);
    let calls = calls.chain(reads(id).into_iter().map(Call::Read));
    let calls = calls.chain(certificates().into_iter().map(Call::Certificate));
    for call in calls {
        let deed = Deed::of(&call);
        met.push(deed);
        for cell in 0..CELLS.len() {
            let asker = asker(cell);
            let admitted = world.control.admit(&asker, &call);
            assert_eq!(admitted.is_ok(), expected(deed, cell), "{asker:?} {call:?}");
            if let Err(refusal) = admitted {
                assert_eq!(refusal.kind, ErrorKind::NotAllowed);
                let words = &refusal.message;
                assert!(words.contains(asker.rank.name()) && words.contains("needs"), "{words}");
            }
        }
    }
    met.sort();
    met.dedup();
    let all: Vec<Deed> = TABLE.iter().map(|row| row.deed).collect();
    assert_eq!(met, all, "every deed was tried");
}

#[test]
fn a_refused_change_changes_nothing_and_an_admitted_one_is_not_refused_for_the_role() {
    for (number, change) in (900..).zip(changes(JobId(1), job("another"))) {
        for (cell, (rank, user)) in CELLS.into_iter().enumerate() {
            let (mut world, id) = world();
            assert_eq!(id, JobId(1));
            let before = world.read(&Read::Job { job: id });
            world.event(Event::Change {
                request: RequestKey(number),
                user: user.to_owned(),
                rank,
                dry_run: false,
                reason: None,
                change: Box::new(change.clone()),
            });
            let may = expected(Deed::of_change(&change), cell);
            let refused = match world.replies.remove(&number) {
                Some(Err(refusal)) => refusal.kind == ErrorKind::NotAllowed,
                Some(Ok(_)) | None => false,
            };
            assert_eq!(refused, !may, "{rank} {user} {change:?}");
            if refused {
                assert_eq!(world.read(&Read::Job { job: id }), before, "{change:?}");
            }
        }
    }
}

#[test]
fn reads_are_refused_by_the_same_table() {
    let (world, id) = world();
    let now = clocks(world.now);
    for read in reads(id) {
        for cell in 0..CELLS.len() {
            let asker = asker(cell);
            let reply = if let Read::Log { job, generation, task, bytes_max } = read {
                let route = world.control.log_route_as(&asker, job, generation, task, bytes_max);
                route.map(|_| Answer::Jobs(Vec::new()))
            } else {
                world.control.read_as(now, &asker, &read)
            };
            let refused = reply.is_err_and(|refusal| refusal.kind == ErrorKind::NotAllowed);
            let may = expected(Deed::of_read(&read), cell);
            assert_eq!(refused, !may, "{asker:?} {read:?}");
        }
    }
}

#[test]
fn environment_values_are_for_the_owner_and_admins() {
    let (world, id) = world();
    for cell in 0..CELLS.len() {
        let reply = world.control.read_as(clocks(world.now), &asker(cell), &Read::Job { job: id });
        let Ok(Answer::Job(detail)) = reply else { panic!("no detail: {reply:?}") };
        let wanted = if expected(Deed::ReadEnvironment, cell) { "hunter2" } else { HIDDEN };
        assert_eq!(detail.spec.environment["TOKEN"], wanted, "{cell}");
    }
    // Nothing else that is read by everyone tells it.
    for read in reads(id) {
        let reply = world.control.read_as(clocks(world.now), &asker(1), &read);
        assert!(!format!("{reply:?}").contains("hunter2"), "{read:?}");
    }
}

#[test]
fn a_name_is_one_person_under_every_role() {
    let (world, id) = world();
    for rank in Rank::ALL {
        let asker = Asker { user: "ada".to_owned(), rank };
        let call = Call::Change(Change::Pause { job: id });
        assert!(world.control.admit(&asker, &call).is_ok(), "{rank}");
    }
    // A job that is not there is nobody's: "not found" is the answer, not "not allowed".
    let nowhere = Call::Change(Change::Pause { job: JobId(77) });
    assert!(world.control.admit(&asker(1), &nowhere).is_ok());
}
