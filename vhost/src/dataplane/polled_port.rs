//! A port, as the poll thread sees it.

use std::sync::Arc;

use super::command::{ConnectionKey, PortKey};
use super::counters::Counters;
use crate::capture::Tap;
use crate::ring::{CallTimes, GuestEvent, SplitRing};
use crate::uplink::Queues;

/// A ring that is at work, or not.
#[derive(Debug, Default)]
pub(super) struct PolledRing {
    /// In a box, so that taking it out for a burst moves a pointer.
    pub(super) ring: Option<Box<SplitRing>>,
    pub(super) kick: Option<Arc<GuestEvent>>,
    /// Frames go through it. From one that is not, a transmit queue's are taken all the same, and dropped.
    pub(super) enabled: bool,
    /// Frames were put into it that the guest was not told of.
    pub(super) unpublished: bool,
    /// Frames and bytes that were put into it and are not counted yet: both is done once for a burst.
    pub(super) uncounted: (u64, u64),
}

impl PolledRing {
    /// The ring, if frames go through it.
    #[inline]
    pub(super) fn at_work(&mut self) -> Option<&mut SplitRing> {
        self.ring.as_deref_mut().filter(|_| self.enabled)
    }
}

/// A port and its rings.
#[derive(Debug)]
pub(super) struct PolledPort {
    pub(super) key: PortKey,
    pub(super) counters: Arc<Counters>,
    /// Even: to the guest. Odd: from the guest.
    pub(super) rings: Vec<PolledRing>,
    /// The connection that the rings belong to.
    pub(super) connection: ConnectionKey,
    /// Of its guests, one after the other: one that has taken too long is no other one for having connected anew.
    pub(super) call_times: CallTimes,
    /// Copies its frames.
    pub(super) tap: Option<Box<Tap>>,
    /// The guest broke the rules: nothing of this connection is touched any more.
    pub(super) failed: bool,
    /// Of a port that leads to the wire: it has no rings.
    pub(super) uplink: Option<Box<Queues>>,
    /// The thread that serves it, where that is another: it has no rings here.
    pub(super) elsewhere: Option<usize>,
}

impl PolledPort {
    /// A port that leads to the wire.
    pub(super) fn uplink(key: PortKey, queues: Box<Queues>, counters: Arc<Counters>) -> PolledPort {
        PolledPort { uplink: Some(queues), ..PolledPort::new(key, 0, counters) }
    }

    /// A port that another thread serves.
    pub(super) fn elsewhere(key: PortKey, thread: usize, counters: Arc<Counters>) -> PolledPort {
        PolledPort { elsewhere: Some(thread), ..PolledPort::new(key, 0, counters) }
    }

    pub(super) fn new(key: PortKey, queues: u16, counters: Arc<Counters>) -> PolledPort {
        let rings = std::iter::repeat_with(PolledRing::default).take(2 * usize::from(queues)).collect();
        let (connection, call_times, failed) = (ConnectionKey(0), CallTimes::default(), false);
        let (tap, uplink, elsewhere) = (None, None, None);
        PolledPort { key, counters, rings, connection, call_times, tap, failed, uplink, elsewhere }
    }

    /// The receive queue for frames that came from queue pair `pair` of another port: the same number, as far as there are as many.
    /// A flow stays in one queue, so its order is kept.
    #[inline(always)]
    pub(super) fn sink_for(&mut self, pair: usize) -> Option<usize> {
        if self.failed {
            return None;
        }
        let wanted = 2 * pair;
        if self.rings.get_mut(wanted).is_some_and(|ring| ring.at_work().is_some()) {
            return Some(wanted);
        }
        self.sink_for_more(pair)
    }

    /// The same of a pair that the port has no queue for.
    #[inline(never)]
    fn sink_for_more(&mut self, pair: usize) -> Option<usize> {
        let at_work = |ring: &mut PolledRing| ring.at_work().is_some();
        let count = self.rings.iter_mut().step_by(2).map(at_work).take_while(|at_work| *at_work).count();
        (count > 0).then(|| 2 * (pair % count))
    }
}
