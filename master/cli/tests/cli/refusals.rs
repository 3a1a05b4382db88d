//! What a master refuses that is there is told at once; one that is about to end, or that cannot
//! say, is asked again.

use std::sync::atomic::{AtomicUsize, Ordering};

use model::JobId;
use model::client::{Answer, Call, Change, ErrorKind, Read, Refusal, STOPPING, UNANSWERED};

use crate::fake::{Does, Fake};

const JOB: &str = "tests/golden/job.toml";
const FULL: &str = "the master cannot take this (submit): the disk of its state folder is full";

fn refuses(words: &str) -> Does {
    Err(Refusal::new(ErrorKind::Unavailable, words, "free space")).into()
}

fn submitted() -> Does {
    Ok(Answer::Submitted { job: JobId(1), created: true, submitted_s_ago: 0.0 }).into()
}

#[test]
fn a_submission_that_cannot_be_stored_is_not_sent_again() {
    let fake = Fake::start(|_| refuses(FULL));
    let ran = fake.run(&format!("submit {JOB}"));
    assert_eq!(ran.code, Some(6));
    assert_eq!(ran.err, format!("error: {FULL}\nhint: free space\n"));
    assert_eq!(fake.seen().len(), 1);
}

#[test]
fn a_master_that_ends_or_cannot_say_is_asked_again_under_the_same_id() {
    for words in [STOPPING, UNANSWERED] {
        let tries = AtomicUsize::new(0);
        let fake = Fake::start(move |_| match tries.fetch_add(1, Ordering::Relaxed) {
            0 => refuses(words),
            _ => submitted(),
        });
        let ran = fake.run(&format!("submit {JOB}"));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.err.contains("still trying"), "{ran:?}");
        let ids: Vec<_> = fake
            .seen()
            .into_iter()
            .map(|request| match request.call {
                Call::Change(Change::Submit { request_id, .. }) => request_id,
                other @ (Call::Change(_) | Call::Read(_) | Call::Certificate(_)) => {
                    panic!("{other:?}")
                }
            })
            .collect();
        assert!(ids.len() == 2 && ids[0] == ids[1] && ids[0].is_some(), "{ids:?}");
    }
}

#[test]
fn a_refusal_after_a_try_without_an_answer_says_that_there_was_one() {
    let tries = AtomicUsize::new(0);
    let fake = Fake::start(move |_| match tries.fetch_add(1, Ordering::Relaxed) {
        0 => Does::Hangs,
        _ => refuses(FULL),
    });
    let ran = fake.run(&format!("submit {JOB}"));
    assert_eq!((ran.code, fake.seen().len()), (Some(6), 2), "{ran:?}");
    assert!(ran.err.contains("may have been carried out"), "{ran:?}");
}

#[test]
fn a_long_wait_outlives_what_its_master_cannot_answer_now() {
    let tries = AtomicUsize::new(0);
    let fake = Fake::start(move |request| match tries.fetch_add(1, Ordering::Relaxed) {
        // The first look tells at once whether there is anything to wait for.
        1 => refuses("the store did not answer in time"),
        _ => {
            assert!(matches!(request.call, Call::Read(Read::Job { .. })), "{request:?}");
            crate::views::answer(request)
        }
    });
    let ran = fake.run("wait j1 --timeout 4s");
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(ran.err.contains("still trying"), "{ran:?}");
}
