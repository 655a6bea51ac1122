//! The links of one poll thread to all others.
//!
//! While a thread serves its links they are taken out of here, so what came over one goes over none: a frame takes one link at most.

use std::sync::Arc;

use super::thread_link::{LinkReceiver, LinkSender, PortAt, thread_link};
use super::waker::Waker;
use crate::ring::Frame;
use crate::switch::Sighting;
use crate::wake_fence::Fenced;

/// The most threads that there can be.
pub(super) const MOST_THREADS: usize = 64;

/// Both ways to another thread.
pub(super) struct ThreadLink {
    pub(super) to: LinkSender,
    pub(super) from: LinkReceiver,
}

/// The links to the other threads, by their numbers; none at this one's own, and empty where there is no other.
#[derive(Default)]
pub(super) struct ThreadLinks(Vec<Option<ThreadLink>>);

impl ThreadLinks {
    /// The links of as many threads as there are wakers, of each those that it has.
    pub(super) fn mesh(wakers: &[Arc<Waker>]) -> Vec<ThreadLinks> {
        if wakers.len() == 1 {
            return vec![ThreadLinks::default()];
        }
        let mut senders: Vec<Vec<_>> = wakers.iter().map(|_| Vec::new()).collect();
        let mut receivers: Vec<Vec<_>> = wakers.iter().map(|_| Vec::new()).collect();
        for (from, of_sender) in senders.iter_mut().enumerate() {
            for (to, (waker, of_receiver)) in wakers.iter().zip(&mut receivers).enumerate() {
                let link = (from != to).then(|| thread_link(Arc::clone(waker), wakers.len() - 1));
                let (sender, receiver) = link.unzip();
                of_sender.push(sender);
                of_receiver.push(receiver);
            }
        }
        let of_thread = |(senders, receivers): (Vec<_>, Vec<_>)| {
            let both = senders.into_iter().zip(receivers);
            ThreadLinks(both.map(|(to, from)| Some(ThreadLink { to: to?, from: from? })).collect())
        };
        senders.into_iter().zip(receivers).map(of_thread).collect()
    }

    /// True where there is no other thread.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut ThreadLink> {
        self.0.iter_mut().flatten()
    }

    /// True if an address waits for room in one of them.
    pub(super) fn have_waiting(&self) -> bool {
        self.0.iter().flatten().any(|link| link.to.has_waiting())
    }

    /// True if another thread has put something into its link.
    pub(super) fn have_work(&self) -> bool {
        self.0.iter().flatten().any(|link| link.from.has_work())
    }

    /// Sends a frame to another thread, for one of its ports or for all that a flooded frame is for; false if there is no room. Where there
    /// is no link nothing is to be sent: the frame came over one.
    pub(super) fn put(
        &mut self,
        thread: usize,
        from: PortAt,
        to: Option<PortAt>,
        pair: usize,
        frame: &Frame<'_, '_>,
    ) -> bool {
        let link = self.0.get_mut(thread).and_then(Option::as_mut);
        link.is_none_or(|link| link.to.put(from, to, pair, frame))
    }

    /// Has all other threads know where an address is.
    pub(super) fn tell(&mut self, from: PortAt, sighting: Sighting) {
        self.iter_mut().for_each(|link| link.to.tell(from, sighting));
    }

    /// Wakes the threads that sleep and are to do something.
    pub(super) fn wake(&mut self) {
        self.iter_mut().for_each(|link| link.to.put_waiting());
        if self.0.iter().flatten().any(|link| link.to.has_news()) {
            let fenced = Fenced::now();
            self.iter_mut().for_each(|link| link.to.wake(fenced));
        }
    }
}

/// To which threads a flooded frame was sent, or could not be.
#[derive(Default)]
pub(super) struct FloodedThreads {
    tried: u64,
    got: u64,
}

impl FloodedThreads {
    /// Whether a thread has the frame, which `put` sends to it when it is asked for first.
    pub(super) fn has_got(&mut self, thread: usize, put: impl FnOnce() -> bool) -> bool {
        let bit = 1 << (thread % MOST_THREADS);
        if self.tried & bit == 0 {
            self.tried |= bit;
            self.got |= if put() { bit } else { 0 };
        }
        self.got & bit != 0
    }
}
