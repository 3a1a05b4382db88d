//! One request and its answer, and what it means where there is no connection for them.

use model::client::{Answer, Reply, Request};
use net::{ANSWER_BYTES_MAX, ConnectError, Connection, FrameError};

use crate::failure::{Exit, Failure};

/// Asks, and puts an answer together that comes in pieces.
///
/// # Errors
/// Where the stream breaks, or the answer is longer than any.
pub(crate) async fn exchange(
    connection: &Connection,
    request: &Request,
) -> Result<Reply, FrameError> {
    let (mut writer, mut reader) = connection.open_bi().await?;
    writer.send(request).await?;
    writer.finish();
    let mut body: Vec<u8> = Vec::new();
    loop {
        match reader.receive::<Reply>().await?.ok_or(FrameError::Cut { bytes: body.len() })? {
            Ok(Answer::Piece(piece)) if piece.is_empty() => return net::decode(&body),
            Ok(Answer::Piece(piece)) => {
                let bytes = body.len() + piece.len();
                if bytes > ANSWER_BYTES_MAX {
                    return Err(FrameError::TooLong { bytes, limit: ANSWER_BYTES_MAX });
                }
                body.extend(piece);
            }
            whole => return Ok(whole),
        }
    }
}

/// Why there is no connection, and what to do about it.
#[must_use]
pub(crate) fn refused(error: &ConnectError) -> Failure {
    let (exit, otherwise) = match error {
        ConnectError::CertificateRefused { .. } | ConnectError::NotTheMaster { .. } => {
            (Exit::NotAllowed, "use the certificates of this master's cluster, see --tls-dir")
        }
        ConnectError::Role { .. } => (
            Exit::NotAllowed,
            "use a certificate of a user, operator or admin: `optimus cert issue operator NAME`",
        ),
        ConnectError::Version { .. } => {
            (Exit::Unavailable, "use the `optimus` of the master's release")
        }
        ConnectError::Busy { .. } => (
            Exit::Unavailable,
            "it has as many connections as it takes, in all or from this address: end some here, \
             such as commands with --follow or --watch, or try again later",
        ),
        // In its own words, which say why.
        ConnectError::Refused { .. } => {
            (Exit::Unavailable, "the master is there: do as it says, or try again later")
        }
        ConnectError::Unreachable { .. }
        | ConnectError::NothingListens { .. }
        | ConnectError::Silent { .. }
        | ConnectError::Failed { .. }
        | ConnectError::Local { .. } => (
            Exit::Unavailable,
            "check that optimus-master runs there; give another with --master or OPTIMUS_MASTER",
        ),
    };
    let message = error.to_string();
    let message = message.split_once("; ").map_or(&*message, |(message, _)| message);
    Failure::new(exit, message, otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_that_is_full_is_not_said_to_be_away() {
        let address = "127.0.0.1:7600".parse().unwrap();
        let reason = "too many connections from 10.0.0.1".to_owned();
        for error in [ConnectError::Busy { address }, ConnectError::Refused { address, reason }] {
            let failure = refused(&error);
            assert_eq!(failure.exit, Exit::Unavailable);
            assert!(!failure.hint.contains("check that"), "{failure:?}");
        }
        let failure = refused(&ConnectError::NothingListens { address });
        assert!(failure.hint.contains("check that optimus-master runs"), "{failure:?}");
    }
}
