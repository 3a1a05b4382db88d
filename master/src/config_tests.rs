use super::*;

fn fields(text: &str) -> Vec<String> {
    let faults = read(text.parse().unwrap()).unwrap_err();
    faults.into_iter().map(|fault| fault.field).collect()
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(read(Table::new()).unwrap(), MasterConfig::default());
}

#[test]
fn what_is_given_is_taken() {
    let text = "cluster = 'lab'\n[rounds]\ninterval = '60s'\n[limits]\nroot_ports = [22000, 23000]";
    let config = read(text.parse().unwrap()).unwrap();
    assert_eq!(config.cluster, "lab");
    assert_eq!(config.rounds.interval.0, 60_000);
    assert_eq!(config.limits.root_ports, (22_000, 23_000));
}

#[test]
fn all_faults_are_listed_at_once() {
    let text = "
        clutser = 'lab'
        listen = 'nowhere'
        state_dir = 7
        [rounds]
        policy = 'horizont'
        interval = '60'
        spacing = 1
        hysteresis_factor = 1000.0
        speed = 3
        [nodes]
        suspect = '0s'
        [cells]
        x = 1
    ";
    let found = fields(text);
    for field in [
        "clutser",
        "listen",
        "state_dir",
        "rounds.policy",
        "rounds.interval",
        "rounds.spacing",
        "rounds.hysteresis_factor",
        "rounds.speed",
        "nodes.suspect",
        "cells",
    ] {
        assert!(found.iter().any(|one| one == field), "{field} missing in {found:?}");
    }
    assert_eq!(found.len(), 10, "{found:?}");
}

#[test]
fn a_fault_says_what_to_write() {
    let faults = read("[rounds]\ninterval = '60'\nfoo = 1".parse().unwrap()).unwrap_err();
    let text = listed(&faults);
    assert!(text.contains("60s"), "{text}");
    assert!(text.contains("\"600s\"") || text.contains("\"10m\""), "{text}");
    assert!(text.contains("rounds.foo: is not a setting; remove it, or use one of"), "{text}");
}

#[test]
fn a_section_given_as_a_value_is_a_fault() {
    assert_eq!(fields("rounds = 7"), ["rounds"]);
    assert_eq!(fields("[cluster]\nname = 'x'").len(), 1);
}

#[test]
fn the_state_folder_depends_on_the_user() {
    let config = MasterConfig::default();
    let root = Environment { root: true, ..Environment::default() };
    assert_eq!(
        root.places(&config).unwrap(),
        Places {
            state_dir: "/var/lib/optimus/master".into(),
            pki_dir: "/var/lib/optimus/pki".into()
        }
    );
    let home = Environment { home: Some("/home/ada".into()), ..Environment::default() };
    assert_eq!(
        home.places(&config).unwrap().state_dir,
        Path::new("/home/ada/.local/state/optimus/master")
    );
    let xdg = Environment { state_home: Some("/state".into()), ..home };
    assert_eq!(xdg.places(&config).unwrap().pki_dir, Path::new("/state/optimus/pki"));
    assert!(Environment::default().places(&config).is_err());
    let given = MasterConfig { state_dir: Some("/srv/o/m".to_owned()), ..config };
    assert_eq!(xdg.places(&given).unwrap().state_dir, Path::new("/srv/o/m"));
}

#[test]
fn names_for_certificates_are_plain() {
    for (user, name) in [("ada", "ada"), ("-x y/..", "xy.."), ("", "local"), ("漢", "local")] {
        let environment = Environment { user: Some(user.to_owned()), ..Environment::default() };
        let operator = environment.operator();
        assert_eq!(operator, name);
        assert!(net::Identity::new(net::Role::Operator, &operator).is_ok(), "{operator:?}");
    }
    assert!(net::Identity::new(net::Role::Agent, &node_name()).is_ok());
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("master.toml");
    let missing = load(Some(&path)).unwrap_err();
    assert!(missing.to_string().contains("master.toml"), "{missing}");
    fs::write(&path, "cluster = ").unwrap();
    assert!(matches!(load(Some(&path)).unwrap_err(), ConfigError::Syntax { .. }));
    fs::write(&path, "foo = 1").unwrap();
    let error = load(Some(&path)).unwrap_err().to_string();
    assert!(error.contains("1 fault(s)") && error.contains("foo"), "{error}");
}
