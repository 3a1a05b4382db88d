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

const ASK_MASTER: &str = "";
const ASK_AGENT: &str = "";
const INSTALL: &str = "";
const REVOCATIONS: &str = "";
const STATUS: &str = "";
const VIEWS: &str = "";
const REQUEST: &str = "";
const QUERY_REQUEST: &str = "";
const QUERY_INSTALL: &str = "";
const ANSWER_REQUEST: &str = "";
const ANSWER_INSTALLED: &str = "";
