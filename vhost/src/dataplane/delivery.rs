//! A frame on its way out to one port: into a queue of its guest, to the wire, or to the thread that serves it.

use super::command::slot;
use super::polled_port::{PolledPort, PolledRing};
use super::thread_link::PortAt;
use super::thread_links::ThreadLinks;
use crate::capture::Tap;
use crate::port::DropReason;
use crate::ring::{Frame, FrameSink, RingFault};
use crate::switch::{PortIndex, TagChange};

/// Where a frame came in: the port, and the number of its queue pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    pub(super) port: PortIndex,
    pub(super) pair: usize,
}

/// Where frames of one origin go out.
pub(super) struct Delivery<'d> {
    /// By their index in the switch.
    pub(super) ports: &'d mut [Option<PolledPort>],
    /// Rings whose guests are to be told of what was put into them: port and ring.
    pub(super) unpublished: &'d mut Vec<(usize, usize)>,
    pub(super) links: &'d mut ThreadLinks,
    /// Is raised by the descriptors of frames that took more than one buffer, and by the copies of flooded ones.
    pub(super) descriptors: &'d mut usize,
    pub(super) from: Origin,
}

impl Delivery<'_> {
    /// Copies `frame` into a receive queue of port `to`, or counts that there was no room.
    ///
    /// This, and all that a frame to one receiver goes through, is always inlined: values of several words that are handed on in memory are
    /// read in other units than they were written in, and such a read waits for all writes before it, those to the guests' buffers too.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        to: usize,
        frame: &Frame<'_, '_>,
        change: TagChange,
    ) -> Result<(), RingFault> {
        let Some(port) = self.ports.get_mut(to).and_then(Option::as_mut) else { return Ok(()) };
        if let Some(queues) = &mut port.uplink {
            match queues.put(self.from.pair, frame, change) {
                Some(index) => {
                    if self.unpublished.last() != Some(&(to, index)) {
                        self.unpublished.push((to, index));
                    }
                    port.counters.add_to_guest(1, frame.changed_length(change) as u64);
                }
                None => port.counters.add_to_guest_drop(DropReason::NoRoom),
            }
            return Ok(());
        }
        let Some(index) = port.sink_for(self.from.pair) else {
            self.put_without_queue(to, frame);
            return Ok(());
        };
        let sink = &mut port.rings[index];
        let Some(ring) = sink.ring.as_deref_mut() else { return Ok(()) };
        if FrameSink::put(ring, frame, change, self.descriptors)? {
            note_delivered(sink, &mut port.tap, self.unpublished, (to, index), frame, change);
        } else {
            port.counters.add_to_guest_drop(DropReason::NoRoom);
        }
        Ok(())
    }

    /// A frame for a port that has no receive queue here: another thread serves it, or its guest is not there.
    #[inline(never)]
    pub(super) fn put_without_queue(&mut self, to: usize, frame: &Frame<'_, '_>) {
        let Some(port) = self.ports.get(to).and_then(Option::as_ref) else { return };
        let Some(thread) = port.elsewhere else { return port.counters.add_to_guest_drop(DropReason::NoRoom) };
        let Some(sender) = port_at(self.ports, self.from.port) else { return };
        let receiver = PortAt { index: PortIndex(u16::try_from(to).unwrap_or(u16::MAX)), key: port.key };
        if !self.links.put(thread, sender, Some(receiver), self.from.pair, frame) {
            port.counters.add_to_guest_drop(DropReason::LinkFull);
        }
    }

    /// The thread that serves port `to`, if this one does not.
    pub(super) fn thread_of(&self, to: usize) -> Option<usize> {
        self.ports.get(to)?.as_ref()?.elsewhere
    }
}

/// Counts a frame that port `to` does not get.
pub(super) fn withhold(ports: &[Option<PolledPort>], to: usize, reason: DropReason) {
    if let Some(port) = ports.get(to).and_then(Option::as_ref) {
        port.counters.add_to_guest_drop(reason);
    }
}

pub(super) fn port_at(ports: &[Option<PolledPort>], index: PortIndex) -> Option<PortAt> {
    let key = ports.get(slot(index))?.as_ref()?.key;
    Some(PortAt { index, key })
}

/// Notes that a frame was put into ring `sink`, of which the guest is to be told: port and ring.
#[inline(always)]
pub(super) fn note_delivered(
    sink: &mut PolledRing,
    tap: &mut Option<Box<Tap>>,
    unpublished: &mut Vec<(usize, usize)>,
    (to, index): (usize, usize),
    frame: &Frame<'_, '_>,
    change: TagChange,
) {
    if !std::mem::replace(&mut sink.unpublished, true) {
        unpublished.push((to, index));
    }
    sink.uncounted.0 += 1;
    sink.uncounted.1 += frame.changed_length(change) as u64;
    if let Some(tap) = tap {
        tap.received(frame, change);
    }
}
