//! Making certificates, and what is said of wrong ones.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use net::pki::{self, Existing, Request};
use net::{Credentials, Identity, PkiError, Role, TlsFiles, certificate_status};

use crate::world::{World, days, now};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn load(files: &TlsFiles, role: Role) -> Result<Credentials, PkiError> {
    Credentials::load(files, role, now())
}

/// The error's words, which must hold all of these.
fn says(result: Result<Credentials, PkiError>, parts: &[&str]) {
    let words = result.unwrap_err().to_string();
    for part in parts {
        assert!(words.contains(part), "{part:?} is not in: {words}");
    }
}

#[test]
fn what_is_issued_is_private_and_reads_back() {
    let world = World::new();
    let pki = world.path().join("out/pki");
    for (role, name) in [(Role::Master, "m1"), (Role::Agent, "gpu-1"), (Role::Operator, "ada")] {
        let request = Request { role, name, addresses: &[], days: 90 };
        let files = world.ca.issue(&request, &pki, Existing::Refuse, now()).unwrap();
        assert_eq!(mode(&files.key), 0o600);
        let credentials = load(&files, role).unwrap();
        assert_eq!(*credentials.identity(), Identity::new(role, name).unwrap());
        let status = certificate_status(&files.certificate).unwrap();
        assert_eq!(status.identity.as_ref(), Some(credentials.identity()));
        assert!((status.days_left(now()) - 90.0).abs() < 0.1, "{status:?}");
        assert!(status.not_before < now(), "back-dated against clocks that differ");
        let again = world.ca.issue(&request, &pki, Existing::Refuse, now());
        assert!(matches!(again, Err(PkiError::Exists { .. })), "{again:?}");
        world.ca.issue(&request, &pki, Existing::Replace, now()).unwrap();
        load(&files, role).unwrap();
    }
    assert_eq!(mode(&pki), 0o700);
    assert_eq!(mode(&world.path().join("ca.key")), 0o600);
    let names: Vec<_> = fs::read_dir(&pki).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 7, "{names:?}");
}

#[test]
fn a_ca_is_never_overwritten_and_an_interrupted_one_is_finished() {
    let world = World::new();
    let (pem, key) = (world.path().join("ca.pem"), world.path().join("ca.key"));
    let before = (fs::read(&pem).unwrap(), fs::read(&key).unwrap());
    let error = pki::init_cluster(world.path(), "test", 10, now()).unwrap_err();
    assert!(matches!(error, PkiError::Exists { .. }), "{error}");
    assert!(error.to_string().contains("lock out every agent"), "{error}");
    assert_eq!(before, (fs::read(&pem).unwrap(), fs::read(&key).unwrap()));

    // Killed between the two files: only the key is there.
    let old = world.issue(Role::Agent, "n1");
    fs::remove_file(&pem).unwrap();
    pki::init_cluster(world.path(), "test", 3650, now()).unwrap();
    assert_eq!(fs::read(&key).unwrap(), before.1);
    load(&old, Role::Agent).unwrap();
}

#[test]
fn dates_are_named_with_the_file() {
    let world = World::new();
    let expired = world.issue_at(Role::Agent, "n1", now() - days(20), 1);
    says(load(&expired, Role::Agent), &["agent-n1.pem", "expired at 20", "UTC", "cert issue"]);
    let later = world.issue_at(Role::Agent, "n2", now() + days(5), 9);
    says(load(&later, Role::Agent), &["agent-n2.pem", "not valid before 20", "clock"]);
    let status = certificate_status(&expired.certificate).unwrap();
    assert!((status.days_left(now()) + 19.0).abs() < 0.1, "{status:?}");
}

#[test]
fn a_certificate_does_not_outlive_its_ca() {
    let folder = tempfile::tempdir().unwrap();
    let ca = pki::init_cluster(folder.path(), "short", 5, now()).unwrap();
    let request = Request { role: Role::Agent, name: "n1", addresses: &[], days: 90 };
    let files = ca.issue(&request, folder.path(), Existing::Refuse, now()).unwrap();
    let status = certificate_status(&files.certificate).unwrap();
    assert!((status.days_left(now()) - 5.0).abs() < 0.1, "{status:?}");
    let late = pki::load_ca(folder.path(), now() + days(6)).unwrap_err();
    assert!(late.to_string().contains("ca.pem expired"), "{late}");
}

#[test]
fn each_wrong_file_is_named() {
    let (world, other) = (World::new(), World::new());
    let agent = world.issue(Role::Agent, "n1");
    says(load(&agent, Role::Operator), &["agent-n1.pem", "is for agent n1", "role operator"]);

    let second = world.issue(Role::Agent, "n2");
    let crossed = TlsFiles { key: second.key.clone(), ..agent.clone() };
    says(load(&crossed, Role::Agent), &["agent-n2.key does not belong", "agent-n1.pem"]);

    let foreign = TlsFiles { ca: other.path().join("ca.pem"), ..agent.clone() };
    says(load(&foreign, Role::Agent), &["agent-n1.pem is not signed by the CA", "ca.pem"]);

    let missing = TlsFiles { certificate: world.path().join("none.pem"), ..agent.clone() };
    says(load(&missing, Role::Agent), &["none.pem", "No such file", "cert issue"]);

    let ca_as_own = TlsFiles {
        certificate: world.path().join("ca.pem"),
        key: world.path().join("ca.key"),
        ..agent.clone()
    };
    says(load(&ca_as_own, Role::Agent), &["ca.pem", "no name optimus://"]);

    let leaf_as_ca = TlsFiles { ca: second.certificate.clone(), ..agent.clone() };
    assert!(load(&leaf_as_ca, Role::Agent).is_err());

    fs::set_permissions(&agent.key, fs::Permissions::from_mode(0o644)).unwrap();
    says(load(&agent, Role::Agent), &["agent-n1.key", "644", "chmod 600"]);
    fs::set_permissions(&agent.key, fs::Permissions::from_mode(0o600)).unwrap();
    load(&agent, Role::Agent).unwrap();

    fs::write(&agent.key, "not a key").unwrap();
    says(load(&agent, Role::Agent), &["agent-n1.key holds no private key"]);
    fs::write(&agent.certificate, "not a certificate").unwrap();
    says(load(&agent, Role::Agent), &["agent-n1.pem holds no certificate"]);
}

#[test]
fn fields_are_checked() {
    let world = World::new();
    let nowhere = ["not a host".to_owned()];
    let address = ["10.0.0.1".to_owned()];
    for (role, name, addresses, days, field) in [
        (Role::Agent, "N1", &[][..], 9, "name"),
        (Role::Agent, "../x", &[][..], 9, "name"),
        (Role::Master, "m1", &nowhere[..], 9, "addresses"),
        (Role::Agent, "n1", &address[..], 9, "addresses"),
        (Role::Agent, "n1", &[][..], 0, "days"),
        (Role::Agent, "n1", &[][..], u32::MAX, "days"),
    ] {
        let request = Request { role, name, addresses, days };
        let error = world.ca.issue(&request, world.path(), Existing::Refuse, now()).unwrap_err();
        assert!(error.to_string().starts_with(field), "{error}");
    }
    let names = ["10.0.0.1".to_owned(), "::1".to_owned(), "m1.rack2".to_owned()];
    let request = Request { role: Role::Master, name: "m1", addresses: &names, days: 9 };
    let files = world.ca.issue(&request, world.path(), Existing::Refuse, now()).unwrap();
    load(&files, Role::Master).unwrap();
    for name in ["", "a\nb", "x".repeat(65).as_str()] {
        let folder = tempfile::tempdir().unwrap();
        let error = pki::init_cluster(folder.path(), name, 9, now()).unwrap_err();
        assert!(error.to_string().starts_with("cluster"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
    }
}

#[test]
fn a_ca_with_another_key_is_noticed() {
    let (world, other) = (World::new(), World::new());
    fs::copy(other.path().join("ca.key"), world.path().join("ca.key")).unwrap();
    let error = pki::load_ca(world.path(), now()).unwrap_err();
    assert!(matches!(error, PkiError::KeyMismatch { .. }), "{error}");
}

#[test]
fn one_machine_is_prepared_once_and_renewed_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("pki");
    let prepare = |at| pki::prepare(&pki, "home", "host-1", "ada", at).unwrap();
    let first = prepare(now());
    let bytes = |files: &TlsFiles| fs::read(&files.certificate).unwrap();
    let before = bytes(&first.agent);
    assert_eq!(prepare(now()), first);
    assert_eq!(bytes(&first.agent), before, "what is there is kept");
    for (files, role) in [
        (&first.master, Role::Master),
        (&first.agent, Role::Agent),
        (&first.operator, Role::Operator),
        (first.admin.as_ref().unwrap(), Role::Admin),
    ] {
        load(files, role).unwrap();
    }
    let later = now() + days(340);
    prepare(later);
    assert_ne!(bytes(&first.agent), before, "25 days before its end it is renewed");
    Credentials::load(&first.agent, Role::Agent, later + days(100)).unwrap();

    // A machine that was given its certificates, but not the CA's key.
    fs::remove_file(pki.join("ca.key")).unwrap();
    prepare(later);
    // One of before there were admins goes on without one.
    fs::remove_file(&first.admin.as_ref().unwrap().certificate).unwrap();
    assert_eq!(prepare(later).admin, None);
    fs::remove_file(&first.operator.certificate).unwrap();
    let error = pki::prepare(&pki, "home", "host-1", "ada", later).unwrap_err();
    assert!(error.to_string().contains("ca.key"), "{error}");
}

#[test]
fn a_client_s_certificates_are_found() {
    let world = World::new();
    let find = |user| pki::find_clients(world.path(), user);
    let none = find(Some("ada")).unwrap_err();
    assert!(none.to_string().contains("cert issue"), "{none}");
    let ada = world.issue(Role::Operator, "ada");
    assert_eq!(find(Some("root")).unwrap(), std::slice::from_ref(&ada), "the only one");
    let bob = world.issue(Role::Operator, "bob");
    assert_eq!(find(Some("bob")).unwrap(), std::slice::from_ref(&bob));
    let several = find(None).unwrap_err().to_string();
    assert!(several.contains("operator-ada, operator-bob"), "{several}");
    // What may do most comes first; what is named for the user before what is not.
    let user = world.issue(Role::User, "bob");
    let admin = world.issue(Role::Admin, "eve");
    assert_eq!(find(Some("bob")).unwrap(), [bob, user.clone()]);
    assert_eq!(find(None).unwrap(), [admin, user], "the only one of each role");
    fs::copy(&ada.certificate, world.path().join("operator.pem")).unwrap();
    assert!(find(Some("bob")).unwrap()[0].certificate.ends_with("operator.pem"));
}

#[test]
fn a_client_s_role_is_what_its_certificate_says() {
    let world = World::new();
    for role in Role::CLIENTS {
        let files = world.issue(role, "ada");
        assert_eq!(Credentials::load_client(&files, now()).unwrap().identity().role, role);
    }
    let agent = world.issue(Role::Agent, "n1");
    let error = Credentials::load_client(&agent, now()).unwrap_err();
    assert!(matches!(error, PkiError::WrongRole { .. }), "{error}");
}
