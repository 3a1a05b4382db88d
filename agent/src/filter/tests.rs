//! The filter with the real `nft`, in a network namespace of the test's own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use super::*;

/// A network namespace, gone when dropped, with a program that is `nft` in it.
struct Space {
    name: String,
    dir: tempfile::TempDir,
}

impl Space {
    fn new(name: &str) -> Self {
        let name = format!("optimus-{name}-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Self { name, dir: tempfile::tempdir().unwrap() }
    }

    fn program(&self) -> PathBuf {
        let path = self.dir.path().join("nft");
        let enter = format!("/usr/bin/nsenter --net=/run/netns/{}", self.name);
        fs::write(&path, format!("#!/bin/sh\nexec {enter} /usr/sbin/nft \"$@\"\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn nft(&self, words: &str) -> Output {
        Command::new(self.program()).args(words.split(' ')).output().unwrap()
    }

    fn tables(&self) -> String {
        String::from_utf8(self.nft("list ruleset").stdout).unwrap()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _gone = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

fn rules(port: &str) -> Rules {
    let admitted = Admitted { peers: ["10.0.0.8".parse().unwrap()].into(), uid: 65_534 };
    Rules { ports: [(port.parse().unwrap(), admitted)].into() }
}

#[tokio::test]
async fn the_kernel_has_what_was_wanted_last_and_nothing_of_others_is_touched() {
    if !geteuid().is_root() {
        return;
    }
    let space = Space::new("rules");
    space.nft("add table inet lab");
    let filter = Filter::with("optimus-n1-0".to_owned(), Ok(space.program()));
    filter.settle().await;
    assert_eq!((filter.trouble(), space.tables().contains("optimus")), (None, false));
    assert!(filter.want(rules("10.0.0.7:10001")) && filter.want(rules("10.0.0.7:10002")));
    assert!(!filter.want(rules("10.0.0.7:10002")), "no news");
    filter.settle().await;
    let tables = space.tables();
    assert!(
        tables.contains("10.0.0.8 . 10.0.0.7 . 10002") && !tables.contains("10001"),
        "{tables}"
    );
    // A firewall that is loaded anew.
    space.nft("flush ruleset");
    filter.look().await;
    assert!(space.tables().contains("10.0.0.7 . 10002"));
    space.nft("add table inet lab");
    filter.want(rules("[fd00::7]:10003"));
    filter.settle().await;
    let tables = space.tables();
    assert!(tables.contains("fd00::7 . 10003") && !tables.contains("10002"), "{tables}");
    filter.want(Rules::default());
    filter.settle().await;
    assert_eq!(space.tables().trim(), "table inet lab {\n}");
}

#[tokio::test]
async fn what_keeps_the_filter_away_is_said_until_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("nft");
    let filter = Filter::with("optimus-n1-0".to_owned(), Ok(program.clone()));
    filter.settle().await;
    assert!(filter.trouble().unwrap().contains("cannot run"), "{:?}", filter.trouble());
    fs::write(&program, "#!/bin/sh\necho 'Error: not permitted' >&2\nexit 1\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    filter.want(rules("10.0.0.7:10001"));
    filter.settle().await;
    let trouble = filter.trouble().unwrap();
    assert!(trouble.contains("not permitted") && trouble.contains("CAP_NET_ADMIN"), "{trouble}");
    fs::write(&program, "#!/bin/sh\nexec cat >/dev/null\n").unwrap();
    filter.look().await;
    assert_eq!(filter.trouble(), None, "it is tried again");
}

#[test]
fn a_filter_that_is_off_says_what_that_means() {
    let why = find(false).unwrap_err();
    assert!(why.contains("filter = \"nft\"") && why.contains("server"), "{why}");
    assert!(why.len() < 300, "an alert is short");
}
