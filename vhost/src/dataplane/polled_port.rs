//! A port, as the poll thread sees it.

use std::sync::Arc;

use super::command::{ConnectionKey, PortKey};
use super::counters::Counters;
use crate::ring::{GuestEvent, SplitRing};

/// A ring that is at work, or not.
#[derive(Debug, Default)]
pub(super) struct PolledRing {
    /// In a box, so that taking it out for a burst moves a pointer.
    pub(super) ring: Option<Box<SplitRing>>,
    pub(super) kick: Option<Arc<GuestEvent>>,
    pub(super) enabled: bool,
    /// Frames were put into it that the guest was not told of.
    pub(super) unpublished: bool,
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
    /// The guest broke the rules: nothing of this connection is touched any more.
    pub(super) failed: bool,
}

impl PolledPort {
    pub(super) fn new(key: PortKey, queues: u16, counters: Arc<Counters>) -> PolledPort {
        let rings = std::iter::repeat_with(PolledRing::default).take(2 * usize::from(queues)).collect();
        PolledPort { key, counters, rings, connection: ConnectionKey(0), failed: false }
    }

    /// The receive queue for frames that came from queue pair `pair` of another port: the same number, as far as there are as many.
    /// A flow stays in one queue, so its order is kept.
    #[inline]
    pub(super) fn sink_for(&mut self, pair: usize) -> Option<usize> {
        if self.failed {
            return None;
        }
        let wanted = 2 * pair;
        if self.rings.get_mut(wanted).is_some_and(|ring| ring.at_work().is_some()) {
            return Some(wanted);
        }
        let at_work = |ring: &mut PolledRing| ring.at_work().is_some();
        let count = self.rings.iter_mut().step_by(2).map(at_work).take_while(|at_work| *at_work).count();
        (count > 0).then(|| 2 * (pair % count))
    }
}
