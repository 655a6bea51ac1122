//! Three ports of one network on one thread: the hostile guest's, and two neighbours'.

use std::sync::Arc;

use super::Neighbour;
use crate::dataplane::command::{ConnectionKey, PortKey};
use crate::dataplane::forwarding::Forwarding;
use crate::dataplane::polled_port::{PolledPort, PolledRing};
use crate::memory::fuzzed_reads;
use crate::offload::{MOST_SEGMENTS, Offloads};
use crate::protocol::{Refusal, Rings};
use crate::ring::{Caller, GuestEvent, SplitRing};
use crate::switch::{Coarse, Limits, PortRules};

/// The hostile guest's port.
pub(super) const HOSTILE: usize = 0;
/// The most reads of guest memory in one round: each of up to 8 rings has a burst of 32 frames, each frame up to 256 descriptors and as many
/// pieces of a head on the way in, and as many descriptors on the way out to each of three ports. A frame whose work is done here is read
/// whole for each port; its segments go to neighbours' buffers, of one piece. Those of the two neighbours' frames go to the hostile guest's.
const MOST_READS: u64 = 8 * (32 * (256 + 256 + 3 * (300 + 256)) + (64 + MOST_SEGMENTS as u64) * 2 * 16)
    + 2 * (64 + 32) * (300 + 16);

/// The ports.
pub(super) struct Node {
    pub(super) forwarding: Forwarding,
    pub(super) neighbours: [Neighbour; 2],
    now: u64,
    /// The hostile guest broke its rings.
    pub(super) broken: bool,
}

impl Node {
    /// The hostile guest has `queues` pairs of queues.
    pub(super) fn new(queues: u16, spoof_check: bool) -> Node {
        fuzzed_reads::begin(Arc::default());
        let caller = Arc::new(Caller::default());
        caller.on_this_thread();
        let mut forwarding = Forwarding::new(Limits::default(), caller);
        let neighbours = [Neighbour::new(1, Offloads::NONE), Neighbour::new(2, Offloads::ALL)];
        forwarding.ports.resize_with(3, || None);
        for (at, queues) in [(HOSTILE, queues), (1, 1), (2, 1)] {
            let index = forwarding.switch.add_port(&rules(at, spoof_check && at == HOSTILE)).unwrap();
            assert_eq!(usize::from(index.0), at);
            let mut port = PolledPort::new(PortKey(at as u64), queues, Arc::default());
            if let Some(neighbour) = at.checked_sub(1).and_then(|at| neighbours.get(at)) {
                for (queue, polled) in port.rings.iter_mut().enumerate() {
                    *polled = at_work(neighbour.ring(queue), None, true);
                }
            }
            forwarding.ports[at] = Some(port);
        }
        Node { forwarding, neighbours, now: 0, broken: false }
    }

    /// The hostile guest's rings.
    pub(super) fn rings(&mut self) -> &mut Vec<PolledRing> {
        &mut self.forwarding.ports[HOSTILE].as_mut().unwrap().rings
    }

    /// One round, as the poll thread does it, and what must hold after it.
    pub(super) fn round(&mut self) {
        self.now += 1;
        fuzzed_reads::take_reads();
        self.forwarding.round(Coarse(self.now));
        self.forwarding.fail_lost_pages();
        let reads = fuzzed_reads::take_reads();
        assert!(reads <= MOST_READS, "{reads} reads of guest memory in one round");
        for fault in self.forwarding.faults.drain(..) {
            assert_eq!(fault.port, PortKey(HOSTILE as u64), "{:?} of a neighbour", fault.fault);
            self.broken = true;
        }
    }

    /// The hostile guest's port waits for the next connection.
    pub(super) fn forget_hostile(&mut self) {
        let port = self.forwarding.ports[HOSTILE].as_mut().unwrap();
        port.failed = false;
        port.rings.iter_mut().for_each(|ring| *ring = PolledRing::default());
        self.broken = false;
    }

    /// A neighbour sends a frame to the hostile guest, or to everybody; `segmented`: to be cut.
    pub(super) fn neighbour_sends(&mut self, from: usize, to_all: bool, length: usize, segmented: bool) {
        let to = if to_all { [0xff; 6] } else { [2, 0, 0, 0, 0, 0] };
        let mut frame = vec![0x5a; length.clamp(14, 1514)];
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&self.neighbours[from].mac.0);
        frame[12..14].copy_from_slice(&[8, 0]);
        if !segmented || frame.len() < 60 {
            self.neighbours[from].send([0; 10], &frame);
            return;
        }
        let bytes = u16::try_from(frame.len() - 14).unwrap_or(0).to_be_bytes();
        frame[14..24].copy_from_slice(&[0x45, 0, bytes[0], bytes[1], 0, 0, 0, 0, 64, 6]);
        frame[46] = 0x50;
        self.neighbours[from].send([1, 1, 0, 0, 128, 0, 34, 0, 16, 0], &frame);
    }

    /// Frames pass between the neighbours, both ways, whatever the hostile guest does.
    pub(super) fn neighbours_go_on(&mut self) {
        for from in 0..2 {
            let mut frame = [0x77; 60];
            frame[..6].copy_from_slice(&self.neighbours[1 - from].mac.0);
            frame[6..12].copy_from_slice(&self.neighbours[from].mac.0);
            let came = (0..32).any(|_| {
                // What the hostile guest floods may take the buffers of one round, and not those of each.
                self.round();
                self.neighbours.iter_mut().for_each(|neighbour| drop(neighbour.received()));
                assert!(self.neighbours[from].send([0; 10], &frame), "a neighbour's frames are not taken");
                self.round();
                self.neighbours[1 - from].received().iter().any(|came| came == &frame)
            });
            assert!(came, "a neighbour's frame did not arrive");
        }
    }
}

fn rules(at: usize, spoof_check: bool) -> PortRules {
    PortRules {
        network: "blue".to_owned(),
        is_uplink: false,
        mac: fairlead_host::Mac([2, 0, 0, 0, 0, u8::try_from(at).unwrap_or(u8::MAX)]),
        vlan: None,
        trunk: Vec::new(),
        spoof_check,
        isolated: false,
        mtu: 1500,
        from_guest_bits: None,
        to_guest_bits: None,
    }
}

/// A ring on the poll thread.
pub(super) fn at_work(ring: SplitRing, kick: Option<Arc<GuestEvent>>, enabled: bool) -> PolledRing {
    PolledRing { ring: Some(Box::new(ring)), kick, enabled, ..PolledRing::default() }
}

/// The hostile guest's rings, as its session sees them.
pub(super) struct LocalRings<'n>(pub(super) &'n mut Node);

impl Rings for LocalRings<'_> {
    fn start(
        &mut self,
        index: usize,
        ring: SplitRing,
        kick: Arc<GuestEvent>,
        enabled: bool,
    ) -> Result<(), Refusal> {
        let polled = &mut self.0.rings()[index];
        assert!(polled.ring.is_none(), "ring {index} was not stopped before it was changed");
        self.0.forwarding.ports[HOSTILE].as_mut().unwrap().connection = ConnectionKey(1);
        self.0.rings()[index] = at_work(ring, Some(kick), enabled);
        Ok(())
    }

    fn stop(&mut self, index: usize) -> Result<u16, Refusal> {
        let polled = std::mem::take(&mut self.0.rings()[index]);
        Ok(polled.ring.map_or(0, |ring| ring.position()))
    }

    fn enable(&mut self, index: usize, enabled: bool) -> Result<(), Refusal> {
        self.0.rings()[index].enabled = enabled;
        Ok(())
    }

    fn set_call(&mut self, index: usize, call: Option<Arc<GuestEvent>>) -> Result<(), Refusal> {
        if let Some(ring) = self.0.rings()[index].ring.as_mut() {
            ring.set_call(call);
        }
        Ok(())
    }
}
