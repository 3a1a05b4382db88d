//! One datagram of a training process, read with distrust: it may hold anything at all.

use model::agent::Part;
use model::{Role, Task};
use serde::Deserialize;

use super::begun::Begun;
use super::blocks::Chunk;

/// Longest datagram that is read.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 8192;
/// Steps in one datagram.
const STEPS_MAX: usize = 64;
/// Longest time of one step that is believed: a day.
const STEP_S_MAX: f64 = 86_400.0;
/// A loss beyond this is no number to add up: two of 1e308 are infinite.
const LOSS_MAX: f64 = 1e100;
/// A learning rate beyond this is an accident.
const RATE_MAX: f64 = 1e30;
/// Counts beyond this are not exact in JSON.
const COUNT_MAX: u64 = 1 << 53;
const ERROR_BYTES_MAX: usize = 2000;
const CHECKPOINT_ERROR_BYTES_MAX: usize = 500;
const FILE_NAME_BYTES_MAX: usize = 255;

/// What a process reports, checked in everything that can be checked without its history.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Report {
    Hello {
        samples_per_epoch: Option<u64>,
        rate: Option<Rate>,
    },
    /// In the order of sending. Malformed ones among them are only counted.
    Steps {
        steps: Vec<Step>,
        malformed: u64,
    },
    Epoch {
        epoch: u32,
        step: u64,
        loss_sum: f64,
        samples: u64,
    },
    Reached {
        checkpoint: u64,
        step: u64,
        epoch: u32,
        loss_sum: f64,
        samples: u64,
    },
    Missed {
        checkpoint: u64,
        step: u64,
    },
    Saved {
        checkpoint: u64,
        step: u64,
        epoch: u32,
        epoch_position: u64,
        parts: Vec<Part>,
    },
    Failed {
        checkpoint: u64,
        error: String,
    },
    Finished {
        step: u64,
    },
    Error {
        error: String,
    },
    Blocks(Chunk),
    Begun(Begun),
}

/// One mini-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Step {
    pub(crate) step: u64,
    pub(crate) epoch: u32,
    /// None where it is not finite, or too large to add up.
    pub(crate) loss: Option<f64>,
    pub(crate) duration_s: f64,
    pub(crate) compute_s: f64,
    pub(crate) samples: u64,
}

/// A learning rate, and the first step with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    pub(crate) step: u64,
    pub(crate) rate: f64,
}

/// A datagram that cannot be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A number that may be `"nan"`, `"inf"` or `"-inf"`, which JSON has no numbers for.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Number {
    Plain(f64),
    Word(String),
}

impl Number {
    pub(super) fn value(&self) -> Result<f64, Malformed> {
        match self {
            Self::Plain(value) => Ok(*value),
            Self::Word(word) => match word.as_str() {
                "nan" => Ok(f64::NAN),
                "inf" => Ok(f64::INFINITY),
                "-inf" => Ok(f64::NEG_INFINITY),
                _ => Err(Malformed),
            },
        }
    }
}

/// Every field of every kind; a kind asks for those that it needs. Unknown ones are let be, so
/// that a newer package can add some.
#[derive(Debug, Deserialize)]
struct Raw {
    v: u32,
    t: String,
    role: String,
    i: u32,
    samples_per_epoch: Option<u64>,
    learning_rate: Option<Number>,
    learning_rate_step: Option<u64>,
    step: Option<u64>,
    epoch: Option<u32>,
    loss: Option<Number>,
    duration_s: Option<Number>,
    compute_s: Option<Number>,
    samples: Option<u64>,
    steps: Option<Vec<serde_json::Value>>,
    loss_sum: Option<Number>,
    checkpoint: Option<u64>,
    epoch_position: Option<u64>,
    parts: Option<Vec<Part>>,
    error: Option<String>,
    first: Option<u64>,
    of: Option<u64>,
    sizes: Option<Vec<u64>>,
    parts_s: Option<[Number; 4]>,
}

type Row = (u64, u32, Number, Number, Number, u64);

/// Reads a datagram: which task it speaks for, and what it says.
///
/// # Errors
/// Where it is not a report of this version, or a field is missing or out of any range.
pub(crate) fn parse(bytes: &[u8]) -> Result<(Task, Report), Malformed> {
    if DATAGRAM_BYTES_MAX < bytes.len() {
        return Err(Malformed);
    }
    let raw: Raw = serde_json::from_slice(bytes).map_err(|_| Malformed)?;
    if raw.v != 1 {
        return Err(Malformed);
    }
    let task = match raw.role.as_str() {
        "scheduler" => Task { role: Role::Scheduler, index: raw.i },
        "server" => Task::server(raw.i),
        "worker" => Task::worker(raw.i),
        _ => return Err(Malformed),
    };
    let report = match raw.t.as_str() {
        "hello" => hello(&raw)?,
        "error" => Report::Error { error: text(&raw, ERROR_BYTES_MAX)? },
        "failed" => Report::Failed {
            checkpoint: count(raw.checkpoint)?,
            error: text(&raw, CHECKPOINT_ERROR_BYTES_MAX)?,
        },
        _ if task.role != Role::Worker => return Err(Malformed),
        "step" => one_step(&raw)?,
        "steps" => many_steps(&raw)?,
        "epoch" => Report::Epoch {
            epoch: raw.epoch.ok_or(Malformed)?,
            step: count(raw.step)?,
            loss_sum: sum(&raw)?,
            samples: count(raw.samples)?,
        },
        "reached" => Report::Reached {
            checkpoint: count(raw.checkpoint)?,
            step: count(raw.step)?,
            epoch: raw.epoch.ok_or(Malformed)?,
            loss_sum: sum(&raw)?,
            samples: count(raw.samples)?,
        },
        "missed" => Report::Missed { checkpoint: count(raw.checkpoint)?, step: count(raw.step)? },
        "saved" => saved(raw)?,
        "finished" => Report::Finished { step: count(raw.step)? },
        "blocks" => {
            let sizes = raw.sizes.ok_or(Malformed)?;
            Report::Blocks(Chunk::new(count(raw.first)?, count(raw.of)?, sizes).ok_or(Malformed)?)
        }
        "begun" => Report::Begun(Begun::read(raw.parts_s.as_ref())?),
        _ => return Err(Malformed),
    };
    Ok((task, report))
}

fn count(value: Option<u64>) -> Result<u64, Malformed> {
    value.filter(|value| *value <= COUNT_MAX).ok_or(Malformed)
}

/// A sum of losses. One that is not finite is passed on as it is: the master refuses it where it
/// enters and says so, while a dropped one would leave an epoch open for ever.
fn sum(raw: &Raw) -> Result<f64, Malformed> {
    raw.loss_sum.as_ref().ok_or(Malformed)?.value()
}

fn text(raw: &Raw, bytes_max: usize) -> Result<String, Malformed> {
    raw.error.as_deref().map(|error| printable(error, bytes_max)).ok_or(Malformed)
}

fn hello(raw: &Raw) -> Result<Report, Malformed> {
    let samples_per_epoch =
        raw.samples_per_epoch.map(|samples| count(Some(samples))).transpose()?;
    let samples_per_epoch = samples_per_epoch.filter(|samples| 0 < *samples);
    Ok(Report::Hello { samples_per_epoch, rate: rate(raw)? })
}

/// A rate that is no positive number tells nothing of the loss's curve.
fn rate(raw: &Raw) -> Result<Option<Rate>, Malformed> {
    let (Some(rate), Some(step)) = (&raw.learning_rate, raw.learning_rate_step) else {
        return Ok(None);
    };
    let rate = rate.value()?;
    let step = count(Some(step))?;
    Ok((0.0 < rate && rate <= RATE_MAX).then_some(Rate { step, rate }))
}

fn seconds(value: f64) -> Result<f64, Malformed> {
    (0.0..=STEP_S_MAX).contains(&value).then_some(value).ok_or(Malformed)
}

fn step_of((step, epoch, loss, duration, compute, samples): Row) -> Result<Step, Malformed> {
    let loss = Some(loss.value()?).filter(|loss| loss.abs() <= LOSS_MAX);
    let duration_s = seconds(duration.value()?)?;
    // The two clocks of the package differ by rounding: own compute is a part of the step.
    let compute_s = seconds(compute.value()?)?.min(duration_s);
    let (step, samples) = (count(Some(step))?, count(Some(samples))?);
    Ok(Step { step, epoch, loss, duration_s, compute_s, samples })
}

fn one_step(raw: &Raw) -> Result<Report, Malformed> {
    let number = |value: &Option<Number>| value.clone().ok_or(Malformed);
    let step = step_of((
        raw.step.ok_or(Malformed)?,
        raw.epoch.ok_or(Malformed)?,
        number(&raw.loss)?,
        number(&raw.duration_s)?,
        number(&raw.compute_s)?,
        raw.samples.ok_or(Malformed)?,
    ))?;
    Ok(Report::Steps { steps: vec![step], malformed: 0 })
}

fn many_steps(raw: &Raw) -> Result<Report, Malformed> {
    let rows = raw.steps.as_ref().filter(|rows| rows.len() <= STEPS_MAX).ok_or(Malformed)?;
    let mut steps = Vec::with_capacity(rows.len());
    let mut malformed = 0;
    for row in rows {
        let row: Result<Row, _> = Deserialize::deserialize(row);
        match row.map_err(|_| Malformed).and_then(step_of) {
            Ok(step) => steps.push(step),
            Err(Malformed) => malformed += 1,
        }
    }
    Ok(Report::Steps { steps, malformed })
}

fn saved(raw: Raw) -> Result<Report, Malformed> {
    let (checkpoint, step) = (count(raw.checkpoint)?, count(raw.step)?);
    let epoch = raw.epoch.ok_or(Malformed)?;
    let epoch_position = count(raw.epoch_position)?;
    let parts = raw.parts.filter(|parts| !parts.is_empty()).ok_or(Malformed)?;
    if parts.iter().any(|part| !is_file_name(&part.file)) {
        return Err(Malformed);
    }
    Ok(Report::Saved { checkpoint, step, epoch, epoch_position, parts })
}

/// A plain name within the checkpoint's folder.
fn is_file_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    !name.is_empty()
        && name.len() <= FILE_NAME_BYTES_MAX
        && !name.starts_with('.')
        && name.bytes().all(plain)
}

/// Text that is safe to print and at most `bytes_max` long: line ends stay, other control
/// characters become `?`.
pub(crate) fn printable(text: &str, bytes_max: usize) -> String {
    let mut out = String::new();
    for c in text.trim_end().chars() {
        let c = if c.is_control() && c != '\n' && c != '\t' { '?' } else { c };
        if bytes_max < out.len() + c.len_utf8() {
            break;
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn worker(rest: &str) -> Result<(Task, Report), Malformed> {
        parse(format!(r#"{{"v":1,"role":"worker","i":2,"rank":0,{rest}}}"#).as_bytes())
    }

    #[test]
    fn every_kind_is_read() {
        for (rest, report) in [
            (
                r#""t":"hello","pid":7,"samples_per_epoch":null"#,
                Report::Hello { samples_per_epoch: None, rate: None },
            ),
            (
                r#""t":"hello","samples_per_epoch":1797"#,
                Report::Hello { samples_per_epoch: Some(1797), rate: None },
            ),
            (
                r#""t":"hello","learning_rate":0.05,"learning_rate_step":41"#,
                Report::Hello {
                    samples_per_epoch: None,
                    rate: Some(Rate { step: 41, rate: 0.05 }),
                },
            ),
            (
                r#""t":"hello","learning_rate":"inf","learning_rate_step":41"#,
                Report::Hello { samples_per_epoch: None, rate: None },
            ),
            (
                r#""t":"hello","learning_rate":0.05,"learning_rate_step":null"#,
                Report::Hello { samples_per_epoch: None, rate: None },
            ),
            (
                r#""t":"epoch","epoch":3,"step":90,"loss_sum":1.5,"samples":64"#,
                Report::Epoch { epoch: 3, step: 90, loss_sum: 1.5, samples: 64 },
            ),
            (
                r#""t":"reached","checkpoint":7,"step":90,"epoch":3,"loss_sum":0,"samples":0"#,
                Report::Reached { checkpoint: 7, step: 90, epoch: 3, loss_sum: 0.0, samples: 0 },
            ),
            (
                r#""t":"missed","checkpoint":7,"step":91"#,
                Report::Missed { checkpoint: 7, step: 91 },
            ),
            (
                r#""t":"saved","checkpoint":7,"step":9,"epoch":1,"epoch_position":5,
                   "parts":[{"file":"parameters.npz","bytes":10,"crc32":4294967295}]"#,
                Report::Saved {
                    checkpoint: 7,
                    step: 9,
                    epoch: 1,
                    epoch_position: 5,
                    parts: vec![Part {
                        file: "parameters.npz".to_owned(),
                        bytes: 10,
                        crc32: u32::MAX,
                    }],
                },
            ),
            (
                r#""t":"failed","checkpoint":7,"error":"disk full""#,
                Report::Failed { checkpoint: 7, error: "disk full".to_owned() },
            ),
            (r#""t":"finished","step":8"#, Report::Finished { step: 8 }),
            (
                r#""t":"blocks","first":1,"of":3,"sizes":[9,4]"#,
                Report::Blocks(Chunk::new(1, 3, vec![9, 4]).unwrap()),
            ),
            (r#""t":"error","error":"x\u001by""#, Report::Error { error: "x?y".to_owned() }),
        ] {
            assert_eq!(worker(rest), Ok((Task::worker(2), report)), "{rest}");
        }
    }

    #[test]
    fn one_bad_step_does_not_spoil_the_others() {
        let rest = r#""t":"steps","steps":[[1,0,2.5,0.1,0.05,32],[2,0,"nan",0.1,0.2,32],
            [3,0,1e308,0,0,32],[4,0,1,-0.1,0,32],[5,0,1,"inf",0,32],[6,0,1,0.1,0.1],
            [-7,0,1,0.1,0.1,32],["8",0,1,0.1,0.1,32],[9,0,"soon",0.1,0.1,32]]"#;
        let Ok((_, Report::Steps { steps, malformed })) = worker(rest) else { panic!() };
        assert_eq!(malformed, 6);
        let seen: Vec<_> = steps.iter().map(|s| (s.step, s.loss, s.compute_s)).collect();
        assert_eq!(seen, [(1, Some(2.5), 0.05), (2, None, 0.1), (3, None, 0.0)]);
    }

    #[test]
    fn what_is_not_a_report_is_refused() {
        for rest in [
            r#""t":"dance""#,
            r#""t":"step","step":1"#,
            r#""t":"step","step":1.5,"epoch":0,"loss":1,"duration_s":1,"compute_s":1,"samples":1"#,
            r#""t":"epoch","epoch":-1,"step":1,"loss_sum":1,"samples":1"#,
            r#""t":"epoch","epoch":1,"step":9007199254740993,"loss_sum":1,"samples":1"#,
            r#""t":"epoch","epoch":1,"step":1,"loss_sum":NaN,"samples":1"#,
            r#""t":"saved","checkpoint":1,"step":1,"epoch":0,"epoch_position":0,"parts":[]"#,
            r#""t":"saved","checkpoint":1,"step":1,"epoch":0,"epoch_position":0,
               "parts":[{"file":"../x","bytes":1,"crc32":1}]"#,
            r#""t":"error","error":7"#,
            r#""t":"blocks","first":2,"of":3,"sizes":[9,4]"#,
            r#""t":"blocks","first":0,"of":3,"sizes":[-1]"#,
            r#""t":"begun","parts_s":[0.1,0,-1,0.25]"#,
            r#""t":"begun","parts_s":[0.1,0,"inf",0.25]"#,
            r#""t":"begun","parts_s":[0.1,0,1]"#,
            r#""t":"hello","learning_rate":"soon","learning_rate_step":1"#,
            r#""t":"hello","learning_rate":1,"learning_rate_step":-1"#,
        ] {
            assert_eq!(worker(rest), Err(Malformed), "{rest}");
        }
        for whole in [
            "",
            "null",
            "[]",
            r#"{"v":2,"t":"hello","role":"worker","i":0}"#,
            r#"{"v":1,"t":"hello","role":"boss","i":0}"#,
            r#"{"v":1,"t":"finished","role":"server","i":0,"step":1}"#,
        ] {
            assert_eq!(parse(whole.as_bytes()), Err(Malformed), "{whole}");
        }
        let deep = "[".repeat(4000);
        assert_eq!(parse(deep.as_bytes()), Err(Malformed), "depth is bounded");
        assert_eq!(parse(&vec![b' '; DATAGRAM_BYTES_MAX + 1]), Err(Malformed));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(printable("ééé", 5), "éé");
        assert_eq!(printable("a\tb\nc\r\u{7f}\n\n", 100), "a\tb\nc??");
    }

    /// Valid reports with fields replaced by junk come near every branch.
    fn junk() -> impl Strategy<Value = String> {
        let value = prop_oneof![
            any::<f64>().prop_map(|value| format!("{value:?}")),
            any::<i64>().prop_map(|value| value.to_string()),
            "\"(nan|inf|-inf|[a-z]{0,5})\"",
            Just("null".to_owned()),
            Just("[[1,2,3,4,5,6],[0],{}]".to_owned()),
        ];
        let names = [
            "t",
            "i",
            "step",
            "epoch",
            "loss",
            "loss_sum",
            "duration_s",
            "compute_s",
            "samples",
            "steps",
            "checkpoint",
            "parts",
            "error",
            "samples_per_epoch",
        ];
        let kinds = ["step", "steps", "epoch", "reached", "saved", "hello", "finished"];
        let field = (0..names.len(), value).prop_map(move |(n, v)| format!("\"{}\":{v}", names[n]));
        (0..kinds.len(), prop::collection::vec(field, 0..12)).prop_map(move |(kind, fields)| {
            let head = format!(r#"{{"v":1,"role":"worker","i":0,"t":"{}""#, kinds[kind]);
            fields.into_iter().fold(head, |text, field| text + "," + &field) + "}"
        })
    }

    proptest! {
        #[test]
        fn junk_never_panics_and_never_gets_a_bad_number_in(text in junk()) {
            if let Ok((_, Report::Steps { steps, .. })) = parse(text.as_bytes()) {
                for step in steps {
                    prop_assert!(step.loss.is_none_or(f64::is_finite));
                    prop_assert!((0.0..=STEP_S_MAX).contains(&step.duration_s));
                    prop_assert!(step.compute_s <= step.duration_s);
                }
            }
        }

        #[test]
        fn bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
            prop_assert_eq!(parse(&bytes), Err(Malformed));
        }
    }
}
