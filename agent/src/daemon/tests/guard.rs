use std::net::{IpAddr, TcpListener};

use model::nodes::{JobOrders, NodeNotes, NodeOrders};

use super::*;

/// Says its port, and does not end when told to.
const STUBBORN: &str = "trap '' TERM; echo at ${PORT-none}; while :; do sleep 0.1; done";

/// A world at a loopback address of its own, with so many ports.
fn narrow(node: &str, ports: u16) -> World {
    let own = root_host().to_string();
    world_with(node, |settings| {
        settings.task_address.clone_from(&own);
        settings.task_ports = (14_000, 14_000 + ports - 1);
    })
}

fn port(world: &World, task: Task) -> String {
    world.log(task).trim().replace("at ", "")
}

fn held(world: &World) -> Vec<u16> {
    let ports = world.agent.ledger.ports.iter();
    ports.filter(|(_, held)| held.task != Task::SCHEDULER).map(|(at, _)| at.port()).collect()
}

#[tokio::test]
async fn each_task_gets_a_port_and_holds_it_until_it_is_gone() {
    let mut world = narrow("guard-1", 3);
    let first = generation(1, Order::Start, STUBBORN);
    world.desire(vec![first.clone()]);
    for task in [Task::SCHEDULER, Task::server(0), Task::worker(0)] {
        world.until_printed(task, "at ").await;
    }
    let own = [port(&world, Task::server(0)), port(&world, Task::worker(0))];
    assert_eq!(port(&world, Task::SCHEDULER), "none", "it goes by its root port");
    let mut told: Vec<u16> = own.iter().map(|port| port.parse().unwrap()).collect();
    told.sort_unstable();
    assert_eq!(told, held(&world));

    // They are told to end, and do not: another job gets no port of theirs.
    let ends = DesiredGeneration { order: Order::Stop { grace_ms: 3_600_000 }, ..first.clone() };
    let other = DesiredGeneration { job: JobId(2), ..generation(1, Order::Start, STUBBORN) };
    world.desire(vec![ends.clone(), other.clone()]);
    world.until("the other is refused", |world| !world.exits().is_empty()).await;
    let why = world.exits().into_values().next().unwrap().reason;
    assert!(why.contains("every port of task_ports, 14000 to 14002"), "{why}");
    assert_eq!(held(&world), told, "also the one that it had got is free");

    // Nor does a new life of the agent give them away.
    world.restart(|_| {});
    assert_eq!(held(&world), told);
    let now = DesiredGeneration { order: Order::Stop { grace_ms: 0 }, ..first };
    world.desire(vec![now]);
    world.until("the ports are free", |world| held(world).is_empty()).await;
}

#[tokio::test]
async fn a_root_port_of_a_living_generation_is_busy() {
    let mut world = narrow("guard-2", 9);
    let first = generation(1, Order::Start, STUBBORN);
    let mut other = generation(1, Order::Start, STUBBORN);
    other.job = JobId(2);
    other.launch.root_host.clone_from(&first.launch.root_host);
    world.desire(vec![first.clone()]);
    world.until_printed(Task::SCHEDULER, "at").await;
    world.desire(vec![first, other]);
    world.until("the other is refused", |world| !world.exits().is_empty()).await;
    let why = world.exits().into_values().next().unwrap().reason;
    assert!(why.contains("root port 21000 is busy"), "{why}");
}

/// Listens at a port of its own choice, or at the one that it was given.
fn listening(port: &str) -> String {
    format!(
        "test $OPTIMUS_ROLE = server || exec sleep 1000
        exec python3 -c 'import os, socket, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((os.environ[\"DMLC_NODE_HOST\"], int({port})))
s.listen()
print(\"listens\", flush=True)
time.sleep(1000)'"
    )
}

#[tokio::test]
async fn a_server_that_listens_where_nobody_guards_it_is_ended() {
    let mut world = narrow("guard-3", 9);
    world.desire(vec![generation(1, Order::Start, &listening("os.environ[\"PORT\"]"))]);
    world.until_printed(Task::server(0), "listens").await;
    world.agent.look_at_ports(clock::now());
    assert!(world.agent.ledger.generations[&key(1)].stopping.is_none());
    let own: IpAddr = world.settings.task_address.parse().unwrap();
    let lost = generation(2, Order::Start, &listening("0"));
    world.desire(vec![lost]);
    let elsewhere = |world: &mut World| {
        let exits = world.exits();
        exits.get(&(2, Task::server(0))).is_some_and(|exit| exit.reason.contains("was taken by"))
    };
    world.until("it is ended", elsewhere).await;
    assert!(TcpListener::bind((own, 0)).is_ok());
}

#[tokio::test]
async fn peers_are_held_from_the_start_and_only_ever_added() {
    let mut world = narrow("guard-4", 9);
    let wanted = vec![generation(1, Order::Start, STUBBORN)];
    let desire = |world: &mut World, peers: Option<&[&str]>| {
        world.revision += 1;
        let desired = Desired { revision: Revision(world.revision), generations: wanted.clone() };
        let jobs = peers.map(|peers| JobOrders {
            job: JobId(1),
            generation: Generation(1),
            user: "ada".to_owned(),
            peers: peers.iter().map(|peer| peer.parse().unwrap()).collect(),
        });
        let orders = NodeOrders { jobs: jobs.into_iter().collect(), ..NodeOrders::default() };
        world.agent.on(Event::Desired(desired, Extras::default(), orders), clock::now());
    };
    let known = |world: &World| -> BTreeSet<Option<Vec<String>>> {
        let ports = world.agent.ledger.ports.values();
        ports.map(|p| Some(p.peers.as_ref()?.iter().map(IpAddr::to_string).collect())).collect()
    };
    let all =
        |peers: &[&str]| BTreeSet::from([Some(peers.iter().map(|p| (*p).to_owned()).collect())]);
    desire(&mut world, Some(&["10.0.0.1"]));
    assert_eq!((known(&world), world.agent.ledger.ports.len()), (all(&["10.0.0.1"]), 3));
    world.until_running(3).await;
    desire(&mut world, Some(&["10.0.0.2"]));
    assert_eq!(known(&world), all(&["10.0.0.1", "10.0.0.2"]));
    desire(&mut world, None);
    world.restart(|_| {});
    assert_eq!(known(&world), all(&["10.0.0.1", "10.0.0.2"]), "an older master takes none back");
    let notes: NodeNotes = world.agent.node_notes();
    let told = |words: &String| words.contains("filter = \"nft\"");
    assert!(!notes.isolation.filter && notes.isolation.missing.iter().any(told));
    assert!(notes.addresses.iter().all(|address| !address.is_loopback()));
}
