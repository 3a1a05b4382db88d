use super::*;

#[test]
fn the_defaults_have_no_fault() {
    assert_eq!(MasterConfig::default().faults(), []);
    assert_eq!(AgentConfig::default().faults(), []);
}

#[test]
fn all_faults_come_at_once() {
    let mut master = MasterConfig { listen: "nowhere".to_owned(), ..Default::default() };
    master.nodes.down = DurationMs::seconds(5);
    master.rounds.hysteresis_factor = f64::NAN;
    master.limits.root_ports = (80, 90);
    master.stragglers.ratio = f64::NAN;
    master.kerberos_keytab = Some("optimus.keytab".to_owned());
    assert_eq!(master.faults().len(), 7);
    let agent = AgentConfig {
        task_user: "root".to_owned(),
        task_address: "host".to_owned(),
        name: Some("N 1".to_owned()),
        task_ports: (20_000, 20_099),
        filter: "on".to_owned(),
        capacity: CapacityConfig { cpus: Some(-1.0), ..Default::default() },
        task_user_from: "anyone".to_owned(),
        task_uid_min: 0,
        cgroup_root: Some("/sys/fs/cgroup/../..".to_owned()),
        pids_max: 1,
        ..Default::default()
    };
    assert_eq!(agent.faults().len(), 10);
    let nowhere = AgentConfig { task_address: "0.0.0.0".to_owned(), ..Default::default() };
    assert_eq!(nowhere.faults().len(), 1);
}
