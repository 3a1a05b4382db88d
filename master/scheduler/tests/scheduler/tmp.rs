#[test]
#[ignore]
fn timing() {
    let mut world = crate::scale::large();
    let t = std::time::Instant::now();
    let plan = scheduler::plan(&world, &Default::default(), &mut Default::default());
    println!("plan {:?}", t.elapsed());
    let t = std::time::Instant::now();
    assert!(scheduler::check(&world, &plan).is_empty());
    println!("check {:?}", t.elapsed());
    let tasks: u32 = plan.decisions.iter().filter_map(|d| crate::world::shape_of(&d.verb)).map(|s| s.servers + s.workers).sum();
    println!("tasks {tasks}");
    crate::world::carry_out(&mut world, &plan);
    let t = std::time::Instant::now();
    let plan = scheduler::plan(&world, &Default::default(), &mut Default::default());
    println!("warm {:?} still {}", t.elapsed(), crate::world::is_still(&plan));
}
