//! The way in: each that knocks is greeted in a task of its own, and served by its role.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use control::event::SessionId;
use model::access::Rank;
use net::{Close, Incoming, Role, Server};

use crate::door::{Counters, Door};
use crate::{agents, operators};

/// Failed handshakes that are logged: so many at first, then each of so many.
const LOGGED_ALL: u64 = 50;
const LOGGED_EVERY: u64 = 100;

/// Lets peers in until the server is closed.
pub(crate) async fn accept(server: Arc<Server>, door: Door) {
    while let Some(incoming) = server.accept().await {
        tokio::spawn(admit(door.clone(), incoming));
    }
}

async fn admit(door: Door, incoming: Incoming) {
    let session = match Box::pin(incoming.handshake()).await {
        Ok(session) => session,
        Err(error) => {
            let failed = Counters::add(&door.counters.handshakes_failed);
            // Anyone who reaches the port can fail: that must not fill the log's disk.
            if failed <= LOGGED_ALL || failed.is_multiple_of(LOGGED_EVERY) {
                tracing::warn!(%error, failed, "a handshake failed");
            }
            return;
        }
    };
    // Numbered only now, so that the later of two connections of a node has the higher number.
    let id = SessionId(door.sessions.fetch_add(1, Ordering::Relaxed) + 1);
    // Its certificate may have been revoked since the handshake began.
    let _place = match door.certificates.present.enter(id, &session.connection) {
        Ok(place) => place,
        Err(words) => return session.connection.close(Close::Refused, &words),
    };
    match session.connection.identity().role {
        Role::Agent => Box::pin(agents::serve(door, session, id)).await,
        Role::Admin => Box::pin(operators::serve(door, session, id, Rank::Admin)).await,
        Role::Operator => Box::pin(operators::serve(door, session, id, Rank::Operator)).await,
        Role::User => Box::pin(operators::serve(door, session, id, Rank::User)).await,
        // The server does not admit it; should that change, nothing is served.
        Role::Master => session.connection.close(Close::Refused, "a master serves masters nothing"),
    }
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod certificates_tests;

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod pieces_tests;
