//! No message is longer than it is weighed: what is decided about lengths without writing holds on
//! the wire.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::agent::{CheckpointOrder, Desired, DesiredGeneration, Launch, Order, ToAgent};
use model::nodes::{JobOrders, NodeOrders};
use model::notes::{AssignmentOrder, BlockPart, Extras, JobExtras, Warm};
use model::options::{DataFormat, DataSpec};
use model::{
    Batch, CheckpointId, Generation, JobId, Mode, OnDisconnect, Resources, Revision, Shape, Task,
    weight,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{0,4}", "é{0,300}"]
}

fn resources() -> impl Strategy<Value = Resources> {
    (any::<u64>(), any::<u64>(), any::<u64>(), btree_map(text(), any::<u64>(), 0..4)).prop_map(
        |(cpus_milli, memory_bytes, gpus, named)| Resources {
            cpus_milli,
            memory_bytes,
            gpus,
            named,
        },
    )
}

type Program = (Vec<String>, String, BTreeMap<String, String>);

fn program() -> impl Strategy<Value = Program> {
    (vec(text(), 0..5), text(), btree_map(text(), text(), 0..5))
}

fn generation() -> impl Strategy<Value = DesiredGeneration> {
    let place = (text(), proptest::option::of(text()), proptest::option::of(text()), 0..300_u32);
    (any::<u64>(), any::<u32>(), text(), program(), place, resources(), resources()).prop_map(
        |(
            large,
            small,
            job_name,
            program,
            (root_host, resume, directory, tasks),
            worker,
            server,
        )| {
            let (command, working_directory, environment) = program;
            DesiredGeneration {
                job: JobId(large),
                generation: Generation(large),
                order: Order::Stop { grace_ms: large },
                launch: Launch {
                    job_name,
                    command,
                    working_directory,
                    environment,
                    mode: Mode::Async,
                    batch: Batch::PerWorker(small),
                    epochs_max: small,
                    shape: Shape::new(small, small),
                    tasks: (0..tasks).map(|task| Task::worker(u32::MAX - task)).collect(),
                    worker,
                    server,
                    root_host,
                    root_port: u16::MAX,
                    resume,
                    on_disconnect: OnDisconnect::Replace,
                },
                checkpoint: directory.map(|directory| CheckpointOrder {
                    checkpoint: CheckpointId(large),
                    at_step: Some(large),
                    directory,
                    hold: true,
                    released: true,
                }),
            }
        },
    )
}

fn extras() -> impl Strategy<Value = Extras> {
    let blocks = vec(vec((any::<u32>(), any::<u64>()), 0..4), 0..40);
    let job =
        (any::<u64>(), blocks, text(), text()).prop_map(|(large, blocks, url, index_base)| {
            let part = |(server, parameters)| BlockPart { server, parameters };
            let blocks = blocks.into_iter().map(|parts| parts.into_iter().map(part).collect());
            JobExtras {
                job: JobId(large),
                generation: Generation(large),
                assignment: AssignmentOrder::Given(blocks.collect()),
                data: Some(DataSpec {
                    url,
                    format: DataFormat::Fixed(u32::MAX),
                    chunk_bytes: large,
                }),
                index_base,
            }
        });
    let warm = (any::<u64>(), program()).prop_map(|(large, program)| {
        let (command, working_directory, environment) = program;
        Warm {
            job: JobId(large),
            command,
            working_directory,
            environment,
            worker_cpus_milli: large,
            server_cpus_milli: large,
        }
    });
    (vec(job, 0..4), vec(warm, 0..4)).prop_map(|(jobs, warm)| Extras { jobs, warm })
}

fn orders() -> impl Strategy<Value = NodeOrders> {
    let job =
        (any::<u64>(), text(), vec(any::<IpAddr>(), 0..20)).prop_map(|(large, user, peers)| {
            JobOrders { job: JobId(large), generation: Generation(large), user, peers }
        });
    (vec(job, 0..5), vec(text(), 0..5), vec(text(), 0..5)).prop_map(
        |(jobs, gpus_out, gpus_probed)| NodeOrders {
            jobs,
            gpus_out,
            gpus_probed,
            judges_gpus: true,
        },
    )
}

fn bytes(message: &ToAgent) -> usize {
    net::encode(message, net::FRAME_BYTES_MAX).unwrap().len() - 4
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_desired_set_takes_no_more_than_it_weighs(generations in vec(generation(), 0..5)) {
        let weight = weight::of_generations(&generations);
        let message = ToAgent::Desired(Desired { revision: Revision(u64::MAX), generations });
        prop_assert!(bytes(&message) <= weight, "{} of {weight}", bytes(&message));
    }

    #[test]
    fn nor_do_extras(extras in extras()) {
        let weight = weight::of_extras(&extras);
        let bytes = bytes(&ToAgent::Extras(extras));
        prop_assert!(bytes <= weight, "{bytes} of {weight}");
    }

    #[test]
    fn nor_do_orders(orders in orders()) {
        let weight = weight::of_orders(&orders);
        let bytes = bytes(&ToAgent::Orders(orders));
        prop_assert!(bytes <= weight, "{bytes} of {weight}");
    }
}
