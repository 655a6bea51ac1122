//! The body of a request: read within a time limit, and with room in memory for what has come of it.

use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The time within which a request's body must have come.
pub(super) const BODY_LIMIT: Duration = Duration::from_secs(5);

/// The size of all bodies held at once, in KiB, so that what waits in the queue can't use up the node's memory
/// (row X12).
pub(super) const BODIES_KIB: u32 = 32 << 10;

/// Why a body is not taken.
#[derive(Debug)]
pub(super) enum BodyError {
    /// It has more bytes than a request may have.
    TooLarge,
    /// It did not come within [`BODY_LIMIT`].
    TooSlow,
    /// The connection broke, or the framing is wrong.
    Broken(axum::Error),
}

/// Reads a whole body of at most `most` bytes. The room is to be kept until the answer, because a request that waits in the queue
/// takes memory, too.
pub(super) async fn read(
    room: &Semaphore,
    body: Body,
    most: usize,
) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), BodyError> {
    tokio::time::timeout(BODY_LIMIT, collect(room, body, most)).await.map_err(|_| BodyError::TooSlow)?
}

/// Takes room only for what has come: a body that never ends takes no more than that.
async fn collect(
    all: &Semaphore,
    mut body: Body,
    most: usize,
) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), BodyError> {
    let mut bytes = Vec::new();
    let mut room: Option<SemaphorePermit<'_>> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(BodyError::Broken)?;
        // Trailers carry nothing of the request.
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > most {
            return Err(BodyError::TooLarge);
        }
        let needed = (bytes.len() + data.len()) / 1024 + 1;
        let more = needed.saturating_sub(room.as_ref().map_or(0, SemaphorePermit::num_permits));
        // Waits while other requests hold the room, for BODY_LIMIT at most. The semaphore is never closed.
        let more = all.acquire_many(u32::try_from(more).unwrap_or(BODIES_KIB)).await.ok();
        match (&mut room, more) {
            (Some(room), Some(more)) => room.merge(more),
            (room, more) => *room = room.take().or(more),
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, room))
}
