//! Traces are read by their header, and what is wrong is told by line and column.

use simulator::trace::{FAULTS_MAX, Trace, TraceError, read};

const OURS: &str = "id,arrival_s,model,mode,work_steps,min_workers,max_workers,max_servers";
const POLLUX: &str = "name,time,application,num_replicas,batch_size";
const PHILLY: &str = "timestamp,duration,num_gpus,gpu_time,cluster";

fn wrong(text: &str) -> TraceError {
    read(text).expect_err(text)
}

/// One row below a header has one fault, on line 2 in this column, told with this part.
fn refused(header: &str, row: &str, column: &str, part: &str) {
    let error = wrong(&format!("{header}\n{row}\n"));
    assert_eq!(error.count, 1, "{row}: {error}");
    let located = &error.faults[0];
    assert_eq!((located.line, located.fault.field.as_str()), (Some(2), column), "{row}: {error}");
    let text = error.to_string();
    assert!(text.contains(part), "{row}: {text}");
    assert!(!located.fault.remedy.is_empty(), "{row}: {text}");
}

#[test]
fn each_format_is_known_by_its_header() {
    let ours = read(&format!("{OURS}\na,5,resnet-50,sync,100,1,4,2\nb,0,WLM,async,1e3,2,2,1\n"));
    let Trace::Ours(rows) = ours.unwrap() else { panic!("not ours") };
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids, ["b", "a"], "sorted by arrival");
    assert_eq!((rows[0].line, rows[1].line), (3, 2));
    let pollux = read(&format!("{POLLUX}\nx-0,53,cifar10,6,2048\n"));
    let Trace::Pollux(rows) = pollux.unwrap() else { panic!("not Pollux's") };
    assert_eq!((rows[0].application, rows[0].num_replicas), ("cifar10", 6));
    let philly = read(&format!(
        "{PHILLY}\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-08 07:01:54,5,16,80,a\n"
    ));
    let Trace::Philly(rows) = philly.unwrap() else { panic!("not Philly's") };
    assert!(rows[0].arrival_s.abs() < 1e-9 && (rows[1].arrival_s - 86_401.0).abs() < 1e-9);
    assert_eq!((rows[0].num_gpus, rows[0].line), (16, 3));
}

#[test]
fn forms_of_the_same_trace() {
    for text in [
        format!("{OURS}\na,5,resnet-50,sync,100,1,4,2\n"),
        format!("\u{feff}{OURS}\r\na,5,resnet-50,sync,100,1,4,2\r\n"),
        format!("{OURS},colour\n\"a\",\"5.0\",ResNet-50,SYNC,1e2,1.0,4,2,red"),
        "max_servers,max_workers,min_workers,work_steps,mode,model,arrival_s,id\n\
         2, 4 ,1,100,sync,resnet-50,5,a\n\n\n"
            .to_owned(),
    ] {
        let Trace::Ours(rows) = read(&text).unwrap() else { panic!("{text}") };
        let row = &rows[0];
        assert_eq!(rows.len(), 1);
        assert_eq!((row.id.as_str(), row.model.name), ("a", "resnet-50"), "{text}");
        assert_eq!((row.min_workers, row.max_workers, row.max_servers), (1, 4, 2), "{text}");
        assert!((row.work_steps - 100.0).abs() < 1e-9);
    }
}

#[test]
fn every_kind_of_fault_of_ours_has_its_column() {
    for (row, column, part) in [
        ("a,-1,resnet-50,sync,100,1,4,2", "arrival_s", "\"-1\""),
        ("a,NaN,resnet-50,sync,100,1,4,2", "arrival_s", "NaN"),
        ("a,inf,resnet-50,sync,100,1,4,2", "arrival_s", "inf"),
        ("a,1e308,resnet-50,sync,100,1,4,2", "arrival_s", "1e308"),
        ("a,,resnet-50,sync,100,1,4,2", "arrival_s", "is empty"),
        ("a,0,resnet50,sync,100,1,4,2", "model", "did you mean resnet-50?"),
        ("a,0,zzz,sync,100,1,4,2", "model", "known are resnet-50"),
        ("a,0,,sync,100,1,4,2", "model", "is empty"),
        ("a,0,resnet-50,synch,100,1,4,2", "mode", "did you mean sync?"),
        ("a,0,resnet-50,sync,0,1,4,2", "work_steps", "\"0\""),
        ("a,0,resnet-50,sync,-5,1,4,2", "work_steps", "\"-5\""),
        ("a,0,resnet-50,sync,NaN,1,4,2", "work_steps", "NaN"),
        ("a,0,resnet-50,sync,1e308,1,4,2", "work_steps", "1e9"),
        ("a,0,resnet-50,sync,100,0,4,2", "min_workers", "\"0\""),
        ("a,0,resnet-50,sync,100,1.5,4,2", "min_workers", "\"1.5\""),
        ("a,0,resnet-50,sync,100,5,4,2", "min_workers", "above max_workers 4"),
        ("a,0,resnet-50,sync,100,1,9223372036854775808,2", "max_workers", "922337"),
        ("a,0,resnet-50,sync,100,1,4,-2", "max_servers", "\"-2\""),
        (",0,resnet-50,sync,100,1,4,2", "id", "is empty"),
        ("a\u{1b},0,resnet-50,sync,100,1,4,2", "id", "unprintable"),
        ("a,0,resnet-50,sync,100,33,40,2", "min_workers", "32 samples"),
        ("a,0,resnet-50,sync,100,1,4", "line", "has 7 columns, the header 8"),
        ("a,0,resnet-50,sync,100,1,4,2,9", "line", "has 9 columns"),
    ] {
        refused(OURS, row, column, part);
    }
}

#[test]
fn every_kind_of_fault_of_the_others_has_its_column() {
    for (row, column, part) in [
        ("a,-1,cifar10,1,128", "time", "\"-1\""),
        ("a,0,cifar,1,128", "application", "did you mean cifar10?"),
        ("a,0,cifar10,0,128", "num_replicas", "\"0\""),
        ("a,0,cifar10,1,64", "batch_size", "128 to 4096"),
        ("a,0,cifar10,1,nan", "batch_size", "nan"),
        ("a,0,cifar10,1", "line", "has 4 columns"),
    ] {
        refused(POLLUX, row, column, part);
    }
    for (row, column, part) in [
        ("yesterday,66.0,1,66.0,a", "timestamp", "2017-10-09 07:01:55"),
        ("2017-02-30 07:01:55,66.0,1,66.0,a", "timestamp", "2017-02-30"),
        ("2017-10-09 07:01:55,0,1,66.0,a", "duration", "\"0\""),
        ("2017-10-09 07:01:55,-66,1,66.0,a", "duration", "-66"),
        ("2017-10-09 07:01:55,NaN,1,66.0,a", "duration", "NaN"),
        ("2017-10-09 07:01:55,66,0,66.0,a", "num_gpus", "\"0\""),
        ("2017-10-09 07:01:55,66,1,-1,a", "gpu_time", "-1"),
        ("2017-10-09 07:01:55,66,1,1", "line", "has 4 columns"),
    ] {
        refused(PHILLY, row, column, part);
    }
}

#[test]
fn columns_that_lack_are_all_named() {
    let error = wrong("id,arrival,model,mode,work_steps,min_workers\na,0,resnet-50,sync,1,1\n");
    let fields: Vec<&str> = error.faults.iter().map(|at| at.fault.field.as_str()).collect();
    assert_eq!(fields, ["arrival_s", "max_workers", "max_servers"]);
    assert!(error.to_string().contains("did you mean arrival as it?"), "{error}");
    let error = wrong("name,time,application,num_replicas\nx,0,ncf,1\n");
    assert_eq!(error.faults[0].fault.field, "batch_size");
    let error = wrong("timestamp,duration,num_gpus,gpu_time\n2017-10-09 07:01:55,1,1,1\n");
    assert_eq!(error.faults[0].fault.field, "cluster");
    let error = wrong(&format!("{OURS},id\na,0,resnet-50,sync,1,1,1,1,b\n"));
    assert!(error.to_string().contains("id: stands twice"), "{error}");
    assert!(wrong("x,y\n1,2\n").count >= 8);
}

#[test]
fn files_without_jobs_are_refused() {
    for (text, part) in [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("\u{feff}", "is empty"),
        (OURS, "holds no job"),
        (POLLUX, "holds no job"),
        (&format!("{PHILLY}\n\n\n"), "holds no job"),
    ] {
        let error = wrong(text);
        assert!(error.to_string().contains(part), "{text:?}: {error}");
        assert_eq!(error.faults[0].fault.field, "file");
    }
}

#[test]
fn all_faults_are_told_at_once_up_to_a_bound() {
    let error = wrong(&format!("{OURS}\n,x,y,z,-1,0,0,0\n"));
    let fields: Vec<&str> = error.faults.iter().map(|at| at.fault.field.as_str()).collect();
    assert_eq!(fields, OURS.split(',').collect::<Vec<_>>());
    let error = wrong(&format!("{OURS}\n{}", "a,-1,resnet-50,sync,1,1,1,1\n".repeat(500)));
    assert_eq!((error.faults.len(), error.count), (FAULTS_MAX, 500 + 499));
}

#[test]
fn ids_that_come_twice_name_the_other_line() {
    let row = "a,0,resnet-50,sync,1,1,1,1";
    let error = wrong(&format!("{OURS}\n\n{row}\n\r\n\"x\n\ny\",{}\n{row}\n", &row[2..]));
    // The second row holds line ends in its id, which are refused as well.
    let told: Vec<(Option<usize>, bool)> = error
        .faults
        .iter()
        .map(|at| (at.line, at.fault.problem.contains("the id of line 3 too")))
        .collect();
    assert_eq!(told, [(Some(5), false), (Some(8), true)], "{error}");
}

#[test]
fn hostile_bytes_give_errors_and_nothing_worse() {
    for text in ["\"", "\0\0\0", ",,,,,,,", "id\n\"", "\u{202e},\u{0}\n1", &"a,".repeat(10_000)] {
        assert!(read(text).is_err(), "{text:?}");
    }
}

#[test]
fn the_whole_philly_trace_is_read() {
    let folder = std::env::var_os("OPTIMUS_DATA").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        Into::into,
    );
    let Ok(text) = std::fs::read_to_string(folder.join("traces/philly.csv")) else {
        eprintln!("skipped: {} has no traces/philly.csv", folder.display());
        return;
    };
    let Trace::Philly(rows) = read(&text).unwrap() else { panic!("not Philly's") };
    // The data's own description counts the empty line at its end too.
    assert_eq!(rows.len(), 82_247);
    assert!(rows[0].arrival_s.abs() < 1e-9);
    assert!(rows.windows(2).all(|pair| pair[0].arrival_s <= pair[1].arrival_s));
}
