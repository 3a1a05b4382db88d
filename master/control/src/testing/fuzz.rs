//! Anything from outside, in any order: the state stays whole, nothing panics, nothing grows
//! without bound.

use std::collections::BTreeMap;

use model::agent::{
    CheckpointReport, CheckpointState, EpochReport, Exit, Heartbeat, Introduction, LossWindow,
    Part, RateReport, TaskReport, TaskState, WorkerReport,
};
use model::client::{Change, Read};
use model::notes::{BlocksReport, Notes};
use model::{
    BootId, Bounds, CheckpointId, Generation, Incarnation, JobId, Millis, NodeShare, Placement,
    Resources, RoundId, Shape, Task,
};
use proptest::prelude::*;
use scheduler::plan::{Decision, Plan, Reason, Verb, Words};

use super::{World, clocks, job, n};
use crate::{Event, Published, RequestKey, SessionId};

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(-1.0),
        Just(0.0),
        Just(1e308),
        0.0..100.0_f64,
    ]
}

fn count() -> impl Strategy<Value = u64> {
    prop_oneof![0..50_u64, Just(u64::MAX), Just(1 << 40), Just(1 << 53)]
}

fn name() -> impl Strategy<Value = (JobId, Generation)> {
    (0..4_u64, 0..4_u64).prop_map(|(job, generation)| (JobId(job), Generation(generation)))
}

fn task() -> impl Strategy<Value = Task> {
    prop_oneof![
        Just(Task::SCHEDULER),
        (0..3_u32).prop_map(Task::server),
        (0..4_u32).prop_map(Task::worker),
        Just(Task::worker(u32::MAX)),
    ]
}

fn task_report() -> impl Strategy<Value = TaskReport> {
    (name(), task(), 0..4_i32).prop_map(|((job, generation), task, kind)| TaskReport {
        job,
        generation,
        task,
        state: if kind < 2 {
            TaskState::Running { pid: 1, ready: kind == 1 }
        } else {
            TaskState::Exited(Exit { code: Some(kind), ordered: kind == 2, ..Exit::default() })
        },
    })
}

fn worker_report() -> impl Strategy<Value = WorkerReport> {
    let numbers = (number(), number(), number(), number());
    (name(), 0..4_u32, (count(), count(), count()), numbers, any::<bool>()).prop_map(
        |((job, generation), worker, (step, steps, samples), (steps_s, loss, a, b), finished)| {
            WorkerReport {
                job,
                generation,
                worker,
                step,
                epoch: u32::try_from(step % 70).unwrap(),
                steps,
                steps_s,
                compute_s: a,
                samples,
                loss_sum: loss,
                loss_count: steps,
                loss_not_finite: 0,
                loss_not_finite_since: (worker == 3).then_some(step),
                recent: LossWindow { steps: 3, mean: a, deviation: b },
                first: LossWindow { steps: u32::MAX, mean: b, deviation: a },
                samples_per_epoch: Some(samples),
                finished: finished && worker == 2,
            }
        },
    )
}

fn epoch_report() -> impl Strategy<Value = EpochReport> {
    (name(), 0..4_u32, count(), number(), count()).prop_map(
        |((job, generation), worker, epoch, loss_sum, samples)| EpochReport {
            job,
            generation,
            worker,
            epoch: u32::try_from(epoch).unwrap_or(u32::MAX),
            step: samples,
            loss_sum,
            samples,
        },
    )
}

fn rate_report() -> impl Strategy<Value = RateReport> {
    (name(), 0..4_u32, count(), number()).prop_map(|((job, generation), worker, step, rate)| {
        RateReport { job, generation, worker, step, rate }
    })
}

fn blocks_report() -> impl Strategy<Value = BlocksReport> {
    (name(), proptest::collection::vec(count(), 0..5))
        .prop_map(|((job, generation), blocks)| BlocksReport { job, generation, blocks })
}

fn checkpoint_report() -> impl Strategy<Value = CheckpointReport> {
    let state = prop_oneof![
        (count(), number()).prop_map(|(step, loss_sum)| CheckpointState::Reached {
            step,
            epoch: 0,
            loss_sum,
            samples: step,
        }),
        count().prop_map(|step| CheckpointState::Missed { step }),
        (count(), any::<bool>()).prop_map(|(step, odd)| CheckpointState::Saved {
            step,
            epoch: 0,
            epoch_position: step,
            parts: vec![Part {
                file: if odd { "../../etc/passwd" } else { "a.npz" }.to_owned(),
                bytes: step,
                crc32: 0,
            }],
        }),
        Just(CheckpointState::Failed { error: "no".to_owned() }),
    ];
    (name(), 0..5_u64, 0..4_u32, state).prop_map(
        |((job, generation), checkpoint, worker, state)| CheckpointReport {
            job,
            generation,
            checkpoint: CheckpointId(checkpoint),
            worker,
            state,
        },
    )
}

fn heartbeat() -> impl Strategy<Value = Heartbeat> {
    (
        0..1000_u64,
        count(),
        proptest::collection::vec(task_report(), 0..6),
        proptest::collection::vec(worker_report(), 0..6),
        proptest::collection::vec(epoch_report(), 0..4),
        proptest::collection::vec(checkpoint_report(), 0..4),
    )
        .prop_map(|(sequence, cores, tasks, workers, epochs, checkpoints)| Heartbeat {
            sequence,
            obeyed: model::Revision(cores),
            capacity: Resources::new(cores, cores, cores),
            tasks,
            workers,
            epochs,
            checkpoints,
            ..Heartbeat::default()
        })
}

fn introduction() -> impl Strategy<Value = Introduction> {
    (0..3_u64, 0..3_u32, any::<bool>(), heartbeat()).prop_map(|(incarnation, boot, odd, first)| {
        Introduction {
            incarnation: Incarnation(incarnation),
            boot_id: BootId(format!("boot-{boot}")),
            software: "x".repeat(usize::try_from(boot).unwrap() * 100),
            unix_ms: incarnation,
            task_address: if odd { "nowhere".to_owned() } else { "10.0.0.1".to_owned() },
            beat_ms: u64::from(boot) * (u64::MAX / 2),
            first,
        }
    })
}

fn change() -> impl Strategy<Value = Change> {
    let id = || (1..4_u64).prop_map(JobId);
    prop_oneof![
        (0..3_u32, any::<bool>()).prop_map(|(key, plain)| {
            let mut spec = job(if plain { "fuzz" } else { "\u{0}" });
            spec.restarts_max = key;
            spec.workers = Bounds { min: 1, max: 3 };
            Change::Submit { spec, request_id: Some(format!("r{key}")) }
        }),
        (id(), any::<bool>()).prop_map(|(job, now)| Change::Cancel { job, now }),
        id().prop_map(|job| Change::Pause { job }),
        id().prop_map(|job| Change::Resume { job }),
        id().prop_map(|job| Change::Checkpoint { job }),
        (id(), 0..4_u32, 0..4_u32, any::<bool>()).prop_map(|(job, p, w, pin)| Change::Resize {
            job,
            shape: Shape::new(p, w),
            pin,
        }),
        id().prop_map(|job| Change::Unpin { job }),
        (id(), 0..3_u32, number()).prop_map(|(job, min, priority)| Change::Update {
            job,
            workers: Some(Bounds { min, max: 3 }),
            servers: None,
            priority: Some(priority),
        }),
        (0..4_u32).prop_map(|node| Change::NodeLost { node: n(node) }),
        (0..4_u32).prop_map(|node| Change::NodeCordon { node: n(node) }),
        (0..4_u32).prop_map(|node| Change::NodeUndrain { node: n(node) }),
        (0..4_u32, proptest::option::of(count()))
            .prop_map(|(node, deadline_ms)| Change::NodeDrain { node: n(node), deadline_ms }),
    ]
}

fn plan() -> impl Strategy<Value = Vec<Decision>> {
    let share = (0..4_u32, 0..2_u32, 0..3_u32).prop_map(|(node, servers, workers)| NodeShare {
        node: n(node),
        servers,
        workers,
    });
    let placement = proptest::collection::vec(share, 0..3).prop_map(Placement);
    let verb = (0..5_u32, placement).prop_map(|(verb, placement)| match verb {
        0 => Verb::Keep,
        1 => Verb::Start { placement },
        2 => Verb::Rescale { placement },
        3 => Verb::Evict,
        _ => Verb::Wait,
    });
    let decision = (0..4_u64, verb).prop_map(|(job, verb)| Decision {
        job: JobId(job),
        verb,
        reason: Reason { words: Words::Plain("drawn".to_owned()), ..Reason::default() },
    });
    proptest::collection::vec(decision, 0..4)
}

/// An event from outside, and what of the world it needs to be made.
#[derive(Clone, Debug)]
enum Blow {
    Tick,
    Connect(u32, u64, Introduction),
    Beat(u32, u64, Heartbeat),
    Rates(u32, u64, Vec<RateReport>),
    Blocks(u32, u64, Vec<BlocksReport>),
    Disconnect(u32, u64),
    Change(Change, bool),
    /// A plan drawn at random, for the round in flight.
    Plan(Vec<Decision>),
    Publish(JobId, Generation, u64, bool),
    RestartMaster,
    /// The honest world goes on for a while.
    Live,
}

fn blow() -> impl Strategy<Value = Blow> {
    prop_oneof![
        2 => Just(Blow::Tick),
        1 => (0..4_u32, 0..40_u64, introduction()).prop_map(|(n, s, i)| Blow::Connect(n, s, i)),
        4 => (0..4_u32, 0..40_u64, heartbeat()).prop_map(|(n, s, b)| Blow::Beat(n, s, b)),
        1 => (0..4_u32, 0..40_u64, proptest::collection::vec(rate_report(), 0..4))
            .prop_map(|(n, s, r)| Blow::Rates(n, s, r)),
        1 => (0..4_u32, 0..40_u64, proptest::collection::vec(blocks_report(), 0..4))
            .prop_map(|(n, s, b)| Blow::Blocks(n, s, b)),
        1 => (0..4_u32, 0..40_u64).prop_map(|(n, s)| Blow::Disconnect(n, s)),
        3 => (change(), any::<bool>()).prop_map(|(c, dry)| Blow::Change(c, dry)),
        3 => plan().prop_map(Blow::Plan),
        1 => (name(), 0..5_u64, any::<bool>())
            .prop_map(|((job, generation), c, ok)| Blow::Publish(job, generation, c, ok)),
        1 => Just(Blow::RestartMaster),
        4 => Just(Blow::Live),
    ]
}

fn session(world: &World, node: u32, drawn: u64) -> SessionId {
    // Often the right one, so that what it carries is looked at.
    let present = world.agents.get(&n(node)).and_then(|agent| agent.session);
    present.filter(|_| drawn > 5).unwrap_or(SessionId(drawn))
}

/// One step of the state machine; returns nothing, as only its soundness is at stake.
fn strike(world: &mut World, blow: Blow, requests: &mut u64) {
    let now = clocks(world.now);
    match blow {
        Blow::Tick => world.event(Event::Tick),
        Blow::Connect(node, drawn, introduction) => {
            let session = SessionId(drawn);
            let introduction = Box::new(introduction);
            let event = Event::NodeConnected { node: n(node), session, introduction };
            let _ = world.control.step(now, event);
        }
        Blow::Beat(node, drawn, heartbeat) => {
            let session = session(world, node, drawn);
            let heartbeat = Box::new(heartbeat);
            let _ = world.control.step(now, Event::Heartbeat { node: n(node), session, heartbeat });
        }
        Blow::Rates(node, drawn, rates) => {
            let session = session(world, node, drawn);
            let _ = world.control.step(now, Event::Rates { node: n(node), session, rates });
        }
        Blow::Blocks(node, drawn, blocks) => {
            let session = session(world, node, drawn);
            let notes = Box::new(Notes { blocks, ..Notes::default() });
            let _ = world.control.step(now, Event::Notes { node: n(node), session, notes });
        }
        Blow::Disconnect(node, drawn) => {
            let session = session(world, node, drawn);
            let _ = world.control.step(now, Event::NodeDisconnected { node: n(node), session });
        }
        Blow::Change(change, dry_run) => {
            *requests += 1;
            let request = RequestKey(1_000_000 + *requests);
            let change = Box::new(change);
            let user = "eve".to_owned();
            let rank = model::access::Rank::Operator;
            let reason = Some("\u{7}why".repeat(200));
            world.event(Event::Change { request, user, rank, dry_run, reason, change });
        }
        Blow::Plan(decisions) => {
            let revision = world.control.rounding.revision;
            let plan = Plan { revision, decisions };
            let _ = world
                .control
                .step(now, Event::RoundFinished { plan, refused: Vec::new(), elapsed_s: f64::NAN });
        }
        Blow::Publish(job, generation, checkpoint, ok) => {
            let outcome = if ok {
                Ok(Published { manifest_url: "file:///m".to_owned(), bytes: u64::MAX })
            } else {
                Err("no".to_owned())
            };
            let checkpoint = CheckpointId(checkpoint);
            let event = Event::Published { job, generation, checkpoint, outcome };
            let _ = world.control.step(now, event);
        }
        Blow::RestartMaster => {
            let records: Vec<_> = world.control_records();
            let (control, _) =
                crate::Control::new(world.settings.clone(), now, records).expect("our own records");
            world.control = control;
        }
        Blow::Live => {
            // Without its own assertions: a liar may make agents run what nobody ordered.
            world.now = world.now.plus(700);
            let _ = world.control.step(clocks(world.now), Event::Tick);
        }
    }
}

impl World {
    /// Everything that a whole store would hold now.
    fn control_records(&self) -> Vec<crate::Record> {
        use crate::Record;
        let control = &self.control;
        let mut records = vec![Record::MetaV1(control.meta)];
        records
            .extend(control.jobs.values().map(|job| Record::JobV1(Box::new(job.record.clone()))));
        records.extend(control.events.values().cloned().map(Record::EventV1));
        records
            .extend(control.rounds.values().map(|round| Record::RoundV1(Box::new(round.clone()))));
        records.extend(control.nodes.values().map(|node| Record::NodeV1(node.record.clone())));
        let closed = control.nodes.keys().filter_map(|id| control.ops_record(id));
        records.extend(closed.map(Record::NodeOpsV1));
        records.extend(control.jobs.iter().map(|(id, job)| {
            let marks = job.rates.marks().to_vec();
            Record::RatesV1(crate::record::RateRecord { job: *id, marks })
        }));
        records.extend(control.jobs.iter().map(|(id, job)| {
            let (sizes, assigned) = (job.blocks.sizes().to_vec(), job.blocks.assigned());
            Record::BlocksV1(crate::record::BlocksRecord { job: *id, sizes, assigned })
        }));
        let ports: BTreeMap<_, _> = control.ports.clone();
        records.extend(ports.into_iter().map(|(host, ports)| Record::PortsV1 { host, ports }));
        records
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_from_outside_breaks_the_state(
        start in 0..30_u64,
        blows in proptest::collection::vec((blow(), 0..20_000_u64), 1..80),
    ) {
        let mut world = World::new(2, 8);
        let _ = world.submit(job("victim"));
        world.run(start);
        let mut requests = 0;
        for (blow, later_ms) in blows {
            strike(&mut world, blow, &mut requests);
            world.now = world.now.plus(later_ms);
            let _ = world.control.read(clocks(world.now), &Read::Status);
        }
        // Everything can be read in any state.
        let now = clocks(Millis(0));
        for read in [Read::Jobs, Read::Nodes, Read::Rounds { limit: 9 }, Read::Status, Read::Doctor] {
            prop_assert!(world.control.read(now, &read).is_ok());
        }
        for id in world.control.jobs.keys() {
            for read in [Read::Job { job: *id }, Read::JobMore { job: *id }, Read::Why { job: *id }] {
                let reply = world.control.read(now, &read);
                prop_assert!(reply.is_ok());
            }
        }
        for node in 0..5 {
            let _ = world.control.read(now, &Read::Node { node: n(node) });
            let _ = world.control.read(now, &Read::NodeMore { node: n(node) });
        }
        let _ = world.control.read(now, &Read::Round { round: RoundId(1) });
        let job = world.control.jobs.values().next().unwrap();
        let progress = &job.record.progress;
        prop_assert!(progress.points.iter().all(|(work, loss)| work.is_finite() && loss.is_finite()));
        prop_assert!(progress.epochs.iter().all(|mark| mark.loss.is_finite()));
    }
}
