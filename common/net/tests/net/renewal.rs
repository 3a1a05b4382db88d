//! Renewing a certificate for a key that stays where it was made, and taking one back.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use net::pki::{self, Existing, Request, Signed};
use net::{Credentials, Identity, PkiError, Revocations, Role, TlsFiles, Wallet};

use crate::world::{World, days, now};

const LASTS: Duration = Duration::from_secs(86_400 * 90);

fn identity() -> Identity {
    Identity::new(Role::Agent, "n1").unwrap()
}

fn wanted(role: Role, name: &str) -> Request<'_> {
    Request { role, name, addresses: &[], days: 1 }
}

fn wallet(world: &World) -> Wallet {
    Wallet::new(world.path().join("state/pki"), Role::Agent)
}

fn signed(world: &World, request: &str) -> Signed {
    world.ca.sign(request, &wanted(Role::Agent, "n1"), LASTS, now()).unwrap()
}

fn serial(wallet: &Wallet, files: Option<&TlsFiles>) -> String {
    wallet.choose(files, now()).unwrap().credentials.serial().to_owned()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_request_is_signed_kept_private_and_used() {
    let world = World::new();
    let (files, wallet) = (world.issue(Role::Agent, "n1"), wallet(&world));
    let first = serial(&wallet, Some(&files));
    let request = wallet.request(&identity()).unwrap();
    assert!(!request.contains("PRIVATE KEY"));
    let signed = signed(&world, &request);
    let installed = wallet.install(&signed.pem, &files.ca, &identity(), now()).unwrap();
    assert_eq!(installed.serial(), signed.serial);
    assert_ne!(signed.serial, first);
    assert_eq!(serial(&wallet, Some(&files)), signed.serial, "the newer of two is used");
    assert_eq!(mode(&wallet.current()), 0o600);
    assert_eq!(mode(wallet.current().parent().unwrap()), 0o700);
    // An answer that was lost is asked for again, and a second request begins from nothing.
    wallet.install(&signed.pem, &files.ca, &identity(), now()).unwrap();
    let left = fs::read_dir(wallet.current().parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "the key of the request is in use and nowhere else");

    // A file that is put in place by hand later counts more.
    let later = now() + Duration::from_secs(5);
    let by_hand = world.issue_at(Role::Agent, "n1", later, 30);
    let chosen = wallet.choose(Some(&by_hand), later).unwrap();
    assert_ne!(chosen.credentials.serial(), signed.serial);
    assert!(chosen.faults.is_empty());
}

#[test]
fn a_restart_between_request_and_certificate_loses_nothing() {
    let world = World::new();
    let files = world.issue(Role::Agent, "n1");
    let request = wallet(&world).request(&identity()).unwrap();
    let signed = signed(&world, &request);
    // Another process: the key of the request is on the disk.
    let after = wallet(&world);
    after.install(&signed.pem, &files.ca, &identity(), now()).unwrap();
    assert_eq!(serial(&after, Some(&files)), signed.serial);
}

#[test]
fn two_renewals_at_once_are_told_apart() {
    let world = World::new();
    let (files, wallet) = (world.issue(Role::Agent, "n1"), wallet(&world));
    let none = wallet.install("x", &files.ca, &identity(), now()).unwrap_err();
    assert!(none.to_string().contains("not PEM"), "{none}");
    let first = wallet.request(&identity()).unwrap();
    let second = wallet.request(&identity()).unwrap();
    let (first, second) = (signed(&world, &first), signed(&world, &second));
    let error = wallet.install(&first.pem, &files.ca, &identity(), now()).unwrap_err();
    assert!(error.to_string().contains("newest request"), "{error}");
    wallet.install(&second.pem, &files.ca, &identity(), now()).unwrap();
    let error = wallet.install(&first.pem, &files.ca, &identity(), now()).unwrap_err();
    assert!(error.to_string().contains("no request is open"), "{error}");
    assert_eq!(serial(&wallet, Some(&files)), second.serial);
}

#[test]
fn a_certificate_that_is_not_for_the_holder_is_not_installed() {
    let (world, other) = (World::new(), World::new());
    let (files, wallet) = (world.issue(Role::Agent, "n1"), wallet(&world));
    let before = serial(&wallet, Some(&files));
    let request = wallet.request(&identity()).unwrap();
    let ca = &files.ca;
    let foreign = other.ca.sign(&request, &wanted(Role::Agent, "n1"), LASTS, now()).unwrap();
    let expired =
        world.ca.sign(&request, &wanted(Role::Agent, "n1"), LASTS, now() - days(200)).unwrap();
    for (pem, said) in [(foreign.pem, "not signed by the CA"), (expired.pem, "expired at")] {
        let error = wallet.install(&pem, ca, &identity(), now()).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
    let good = signed(&world, &request);
    let n2 = Identity::new(Role::Agent, "n2").unwrap();
    let error = wallet.install(&good.pem, ca, &n2, now()).unwrap_err();
    assert!(error.to_string().contains("for agent n1, not for agent n2"), "{error}");
    assert_eq!(serial(&wallet, Some(&files)), before, "what was in use stays");
    wallet.install(&good.pem, ca, &identity(), now()).unwrap();
}

#[test]
fn a_request_for_another_is_not_signed() {
    let world = World::new();
    let request = wallet(&world).request(&identity()).unwrap();
    for (role, name) in [(Role::Agent, "n2"), (Role::Operator, "n1"), (Role::Master, "n1")] {
        let error = world.ca.sign(&request, &wanted(role, name), LASTS, now()).unwrap_err();
        assert!(error.to_string().contains("it is for agent n1"), "{error}");
    }
    for wrong in ["", "nonsense", &request.replace('A', "B")] {
        assert!(world.ca.sign(wrong, &wanted(Role::Agent, "n1"), LASTS, now()).is_err());
    }
}

#[test]
fn a_crash_between_the_files_of_a_renewal_leaves_a_pair() {
    let world = World::new();
    let files = world.issue(Role::Agent, "n1");
    let (old, key) = (fs::read(&files.certificate).unwrap(), fs::read(&files.key).unwrap());
    world.issue(Role::Agent, "n1");
    let (new, new_key) = (fs::read(&files.certificate).unwrap(), fs::read(&files.key).unwrap());
    let aside = files.key.with_file_name("agent-n1.key.new");
    // The new key is written aside first, then the certificate, then the key is renamed.
    for (certificate, kept) in [(&old, &key), (&new, &key), (&new, &new_key)] {
        fs::write(&files.certificate, certificate).unwrap();
        fs::write(&files.key, kept).unwrap();
        fs::write(&aside, &new_key).unwrap();
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o600)).unwrap();
        Credentials::load(&files, Role::Agent, now()).unwrap();
    }
}

#[test]
fn a_bundle_enrols_once() {
    let world = World::new();
    let wallet = wallet(&world);
    let bundle = world.path().join("bundle.pem");
    let request = wanted(Role::Agent, "n1");
    world.ca.issue_bundle(&request, LASTS, &bundle, now()).unwrap();
    assert_eq!(mode(&bundle), 0o600);
    let again = world.ca.issue_bundle(&request, LASTS, &bundle, now());
    assert!(matches!(again, Err(PkiError::Exists { .. })), "{again:?}");
    assert_eq!(wallet.enrol(&bundle, None, now()).unwrap(), Some(identity()));
    assert_eq!(wallet.enrol(&bundle, None, now()).unwrap(), None, "what is here serves");
    assert_eq!(mode(&wallet.current()), 0o600);
    let enrolled = serial(&wallet, None);

    // Renewed, then started again with the same bundle: the renewed one stays.
    let request = wallet.request(&identity()).unwrap();
    let signed = signed(&world, &request);
    wallet.install(&signed.pem, &wallet.ca(None), &identity(), now()).unwrap();
    wallet.enrol(&bundle, None, now()).unwrap();
    assert_eq!(serial(&wallet, None), signed.serial);
    assert_ne!(signed.serial, enrolled);

    // Places that are configured and stay empty are no fault.
    let empty = TlsFiles::in_folder(&world.path().join("nothing"), Role::Agent, "n1");
    let fresh = Wallet::new(world.path().join("fresh"), Role::Agent);
    assert_eq!(fresh.enrol(&bundle, Some(&empty), now()).unwrap(), Some(identity()));
    let chosen = fresh.choose(Some(&empty), now()).unwrap();
    assert!(chosen.faults.is_empty(), "{:?}", chosen.faults);

    // Of another role, or too late: named with the file.
    let fresh = Wallet::new(world.path().join("other"), Role::Master);
    let error = fresh.enrol(&bundle, None, now()).unwrap_err().to_string();
    assert!(error.contains("bundle.pem is for agent n1"), "{error}");
    let fresh = Wallet::new(world.path().join("late"), Role::Agent);
    let error = fresh.enrol(&bundle, None, now() + days(200)).unwrap_err().to_string();
    assert!(error.contains("bundle.pem expired at 20"), "{error}");
}

#[test]
fn bad_files_are_named_and_the_other_pair_serves() {
    let world = World::new();
    let (files, wallet) = (world.issue(Role::Agent, "n1"), wallet(&world));
    let request = wallet.request(&identity()).unwrap();
    let signed = signed(&world, &request);
    wallet.install(&signed.pem, &files.ca, &identity(), now()).unwrap();
    // Renewed, and the former one has ended where it lies: no fault.
    world.issue_at(Role::Agent, "n1", now() - days(9), 1);
    assert!(wallet.choose(Some(&files), now()).unwrap().faults.is_empty());
    fs::write(&files.certificate, "damaged").unwrap();
    let chosen = wallet.choose(Some(&files), now()).unwrap();
    assert_eq!(chosen.credentials.serial(), signed.serial);
    assert!(chosen.faults[0].to_string().contains("agent-n1.pem"), "{:?}", chosen.faults);
    fs::write(wallet.current(), "damaged").unwrap();
    let error = wallet.choose(Some(&files), now()).unwrap_err();
    assert!(error.to_string().contains("agent-n1.pem"), "{error}");
}

#[test]
fn a_change_of_the_ca_needs_no_break() {
    let (old, new) = (World::new(), World::new());
    let both = old.path().join("both.pem");
    let read = |world: &World| fs::read_to_string(world.path().join("ca.pem")).unwrap();
    fs::write(&both, read(&new) + &read(&old)).unwrap();
    for world in [&old, &new] {
        let files = TlsFiles { ca: both.clone(), ..world.issue(Role::Agent, "n1") };
        Credentials::load(&files, Role::Agent, now()).unwrap();
    }
    // One of the two has ended: the other goes on, and what the first signed does not.
    let short = tempfile::tempdir().unwrap();
    let ended = pki::init_cluster(short.path(), "test", 1, now() - days(9)).unwrap();
    let pem = fs::read_to_string(ended.folder().join("ca.pem")).unwrap();
    fs::write(&both, pem + &read(&new)).unwrap();
    let files = TlsFiles { ca: both, ..new.issue(Role::Agent, "n1") };
    Credentials::load(&files, Role::Agent, now()).unwrap();
}

#[test]
fn lists_are_numbered_signed_and_kept() {
    let (world, other) = (World::new(), World::new());
    let ca = world.path().join("ca.pem");
    let serial_of = |files: &TlsFiles| net::certificate_status(&files.certificate).unwrap().serial;
    let (one, two) = (world.issue(Role::Agent, "n1"), world.issue(Role::Operator, "ada"));
    let issued = pki::issued_to(world.path(), Role::Agent, "n1").unwrap();
    assert_eq!(issued.len(), 1);
    assert_eq!(issued[0].serial, serial_of(&one), "what is issued is noted");
    let first = world.ca.revoke(&[serial_of(&one)], now()).unwrap();
    let second = world.ca.revoke(&[serial_of(&two), serial_of(&one)], now()).unwrap();
    assert_eq!((first.number(), second.number()), (1, 2));
    assert!(first.since(&serial_of(&one)).is_some() && first.since(&serial_of(&two)).is_none());
    assert_eq!(second.iter().count(), 2);
    assert_eq!(second.since(&serial_of(&one)), first.since(&serial_of(&one)), "the first date");

    assert_eq!(world.ca.revoke(&[serial_of(&one)], now()).unwrap(), second, "nothing is new");

    assert_eq!(first.updated(&second).unwrap(), second);
    let older = second.updated(&first).unwrap_err();
    assert!(older.contains("number 1") && older.contains("number 2"), "{older}");
    let path = world.path().join("state/revocations.pem");
    second.store(&path).unwrap();
    assert_eq!(Revocations::kept(&path, &ca).unwrap(), second);
    let foreign = other.ca.revoke(&[serial_of(&one)], now()).unwrap();
    let read = Revocations::read(foreign.pem().as_bytes(), Path::new("list"), &ca);
    let error = read.unwrap_err().to_string();
    assert!(error.contains("CA has not signed it"), "{error}");
    // A kept list of a CA that is gone is left out; a damaged one is not passed over.
    foreign.store(&path).unwrap();
    assert_eq!(Revocations::kept(&path, &ca).unwrap(), Revocations::default());
    for damaged in ["", "nonsense", &second.pem().replace('M', "N"), &second.pem()[..200]] {
        fs::write(&path, damaged).unwrap();
        assert!(Revocations::kept(&path, &ca).is_err(), "{damaged}");
    }
    for wrong in ["", "xyz", &"a".repeat(41), "0x12"] {
        assert!(world.ca.revoke(&[wrong.to_owned()], now()).is_err(), "{wrong}");
    }
    assert_eq!(net::parse_serial("0A:0b:FF").unwrap(), "a0bff");
}

#[test]
fn times_shorter_than_a_day_can_be_asked_for() {
    let world = World::new();
    let request = wanted(Role::Agent, "n1");
    let lasts = Duration::from_secs(180);
    let path = world.path();
    let files = world.ca.issue_lasting(&request, lasts, path, Existing::Replace, now()).unwrap();
    let until = net::certificate_status(&files.certificate).unwrap().not_after;
    assert!(until <= now() + lasts && now() + lasts / 2 < until);
    Credentials::load(&files, Role::Agent, now() + lasts / 2).unwrap();
    let late = Credentials::load(&files, Role::Agent, now() + 2 * lasts).unwrap_err();
    assert!(late.to_string().contains("agent-n1.pem expired at"), "{late}");
    let none = world.ca.issue_lasting(&request, Duration::ZERO, path, Existing::Replace, now());
    assert!(none.is_err());
}
