use std::sync::mpsc::{Receiver, sync_channel};

use model::nodes::GpuNote;

use super::*;
use crate::config::Override;

fn look(uuid: &str, memory_bytes_used: u64) -> Look {
    Look {
        report: GpuReport {
            uuid: uuid.to_owned(),
            name: "H".to_owned(),
            memory_bytes_total: 80,
            memory_bytes_used,
            utilisation: Some(0.5),
            fault: None,
        },
        ecc_uncorrected: Some(0),
        pids: Vec::new(),
    }
}

fn gpus() -> (Gpus, Receiver<()>) {
    let (ask, asked) = sync_channel(1);
    (Gpus::asking(ask), asked)
}

type Looks = Vec<Result<Vec<Look>, Failure>>;

fn lost() -> Failure {
    Failure { lost: true, words: "device fell off the bus".to_owned() }
}

fn four() -> Looks {
    (0..4).map(|n| Ok(vec![look(&format!("GPU-{n}"), 10 - n)])).collect()
}

fn tell(gpus: &mut Gpus, looks: Looks, at: u64) {
    gpus.take(Reading::Listed(looks.len()), Millis(at), UnixMs(at));
    for (index, look) in looks.into_iter().enumerate() {
        gpus.take(Reading::Device(index, look), Millis(at), UnixMs(at));
    }
}

fn usable(gpus: &Gpus, at: u64) -> Vec<String> {
    gpus.usable(&Override::default(), Millis(at))
}

fn note(gpus: &Gpus, uuid: &str, at: u64) -> GpuNote {
    let notes = gpus.notes(&[], &[], Millis(at));
    notes.into_iter().find(|note| note.uuid == uuid).unwrap()
}

#[test]
fn this_machine_answers_with_or_without_a_library() {
    let (tx, rx) = std::sync::mpsc::channel();
    let answer = move |reading| {
        let _ = tx.send(reading);
    };
    let mut gpus = Gpus::start(Sources { tries: false, ..Sources::default() }, answer).unwrap();
    gpus.poll(Millis(0));
    let limit = std::time::Duration::from_secs(30);
    while !gpus.is_settled(Millis(1)) {
        gpus.take(rx.recv_timeout(limit).unwrap(), Millis(1), UnixMs(1));
    }
    let reports = gpus.reports(Millis(1));
    println!("{reports:?}");
    assert!(gpus.present || reports.is_empty());
    let good = reports.iter().filter(|gpu| gpu.fault.is_none()).count();
    assert_eq!(usable(&gpus, 1).len(), good);
}

#[test]
fn absence_is_normal_and_looked_at_again_later() {
    let (mut gpus, asked) = gpus();
    gpus.poll(Millis(0));
    asked.try_recv().unwrap();
    gpus.take(Reading::Absent { pci: Vec::new() }, Millis(1), UnixMs(1));
    assert_eq!(gpus.trouble(Millis(1)), None, "a CPU node is normal");
    gpus.poll(Millis(59_000));
    assert!(asked.try_recv().is_err(), "not before its time");
    gpus.poll(Millis(60_001));
    asked.try_recv().unwrap();
    tell(&mut gpus, four(), 60_002);
    assert_eq!(gpus.reports(Millis(60_002)).len(), 4, "a first failure does not stick");
    let told = Override { gpus: Some(2), ..Override::default() };
    assert_eq!(gpus.usable(&told, Millis(60_002)), ["GPU-3", "GPU-2"], "least used first");
}

#[test]
fn a_device_on_the_bus_without_nvml_is_told() {
    let (mut gpus, _asked) = gpus();
    let pci = vec!["0000:01:00.0".to_owned()];
    gpus.take(Reading::Absent { pci }, Millis(1), UnixMs(1));
    let Some(GpuTrouble::Unseen(words)) = gpus.trouble(Millis(1)) else { panic!() };
    assert!(words.contains("0000:01:00.0") && words.contains("libnvidia-ml"), "{words}");
    tell(&mut gpus, four(), 2);
    assert_eq!(gpus.trouble(Millis(2)), None);
}

#[test]
fn a_lost_gpu_keeps_its_name_and_the_others_their_place() {
    let (mut gpus, _asked) = gpus();
    tell(&mut gpus, four(), 0);
    let mut looks = four();
    looks[2] = Err(lost());
    tell(&mut gpus, looks, 1);
    let reports = gpus.reports(Millis(1));
    let faults: Vec<_> = reports.iter().map(|gpu| gpu.fault.as_deref()).collect();
    assert_eq!(faults, [None, None, Some("device fell off the bus"), None]);
    assert_eq!(usable(&gpus, 1), ["GPU-3", "GPU-1", "GPU-0"]);
    let note = note(&gpus, "GPU-2", 1);
    assert!(note.lost && !note.answers);
    tell(&mut gpus, vec![Ok(vec![look("GPU-0", 0)])], 2);
    assert_eq!(usable(&gpus, 2), ["GPU-0"]);
    assert_eq!(gpus.reports(Millis(2)).len(), 4, "what was there stays listed");
    tell(&mut gpus, four(), 3);
    assert_eq!(usable(&gpus, 3).len(), 4, "and may come back");
    assert!(gpus.notes(&[], &[], Millis(3)).iter().all(|note| note.answers && !note.lost));
}

#[test]
fn one_that_is_lost_at_the_start_has_no_name_yet_and_takes_no_other_with_it() {
    let (mut gpus, _asked) = gpus();
    let mut looks = four();
    looks[2] = Err(lost());
    tell(&mut gpus, looks, 0);
    assert_eq!(usable(&gpus, 0).len(), 3);
    let held = ["GPU-2".to_owned(), "GPU-3".to_owned()];
    let notes = gpus.notes(&held, &[], Millis(0));
    let gone: Vec<_> = notes.iter().filter(|note| note.lost).map(|note| &note.uuid).collect();
    assert_eq!(gone, ["GPU-2"], "a task of the agent's last life had it");
    tell(&mut gpus, four(), 1);
    assert_eq!(gpus.reports(Millis(1)).len(), 4, "the one without a name is forgotten");
}

#[test]
fn a_call_that_never_returns_is_a_fault_of_all_and_stops_nothing() {
    let (mut gpus, _asked) = gpus();
    tell(&mut gpus, four(), 0);
    gpus.poll(Millis(1000));
    assert!(gpus.reports(Millis(5999)).iter().all(|gpu| gpu.fault.is_none()));
    let late = gpus.reports(Millis(8000));
    assert!(late.iter().all(|gpu| gpu.fault.as_deref() == Some("no answer from NVML for 7 s")));
    assert!(late.iter().all(|gpu| gpu.utilisation.is_none() && gpu.memory_bytes_used == 0));
    assert!(matches!(gpus.trouble(Millis(8000)), Some(GpuTrouble::Hangs(_))));
    assert!(gpus.notes(&[], &[], Millis(8000)).iter().all(|note| !note.answers && !note.lost));
    assert!(usable(&gpus, 8000).is_empty());
    tell(&mut gpus, four(), 9000);
    assert_eq!(usable(&gpus, 9000).len(), 4);
    assert_eq!(gpus.trouble(Millis(9000)), None);
}

#[test]
fn a_hang_of_one_gpu_is_that_one_alone() {
    let (mut gpus, _asked) = gpus();
    tell(&mut gpus, four(), 0);
    for at in [1000, 2000, 7000] {
        gpus.take(Reading::Listed(4), Millis(at), UnixMs(at));
        for index in [0, 1, 3] {
            let looks = Ok(vec![look(&format!("GPU-{index}"), 0)]);
            gpus.take(Reading::Device(index, looks), Millis(at), UnixMs(at));
        }
    }
    assert_eq!(usable(&gpus, 7000), ["GPU-0", "GPU-1", "GPU-3"]);
    assert_eq!(gpus.trouble(Millis(7000)), None);
    assert!(!note(&gpus, "GPU-2", 7000).answers);
}

#[test]
fn a_driver_that_goes_away_faults_what_was_there() {
    let (mut gpus, _asked) = gpus();
    tell(&mut gpus, four(), 0);
    gpus.take(Reading::Broken("odd".to_owned()), Millis(1), UnixMs(1));
    let words = gpus.reports(Millis(1))[0].fault.clone().unwrap();
    assert!(words.contains("odd") && words.contains("reboot"), "{words}");
    assert!(matches!(gpus.trouble(Millis(1)), Some(GpuTrouble::Other(_))));
}

#[test]
fn a_library_that_does_not_fit_loses_no_gpu_but_takes_no_new_task() {
    let (mut gpus, _asked) = gpus();
    tell(&mut gpus, four(), 0);
    assert!(gpus.take(Reading::Anew { mismatch: true }, Millis(1), UnixMs(1)));
    assert!(usable(&gpus, 1).is_empty());
    let Some(GpuTrouble::Mismatch(words)) = gpus.trouble(Millis(1)) else { panic!() };
    assert!(words.contains("reboot") && words.contains("reload"), "{words}");
    assert!(gpus.notes(&[], &[], Millis(1)).iter().all(|note| note.answers && !note.lost));
    gpus.take(Reading::Anew { mismatch: false }, Millis(2), UnixMs(2));
    assert_eq!(usable(&gpus, 2).len(), 4);
    gpus.take(Reading::Mismatch, Millis(3), UnixMs(3));
    assert!(matches!(gpus.trouble(Millis(3)), Some(GpuTrouble::Mismatch(_))));
    assert!(gpus.notes(&[], &[], Millis(3)).iter().all(|note| !note.lost));
}

#[test]
fn instances_come_and_go_as_an_operator_splits_gpus() {
    let (mut gpus, _asked) = gpus();
    let split = |count: u64| -> Looks {
        let slices = (0..count).map(|n| look(&format!("MIG-{n}"), 0)).collect();
        vec![Ok(slices), Ok(vec![look("GPU-1", 0)])]
    };
    for count in [7, 3, 5] {
        tell(&mut gpus, split(count), count);
        let expected = usize::try_from(count).unwrap() + 1;
        assert_eq!(usable(&gpus, count).len(), expected);
        assert_eq!(gpus.reports(Millis(count)).len(), expected, "nothing is left of the others");
    }
    let held = ["MIG-6".to_owned()];
    let notes = gpus.notes(&held, &[], Millis(9));
    assert!(notes.iter().any(|note| note.uuid == "MIG-6" && note.lost), "a task had it");
}

#[test]
fn memory_errors_take_a_gpu_out_until_a_master_judges() {
    let (mut gpus, _asked) = gpus();
    let mut looks = four();
    looks[1].as_mut().unwrap()[0].ecc_uncorrected = Some(3);
    tell(&mut gpus, looks, 0);
    assert_eq!(usable(&gpus, 0), ["GPU-3", "GPU-2", "GPU-0"]);
    gpus.leave_judgement(true);
    assert_eq!(usable(&gpus, 0).len(), 4, "the master's orders say which are out");
    let told = Override::default();
    let out = ["GPU-1".to_owned()];
    assert_eq!(gpus.free(&told, &[], &out, Millis(0)), ["GPU-3", "GPU-2", "GPU-0"]);
    assert_eq!(note(&gpus, "GPU-1", 0).ecc_uncorrected, Some(3));
}

#[test]
fn a_gpu_with_a_strangers_memory_waits_for_it() {
    let (mut gpus, _asked) = gpus();
    tell(&mut gpus, four(), 0);
    assert!(gpus.set_strangers("GPU-2", vec![4711], false));
    assert_eq!(usable(&gpus, 0), ["GPU-3", "GPU-1", "GPU-0"]);
    let fault = gpus.reports(Millis(0))[2].fault.clone().unwrap();
    assert!(fault.contains("4711"), "{fault}");
    let note = note(&gpus, "GPU-2", 0);
    assert!(note.answers && note.fault.is_none() && note.strangers == [4711]);
    gpus.set_strangers("GPU-2", Vec::new(), false);
    assert_eq!(usable(&gpus, 0).len(), 4);
}

#[test]
fn what_tasks_have_counts_towards_the_operators_number() {
    let (mut gpus, _asked) = gpus();
    tell(&mut gpus, four(), 0);
    let told = Override { gpus: Some(3), ..Override::default() };
    let taken = ["GPU-3".to_owned()];
    assert_eq!(gpus.free(&told, &taken, &[], Millis(0)), ["GPU-2", "GPU-1"]);
    assert_eq!(gpus.alert(&told, Millis(0)), None);
    let told = Override { gpus: Some(8), ..Override::default() };
    let words = gpus.alert(&told, Millis(0)).unwrap();
    assert!(words.contains('8') && words.contains('4'), "{words}");
}

#[test]
fn events_are_numbered_and_few() {
    let (mut gpus, _asked) = gpus();
    tell(&mut gpus, four(), 0);
    for n in 0..20 {
        let uuid = Some("GPU-1".to_owned());
        assert!(gpus.take(Reading::Xid { uuid, xid: 31 }, Millis(n), UnixMs(n)));
    }
    let xids = note(&gpus, "GPU-1", 0).xids;
    assert_eq!((xids.len(), xids[0].number, xids[15].number), (16, 5, 20));
    assert!(note(&gpus, "GPU-0", 0).xids.is_empty());
}

#[test]
fn a_probe_is_done_on_idle_gpus_only() {
    let (mut gpus, _asked) = gpus();
    tell(&mut gpus, four(), 0);
    let ask: Vec<String> = ["GPU-0", "GPU-1"].map(str::to_owned).to_vec();
    let notes = gpus.notes(&ask[..1], &ask, Millis(0));
    let probed: Vec<_> = notes.iter().filter(|n| n.probed).map(|n| n.uuid.as_str()).collect();
    assert_eq!(probed, ["GPU-1"]);
}

#[test]
fn an_operators_number_is_believed_where_nvml_says_nothing() {
    let (mut gpus, _asked) = gpus();
    gpus.take(Reading::Absent { pci: Vec::new() }, Millis(0), UnixMs(0));
    let told = Override { gpus: Some(2), ..Override::default() };
    assert_eq!(gpus.usable(&told, Millis(0)), ["0", "1"]);
    assert_eq!(gpus.free(&told, &["0".to_owned()], &[], Millis(0)), ["1"]);
    gpus.take(Reading::Mismatch, Millis(1), UnixMs(1));
    assert!(gpus.usable(&told, Millis(1)).is_empty(), "but not where it says that none works");
}
