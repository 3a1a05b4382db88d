//! A submission that says what is done with a loss that is no number: see [`crate::golden`].

use model::JobOptions;
use model::client::{Call, Change, Request};
use model::diverged::OnNan;

use crate::golden::{recorded, spec};

#[test]
fn a_watched_job() {
    let (options, on_nan) = (JobOptions::default(), OnNan::RollBack);
    let change = Change::SubmitWatched { spec: spec(), request_id: None, options, on_nan };
    recorded(&Request { dry_run: false, reason: None, call: Call::Change(change) }, SUBMIT_WATCHED);
}

const SUBMIT_WATCHED: &str = "0000000e056d6e6973740207707974686f6e3308747261696e2e7079042f73727600010120fbe803 \
    fc000000400100fbf401fc00000020000001080104007b14ae47e17a843f03640c66696c653a2f2f \
    2f636b70743c00000000000000f03f0003000000000002";
