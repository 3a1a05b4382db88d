//! Answers that are longer than a frame, from a real server.

use model::client::{Answer, Call, Read, Reply, Request};
use net::Role;

use super::tests::World;

/// Two frames and a half.
pub(super) fn long() -> Answer {
    Answer::Log { generation: 1, text: vec![7; 10 << 20] }
}

#[tokio::test]
async fn an_answer_longer_than_a_frame_comes_in_pieces() {
    let world = World::new();
    let operator = world.connect(Role::Operator, "ada").await;
    let (mut writer, mut reader) = operator.connection.open_bi().await.unwrap();
    let call = Call::Read(Read::Events { job: None, after: 0, limit: 1 });
    writer.send(&Request { dry_run: false, reason: None, call }).await.unwrap();
    writer.finish();
    let mut body = Vec::new();
    loop {
        let reply = reader.receive::<Reply>().await.unwrap().expect("the last piece is empty");
        let Ok(Answer::Piece(piece)) = reply else { panic!("no piece: {reply:?}") };
        if piece.is_empty() {
            break;
        }
        body.extend(piece);
    }
    assert_eq!(net::decode::<Reply>(&body), Ok(Ok(long())));
    assert_eq!(operator.connection.lost(), None, "the session goes on");
}
