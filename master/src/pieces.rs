//! Answers that are longer than a frame.

use model::client::{Answer, ErrorKind, Refusal, Reply};
use model::nodes::PROTOCOL_OF_NODES;
use net::{ANSWER_BYTES_MAX, FrameError, FrameWriter};

/// Far below a frame, as that of a snapshot.
const PIECE_BYTES: usize = 1 << 20;

/// Sends an answer, in pieces where it is longer than a frame and the client knows of pieces.
pub(crate) async fn send(
    writer: &mut FrameWriter,
    reply: &Reply,
    protocol: u16,
) -> Result<(), FrameError> {
    let (bytes, limit) = match writer.send(reply).await {
        Err(FrameError::TooLong { bytes, limit }) => (bytes, limit),
        other => return other,
    };
    if protocol < PROTOCOL_OF_NODES || bytes > ANSWER_BYTES_MAX {
        let words = format!("the answer has {bytes} bytes, {limit} can be sent");
        let hint = "ask for less: fewer events, or one job; or use a newer optimus";
        return writer.send(&Reply::Err(Refusal::new(ErrorKind::Invalid, words, hint))).await;
    }
    for piece in net::encode_body(reply, ANSWER_BYTES_MAX)?.chunks(PIECE_BYTES) {
        writer.send(&Reply::Ok(Answer::Piece(piece.to_vec()))).await?;
    }
    writer.send(&Reply::Ok(Answer::Piece(Vec::new()))).await
}
