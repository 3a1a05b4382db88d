//! Logs of many lives, and disks that are full: a small one of each test's own, which needs root.

use std::path::Path;
use std::process::Command;

use super::*;

#[tokio::test]
async fn fifty_short_lives_leave_the_logs_of_a_few() {
    let mut world = world("outputs-1");
    for number in 1..=50 {
        world.desire(vec![generation(number, Order::Start, "echo here; exit 1")]);
        world
            .until("it has ended", |world| {
                let exits = world.exits();
                exits.len() == 3 && exits.keys().all(|(of, _)| *of == number)
            })
            .await;
    }
    let logs = world.state_dir().join("logs");
    // The one that is held, and five of before.
    let kept = || fs::read_dir(&logs).unwrap().count();
    world.until("the logs of old lives are gone", |_| kept() <= 6).await;
    assert_eq!(world.log(Task::worker(0)), "here\n");
    // Of a fork server of an earlier life.
    world.restart(|_| fs::write(logs.join("fork-j1-2.log"), "words").unwrap());
    world.until("a start leaves the newest five", |_| kept() == 5).await;
}

/// Mounted for as long as it lives.
struct Disk(PathBuf);

impl Disk {
    fn mount(folder: &Path, size: &str) -> Option<Self> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("size={size},mode=0711"), "optimus-test"]);
        let done = geteuid().is_root() && command.arg(folder).status().ok()?.success();
        done.then(|| Self(folder.to_owned()))
    }

    fn fill(&self) {
        use std::io::Write;
        let mut file = fs::File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _done = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test]
async fn on_a_full_disk_starts_are_refused_with_the_errno_and_what_runs_goes_on() {
    let mounted = std::cell::RefCell::new(None);
    let mut world = world_with("outputs-2", |settings| {
        settings.log_bytes_max = 64 << 10;
        settings.state_dir = settings.state_dir.join("small");
        fs::create_dir(&settings.state_dir).unwrap();
        *mounted.borrow_mut() = Disk::mount(&settings.state_dir, "4m");
        for folder in ["tasks", "logs"] {
            fs::create_dir(settings.state_dir.join(folder)).unwrap();
        }
    });
    let Some(disk) = mounted.take() else { return };
    let talks = "i=0; while :; do i=$((i+1)); echo \"line $i of those that are printed\"; \
                 sleep 0.02; done";
    world.desire(vec![generation(1, Order::Start, talks)]);
    let pids = world.until_running(3).await;
    world.until_printed(Task::worker(0), "line 5 ").await;
    disk.fill();
    let mut other = generation(2, Order::Start, "exec sleep 1000");
    other.job = JobId(2);
    let mut first = generation(1, Order::Start, talks);
    first.order = Order::Keep;
    world.desire(vec![first.clone(), other]);
    world.until("it is refused", |world| !world.notes().rejects.is_empty()).await;
    let rejects = world.notes().rejects;
    assert_eq!((rejects[0].errno, rejects[0].server), (Some(28), true), "{rejects:?}");
    assert!(rejects[0].words.contains("No space left on device"), "{rejects:?}");
    world.until("it is told", |w| w.notes().alerts.iter().any(|a| a.contains("full"))).await;
    assert_eq!(world.pids(), pids);
    // The agent itself comes back on it, with its tasks.
    world.restart(|_| {});
    assert_eq!(world.pids(), pids);
    world.until_printed(Task::worker(0), "line 200 ").await;
    disk.free();
    world
        .until("it is not told any more", |world| {
            !world.notes().alerts.iter().any(|alert| alert.contains("full"))
        })
        .await;
    let mut again = generation(3, Order::Start, "exec sleep 1000");
    again.job = JobId(2);
    world.desire(vec![first, again]);
    world
        .until("it runs", |world| {
            let of = world.reports().into_iter().filter(|((number, _), _)| *number == 3);
            let live = |state: &TaskState| matches!(state, TaskState::Running { pid: 1.., .. });
            of.filter(|(_, state)| live(state)).count() == 3
        })
        .await;
    world.desire(Vec::new());
    world.until("all is gone", |world| world.reports().is_empty()).await;
}
