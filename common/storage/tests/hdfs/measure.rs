//! How long typical calls take: figures for the module's page, not a test.
//!
//! `cargo test --release -p storage --test hdfs -- --ignored --nocapture measure`

use std::io::{self, Read};
use std::time::{Duration, Instant};

use storage::{Storage, UploadOptions};

use crate::support::{healthy, storage};

const LARGE: u64 = 256 << 20;

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn median(count: usize, mut call: impl FnMut(usize)) -> Duration {
    let mut times: Vec<Duration> = (0..count)
        .map(|number| {
            let start = Instant::now();
            call(number);
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[count / 2]
}

#[expect(clippy::print_stdout, reason = "the figures are its output")]
fn show(what: &str, time: Duration) {
    println!("{what:<44} {:>8.1} ms", time.as_secs_f64() * 1000.0);
}

fn of(storage: &dyn Storage) {
    let small = [7; 4096];
    let per_second = |time: Duration| LARGE as f64 / 1e6 / time.as_secs_f64();
    show("make_dir", median(20, |n| storage.make_dir(&format!("d{n}")).unwrap()));
    show("publish 4 KiB", median(20, |n| storage.publish(&format!("p{n}"), &small).unwrap()));
    show("length", median(50, |_| assert_eq!(storage.length("p0").unwrap(), 4096)));
    show("read 4 KiB", median(50, |_| assert_eq!(storage.read("p0").unwrap().len(), 4096)));
    show("list 40 names", median(20, |_| assert_eq!(storage.list("").unwrap().len(), 40)));
    let mut content = io::repeat(7);
    let upload = median(3, |n| {
        let options = UploadOptions { replication: Some(2), ..UploadOptions::default() };
        let mut source = content.by_ref().take(LARGE);
        storage.upload(&format!("l{n}"), &mut source, options).unwrap();
    });
    show(&format!("upload 256 MiB ({:.0} MB/s)", per_second(upload)), upload);
    let sum = median(3, |_| assert_eq!(storage.size_and_crc32("l0").unwrap().bytes, LARGE));
    show(&format!("size_and_crc32 256 MiB ({:.0} MB/s)", per_second(sum)), sum);
    show(
        "read_range 64 KiB of it",
        median(20, |n| {
            let from = (n as u64) << 20;
            assert_eq!(storage.read_range("l0", from, 64 << 10).unwrap().len(), 64 << 10);
        }),
    );
    show("remove", median(20, |n| storage.remove(&format!("p{n}")).unwrap()));
}

#[test]
#[ignore = "figures, not a test"]
fn measure() {
    let path = "/measure";
    let hdfs = storage(healthy(), path);
    hdfs.make_dir("").unwrap();
    println!("-- hdfs, one host, 2 replicas");
    of(hdfs.as_ref());
    show(
        "open, and a first call",
        median(10, |_| {
            storage(healthy(), path).sync_dir("").unwrap();
        }),
    );
    println!("-- file");
    let folder = tempfile::tempdir_in(".").unwrap();
    of(&storage::FileStorage::new(folder.path()));
}
