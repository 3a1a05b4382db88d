//! Stories about GPUs that are lost, fail, complain, and come back.

use std::collections::BTreeMap;

use model::agent::{Exit, GpuReport};
use model::client::{Answer, Change, ErrorKind, Read};
use model::nodes::{GpuHealth, GpuNote, GpuTrouble, GpuView, HeldReport, NodeNotes, XidReport};
use model::reason::PhaseName;
use model::{Bounds, Finish, JobId, JobSpec, Resources, Role, Task, UnixMs};

use super::{World, job, n, settings};
use crate::Event;
use crate::testing::agent::Agent;

/// The GPUs of a test's agent: what it notes of each, and which task has which.
#[derive(Clone, Default)]
pub(crate) struct Cards {
    pub(crate) notes: Vec<GpuNote>,
    pub(crate) trouble: Option<GpuTrouble>,
    of: BTreeMap<(JobId, model::Generation, Task), String>,
    told: Option<NodeNotes>,
    events: u64,
}

impl Cards {
    /// So many, named after the node.
    pub(crate) fn new(node: u32, count: u32) -> Self {
        let note = |index| GpuNote {
            uuid: format!("GPU-{node}-{index}"),
            answers: true,
            ecc_uncorrected: Some(0),
            ..GpuNote::default()
        };
        Self { notes: (0..count).map(note).collect(), ..Self::default() }
    }

    fn is_good(&self, note: &GpuNote) -> bool {
        self.trouble.is_none() && note.answers && note.fault.is_none()
    }

    pub(crate) fn reports(&self) -> Vec<GpuReport> {
        let report = |note: &GpuNote| GpuReport {
            uuid: note.uuid.clone(),
            name: "Card".to_owned(),
            memory_bytes_total: 80 << 30,
            memory_bytes_used: 1 << 20,
            utilisation: Some(0.5),
            fault: (!self.is_good(note)).then(|| "of no use".to_owned()),
        };
        self.notes.iter().map(report).collect()
    }

    fn count(&self) -> u64 {
        u64::try_from(self.notes.iter().filter(|note| self.is_good(note)).count()).unwrap()
    }
}

impl Agent {
    /// Gives cards to workers as the real agent does, and counts those that can be used.
    pub(crate) fn deal_cards(&mut self) {
        if self.cards.notes.is_empty() {
            return;
        }
        self.capacity.gpus = self.cards.count();
        let running: Vec<_> = self.running().collect();
        self.cards.of.retain(|name, _| running.contains(name));
        for name in running {
            if name.2.role != Role::Worker || self.cards.of.contains_key(&name) {
                continue;
            }
            let free = self.cards.notes.iter().find(|note| {
                let taken = self.cards.of.values().any(|uuid| *uuid == note.uuid);
                !taken && self.cards.is_good(note) && !self.orders.gpus_out.contains(&note.uuid)
            });
            let uuid = free.expect("the master places no more than there is").uuid.clone();
            self.cards.of.insert(name, uuid);
        }
    }

    /// What it notes of them, where that is new.
    pub(crate) fn card_notes(&mut self, anew: bool) -> Option<NodeNotes> {
        if self.cards.notes.is_empty() {
            return None;
        }
        let held = self.cards.of.iter().map(|((job, generation, task), uuid)| HeldReport {
            job: *job,
            generation: *generation,
            task: *task,
            gpus: vec![uuid.clone()],
        });
        let mut notes = NodeNotes {
            gpus: self.cards.notes.clone(),
            gpu_trouble: self.cards.trouble.clone(),
            held: held.collect(),
            ..NodeNotes::default()
        };
        for note in &mut notes.gpus {
            let held = self.cards.of.values().any(|uuid| *uuid == note.uuid);
            note.probed = self.orders.gpus_probed.contains(&note.uuid) && !held && note.answers;
        }
        let news = anew || self.cards.told.as_ref() != Some(&notes);
        self.cards.told = Some(notes.clone());
        news.then_some(notes)
    }
}

/// Nodes with four GPUs each, and short quiet times.
fn world(nodes: u32) -> World {
    let mut rules = settings();
    rules.gpus.quiet_ms = 20_000;
    let mut world = World::with(rules, nodes, 16);
    for number in 1..=nodes {
        let agent = world.agents.get_mut(&n(number)).unwrap();
        agent.cards = Cards::new(number, 4);
    }
    world.run(3);
    world
}

/// A job that trains long, with a GPU for each of its workers.
fn long(workers: u32) -> JobSpec {
    let mut spec = job("team");
    spec.epochs_max = 100_000;
    spec.finish = Finish::Epochs(100_000);
    spec.worker = Resources::new(1000, 1 << 28, 1);
    spec.workers = Bounds { min: workers, max: workers };
    spec.servers = Bounds { min: 1, max: 1 };
    spec.checkpoint_interval_s = 10;
    spec
}

fn training(world: &mut World, workers: u32) -> JobId {
    let id = world.submit(long(workers));
    world.until(90, "it runs and has a checkpoint", |world| {
        world.phase(id) == PhaseName::Running && !world.detail(id).checkpoints.is_empty()
    });
    id
}

impl World {
    fn card(&mut self, node: u32, index: usize) -> &mut GpuNote {
        &mut self.agents.get_mut(&n(node)).unwrap().cards.notes[index]
    }

    fn xid(&mut self, node: u32, index: usize, xid: u64) {
        let at = UnixMs(1_700_000_000_000 + self.now.0);
        let cards = &mut self.agents.get_mut(&n(node)).unwrap().cards;
        cards.events += 1;
        let number = cards.events;
        cards.notes[index].xids.push(XidReport { number, xid, at });
    }

    fn gpu(&self, node: u32, index: u32) -> GpuView {
        let Ok(Answer::NodeMore(more)) = self.read(&Read::NodeMore { node: n(node) }) else {
            panic!("no answer")
        };
        let uuid = format!("GPU-{node}-{index}");
        more.gpus.into_iter().find(|gpu| gpu.uuid == uuid).expect("it is listed")
    }

    fn health(&self, node: u32, index: u32) -> GpuHealth {
        self.gpu(node, index).health
    }

    fn gpus_offered(&self, node: u32) -> u64 {
        self.control.nodes[&n(node)].record.capacity.gpus
    }

    /// The card that a worker has: its node and place.
    fn card_of(&self, id: JobId, worker: u32) -> (u32, usize) {
        for (node, agent) in &self.agents {
            let of = &agent.cards.of;
            let held =
                of.iter().find(|((job, _, task), _)| *job == id && *task == Task::worker(worker));
            if let Some((_, uuid)) = held {
                let place = agent.cards.notes.iter().position(|note| note.uuid == *uuid);
                return (node.as_str()[1..].parse().unwrap(), place.unwrap());
            }
        }
        panic!("worker {worker} has no card")
    }

    fn told_of(&self, kind: &str) -> Vec<String> {
        let events = self.control.events.values().filter(|event| event.kind == kind);
        events.map(|event| event.text.clone()).collect()
    }
}

fn is_running(id: JobId, faults: usize) -> impl Fn(&World) -> bool {
    move |world| world.phase(id) == PhaseName::Running && world.detail(id).faults.len() == faults
}

#[test]
fn a_gpu_lost_in_mid_job_restarts_the_job_elsewhere_once() {
    let mut world = world(2);
    let id = training(&mut world, 2);
    let (node, place) = world.card_of(id, 1);
    let index = u32::try_from(place).unwrap();
    *world.card(node, place) = GpuNote {
        answers: false,
        lost: true,
        fault: Some("device fell off the bus".to_owned()),
        ..world.card(node, place).clone()
    };
    world.until(60, "it trains again", is_running(id, 1));
    world.run(30);
    let detail = world.detail(id);
    assert_eq!(detail.faults.len(), 1, "once for one loss");
    let cause = &detail.faults[0].cause;
    assert!(cause.starts_with(&format!("gpu lost GPU-{node}-{index} on n{node}")), "{cause}");
    assert!(detail.faults[0].resumed_from.is_some(), "from its checkpoint");
    assert_ne!(world.card_of(id, 1), (node, place));
    assert_eq!(world.health(node, index), GpuHealth::Suspect);
    assert_eq!(world.gpus_offered(node), 3);
    // It answers again: looked at, then of use.
    let card = world.card(node, place);
    (card.answers, card.lost, card.fault) = (true, false, None);
    world.until(10, "it is probed", |world| world.health(node, index) == GpuHealth::Probing);
    assert_eq!(world.gpus_offered(node), 3, "it does not work while it is probed");
    world.until(40, "it is back", |world| world.health(node, index) == GpuHealth::Ok);
    world.run(2);
    assert_eq!(world.gpus_offered(node), 4);
}

#[test]
fn capacity_that_shrinks_under_running_work_leaves_nothing_free_and_not_less() {
    let mut world = world(1);
    let first = world.submit(long(4));
    world.until(90, "all four are busy", |world| {
        world.phase(first) == PhaseName::Running && world.row(first).shape.workers == 4
    });
    // Readings fail, and nobody says that they are lost: the job goes on.
    for place in [0, 1] {
        world.card(1, place).fault = Some("a reading fails".to_owned());
    }
    world.until(10, "they are suspect", |world| world.health(1, 1) == GpuHealth::Suspect);
    let second = world.submit(long(1));
    world.run(90);
    assert_eq!(world.phase(second), PhaseName::Queued);
    assert_eq!(world.phase(first), PhaseName::Running);
    assert!(world.detail(first).faults.is_empty());
    assert_eq!(world.findings, Vec::<String>::new());
    assert_eq!(world.health(1, 0), GpuHealth::Suspect, "a busy one is not tested");
}

#[test]
fn memory_errors_that_are_there_at_the_start_keep_a_gpu_out() {
    let mut world = World::with(settings(), 1, 16);
    let agent = world.agents.get_mut(&n(1)).unwrap();
    agent.cards = Cards::new(1, 4);
    agent.cards.notes[0].ecc_uncorrected = Some(1);
    world.run(3);
    assert_eq!(world.health(1, 0), GpuHealth::Bad);
    assert_eq!(world.gpus_offered(1), 3);
    assert_eq!(world.agents[&n(1)].orders.gpus_out, ["GPU-1-0"]);
    let id = training(&mut world, 1);
    assert_ne!(world.card_of(id, 0), (1, 0));
    world.restart_master();
    world.run(30);
    assert_eq!(world.health(1, 0), GpuHealth::Bad, "kept over a restart");
    assert_eq!(world.told_of("gpu").len(), 1, "and told once");
}

#[test]
fn a_programs_own_fault_is_laid_to_the_job_and_the_gpu_stays() {
    let mut world = world(1);
    let id = training(&mut world, 1);
    let (node, place) = world.card_of(id, 0);
    world.xid(node, place, 31);
    world.run(5);
    let index = u32::try_from(place).unwrap();
    assert_eq!(world.health(node, index), GpuHealth::Ok);
    assert_eq!(world.gpus_offered(node), 4);
    let told = world.told_of("gpu");
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("Xid 31") && told[0].contains("worker0"), "{told:?}");
    let of_job =
        world.control.events.values().any(|event| {
            event.kind == "gpu" && event.job == Some(id) && event.node == Some(n(node))
        });
    assert!(of_job, "job, GPU and event are linked");
    assert!(world.gpu(node, index).history[0].1.contains("Xid 31"));
    assert_eq!(world.phase(id), PhaseName::Running);
}

#[test]
fn one_error_does_not_remove_a_gpu_for_ever() {
    let mut world = world(1);
    world.xid(1, 2, 94);
    world.run(2);
    assert_eq!(world.agents[&n(1)].orders.gpus_probed, ["GPU-1-2"]);
    assert_eq!(world.gpus_offered(1), 3);
    world.restart_master();
    world.until(60, "it is back", |world| world.health(1, 2) == GpuHealth::Ok);
    let history: Vec<String> =
        world.gpu(1, 2).history.into_iter().map(|(_, words)| words).collect();
    assert!(history[0].contains("Xid 94"), "{history:?}");
    assert!(history.iter().any(|words| words.starts_with("PROBING")), "{history:?}");
    assert!(history.last().unwrap().starts_with("OK"), "both are kept: {history:?}");
    world.run(30);
    assert_eq!(world.health(1, 2), GpuHealth::Ok, "an event is judged once");
    for _ in 0..3 {
        world.xid(1, 2, 94);
        world.run(2);
    }
    assert_eq!(world.health(1, 2), GpuHealth::Bad, "too often");
}

#[test]
fn a_task_that_died_of_its_gpu_is_not_to_blame_whoever_tells_first() {
    let mut world = world(2);
    let id = training(&mut world, 1);
    // Long after the last news of the node's GPUs.
    world.run(120);
    let (node, place) = world.card_of(id, 0);
    let agent = world.agents.get_mut(&n(node)).unwrap();
    let worker = agent.ledger.iter_mut().find(|((job, _, task), entry)| {
        *job == id && *task == Task::worker(0) && entry.exit.is_none()
    });
    let reason = "CUDA: unspecified launch failure".to_owned();
    worker.unwrap().1.exit = Some(Exit { code: Some(1), reason, ..Exit::default() });
    world.until(10, "its end is told", |world| world.detail(id).faults.len() == 1);
    assert_eq!(world.control.job(id).record.failures_in_row, 1);
    let card = world.card(node, place);
    (card.answers, card.lost) = (false, true);
    world.until(10, "the GPU is out", |world| {
        world.health(node, u32::try_from(place).unwrap()) == GpuHealth::Suspect
    });
    let cause = world.detail(id).faults[0].cause.clone();
    assert!(cause.starts_with("gpu lost GPU-") && cause.contains("CUDA"), "{cause}");
    assert_eq!(world.control.job(id).record.failures_in_row, 0);
    // The other way round: an error that ends its program, then the end.
    world.until(60, "it trains again", is_running(id, 1));
    let (node, place) = world.card_of(id, 0);
    world.xid(node, place, 94);
    world.run(2);
    let agent = world.agents.get_mut(&n(node)).unwrap();
    let worker = agent.ledger.iter_mut().find(|((job, _, task), entry)| {
        *job == id && *task == Task::worker(0) && entry.exit.is_none()
    });
    worker.unwrap().1.exit = Some(Exit { code: Some(1), ..Exit::default() });
    world.until(10, "its end is told", |world| world.detail(id).faults.len() == 2);
    let cause = world.detail(id).faults[1].cause.clone();
    assert!(cause.contains("Xid 94"), "{cause}");
    assert_eq!(world.control.job(id).record.failures_in_row, 0);
}

#[test]
fn failing_hardware_ends_what_runs_on_it_and_stays_out() {
    let mut world = world(2);
    let id = training(&mut world, 1);
    let (node, place) = world.card_of(id, 0);
    world.xid(node, place, 48);
    world.until(60, "it trains again", is_running(id, 1));
    let cause = world.detail(id).faults[0].cause.clone();
    assert!(cause.starts_with("gpu bad GPU-") && cause.contains("Xid 48"), "{cause}");
    assert_ne!(world.card_of(id, 0), (node, place));
    world.run(60);
    let index = u32::try_from(place).unwrap();
    assert_eq!(world.health(node, index), GpuHealth::Bad);
}

#[test]
fn a_library_that_does_not_fit_takes_no_new_work_and_ends_none() {
    let mut world = world(1);
    let id = training(&mut world, 1);
    let words = "reboot, or reload the modules".to_owned();
    let agent = world.agents.get_mut(&n(1)).unwrap();
    agent.cards.trouble = Some(GpuTrouble::Mismatch(words));
    world.until(10, "nothing is offered", |world| world.gpus_offered(1) == 0);
    let other = world.submit(long(1));
    world.run(60);
    assert_eq!(world.phase(other), PhaseName::Queued);
    assert_eq!(world.phase(id), PhaseName::Running);
    assert!(world.detail(id).faults.is_empty());
    assert!((0..4).all(|index| world.health(1, index) == GpuHealth::Ok), "no GPU is to blame");
    assert!(world.told_of("gpu").iter().any(|text| text.contains("reboot")));
    world.agents.get_mut(&n(1)).unwrap().cards.trouble = None;
    world.until(90, "the other one runs", |world| world.phase(other) == PhaseName::Running);
}

#[test]
fn a_driver_that_hangs_makes_all_suspect_until_it_answers() {
    let mut world = world(1);
    let id = training(&mut world, 1);
    let agent = world.agents.get_mut(&n(1)).unwrap();
    agent.cards.trouble = Some(GpuTrouble::Hangs("NVML does not answer".to_owned()));
    for note in &mut agent.cards.notes {
        note.answers = false;
    }
    world.until(10, "all are suspect", |world| {
        (0..4).all(|index| world.health(1, index) == GpuHealth::Suspect)
    });
    world.run(30);
    assert_eq!(world.gpus_offered(1), 0);
    assert_eq!(world.phase(id), PhaseName::Running, "what runs goes on");
    let agent = world.agents.get_mut(&n(1)).unwrap();
    agent.cards.trouble = None;
    for note in &mut agent.cards.notes {
        note.answers = true;
    }
    let (_, place) = world.card_of(id, 0);
    let held = u32::try_from(place).unwrap();
    world.until(60, "the idle ones are back", |world| {
        (0..4).filter(|index| *index != held).all(|index| world.health(1, index) == GpuHealth::Ok)
    });
    assert_eq!(world.health(1, held), GpuHealth::Suspect, "the busy one is not tested");
    assert!(world.detail(id).faults.is_empty());
}

#[test]
fn only_so_many_are_taken_out_within_an_hour() {
    let mut world = world(2);
    for place in 0..3 {
        world.card(1, place).ecc_uncorrected = Some(2);
    }
    world.run(5);
    let bad = |world: &World| (0..4).filter(|i| world.health(1, *i) == GpuHealth::Bad).count();
    assert_eq!(bad(&world), 2, "a quarter of eight");
    let alerts = world.told_of("alert");
    assert_eq!(alerts.len(), 1);
    assert!(alerts[0].contains("GPU-1-2") && alerts[0].contains("kept in service"), "{alerts:?}");
    world.run(3_700);
    assert_eq!(bad(&world), 3, "an hour later it is out");
}

#[test]
fn an_operator_retires_and_returns() {
    let mut world = world(1);
    let ask = |uuid: &str, retire| Change::Gpu { node: n(1), uuid: uuid.to_owned(), retire };
    let refused = world.change(ask("GPU-9", true)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotFound);
    world.change_as(ask("GPU-1-1", true), true).unwrap();
    assert_eq!(world.health(1, 1), GpuHealth::Ok, "a dry run");
    world.change(ask("GPU-1-1", true)).unwrap();
    assert_eq!(world.health(1, 1), GpuHealth::Retired);
    world.run(2);
    assert_eq!(world.gpus_offered(1), 3);
    world.restart_master();
    world.run(60);
    assert_eq!(world.health(1, 1), GpuHealth::Retired, "for good");
    assert_eq!(world.gpu(1, 1).reason, "a test");
    world.change(ask("GPU-1-1", false)).unwrap();
    assert_eq!(world.health(1, 1), GpuHealth::Probing);
    world.until(60, "it is back", |world| world.health(1, 1) == GpuHealth::Ok);
}

#[test]
fn a_reboot_resets_what_only_wanted_a_reset() {
    let mut world = world(1);
    world.xid(1, 0, 119);
    world.xid(1, 1, 79);
    world.run(2);
    assert_eq!(world.health(1, 0), GpuHealth::Bad);
    assert_eq!(world.gpus_offered(1), 3, "one in four may be taken out");
    let agent = world.agents.get_mut(&n(1)).unwrap();
    for note in &mut agent.cards.notes {
        note.xids.clear();
    }
    agent.cards.events = 0;
    agent.reboot();
    world.until(60, "it is back", |world| world.health(1, 0) == GpuHealth::Ok);
}

#[test]
fn instances_come_and_go() {
    let mut world = World::with(settings(), 1, 16);
    for count in [7, 3, 5] {
        let mut cards = Cards::new(1, count);
        for note in &mut cards.notes {
            note.uuid = note.uuid.replace("GPU", "MIG");
        }
        world.agents.get_mut(&n(1)).unwrap().cards = cards;
        world.run(3);
        assert_eq!(world.gpus_offered(1), u64::from(count));
    }
}

#[test]
fn what_a_strange_agent_says_is_bounded() {
    let mut world = world(1);
    let session = world.agents[&n(1)].session.unwrap();
    let gpu = |number: u32| GpuNote {
        uuid: format!("GPU-{number}"),
        fault: Some("x".repeat(100_000)),
        xids: vec![XidReport { number: u64::MAX, xid: u64::MAX, at: UnixMs(u64::MAX) }; 100],
        ..GpuNote::default()
    };
    let mut gpus: Vec<GpuNote> = (0..5000).map(gpu).collect();
    gpus.push(GpuNote { uuid: "\n".repeat(9), ..gpu(1) });
    let notes = Box::new(NodeNotes { gpus, ..NodeNotes::default() });
    world.event(Event::NodeNotes { node: n(1), session, notes });
    let Ok(Answer::NodeMore(more)) = world.read(&Read::NodeMore { node: n(1) }) else { panic!() };
    assert!(more.gpus.len() <= 260, "{}", more.gpus.len());
    assert!(more.gpus.iter().all(|gpu| gpu.reason.len() <= 600 && gpu.history.len() <= 16));
}
