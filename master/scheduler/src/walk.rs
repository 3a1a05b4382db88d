//! One round, step by step, with its numbers. There is nothing here but this page; its code runs
//! as a test.
//!
//! The cluster of the example has 13 nodes of 16 CPUs, 48 GB and 2 GPUs. Three jobs wait, all
//! ResNet-50 as the paper measured it (Table 2, synchronous, global batch 40), with 10, 50 and
//! 100 steps left. A server takes 3 CPUs and 9 GB; a worker 2 CPUs, 8 GB and a GPU.
//!
//! ```
//! # use model::{JobId, Millis, Mode, Resources, Shape};
//! # use scheduler::estimate::speed::{SpeedForm, SpeedModel};
//! # use scheduler::snapshot::{JobInput, NodeInput, Policy, Remaining, Snapshot, Want};
//! # use scheduler::plan::Verb;
//! const GB: u64 = 1_000_000_000;
//! let speed = SpeedModel::of_theta(
//!     SpeedForm::SyncGlobal { batch: 40 },
//!     vec![1.0223, 2.8222, 4.9029, 0.0001, 0.0125],
//! );
//! let (server, worker) = (Resources::new(3000, 9 * GB, 0), Resources::new(2000, 8 * GB, 1));
//! # let job = |(id, steps): (u64, f64)| JobInput {
//! #     id: JobId(id),
//! #     mode: Mode::Sync,
//! #     worker: worker.clone(),
//! #     server: server.clone(),
//! #     min: Shape::new(1, 1),
//! #     max: Shape::new(100, 100),
//! #     priority: 1.0,
//! #     arrival: Millis(id),
//! #     current: None,
//! #     want: Want::Share {
//! #         speed: speed.clone(),
//! #         remaining: Some(Remaining { value: steps, low: steps, high: steps }),
//! #     },
//! #     requested: None,
//! #     attained_s: 0.0,
//! #     goodput: None,
//! #     rescale_cost_s: 10.0,
//! # };
//! # let node = |at: u32| NodeInput {
//! #     id: format!("n{at:02}").parse().unwrap(),
//! #     capacity: Resources::new(16_000, 48 * GB, 2),
//! #     held: Resources::default(),
//! #     open: true,
//! # };
//! let mut snapshot = Snapshot {
//!     revision: 1,
//!     now: Millis(0),
//!     nodes: (1..=13).map(node).collect(),
//!     jobs: [(1, 10.0), (2, 50.0), (3, 100.0)].map(job).into(),
//! };
//!
//! // 1. Estimate. With one server and one worker a step takes
//! //    1.0223·40 + 2.8222 + 4.9029 + 0.0001 + 0.0125 = 48.63 s, so the first job has 486 s left.
//! let seconds_left = |shape: Shape| 10.0 / speed.steps_per_s(shape);
//! assert_eq!(seconds_left(Shape::new(1, 1)).round(), 486.0);
//!
//! // 2. Allocate. Every job gets 1+1. One more worker would bring the first job to 331 s, one
//! //    more server to 462 s. A worker's dominant resource is the GPU, 1 of 26; a server's is
//! //    memory, 9 GB of 624. Per share of the cluster the worker gains most (Eqn. (9)):
//! let gain = |more: Shape, share: f64| {
//!     (seconds_left(Shape::new(1, 1)) - seconds_left(more)) / share
//! };
//! let by_worker = gain(Shape::new(1, 2), 1.0 / 26.0);
//! let by_server = gain(Shape::new(2, 1), 9.0 / 624.0);
//! assert_eq!((by_worker.round(), by_server.round()), (4041.0, 1691.0));
//!
//! // The same question is asked of all jobs, and the task with the largest gain is given, until
//! // memory is used up: 24 GPUs went to workers, 48 times 9 GB to servers.
//! let plan = scheduler::plan(&snapshot, &Policy::default(), &mut scheduler::Cache::default());
//! let allocated: Vec<Shape> = plan.decisions.iter().map(|d| d.reason.allocated).collect();
//! assert_eq!(allocated, [Shape::new(5, 4), Shape::new(17, 9), Shape::new(26, 11)]);
//!
//! // 3. Place, the smallest first. Two nodes hold 5+4; the two parts differ by one server, and
//! //    no way is closer: 2 of the 4 workers, or 3 of the 5 servers, are always on the other node.
//! let Verb::Start { placement } = &plan.decisions[0].verb else { panic!("it starts") };
//! assert_eq!(placement.0.len(), 2);
//! assert_eq!(plan.decisions[0].reason.transfer_time, Some(3.0 / 5.0));
//!
//! // Memory comes in pieces of 48 GB: beside workers of 8 GB and servers of 9 GB some is left over
//! // on each node, so that the last job is shrunk by the tasks whose loss matters least.
//! let reason = &plan.decisions[2].reason;
//! assert_eq!(
//!     reason.text(),
//!     "starts with 20+10 of its allocation 26+11 on 8 nodes, 3901.6 s sooner than with 1+1"
//! );
//!
//! // 4. Check, by rules written apart from all this.
//! assert!(scheduler::check(&snapshot, &plan).is_empty());
//!
//! // 5. The next round finds the jobs running and moves none of them.
//! # for (job, decision) in snapshot.jobs.iter_mut().zip(&plan.decisions) {
//! #     let Verb::Start { placement } = &decision.verb else { panic!("all start") };
//! #     job.current = Some(scheduler::snapshot::Current {
//! #         placement: placement.clone(),
//! #         movable: true,
//! #         since_change_ms: 600_000,
//! #     });
//! # }
//! let next = scheduler::plan(&snapshot, &Policy::default(), &mut scheduler::Cache::default());
//! assert!(next.decisions.iter().all(|decision| decision.verb == Verb::Keep));
//! assert_eq!(next.decisions[0].reason.text(), "stays at 5+4, which is its allocation");
//!
//! // A fifth more work is no reason to move either: it gains by one more task what the others
//! // lose by it.
//! if let Want::Share { remaining: Some(remaining), .. } = &mut snapshot.jobs[0].want {
//!     remaining.value = 12.0;
//! }
//! let next = scheduler::plan(&snapshot, &Policy::default(), &mut scheduler::Cache::default());
//! assert_eq!(next.decisions[0].verb, Verb::Keep);
//! ```
