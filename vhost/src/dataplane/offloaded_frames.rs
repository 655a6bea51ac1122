//! Frames whose senders left work to be done: checksums, and cutting long frames into segments.
//!
//! A receiver that agreed on it gets the frame as it is, with a header that tells it so. For any other the work is done here, on a copy.
//!
//! Invariants: the switch decides as of any other frame, by the same head, and limits count what would be on a wire. What is done to
//! a frame is bounded by its segments; for all receivers of a flooded one together, by the segments that the switch floods at most.

use super::command::slot;
use super::delivery::{Delivery, Origin, note_delivered};
use super::forwarding::Forwarding;
use crate::memory::GuestSlice;
use crate::offload::{LONGEST, NetHeader, Offload, Offloads};
use crate::port::DropReason;
use crate::ring::{Frame, FrameSink, HeadSpace, RingFault};
use crate::switch::{Coarse, TagChange};

impl Forwarding {
    /// Forwards a frame whose header says something. `agreed` is what its sender may leave to be done. Answers how many segments it has.
    #[inline(never)]
    pub(super) fn forward_offloaded(
        &mut self,
        from: Origin,
        frame: &Frame<'_, '_>,
        agreed: Offloads,
        now: Coarse,
    ) -> u16 {
        let offload = match Offload::of(frame.header(), agreed, frame.head(), frame.length()) {
            Ok(Some(offload)) => offload,
            Ok(None) => {
                self.forward(from, frame, now);
                return 1;
            }
            Err(_) => {
                self.count_drop(slot(from.port), DropReason::Offload);
                return 1;
            }
        };
        let size = offload.size(frame.length());
        let decision = self.switch.decide_segmented(from.port, frame.head(), size, now);
        self.act(from, frame, Some(&offload), decision);
        size.segments
    }
}

/// Where the work is done that senders have left: room for the longest frame.
pub(super) struct Workspace(Box<[u8]>);

impl Workspace {
    pub(super) fn new() -> Workspace {
        Workspace(vec![0; LONGEST].into_boxed_slice())
    }
}

impl Delivery<'_> {
    /// Gives port `to` the frame as it is, if the port's guest takes it so, or else with the work done: as one frame, or as segments.
    pub(super) fn put_offloaded(
        &mut self,
        workspace: &mut Workspace,
        to: usize,
        frame: &Frame<'_, '_>,
        change: TagChange,
        offload: &Offload,
    ) -> Result<(), RingFault> {
        if self.put_as_it_is(to, frame, change, offload)? {
            return Ok(());
        }
        let Some(bytes) = workspace.0.get_mut(..frame.length()) else { return Ok(()) };
        frame.read_whole(bytes);
        match offload {
            Offload::Checksum(checksum) => {
                checksum.complete(bytes);
                self.put_own(to, bytes, change)
            }
            Offload::Segments(tcp) => {
                let template = tcp.template(bytes);
                for n in 0..tcp.segments() {
                    let place = tcp.make_segment(n, &template, bytes);
                    let segment = place.and_then(|place| bytes.get_mut(place)).unwrap_or_default();
                    self.put_own(to, segment, change)?;
                }
                Ok(())
            }
        }
    }

    /// Gives port `to` a frame of our own memory.
    fn put_own(&mut self, to: usize, bytes: &mut [u8], change: TagChange) -> Result<(), RingFault> {
        let mut space = HeadSpace::new();
        let frame = GuestSlice::of_bytes(bytes)
            .and_then(|bytes| Frame::of_slice(bytes, NetHeader::PLAIN, &mut space));
        frame.map_or(Ok(()), |frame| self.put(to, &frame, change))
    }

    /// Gives port `to` the frame as it is, by another thread if that serves it; false if that is not what its guest agreed on, or its buffers
    /// are too small.
    fn put_as_it_is(
        &mut self,
        to: usize,
        frame: &Frame<'_, '_>,
        change: TagChange,
        offload: &Offload,
    ) -> Result<bool, RingFault> {
        let Some(port) = self.ports.get_mut(to).and_then(Option::as_mut) else { return Ok(true) };
        if port.uplink.is_some() {
            return Ok(false);
        }
        let Some(index) = port.sink_for(self.from.pair) else {
            self.put_without_queue(to, frame);
            return Ok(true);
        };
        let ring = port.rings[index].ring.as_deref_mut();
        let Some(ring) = ring.filter(|ring| ring.has_work()) else {
            // No work is done for a guest that has no buffer at all.
            port.counters.add_to_guest_drop(DropReason::NoRoom);
            return Ok(true);
        };
        let is_known = offload.is_known_to(ring.features().gets);
        let header = offload.header(change);
        if !is_known || !FrameSink::put_offloaded(ring, frame, change, header, self.descriptors)? {
            return Ok(false);
        }
        let sink = &mut port.rings[index];
        note_delivered(sink, &mut port.tap, self.unpublished, (to, index), frame, change);
        Ok(true)
    }
}
