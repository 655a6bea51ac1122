//! Frames from one guest's ring to others'.
//!
//! Invariants: in one round every ring has one burst at most, so no guest waits for another's flood, and so has every link to another
//! thread. A burst ends early when its frames, or receivers' buffers for them, have many pieces, or when its frames are flooded to many
//! ports: what is left comes in the next round. A sender's buffers are given back only after its frames were copied. A broken ring stops
//! its own port. A frame that came over a link never goes over one. Frames that leave work to be done are delivered in
//! [`super::offloaded_frames`].

use std::sync::Arc;

use super::command::{Fault, slot};
use super::delivery::{Delivery, Origin, port_at, withhold};
use super::offloaded_frames::Workspace;
use super::polled_port::PolledPort;
use super::thread_link::{PortAt, Record};
use super::thread_links::{FloodedThreads, ThreadLinks};
use crate::capture::Tap;
use crate::memory::lost_pages;
use crate::offload::{Offload, Offloads};
use crate::port::DropReason;
use crate::ring::{
    BURST_DESCRIPTORS, Caller, Frame, FrameSink, FrameSource, FrameTaker, HeadSpace, RingFault, SplitRing,
};
use crate::switch::{
    Coarse, Decision, FloodedFrame, FrameSize, Limits, PortIndex, Sighting, Switch, TagChange,
};
use crate::uplink::Queue;
use crate::wake_fence::Fenced;

/// The segments with which a burst ends, whole frames of them: about as many as a burst has of frames without any.
const BURST_SEGMENTS: u16 = 64;
/// The most records of a link that are taken before another's turn.
const LINK_BURST: usize = 64;

/// Frames that one guest's ring sends in a round. `OFFLOADS` is whether the guest may leave work to be done.
struct Burst<'f, const OFFLOADS: bool> {
    forwarding: &'f mut Forwarding,
    origin: Origin,
    /// What it may leave.
    agreed: Offloads,
    now: Coarse,
    /// Frames so far, their bytes, and the segments of those that have any.
    frames: u64,
    bytes: u64,
    segments: u16,
}

impl<const OFFLOADS: bool> FrameTaker for Burst<'_, OFFLOADS> {
    #[inline(always)]
    fn take(&mut self, frame: &Frame<'_, '_>) {
        self.frames += 1;
        self.bytes += frame.length() as u64;
        if let Some(tap) = self.forwarding.tap(slot(self.origin.port)) {
            tap.sent(frame);
        }
        if !OFFLOADS || frame.header().is_plain() {
            self.forwarding.forward(self.origin, frame, self.now);
        } else {
            self.segments += self.forwarding.forward_offloaded(self.origin, frame, self.agreed, self.now);
        }
    }
}

/// The ports, the switch between them, and what is to be told of broken rings.
pub(super) struct Forwarding {
    pub(super) switch: Switch,
    /// By their index in the switch.
    pub(super) ports: Vec<Option<PolledPort>>,
    pub(super) faults: Vec<Fault>,
    caller: Arc<Caller>,
    /// Rings whose guests were not told yet of what was put into them or taken out of them: port and ring.
    unpublished: Vec<(usize, usize)>,
    /// Regions that had been lost when it was last looked.
    losses: usize,
    /// Where the work is done that a sender has left.
    workspace: Workspace,
    links: ThreadLinks,
    /// Descriptors of receivers whose buffers are too small for a frame, and copies of flooded frames, since a burst asked for it.
    descriptors: usize,
}

impl Forwarding {
    pub(super) fn new(limits: Limits, caller: Arc<Caller>) -> Forwarding {
        let (ports, faults, unpublished) = (Vec::new(), Vec::new(), Vec::new());
        let losses = lost_pages::losses();
        let (switch, workspace, links) = (Switch::new(limits), Workspace::new(), ThreadLinks::default());
        let descriptors = 0;
        Forwarding { switch, ports, faults, caller, unpublished, losses, workspace, links, descriptors }
    }

    /// One of several threads' forwarding.
    pub(super) fn linked(limits: Limits, caller: Arc<Caller>, links: ThreadLinks) -> Forwarding {
        Forwarding { switch: Switch::one_of_several(limits), links, ..Forwarding::new(limits, caller) }
    }

    /// Serves every ring once, and answers how many frames were taken.
    pub(super) fn round(&mut self, now: Coarse) -> usize {
        let mut frames = if self.links.is_empty() { 0 } else { self.serve_links(now) };
        for at in 0..self.ports.len() {
            if self.ports[at].as_ref().is_some_and(|port| port.uplink.is_some()) {
                frames += self.serve_uplink(at, now);
                continue;
            }
            let rings =
                self.ports[at].as_ref().map_or(0, |port| if port.failed { 0 } else { port.rings.len() });
            for index in (1..rings).step_by(2) {
                frames += self.serve(at, index, now);
            }
        }
        frames
    }

    /// Takes a burst of each link to another thread.
    #[inline(never)]
    fn serve_links(&mut self, now: Coarse) -> usize {
        // While a link is served there is none to put anything into: what came over one goes over none.
        let mut links = std::mem::take(&mut self.links);
        let mut count = 0;
        for link in links.iter_mut() {
            let mut segments = 0;
            self.descriptors = 0;
            for _ in 0..LINK_BURST {
                let may_go_on = segments < BURST_SEGMENTS && self.descriptors < BURST_DESCRIPTORS;
                let Some(mut received) = link.from.next().filter(|_| may_go_on) else { break };
                count += 1;
                match received.record {
                    Record::Frame { from, to, pair, .. } => {
                        received.with_frame(|frame| {
                            segments += self.relay(from, to, usize::from(pair), frame, now);
                        });
                    }
                    Record::Address { from, address } if self.is_there(from) => {
                        self.switch.hear(Sighting { port: from.index, address }, now);
                    }
                    Record::Address { .. } => {}
                }
                received.end();
            }
            self.publish();
        }
        self.links = links;
        count
    }

    /// Forwards a frame that another thread's port sent. Answers how many segments it has.
    fn relay(
        &mut self,
        from: PortAt,
        to: Option<PortAt>,
        pair: usize,
        frame: &Frame<'_, '_>,
        now: Coarse,
    ) -> u16 {
        // A port that was removed meanwhile may have left its index to another one.
        if !self.is_there(from) || to.is_some_and(|to| !self.is_there(to)) {
            return 1;
        }
        let origin = Origin { port: from.index, pair };
        let to = to.map(|to| to.index);
        let (head, length) = (frame.head(), frame.length());
        // The sender's thread has put in only what its guest may leave to be done, and what agrees with the frame.
        let Ok(offload) = Offload::of(frame.header(), Offloads::ALL, head, length) else { return 1 };
        let size = offload.map_or(FrameSize::whole(length), |offload| offload.size(length));
        let decision = self.switch.relay(from.index, to, head, size, now);
        self.act(origin, frame, offload.as_ref(), decision);
        size.segments
    }

    fn is_there(&self, port: PortAt) -> bool {
        port_at(&self.ports, port.index) == Some(port)
    }

    /// True if another thread has put something into its link.
    pub(super) fn links_have_work(&self) -> bool {
        self.links.have_work()
    }

    /// Tells the other threads what has waited for room in a link. True if some of it still has to.
    pub(super) fn tell_rest(&mut self) -> bool {
        if self.links.is_empty() {
            return false;
        }
        self.tell_threads();
        self.links.have_waiting()
    }

    /// Has the other threads know what was learnt here, and wakes those that sleep and are to do something.
    #[inline(never)]
    fn tell_threads(&mut self) {
        while let Some(sighting) = self.switch.next_sighting() {
            if let Some(from) = port_at(&self.ports, sighting.port) {
                self.links.tell(from, sighting);
            }
        }
        self.links.wake();
    }

    /// Forwards a burst of each queue of port `at`, which leads to the wire.
    fn serve_uplink(&mut self, at: usize, now: Coarse) -> usize {
        let port = self.ports.get_mut(at).and_then(Option::as_mut);
        let Some(mut queues) = port.and_then(|port| port.uplink.take()) else { return 0 };
        let mut frames = 0;
        for (pair, queue) in queues.0.iter_mut().enumerate() {
            frames += self.uplink_burst(at, pair, queue, now);
        }
        if let Some(port) = self.ports.get_mut(at).and_then(Option::as_mut) {
            port.uplink = Some(queues);
        }
        self.publish();
        frames
    }

    fn uplink_burst(&mut self, at: usize, pair: usize, queue: &mut Queue, now: Coarse) -> usize {
        queue.send_rest();
        let mut count = queue.look();
        if count == 0 {
            return 0;
        }
        self.descriptors = 0;
        let from = PortIndex(u16::try_from(at).unwrap_or(u16::MAX));
        let memory = Arc::clone(queue.memory());
        let (mut frames, mut bytes, mut space) = (0, 0, HeadSpace::new());
        for n in 0..count {
            if self.descriptors >= BURST_DESCRIPTORS {
                count = n;
                break;
            }
            if let Some(frame) = queue.frame(n, &memory, &mut space) {
                frames += 1;
                bytes += frame.length() as u64;
                self.forward(Origin { port: from, pair }, &frame, now);
            }
        }
        queue.give_back(count);
        if let Some(port) = self.ports.get(at).and_then(Option::as_ref) {
            port.counters.add_from_guest(frames, bytes);
        }
        count as usize
    }

    /// True if an uplink has something to do.
    pub(super) fn uplinks_have_work(&self) -> bool {
        self.ports.iter().flatten().filter_map(|port| port.uplink.as_ref()).any(|queues| queues.has_work())
    }

    /// Forwards a burst of ring `index` of port `at`. What a disabled ring has is taken and goes nowhere: its guest must not find its buffers
    /// held until the ring is enabled, nor its neighbours get then what was sent long ago (vhost-user, "Ring states").
    #[inline]
    fn serve(&mut self, at: usize, index: usize, now: Coarse) -> usize {
        let Some(port) = self.ports.get_mut(at).and_then(Option::as_mut) else { return 0 };
        let Some(source) = port.rings.get_mut(index) else { return 0 };
        if !source.ring.as_ref().is_some_and(|ring| ring.has_work()) {
            return 0;
        }
        let is_enabled = source.enabled;
        let Some(mut ring) = source.ring.take() else { return 0 };
        // Two ways, so that a guest that has agreed on no offload pays nothing for it.
        let burst = if !is_enabled {
            self.discard(at, &mut ring)
        } else if ring.features().sends.checksum {
            self.burst::<true>(at, index / 2, &mut ring, now)
        } else {
            self.burst::<false>(at, index / 2, &mut ring, now)
        };
        if let Some(port) = self.ports.get_mut(at).and_then(Option::as_mut) {
            port.rings[index].ring = Some(ring);
        }
        if burst.is_ok() {
            self.unpublished.push((at, index));
        }
        self.publish();
        match burst {
            Ok(frames) => frames,
            Err(fault) => {
                self.fail(at, fault);
                0
            }
        }
    }

    /// Takes a burst of frames out of `ring`, the transmit queue of pair `pair` of port `at`, and forwards each. `OFFLOADS` is whether its
    /// guest may leave work to be done.
    fn burst<const OFFLOADS: bool>(
        &mut self,
        at: usize,
        pair: usize,
        ring: &mut SplitRing,
        now: Coarse,
    ) -> Result<usize, RingFault> {
        let from = PortIndex(u16::try_from(at).unwrap_or(u16::MAX));
        let memory = Arc::clone(ring.memory());
        let mut source = FrameSource::look(ring, &memory)?;
        self.descriptors = 0;
        let (origin, agreed) = (Origin { port: from, pair }, ring.features().sends);
        let mut burst =
            Burst::<OFFLOADS> { forwarding: self, origin, agreed, now, frames: 0, bytes: 0, segments: 0 };
        let mut n = 0;
        while n < source.count() {
            if !source.frame::<OFFLOADS>(n, ring, &mut burst)? {
                burst.forwarding.count_drop(at, DropReason::Length);
            }
            if burst.segments >= BURST_SEGMENTS {
                source.end_with(n);
            }
            if burst.forwarding.descriptors > 0 {
                source.count_descriptors(n, std::mem::take(&mut burst.forwarding.descriptors));
            }
            source.give_back(n, ring);
            n += 1;
        }
        let Burst { frames, bytes, .. } = burst;
        if let Some(port) = self.ports.get(at).and_then(Option::as_ref) {
            port.counters.add_from_guest(frames, bytes);
        }
        Ok(n)
    }

    /// Takes a burst of frames out of `ring`, a transmit queue of port `at` that is disabled, and forwards none.
    #[cold]
    fn discard(&mut self, at: usize, ring: &mut SplitRing) -> Result<usize, RingFault> {
        let memory = Arc::clone(ring.memory());
        let mut source = FrameSource::look(ring, &memory)?;
        let mut n = 0;
        while n < source.count() {
            // A chain that is broken is one here too.
            source.frame::<false>(n, ring, &mut |_: &Frame<'_, '_>| {})?;
            self.count_drop(at, DropReason::Disabled);
            source.give_back(n, ring);
            n += 1;
        }
        Ok(n)
    }

    #[inline(always)]
    pub(super) fn forward(&mut self, from: Origin, frame: &Frame<'_, '_>, now: Coarse) {
        let decision = self.switch.decide(from.port, frame.head(), frame.length(), now);
        self.act(from, frame, None, decision);
    }

    /// Does with a frame what was decided. `offload` is what its sender has left to be done.
    #[inline(always)]
    pub(super) fn act(
        &mut self,
        from: Origin,
        frame: &Frame<'_, '_>,
        offload: Option<&Offload>,
        decision: Decision,
    ) {
        match (decision, offload) {
            (Decision::To(to, change), None) => self.deliver(from, slot(to), frame, change),
            (Decision::To(to, change), Some(offload)) => {
                self.deliver_offloaded(from, slot(to), frame, change, offload);
            }
            (Decision::Drop(reason), _) => self.count_drop(slot(from.port), reason),
            (Decision::Withheld(to, reason), _) => withhold(&self.ports, slot(to), reason),
            (Decision::Flood(flooded), _) => self.flood(from, frame, offload, &flooded),
        }
    }

    /// To all that a frame is for. `offload` is what its sender has left to be done.
    #[cold]
    fn flood(
        &mut self,
        from: Origin,
        frame: &Frame<'_, '_>,
        offload: Option<&Offload>,
        flooded: &FloodedFrame,
    ) {
        let Forwarding { switch, ports, faults, unpublished, losses, workspace, links, descriptors, .. } =
            self;
        // A thread gets the frame once, for all of its ports, and counts for itself what they may not get.
        let (mut threads, sender) = (FloodedThreads::default(), port_at(ports, from.port));
        // What it costs to give the frame to one of them. It counts also for one that gets nothing, which is looked at all the same.
        let copies = offload.map_or(1, |offload| usize::from(offload.size(frame.length()).segments));
        let mut delivery = Delivery { ports, unpublished, links, descriptors, from };
        for (to, change) in switch.flood_to(from.port, flooded) {
            let to = slot(to);
            if let (Some(thread), Some(sender)) = (delivery.thread_of(to), sender) {
                let put = || {
                    *delivery.descriptors += copies;
                    delivery.links.put(thread, sender, None, from.pair, frame)
                };
                if !threads.has_got(thread, put) {
                    withhold(delivery.ports, to, DropReason::LinkFull);
                }
                continue;
            }
            *delivery.descriptors += copies;
            let delivered = match (change, offload) {
                (Ok(change), None) => delivery.put(to, frame, change),
                (Ok(change), Some(offload)) => delivery.put_offloaded(workspace, to, frame, change, offload),
                (Err(reason), _) => {
                    withhold(delivery.ports, to, reason);
                    continue;
                }
            };
            if let Err(fault) = delivered {
                fail(delivery.ports, faults, to, fault);
            }
            fail_lost_pages(delivery.ports, faults, losses);
        }
    }

    #[inline(always)]
    fn deliver(&mut self, from: Origin, to: usize, frame: &Frame<'_, '_>, change: TagChange) {
        let Forwarding { ports, unpublished, links, descriptors, .. } = self;
        let mut delivery = Delivery { ports, unpublished, links, descriptors, from };
        if let Err(fault) = delivery.put(to, frame, change) {
            self.fail(to, fault);
        }
    }

    /// Gives port `to` a frame that leaves this to be done.
    #[inline(never)]
    fn deliver_offloaded(
        &mut self,
        from: Origin,
        to: usize,
        frame: &Frame<'_, '_>,
        change: TagChange,
        offload: &Offload,
    ) {
        let Forwarding { ports, unpublished, links, workspace, descriptors, .. } = self;
        let mut delivery = Delivery { ports, unpublished, links, descriptors, from };
        if let Err(fault) = delivery.put_offloaded(workspace, to, frame, change, offload) {
            self.fail(to, fault);
        }
    }

    #[inline]
    fn tap(&mut self, at: usize) -> Option<&mut Tap> {
        self.ports.get_mut(at)?.as_mut()?.tap.as_deref_mut()
    }

    pub(super) fn count_drop(&self, at: usize, reason: DropReason) {
        if let Some(port) = self.ports.get(at).and_then(Option::as_ref) {
            port.counters.add_from_guest_drop(reason);
        }
    }

    /// Tells the guests of this burst: the one who sent it, and those who got it. Then looks at what comes next in their rings.
    fn publish(&mut self) {
        self.fail_lost_pages();
        if !self.links.is_empty() {
            self.tell_threads();
        }
        if self.unpublished.is_empty() {
            return;
        }
        let Forwarding { ports, unpublished, .. } = self;
        for (at, index) in unpublished.iter() {
            let Some(port) = ports.get_mut(*at).and_then(Option::as_mut) else { continue };
            if let Some(queue) = port.uplink.as_mut().and_then(|queues| queues.0.get_mut(*index)) {
                queue.send();
                continue;
            }
            let polled = &mut port.rings[*index];
            polled.unpublished = false;
            let (frames, bytes) = std::mem::take(&mut polled.uncounted);
            port.counters.add_to_guest(frames, bytes);
            if let Some(ring) = &mut polled.ring {
                ring.announce();
            }
        }
        // Waits until all that was written is in the cache: once for all of them.
        let fenced = Fenced::now();
        let mut told = std::mem::take(&mut self.unpublished);
        for (at, index) in told.drain(..) {
            let port = self.ports.get_mut(at).and_then(Option::as_mut).filter(|port| port.uplink.is_none());
            let Some(PolledPort { rings, call_times, .. }) = port else { continue };
            let Some(ring) = rings[index].ring.as_mut() else { continue };
            let called = ring.call(&self.caller, call_times, fenced);
            if index % 2 == 0 {
                FrameSink::look_further(ring);
            } else {
                FrameSource::look_further(ring);
            }
            if let Err(fault) = called {
                self.fail(at, fault);
            }
        }
        self.unpublished = told;
    }

    /// Serves port `at` no longer, and remembers why.
    pub(super) fn fail(&mut self, at: usize, fault: RingFault) {
        fail(&mut self.ports, &mut self.faults, at, fault);
    }

    /// Fails the ports whose guests took pages of their memory away, or have the switch use too many that nobody had used. Between two
    /// bursts already, and between the copies of a flooded frame: what is put in place of a lost region costs memory too.
    #[inline]
    pub(super) fn fail_lost_pages(&mut self) {
        fail_lost_pages(&mut self.ports, &mut self.faults, &mut self.losses);
    }
}

#[inline]
fn fail_lost_pages(ports: &mut [Option<PolledPort>], faults: &mut Vec<Fault>, seen: &mut usize) {
    let losses = lost_pages::losses();
    if losses == *seen {
        return;
    }
    *seen = losses;
    for at in 0..ports.len() {
        if let Some(fault) = ports[at].as_ref().and_then(loss) {
            fail(ports, faults, at, fault);
        }
    }
}

/// Why a port lost memory, if it did.
#[cold]
fn loss(port: &PolledPort) -> Option<RingFault> {
    let rings = port.rings.iter().filter_map(|ring| ring.ring.as_ref());
    let lost = rings.map(|ring| ring.memory()).find(|memory| memory.lost_pages())?;
    Some(if lost.cost_too_much() { RingFault::TooMuchMemory } else { RingFault::LostPages })
}

fn fail(ports: &mut [Option<PolledPort>], faults: &mut Vec<Fault>, at: usize, fault: RingFault) {
    if let Some(port) = ports.get_mut(at).and_then(Option::as_mut).filter(|port| !port.failed) {
        port.failed = true;
        faults.push(Fault { port: port.key, connection: port.connection, fault });
    }
}

#[cfg(test)]
#[path = "forwarding_tests.rs"]
mod tests;
