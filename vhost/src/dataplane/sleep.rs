//! When the poll thread sleeps, and what wakes it.
//!
//! Invariant: before it sleeps, every guest was asked for a kick and every ring was looked at once more; so a frame is either seen or
//! announced. Eventfds of guests are watched for edges and never read: a guest could empty one between epoll and the read.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::forwarding::Forwarding;
use super::handle::Polling;
use super::waker::Waker;
use crate::ring::SplitRing;

/// How long the rings are polled after the last frame, in adaptive mode. A sleep and a kick cost some microseconds each.
const AWAKE: Duration = Duration::from_micros(300);

/// The longest sleep in milliseconds where not every guest could wake us, or something is left to be told when there is room.
const DEAF_MS: u8 = 1;

/// Decides when to sleep.
pub(super) struct Sleep {
    epoll: Epoll,
    polling: Polling,
    idle_since: Option<Instant>,
    /// A kick could not be watched (`fs.epoll.max_user_watches`): nothing would wake us for it.
    is_deaf: Cell<bool>,
    /// How other poll threads see whether this one sleeps.
    waker: Arc<Waker>,
}

impl Sleep {
    /// # Errors
    /// No epoll is to be had, or `bell` cannot be watched. `bell` is what wakes for commands, and by `waker` for the links of
    /// other threads.
    pub(super) fn new(polling: Polling, bell: impl AsFd, waker: Arc<Waker>) -> Result<Sleep, nix::Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(bell, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        Ok(Sleep { epoll, polling, idle_since: None, is_deaf: Cell::new(false), waker })
    }

    /// Wakes for a guest's kick, or a frame of an uplink, from now on.
    pub(super) fn watch(&self, kick: impl AsFd) {
        let watched = self.epoll.add(kick, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 1));
        // One that is watched already (the guest may give one eventfd to two rings) wakes us too.
        if let Err(error) = watched.or_else(|error| if error == Errno::EEXIST { Ok(()) } else { Err(error) })
        {
            self.is_deaf.set(true);
            tracing::warn!(%error, "a guest's kicks, or an uplink, cannot be watched; rings are looked at every millisecond from now on");
        }
    }

    /// Wakes for that no longer.
    pub(super) fn forget(&self, kick: impl AsFd) {
        let _ = self.epoll.delete(kick);
    }

    /// Sleeps if nothing has come for a while, until a guest kicks or a command comes.
    pub(super) fn after_round(&mut self, frames: usize, now: Instant, forwarding: &mut Forwarding) {
        if frames > 0 || self.polling == Polling::Always {
            self.idle_since = None;
            return;
        }
        if now.duration_since(*self.idle_since.get_or_insert(now)) < AWAKE {
            std::hint::spin_loop();
            return;
        }
        let is_brief = forwarding.tell_rest() || self.is_deaf.get();
        for_each_source(forwarding, |ring| ring.ask_for_kicks(true));
        // Our wish must be seen before we look: the guest writes its index and then looks for the wish (2.7.10). `sleep_unless` has the
        // fence that is between the two.
        self.waker.sleep_unless(|| has_work(forwarding), || self.wait(is_brief));
        for_each_source(forwarding, |ring| ring.ask_for_kicks(false));
        // Whatever announces a frame does so when the frame is there: where the next round finds none, it was a command, and who waits
        // for the answer may need this processor.
    }

    fn wait(&self, is_brief: bool) {
        let limit = if is_brief { EpollTimeout::from(DEAF_MS) } else { EpollTimeout::NONE };
        // An interruption is a wake-up like any other.
        let _ = self.epoll.wait(&mut [EpollEvent::empty()], limit);
    }
}

/// True if a frame is there to be taken.
fn has_work(forwarding: &mut Forwarding) -> bool {
    let mut work = forwarding.uplinks_have_work() || forwarding.links_have_work();
    for_each_source(forwarding, |ring| work |= ring.has_work());
    work
}

/// Every ring from which frames are taken: from those that are disabled, too.
fn for_each_source(forwarding: &mut Forwarding, mut act: impl FnMut(&mut SplitRing)) {
    let ports = forwarding.ports.iter_mut().flatten().filter(|port| !port.failed);
    for ring in ports.flat_map(|port| port.rings.iter_mut().skip(1).step_by(2)) {
        if let Some(ring) = ring.ring.as_deref_mut() {
            act(ring);
        }
    }
}

#[cfg(test)]
#[path = "sleep_tests.rs"]
mod tests;
