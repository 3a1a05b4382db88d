//! Honest agents in a dishonest world: processes, nodes, networks, disks and masters fail in any
//! order. No task ever stands twice, and once the trouble is over every job comes to its end.

use model::client::Change;
use model::{Finish, JobId, OnDisconnect, Shape, Task};
use proptest::prelude::*;

use super::{World, job, n};

#[derive(Clone, Debug)]
enum Trouble {
    Exit {
        job: u64,
        worker: bool,
    },
    Cut(u32),
    Heal(u32),
    Reboot(u32),
    RestartAgent(u32),
    RestartMaster,
    /// The master dies after so many more commands.
    DieAfter(usize),
    StoreFails(bool),
    SavesFail(bool),
    Resize {
        job: u64,
        workers: u32,
    },
    Pause(u64),
    Resume(u64),
    Unpin(u64),
    Cordon(u32),
    Drain(u32, Option<u64>),
    Undrain(u32),
}

fn trouble() -> impl Strategy<Value = Trouble> {
    let job = || 1..4_u64;
    let node = || 1..4_u32;
    prop_oneof![
        (job(), any::<bool>()).prop_map(|(job, worker)| Trouble::Exit { job, worker }),
        node().prop_map(Trouble::Cut),
        node().prop_map(Trouble::Heal),
        node().prop_map(Trouble::Reboot),
        node().prop_map(Trouble::RestartAgent),
        Just(Trouble::RestartMaster),
        (0..12_usize).prop_map(Trouble::DieAfter),
        any::<bool>().prop_map(Trouble::StoreFails),
        any::<bool>().prop_map(Trouble::SavesFail),
        (job(), 1..5_u32).prop_map(|(job, workers)| Trouble::Resize { job, workers }),
        job().prop_map(Trouble::Pause),
        job().prop_map(Trouble::Resume),
        job().prop_map(Trouble::Unpin),
        node().prop_map(Trouble::Cordon),
        (node(), proptest::option::of(0..60_000_u64))
            .prop_map(|(node, ms)| Trouble::Drain(node, ms)),
        node().prop_map(Trouble::Undrain),
    ]
}

fn happen(world: &mut World, trouble: Trouble) {
    let mut ask = |change| {
        // Refused or not: both are answers.
        let _ = world.try_change(change, false);
    };
    match trouble {
        Trouble::Resize { job, workers } => {
            ask(Change::Resize { job: JobId(job), shape: Shape::new(1, workers), pin: true });
        }
        Trouble::Pause(job) => ask(Change::Pause { job: JobId(job) }),
        Trouble::Resume(job) => ask(Change::Resume { job: JobId(job) }),
        Trouble::Cordon(node) => ask(Change::NodeCordon { node: n(node) }),
        Trouble::Drain(node, deadline_ms) => {
            ask(Change::NodeDrain { node: n(node), deadline_ms });
        }
        Trouble::Undrain(node) => ask(Change::NodeUndrain { node: n(node) }),
        Trouble::Unpin(job) => ask(Change::Unpin { job: JobId(job) }),
        Trouble::Exit { job, worker } => {
            let task = if worker { Task::worker(0) } else { Task::server(0) };
            world.exit(JobId(job), task, 1, "trouble");
        }
        Trouble::Cut(node) => world.cut(&n(node)),
        Trouble::Heal(node) => world.heal(&n(node)),
        Trouble::Reboot(node) => world.reboot(&n(node)),
        Trouble::RestartAgent(node) => world.restart_agent(&n(node)),
        Trouble::RestartMaster => world.restart_master(),
        Trouble::DieAfter(commands) => world.dies_after = Some(world.carried_out + commands),
        Trouble::StoreFails(fails) => world.store_fails = fails,
        Trouble::SavesFail(fails) => world.saves_fail = fails,
    }
}

fn all_over(world: &World) -> bool {
    world.control.jobs.values().all(|job| job.phase().is_final())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 10,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_fails_no_task_stands_twice_and_every_job_ends(
        troubles in proptest::collection::vec((trouble(), 0..25_u64), 1..25),
    ) {
        let mut world = World::new(3, 4);
        for rule in [OnDisconnect::Keep, OnDisconnect::Stop, OnDisconnect::Replace] {
            let mut spec = job(rule.name());
            spec.on_disconnect = rule;
            spec.finish = Finish::Epochs(12);
            spec.restarts_max = 1000;
            spec.checkpoint_interval_s = 15;
            world.submit(spec);
        }
        for (trouble, seconds) in troubles {
            happen(&mut world, trouble);
            world.run(seconds);
        }
        (world.store_fails, world.saves_fail, world.dies_after) = (false, false, None);
        for node in 1..4 {
            world.heal(&n(node));
        }
        world.run(30);
        for node in 1..4 {
            let _ = world.change(Change::NodeUndrain { node: n(node) });
        }
        for id in 1..4 {
            let _ = world.change(Change::Unpin { job: JobId(id) });
            let _ = world.change(Change::Resume { job: JobId(id) });
        }
        world.until(1_500, "every job has ended", |world| {
            all_over(world) || world.control.jobs.values().any(|job| {
                matches!(job.phase(), crate::job::phase::Phase::Paused { .. })
            })
        });
        // A pause that was still under way when the jobs were resumed.
        for id in 1..4 {
            let _ = world.change(Change::Resume { job: JobId(id) });
        }
        world.until(1_500, "every job has ended", all_over);
        for id in world.control.jobs.keys() {
            let row = world.row(*id);
            prop_assert!(row.phase.name() == "COMPLETED" && row.step == 480, "{row:?}");
        }
        world.run(3);
        prop_assert!(world.agents.values().all(|agent| agent.running().count() == 0));
    }
}
