//! Messages on certificates as bytes that were recorded when protocol 4 was fixed: see
//! [`crate::golden`].

use model::UnixMs;
use model::agent::{AgentAnswer, AgentQuery};
use model::client::{Answer, Call, Reply, Request};
use model::nodes::{CertificateCall, CertificateView, Holder};

use crate::golden::recorded;

fn request(call: CertificateCall) -> Request {
    Request { dry_run: false, reason: None, call: Call::Certificate(call) }
}

#[test]
fn of_an_operator() {
    let agent = || Holder::Agent("n1".parse().unwrap());
    recorded(&request(CertificateCall::Ask { holder: Holder::Master }), ASK_MASTER);
    recorded(&request(CertificateCall::Ask { holder: agent() }), ASK_AGENT);
    let pem = || "PEM".to_owned();
    recorded(&request(CertificateCall::Install { holder: agent(), pem: pem() }), INSTALL);
    recorded(&request(CertificateCall::Revocations { pem: pem() }), REVOCATIONS);
    recorded(&request(CertificateCall::Status), STATUS);
    let view = CertificateView {
        identity: "agent/n1".to_owned(),
        serial: "4f00aa".to_owned(),
        ends: UnixMs(1_800_000_000_000),
        connected: true,
        revoked: false,
        next_ends: Some(UnixMs(1_900_000_000_000)),
    };
    recorded(&Reply::Ok(Answer::Certificates(vec![view])), VIEWS);
    recorded(&Reply::Ok(Answer::CertificateRequest(pem())), REQUEST);
}

#[test]
fn of_an_agent() {
    let pem = || "PEM".to_owned();
    recorded(&AgentQuery::CertificateRequest, QUERY_REQUEST);
    recorded(&AgentQuery::CertificateInstall { pem: pem() }, QUERY_INSTALL);
    recorded(&AgentAnswer::CertificateRequest(pem()), ANSWER_REQUEST);
    recorded(&AgentAnswer::Installed, ANSWER_INSTALLED);
}

const ASK_MASTER: &str = "0000020000";
const ASK_AGENT: &str = "0000020001026e31";
const INSTALL: &str = "0000020101026e310350454d";
const REVOCATIONS: &str = "000002020350454d";
const STATUS: &str = "00000203";
const VIEWS: &str = "001101086167656e742f6e3106346630306161fd00505c18a3010000010001fd0038d360ba01 \
    0000";
const REQUEST: &str = "00120350454d";
const QUERY_REQUEST: &str = "02";
const QUERY_INSTALL: &str = "030350454d";
const ANSWER_REQUEST: &str = "030350454d";
const ANSWER_INSTALLED: &str = "04";
