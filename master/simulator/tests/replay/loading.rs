//! What is refused, and how it is told.

use std::fs;
use std::path::Path;

use simulator::replay::{Folders, Profiles, find_profiles, read_rows};
use tempfile::TempDir;

use crate::small::{PLACEMENTS, VALIDATION, measured};

fn load(folder: &Path) -> Result<Profiles, String> {
    Profiles::load(&Folders::of(folder), ["toy"])
}

/// The fault of loading after one file was changed.
fn fault(file: &str, text: &str) -> String {
    let folder = measured();
    let path = folder.path().join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    load(folder.path()).expect_err(text)
}

#[test]
fn measurements_are_found_beside_the_folder_of_a_trace() {
    let folder: TempDir = measured();
    let workloads = folder.path().join("workloads");
    fs::create_dir(&workloads).unwrap();
    let folders = find_profiles(&workloads.join("workload-1.csv")).unwrap();
    assert!(Profiles::load(&folders, ["toy"]).is_ok());
    assert_eq!(folders.names(), ["toy"]);
    let fault = Profiles::load(&folders, ["toy", "resnet"]).unwrap_err();
    assert_eq!(fault, "application \"resnet\" was not measured: there are toy");
    for name in ["../profiles", "", "/"] {
        assert!(Profiles::load(&folders, [name]).is_err(), "{name}");
    }
    assert_eq!(find_profiles(&folder.path().join("profiles/toy/x.csv")), None);
}

#[test]
fn a_fault_names_file_line_and_column() {
    let placements = "profiles/toy/placements.csv";
    let cases = [
        (
            placements,
            "placement,local_bsz,step_time\n1,8,1\n",
            "line 1: there is no column sync_time",
        ),
        (
            placements,
            &format!("{PLACEMENTS}5,8,1,0\n"),
            "placements.csv: line 10, column placement: 5 has",
        ),
        (
            placements,
            &format!("{PLACEMENTS}12,8,nan,0\n"),
            "line 10, column step_time: \"nan\" is not",
        ),
        (
            placements,
            &format!("{PLACEMENTS}12,8,-1,0\n"),
            "line 10, column step_time: \"-1\" is not",
        ),
        (placements, &format!("{PLACEMENTS}12,8,1e999,0\n"), "line 10, column step_time"),
        (
            placements,
            &format!("{PLACEMENTS}12,8.5,1,0\n"),
            "line 10, column local_bsz: 8.5 is not a whole",
        ),
        (
            placements,
            &format!("{PLACEMENTS}12,8,1,2\n"),
            "line 10, column step_time: 1 s is no time",
        ),
        (placements, &format!("{PLACEMENTS}12,8\n"), "line 10, column step_time: \"\" is not"),
        (placements, &format!("{PLACEMENTS}4,8,1,0\n"), "local_bsz 8 twice"),
        (placements, "placement,local_bsz,step_time,sync_time\n", "there are no placements"),
        ("profiles/toy/validation-x.csv", VALIDATION, "validation-x.csv: x is no batch"),
        ("profiles/toy/validation-64.csv", "progress\n", "line 1: there is no column iteration"),
        (
            "profiles/toy/validation-64.csv",
            "progress,iteration,grad_sqr,grad_var\n10,1,1,1\n10,2,1,1\n",
            "line 3, column progress: 10 does not grow from 10",
        ),
        (
            "profiles/toy/validation-64.csv",
            "progress,iteration,grad_sqr,grad_var\n10,1,1,1\n",
            "validation-64.csv: 1 epochs, where the smallest batch has 2",
        ),
        (
            "throughput_nd/toy.csv",
            "num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,5,8,1,0\n",
            "toy.csv: line 2, column num_nodes: 4 is not a whole number from 5 to 16",
        ),
        (
            "throughput_nd/toy.csv",
            "num_nodes,num_replicas,local_bsz,step_time,sync_time\n5,5,8,1,0\n5,5,10,1,0\n",
            "line 3, column local_bsz: 10 does not follow",
        ),
    ];
    for (file, text, wanted) in cases {
        let fault = fault(file, text);
        assert!(fault.contains(wanted), "{fault}, wanted {wanted}");
    }
}

#[test]
fn a_packed_table_that_is_none_is_refused() {
    let fault = fault("throughput_nd/toy.csv.gz", "num_nodes,num_replicas\n");
    assert!(fault.contains("toy.csv.gz"), "{fault}");
}

#[test]
fn a_wrong_row_of_a_workload_is_told_by_line_and_column() {
    let head = "name,time,application,num_replicas,batch_size\n";
    let rows = read_rows(format!("{head}b,5,toy,1,8\na,3,toy,2,16\n").as_bytes()).unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    for (text, wanted) in [
        ("name,time,application,num_replicas\n", "line 1: there is no column batch_size"),
        (&format!("{head}a,-1,toy,1,8\n"), "line 2, column time: \"-1\" is not a time"),
        (&format!("{head}a,NaN,toy,1,8\n"), "line 2, column time"),
        (&format!("{head}a,inf,toy,1,8\n"), "line 2, column time"),
        (&format!("{head}a,1,toy,0,8\n"), "line 2, column num_replicas: \"0\" is not a whole"),
        (&format!("{head}a,1,toy,9223372036854775808,8\n"), "line 2, column num_replicas"),
        (&format!("{head}a,1,toy,1,x\n"), "line 2, column batch_size: \"x\" is not"),
        (&format!("{head}a,1,,1,8\n"), "line 2, column application: \"\" is empty"),
        (&format!("{head}a,1,toy,1,8\na,2,toy,1,8\n"), "line 3, column name: \"a\" is there twice"),
        (&format!("{head}a,1,toy,1\n"), "line: 2"),
    ] {
        let fault = read_rows(text.as_bytes()).unwrap_err();
        assert!(fault.contains(wanted), "{fault}, wanted {wanted}");
    }
    assert_eq!(read_rows(head.as_bytes()), Ok(Vec::new()));
}
