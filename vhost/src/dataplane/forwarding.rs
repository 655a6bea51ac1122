//! Frames from one guest's ring to others'.
//!
//! Invariants: in one round every ring has one burst at most, so no guest waits for another's flood. A sender's buffers are given back
//! only after its frames were copied. A broken ring stops its own port.

use std::sync::Arc;

use super::command::{Fault, slot};
use super::polled_port::PolledPort;
use crate::port::DropReason;
use crate::ring::{Caller, Frame, FrameSink, FrameSource, RingFault, SplitRing};
use crate::switch::{Coarse, Decision, Limits, PortIndex, Switch, TagChange};

/// The ports, the switch between them, and what is to be told of broken rings.
pub(super) struct Forwarding {
    pub(super) switch: Switch,
    /// By their index in the switch.
    pub(super) ports: Vec<Option<PolledPort>>,
    pub(super) faults: Vec<Fault>,
    caller: Arc<Caller>,
    /// Rings that have frames which their guests were not told of: port and ring.
    unpublished: Vec<(usize, usize)>,
}

impl Forwarding {
    pub(super) fn new(limits: Limits, caller: Arc<Caller>) -> Forwarding {
        let (ports, faults, unpublished) = (Vec::new(), Vec::new(), Vec::new());
        Forwarding { switch: Switch::new(limits), ports, faults, caller, unpublished }
    }

    /// Serves every ring once, and answers how many frames were taken.
    pub(super) fn round(&mut self, now: Coarse) -> usize {
        let mut frames = 0;
        for at in 0..self.ports.len() {
            let rings =
                self.ports[at].as_ref().map_or(0, |port| if port.failed { 0 } else { port.rings.len() });
            for index in (1..rings).step_by(2) {
                frames += self.serve(at, index, now);
            }
        }
        frames
    }

    /// Forwards a burst of ring `index` of port `at`.
    #[inline]
    fn serve(&mut self, at: usize, index: usize, now: Coarse) -> usize {
        let Some(port) = self.ports.get_mut(at).and_then(Option::as_mut) else { return 0 };
        let Some(source) = port.rings.get_mut(index) else { return 0 };
        if !source.at_work().is_some_and(|ring| ring.has_work()) {
            return 0;
        }
        let Some(mut ring) = source.ring.take() else { return 0 };
        let burst = self.burst(at, index / 2, &mut ring, now);
        if let Some(port) = self.ports.get_mut(at).and_then(Option::as_mut) {
            port.rings[index].ring = Some(ring);
        }
        self.publish_sinks();
        match burst {
            Ok(frames) => frames,
            Err(fault) => {
                self.fail(at, fault);
                0
            }
        }
    }

    /// Takes a burst of frames out of `ring`, the transmit queue of pair `pair` of port `at`, and forwards each.
    fn burst(
        &mut self,
        at: usize,
        pair: usize,
        ring: &mut SplitRing,
        now: Coarse,
    ) -> Result<usize, RingFault> {
        let from = PortIndex(u16::try_from(at).unwrap_or(u16::MAX));
        let memory = Arc::clone(ring.memory());
        let mut source = FrameSource::look(ring, &memory)?;
        let (mut frames, mut bytes) = (0, 0);
        for n in 0..source.count() {
            if let Some(frame) = source.frame(n, ring)? {
                frames += 1;
                bytes += frame.length() as u64;
                self.forward(from, pair, &frame, now);
            }
            source.give_back(n, ring);
        }
        if let Some(port) = self.ports.get(at).and_then(Option::as_ref) {
            port.counters.add_from_guest(frames, bytes);
        }
        ring.publish(&self.caller)?;
        Ok(source.count())
    }

    #[inline]
    fn forward(&mut self, from: PortIndex, pair: usize, frame: &Frame<'_, '_>, now: Coarse) {
        match self.switch.decide(from, frame.head(), frame.length(), now) {
            Decision::To(to, change) => self.deliver(slot(to), pair, frame, change),
            Decision::Drop(reason) => self.count_drop(slot(from), reason),
            Decision::Flood(flooded) => self.flood(from, pair, frame, &flooded),
        }
    }

    fn flood(
        &mut self,
        from: PortIndex,
        pair: usize,
        frame: &Frame<'_, '_>,
        flooded: &crate::switch::FloodedFrame,
    ) {
        let Forwarding { switch, ports, faults, unpublished, .. } = self;
        for (to, change) in switch.flood_to(from, flooded) {
            if let Err(fault) = deliver(ports, unpublished, slot(to), pair, frame, change) {
                fail(ports, faults, slot(to), fault);
            }
        }
    }

    #[inline]
    fn deliver(&mut self, to: usize, pair: usize, frame: &Frame<'_, '_>, change: TagChange) {
        if let Err(fault) = deliver(&mut self.ports, &mut self.unpublished, to, pair, frame, change) {
            self.fail(to, fault);
        }
    }

    fn count_drop(&self, at: usize, reason: DropReason) {
        if let Some(port) = self.ports.get(at).and_then(Option::as_ref) {
            port.counters.add_drop(reason);
        }
    }

    /// Tells the guests what they got in this burst.
    fn publish_sinks(&mut self) {
        while let Some((at, index)) = self.unpublished.pop() {
            let Some(port) = self.ports.get_mut(at).and_then(Option::as_mut) else { continue };
            let sink = &mut port.rings[index];
            sink.unpublished = false;
            let published = sink.ring.as_mut().map_or(Ok(()), |ring| ring.publish(&self.caller));
            if let Err(fault) = published {
                self.fail(at, fault);
            }
        }
    }

    /// Serves port `at` no longer, and remembers why.
    pub(super) fn fail(&mut self, at: usize, fault: RingFault) {
        fail(&mut self.ports, &mut self.faults, at, fault);
    }

    /// Fails the ports whose guests took pages of their memory away.
    pub(super) fn fail_lost_pages(&mut self) {
        let lost = |port: &PolledPort| {
            port.rings.iter().filter_map(|ring| ring.ring.as_ref()).any(|ring| ring.memory().lost_pages())
        };
        for at in 0..self.ports.len() {
            if self.ports[at].as_ref().is_some_and(lost) {
                self.fail(at, RingFault::LostPages);
            }
        }
    }
}

fn fail(ports: &mut [Option<PolledPort>], faults: &mut Vec<Fault>, at: usize, fault: RingFault) {
    if let Some(port) = ports.get_mut(at).and_then(Option::as_mut).filter(|port| !port.failed) {
        port.failed = true;
        faults.push(Fault { port: port.key, connection: port.connection, fault });
    }
}

/// Copies `frame` into a receive queue of port `to`, or counts that there was no room.
#[inline]
fn deliver(
    ports: &mut [Option<PolledPort>],
    unpublished: &mut Vec<(usize, usize)>,
    to: usize,
    pair: usize,
    frame: &Frame<'_, '_>,
    change: TagChange,
) -> Result<(), RingFault> {
    let Some(port) = ports.get_mut(to).and_then(Option::as_mut) else { return Ok(()) };
    let Some(index) = port.sink_for(pair) else {
        port.counters.add_drop(DropReason::NoRoom);
        return Ok(());
    };
    let sink = &mut port.rings[index];
    let Some(ring) = sink.ring.as_deref_mut() else { return Ok(()) };
    if !FrameSink::put(ring, frame, change)? {
        port.counters.add_drop(DropReason::NoRoom);
        return Ok(());
    }
    if !std::mem::replace(&mut sink.unpublished, true) {
        unpublished.push((to, index));
    }
    port.counters.add_to_guest(frame.changed_length(change));
    Ok(())
}
