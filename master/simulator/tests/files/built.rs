//! Lines of a trace become jobs on a cluster.

use model::{Batch, NodeId, Resources, Shape};
use simulator::trace::{build, read};
use simulator::workload::{Cluster, Speed};

fn cluster(count: u32, capacity: &Resources) -> Cluster {
    let node = |at: u32| (NodeId::for_file(&format!("n{at:03}")).unwrap(), capacity.clone());
    Cluster { nodes: (0..count).map(node).collect() }
}

fn gpus(count: u32) -> Cluster {
    cluster(count, &Resources::new(16_000, 80_000_000_000, 2))
}

fn ours(rows: &str) -> simulator::trace::Trace {
    let header = "id,arrival_s,model,mode,work_steps,min_workers,max_workers,max_servers";
    read(&format!("{header}\n{rows}")).unwrap()
}

#[test]
fn our_jobs_have_what_is_known_of_their_models() {
    let trace = ours("a,5,resnet-50,sync,100,1,400,400\nb,6,vgg-16,sync,100,1,2,1\n");
    let built = build(&trace, &gpus(6), 1).unwrap();
    let [a, b] = built.workload.jobs.as_slice() else { panic!("{built:?}") };
    assert_eq!((a.batch, b.batch), (Batch::Global(32), Batch::PerWorker(32)));
    assert!((a.work - 100.0).abs() < 1e-9 && (b.work - 3200.0).abs() < 1e-9);
    assert!(matches!(&a.speed, Speed::Table(table) if table.len() == 210));
    assert_eq!((a.min, a.max), (Shape::new(1, 1), Shape::new(30, 12)), "what six nodes hold");
    assert_eq!((a.requested, b.requested), (Some(Shape::new(4, 4)), Some(Shape::new(1, 2))));
    assert!(built.notes.is_empty(), "{built:?}");
}

#[test]
fn a_job_larger_than_the_cluster_is_told_with_its_line() {
    let trace = ours("a,0,wlm,async,1,12,12,1\nb,0,wlm,async,1,13,99,1\n");
    let error = build(&trace, &gpus(6), 1).expect_err("13 workers on 12 GPUs");
    assert_eq!((error.count, error.faults[0].line), (1, Some(3)));
    assert_eq!(error.faults[0].fault.field, "min_workers");
    assert!(error.to_string().contains("needs 13 workers, the cluster holds 12"), "{error}");
    // Each kind of task fits alone, together they do not.
    let small = cluster(1, &Resources::new(4000, 80_000_000_000, 2));
    let error = build(&ours("a,0,wlm,async,1,1,1,1\n"), &small, 1).expect_err("5 CPUs on 4");
    assert!(error.to_string().contains("of cpus in all"), "{error}");
    let pollux = read("name,time,application,num_replicas,batch_size\nx,0,ncf,9,256\n").unwrap();
    let error = build(&pollux, &gpus(4), 1).expect_err("9 replicas on 8 GPUs");
    assert_eq!((error.faults[0].line, &*error.faults[0].fault.field), (Some(2), "num_replicas"));
    let none = build(&ours("a,0,wlm,async,1,1,1,1\n"), &Cluster::default(), 1);
    assert!(none.expect_err("no nodes").to_string().contains("cluster with nodes"));
}

#[test]
fn kinds_that_no_node_has_are_plenty_and_slots_count() {
    let mut slots = Resources::default();
    slots.named.insert("slots".to_owned(), 6);
    let trace = ours("a,0,wlm,async,1,1,99,99\n");
    let built = build(&trace, &cluster(10, &slots), 1).unwrap();
    let job = &built.workload.jobs[0];
    assert_eq!((job.max, job.worker.named("slots")), (Shape::new(60, 60), 1));
    assert_eq!(built.notes.len(), 3);
    assert!(built.cluster.nodes.iter().all(|(_, node)| node.covers(&job.worker.times(6))));
    let cpus = build(&trace, &cluster(1, &Resources::new(8000, 0, 0)), 1).unwrap();
    assert_eq!(cpus.workload.jobs[0].worker, Resources::new(2000, 8_000_000_000, 0));
    assert_eq!(cpus.workload.jobs[0].max, Shape::new(2, 4));
}

#[test]
fn a_philly_job_lasts_its_duration_at_its_gpus() {
    let header = "timestamp,duration,num_gpus,gpu_time,cluster\n";
    let rows = "2017-10-09 07:01:55,600,8,4800,a\n2017-10-09 07:02:55,60,1,60,a\n";
    let trace = read(&format!("{header}{rows}")).unwrap();
    let mut models = std::collections::BTreeSet::new();
    for seed in 0..30 {
        let built = build(&trace, &gpus(6), seed).unwrap();
        assert_eq!(built, build(&trace, &gpus(6), seed).unwrap());
        for (job, duration) in built.workload.jobs.iter().zip([600.0, 60.0]) {
            let Speed::Theta(speed) = &job.speed else { panic!("{job:?}") };
            let took = job.work / speed.steps_per_s(job.requested.unwrap());
            assert!((took / duration - 1.0).abs() < 1e-9, "{took}");
            assert_eq!(job.min, Shape::new(1, 1));
            models.insert(job.model.clone());
        }
        assert_eq!(built.workload.jobs[0].max, Shape::new(32, 12));
    }
    assert!(models.len() > 4, "models are drawn by the seed: {models:?}");
    let error = build(&trace, &gpus(3), 1).expect_err("8 GPUs of 6");
    assert_eq!((error.faults[0].line, &*error.faults[0].fault.field), (Some(2), "num_gpus"));
}
