//! Whatever runs on a node, what it is told fits a message, and nobody takes all of the cluster's
//! room for jobs. That each message fits is looked at with each one, in all stories.

use model::access::Rank;
use model::agent::Desired;
use model::client::{Answer, Change, ErrorKind, Read, Reply};
use model::job::{COMMAND_BYTES_MAX, ENVIRONMENT_BYTES_MAX};
use model::nodes::{NodeNotes, NodeOrders, Severity};
use model::notes::Extras;
use model::reason::PhaseName;
use model::{Bounds, Finish, JobId, JobSpec, Resources, weight};

use super::{World, job, n, settings};
use crate::{Event, RequestKey, Settings, TOLD_BYTES_MAX};

/// The longest program that a job may have, in tasks of next to nothing.
fn largest(name: &str) -> JobSpec {
    let mut spec = job(name);
    spec.command = vec!["sh".to_owned(), "x".repeat(COMMAND_BYTES_MAX - 2)];
    spec.environment.insert("V".to_owned(), "y".repeat(ENVIRONMENT_BYTES_MAX - 1));
    for task in [&mut spec.worker, &mut spec.server] {
        *task = Resources::new(100, 1 << 20, 0);
    }
    (spec.workers, spec.servers) = (Bounds { min: 1, max: 1 }, Bounds { min: 1, max: 1 });
    spec.finish = Finish::Epochs(100_000);
    spec.epochs_max = 100_000;
    assert!(spec.faults().is_empty(), "{:?}", spec.faults());
    spec
}

pub(super) fn assert_fits(desired: &Desired, extras: &Extras, orders: &NodeOrders) {
    let longest = weight::of_generations(&desired.generations)
        .max(weight::of_extras(extras))
        .max(weight::of_orders(orders));
    assert!(longest <= TOLD_BYTES_MAX, "a message to an agent may have {longest} bytes");
}

fn all_are(world: &World, jobs: &[JobId], phase: PhaseName) -> bool {
    jobs.iter().all(|job| world.phase(*job) == phase)
}

#[test]
fn jobs_whose_programs_fill_more_than_a_message_all_start_and_all_end() {
    let mut world = World::new(1, 64);
    let jobs: Vec<JobId> = (0..130).map(|at| world.submit(largest(&format!("j{at}")))).collect();
    world.until(120, "all train", |world| all_are(world, &jobs, PhaseName::Running));
    let held = world.control.events.values().filter(|event| event.kind == "held").count();
    assert!(held > 0, "some were told later, and it was said");
    assert!(world.control.nodes[&n(1)].left_out.is_empty(), "and all were told in the end");
    let generations: Vec<_> = jobs.iter().map(|job| world.row(*job).generation).collect();
    // A new session, and a new master, tell everything anew.
    world.agents.get_mut(&n(1)).unwrap().session = None;
    world.run(5);
    world.restart_master();
    world.run(30);
    assert!(all_are(&world, &jobs, PhaseName::Running));
    let after: Vec<_> = jobs.iter().map(|job| world.row(*job).generation).collect();
    assert_eq!(after, generations, "nobody was stopped for it");
    for job in &jobs {
        assert!(world.change(Change::Cancel { job: *job, now: true }).is_ok());
    }
    world.until(60, "all are out", |world| all_are(world, &jobs, PhaseName::Cancelled));
}

#[test]
fn a_node_takes_no_more_tasks_than_it_can_be_told_of() {
    let mut world = World::new(1, 64);
    let crowd = |name: &str| {
        let mut spec = job(name);
        for task in [&mut spec.worker, &mut spec.server] {
            *task = Resources::new(1, 1 << 20, 0);
        }
        (spec.workers, spec.servers) = (Bounds { min: 600, max: 600 }, Bounds { min: 1, max: 1 });
        spec.batch = model::Batch::PerWorker(1);
        spec.finish = Finish::Epochs(100_000);
        spec.epochs_max = 100_000;
        spec
    };
    let jobs: Vec<JobId> = (0..4).map(|at| world.submit(crowd(&format!("j{at}")))).collect();
    world.until(60, "three train", |world| all_are(world, &jobs[..3], PhaseName::Running));
    world.run(5);
    assert_eq!(world.phase(jobs[3]), PhaseName::Queued, "2,048 tasks are a node's");
    let Ok(Answer::Why(why)) = world.read(&Read::Why { job: jobs[3] }) else { panic!("no why") };
    let told = format!("{why:?}");
    assert!(told.contains("task places"), "{told}");
    assert!(world.change(Change::Cancel { job: jobs[0], now: true }).is_ok());
    world.until_phase(jobs[3], PhaseName::Running, 60);
    assert_eq!(world.findings, Vec::<String>::new(), "every plan was sound");
}

fn ask(world: &mut World, request: u64, user: &str, rank: Rank, change: Change) -> Reply {
    world.event(Event::Change {
        request: RequestKey(request),
        user: user.to_owned(),
        rank,
        dry_run: false,
        reason: None,
        change: Box::new(change),
    });
    world.replies.remove(&request).expect("it is answered at once")
}

fn submits(world: &mut World, request: u64, user: &str, rank: Rank) -> Reply {
    let spec = job(&format!("{user}-{request}"));
    ask(world, request, user, rank, Change::Submit { spec, request_id: None })
}

#[test]
fn one_person_leaves_room_for_the_jobs_of_others() {
    let few = Settings { jobs_per_user: 3, ..settings() };
    let mut world = World::with(few, 0, 0);
    for request in 1_001..=1_003 {
        assert!(submits(&mut world, request, "bob", Rank::User).is_ok());
    }
    let refusal = submits(&mut world, 1_004, "bob", Rank::User).unwrap_err();
    assert_eq!(refusal.kind, ErrorKind::Unavailable);
    let told = format!("{}; {}", refusal.message, refusal.hint);
    assert!(told.contains("3 jobs") && told.contains("limits.jobs_per_user"), "{told}");
    assert!(submits(&mut world, 1_005, "eve", Rank::User).is_ok(), "others go on");
    assert!(submits(&mut world, 1_006, "bob", Rank::Operator).is_ok(), "who operates is not held");
    let change = Change::Cancel { job: JobId(1), now: true };
    assert!(ask(&mut world, 1_007, "bob", Rank::User, change).is_ok());
    let change = Change::Cancel { job: JobId(2), now: true };
    assert!(ask(&mut world, 1_008, "bob", Rank::User, change).is_ok());
    assert!(submits(&mut world, 1_009, "bob", Rank::User).is_ok(), "ended ones do not count");
}

#[test]
fn a_reason_of_nothing_to_see_is_refused() {
    let mut world = World::new(1, 4);
    world.run(2);
    world.event(Event::Change {
        request: RequestKey(1_001),
        user: "ada".to_owned(),
        rank: Rank::Admin,
        dry_run: false,
        reason: Some("\u{200b}\u{ad}".to_owned()),
        change: Box::new(Change::NodeCordon { node: n(1) }),
    });
    let refusal = world.replies.remove(&1_001).unwrap().unwrap_err();
    assert!(refusal.message.contains("no visible character"), "{refusal:?}");
}

#[test]
fn doctor_notes_jobs_of_several_people_under_one_user() {
    let mut world = World::new(1, 8);
    world.run(2);
    let told = |world: &World| {
        let Ok(Answer::Doctor(findings)) = world.read(&Read::Doctor) else { panic!("no doctor") };
        findings.into_iter().find(|finding| finding.subject == "tasks")
    };
    let session = world.agents[&n(1)].session.unwrap();
    let notes = NodeNotes { one_user: Some("nobody".to_owned()), ..NodeNotes::default() };
    world.event(Event::NodeNotes { node: n(1), session, notes: Box::new(notes) });
    assert!(submits(&mut world, 1_001, "bob", Rank::User).is_ok());
    assert_eq!(told(&world), None, "one person has no secrets from himself");
    assert!(submits(&mut world, 1_002, "eve", Rank::User).is_ok());
    let finding = told(&world).expect("two people share a user");
    assert_eq!(finding.severity, Severity::Note);
    assert!(finding.words.contains("2 people") && finding.words.contains("nobody on n1"));
    assert!(finding.remedy.contains("task_user_from = \"submitter\""), "{finding:?}");
    let notes = Box::new(NodeNotes::default());
    world.event(Event::NodeNotes { node: n(1), session, notes });
    assert_eq!(told(&world), None, "each has a user of his own");
}
