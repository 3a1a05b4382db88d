//! How long typical calls take on HDFS and on files: figures, not tests. Run by
//! `cargo bench -p storage`.

#![expect(clippy::unwrap_used, reason = "a figure of a call that failed is none")]

#[path = "../../../tests/harness/hdfs.rs"]
#[expect(unreachable_pub, dead_code, reason = "the file is shared with the end-to-end tests")]
mod hdfs;

use std::io::{self, Read};
use std::time::{Duration, Instant};

use storage::{HdfsSettings, Storage, UploadOptions, open_with};

use crate::hdfs::{Hdfs, HdfsOptions};

const LARGE: u64 = 256 << 20;

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn times(count: usize, mut call: impl FnMut(usize)) -> (Duration, Duration) {
    let mut times: Vec<Duration> = (0..count)
        .map(|number| {
            let start = Instant::now();
            call(number);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    (times[count / 2], times[count - 1])
}

#[expect(clippy::print_stdout, reason = "the figures are its output")]
fn show(what: &str, (median, worst): (Duration, Duration)) {
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    println!("{what:<40} {:>8.1} ms, at worst {:>8.1} ms", ms(median), ms(worst));
}

fn of(storage: &dyn Storage) {
    let small = [7; 4096];
    let per_second = |time: Duration| LARGE as f64 / 1e6 / time.as_secs_f64();
    show("make_dir", times(20, |n| storage.make_dir(&format!("d{n}")).unwrap()));
    show("publish 4 KiB", times(20, |n| storage.publish(&format!("p{n}"), &small).unwrap()));
    show("length", times(50, |_| assert_eq!(storage.length("p0").unwrap(), 4096)));
    show("read 4 KiB", times(50, |_| assert_eq!(storage.read("p0").unwrap().len(), 4096)));
    show("list 40 names", times(20, |_| assert_eq!(storage.list("").unwrap().len(), 40)));
    let mut content = io::repeat(7);
    let upload = times(3, |n| {
        let options = UploadOptions { replication: Some(2), ..UploadOptions::default() };
        let mut source = content.by_ref().take(LARGE);
        storage.upload(&format!("l{n}"), &mut source, options).unwrap();
    });
    show(&format!("upload 256 MiB ({:.0} MB/s)", per_second(upload.0)), upload);
    let sum = times(3, |_| assert_eq!(storage.size_and_crc32("l0").unwrap().bytes, LARGE));
    show(&format!("size_and_crc32 256 MiB ({:.0} MB/s)", per_second(sum.0)), sum);
    show(
        "read_range 64 KiB of it",
        times(20, |n| {
            let from = (n as u64) << 20;
            assert_eq!(storage.read_range("l0", from, 64 << 10).unwrap().len(), 64 << 10);
        }),
    );
    show("remove", times(20, |n| storage.remove(&format!("p{n}")).unwrap()));
}

#[expect(clippy::print_stdout, reason = "the figures are its output")]
fn main() {
    let hdfs = Hdfs::start(&HdfsOptions::default()).expect("HDFS starts");
    let settings = HdfsSettings { conf_dir: Some(hdfs.conf_dir()), ..HdfsSettings::default() };
    let open = || open_with(&hdfs.url("/measure"), &settings).unwrap();
    let storage = open();
    storage.make_dir("").unwrap();
    println!("-- hdfs, one host, 2 replicas");
    of(storage.as_ref());
    show("open, and a first call", times(10, |_| open().sync_dir("").unwrap()));
    println!("-- file");
    let folder = tempfile::tempdir_in(".").unwrap();
    of(&storage::FileStorage::new(folder.path()));
}
