//! The switch's side of a capture: frames are copied into the ring, as long as there is room.
//!
//! It never waits and makes no system call. (The time is read from the vDSO.)

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{SystemTime, UNIX_EPOCH};

use super::shared_ring::{HEAD_BYTES, RecordHead, SharedRing};
use super::{CaptureDirection, CaptureOptions, CaptureRequest};
use crate::memory::{RegionError, is_memory_file};
use crate::ring::{Frame, copy_with_head};
use crate::switch::TagChange;

/// There can be no tap.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TapError {
    /// The descriptor is no memory.
    #[error("the descriptor of a capture is no memfd")]
    NoMemory,
    /// It can't be mapped.
    #[error("the memory of a capture can't be mapped")]
    Map(#[from] RegionError),
}

/// Copies a port's frames. When it is dropped, the reader sees that no more come.
#[derive(Debug)]
pub(crate) struct Tap {
    ring: SharedRing,
    options: CaptureOptions,
    written: u64,
    lost: u64,
}

impl Tap {
    /// # Errors
    /// See [`TapError`].
    pub(crate) fn new(request: CaptureRequest) -> Result<Tap, TapError> {
        if !is_memory_file(request.memory.as_fd()) {
            return Err(TapError::NoMemory);
        }
        Ok(Tap::into_ring(SharedRing::map(File::from(request.memory))?, request.options, 0))
    }

    /// Into a ring in which so many bytes were written before.
    pub(super) fn into_ring(ring: SharedRing, options: CaptureOptions, written: u64) -> Tap {
        Tap { ring, options, written, lost: 0 }
    }

    /// Copies a frame that the guest has sent.
    pub(crate) fn sent(&mut self, frame: &Frame<'_, '_>) {
        self.record(CaptureDirection::Sent, frame, TagChange::None);
    }

    /// Copies a frame that the guest has got, with the tag that it got.
    pub(crate) fn received(&mut self, frame: &Frame<'_, '_>, change: TagChange) {
        self.record(CaptureDirection::Received, frame, change);
    }

    #[cold]
    fn record(&mut self, direction: CaptureDirection, frame: &Frame<'_, '_>, change: TagChange) {
        if ![direction, CaptureDirection::Both].contains(&self.options.direction) {
            return;
        }
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let length = u32::try_from(frame.changed_length(change)).unwrap_or(u32::MAX);
        let head = RecordHead {
            time_ns: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX),
            length,
            captured: length.min(self.options.snaplen),
            direction,
        };
        if SharedRing::room(self.written, self.ring.read()) < head.in_ring() {
            self.lost += 1;
            return self.ring.set_lost(self.lost);
        }
        let bytes = HEAD_BYTES + usize::try_from(head.captured).unwrap_or(0);
        let Some(pieces) = self.ring.pieces(self.written, bytes) else { return };
        copy_with_head(pieces.as_slice(), &head.bytes(), frame, change);
        self.written += head.in_ring();
        self.ring.set_written(self.written);
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.ring.end();
    }
}
