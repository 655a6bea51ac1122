//! After an ADD, off its way: tells the neighbours of the new addresses (gratuitous ARP, unsolicited neighbour
//! advertisement) and asks whether somebody else has one of them already.
//!
//! One thread of low priority serves all interfaces. A failure here is a warning, never an ADD's failure. A packet
//! socket keeps its namespace alive, so none lives longer than 250 ms, and [`Announcer::cancel`] closes it at once.

mod packet;
mod probe;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::Mac;
use crate::process::set_thread_nice;
use crate::real::OwnNetns;
use crate::seam::{NetnsError, NetnsId};
use probe::Probe;

/// So many announcements wait; the oldest makes room for one more.
const QUEUE: usize = 1024;
/// So many interfaces are listened to at once; more are announced without being asked about.
const LISTENING: usize = 256;
/// The epoll token of the bell that rings when the queue is no longer empty.
const BELL: u64 = 0;
/// Nice value of the thread.
const NICE: i32 = 10;

/// An interface whose addresses are to be announced.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// Path of its namespace.
    pub netns: PathBuf,
    /// The namespace that is meant: another one at the path is left alone.
    pub netns_id: NetnsId,
    /// The interface's index there.
    pub ifindex: u32,
    /// Its MAC address.
    pub mac: Mac,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Also ask whether somebody else has them.
    pub probe: bool,
    /// What a person calls it, for logs and conflicts.
    pub label: String,
}

/// Somebody else has an address that was assigned here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The announcement's label.
    pub label: String,
    /// The interface's index.
    pub ifindex: u32,
    /// Its namespace.
    pub netns_id: NetnsId,
    /// The address.
    pub address: IpAddr,
    /// The MAC address of whoever has it as well.
    pub other: Mac,
}

/// Why an interface could not be announced.
#[derive(Debug, thiserror::Error)]
enum AnnounceError {
    /// Its namespace cannot be opened.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// Another namespace is at the path by now.
    #[error("another network namespace is at {netns} by now")]
    Replaced {
        /// The path.
        netns: PathBuf,
    },
    /// Its packet socket failed.
    #[error("packet socket: {0}")]
    Socket(#[from] io::Error),
}

/// The thread that announces. Dropping this ends it.
#[derive(Debug)]
pub struct Announcer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Lock order: `probes` before `queue`.
#[derive(Debug)]
struct Shared {
    own: OwnNetns,
    epoll: Epoll,
    bell: EventFd,
    queue: Mutex<VecDeque<Announcement>>,
    probes: Mutex<Probes>,
    stop: AtomicBool,
    dropped: AtomicU64,
    failed: AtomicU64,
}

#[derive(Debug, Default)]
struct Probes {
    by_token: HashMap<u64, Probe>,
    last_token: u64,
}

/// Called on the announcer's thread for each conflict; must not block for long, and must not call the announcer.
pub type OnConflict = Box<dyn Fn(Conflict) + Send + Sync>;

impl Announcer {
    /// Starts the thread `announcer`. The calling thread's namespace is the one that it comes back to.
    pub fn start(on_conflict: OnConflict) -> io::Result<Announcer> {
        let shared = Arc::new(Shared {
            own: OwnNetns::of_this_thread()?,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            bell: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            queue: Mutex::default(),
            probes: Mutex::default(),
            stop: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        });
        shared.epoll.add(&shared.bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        let for_thread = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("announcer".to_owned());
        let thread = builder.spawn(move || for_thread.serve(&on_conflict))?;
        Ok(Announcer { shared, thread: Some(thread) })
    }

    /// Puts an interface into the queue; returns at once.
    pub fn announce(&self, announcement: Announcement) {
        let mut queue = locked(&self.shared.queue);
        if queue.len() >= QUEUE {
            queue.pop_front();
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        queue.push_back(announcement);
        let first = queue.len() == 1;
        drop(queue);
        if first {
            self.shared.ring();
        }
    }

    /// Forgets an interface: when this returns, no socket of its namespace is open here on its account.
    pub fn cancel(&self, ifindex: u32, netns: &NetnsId) {
        let meant = |what: &Announcement| what.ifindex == ifindex && what.netns_id.same(netns);
        let mut probes = locked(&self.shared.probes);
        locked(&self.shared.queue).retain(|what| !meant(what));
        probes.by_token.retain(|_, probe| !meant(&probe.what));
    }

    /// How many announcements were dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// How many announcements failed.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.ring();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so itself.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn ring(&self) {
        // It only fails when it has rung 2^64 times unheard.
        let _ = self.bell.write(1);
    }

    fn serve(&self, on_conflict: &OnConflict) {
        if let Err(error) = set_thread_nice(NICE) {
            tracing::debug!(%error, "the announcer keeps its priority");
        }
        let mut events = [EpollEvent::empty(); 64];
        while !self.stop.load(Ordering::Acquire) {
            let heard = match self.epoll.wait(&mut events, self.timeout()) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                Err(error) => {
                    tracing::error!(%error, "the announcer ends");
                    return;
                }
            };
            for event in &events[..heard] {
                match event.data() {
                    BELL => drop(self.bell.read()),
                    token => self.listen(token, on_conflict),
                }
            }
            while self.begin_next() {}
            self.advance();
        }
    }

    fn timeout(&self) -> EpollTimeout {
        let next = locked(&self.probes).by_token.values().filter_map(Probe::next).min();
        let Some(at) = next else { return EpollTimeout::NONE };
        let wait = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::ZERO)
    }

    /// Takes one announcement from the queue and sends its first packets. The lock is held from taking to keeping,
    /// so that `cancel` finds it on one side or the other.
    fn begin_next(&self) -> bool {
        let mut probes = locked(&self.probes);
        let Some(mut what) = locked(&self.queue).pop_front() else { return false };
        what.probe &= probes.by_token.len() < LISTENING;
        let label = what.label.clone();
        match self.begin(what, &mut probes) {
            Ok(()) => {}
            // The namespace ended before its announcement began: nobody is left to be announced.
            Err(AnnounceError::Netns(NetnsError::Missing { .. }) | AnnounceError::Replaced { .. }) => {}
            Err(error) => self.failure(&label, &error),
        }
        true
    }

    fn begin(&self, what: Announcement, probes: &mut Probes) -> Result<(), AnnounceError> {
        let mut probe = Probe::open(&self.own, what)?;
        if probe.advance(Instant::now())? {
            probes.last_token += 1;
            let event = EpollEvent::new(EpollFlags::EPOLLIN, probes.last_token);
            self.epoll.add(probe.fd(), event).map_err(io::Error::from)?;
            probes.by_token.insert(probes.last_token, probe);
        }
        Ok(())
    }

    fn listen(&self, token: u64, on_conflict: &OnConflict) {
        let mut probes = locked(&self.probes);
        let Some(probe) = probes.by_token.get_mut(&token) else { return };
        match probe.listen() {
            Ok(None) => {}
            Ok(Some(conflict)) => {
                drop(probes);
                on_conflict(conflict);
            }
            // The link went down or away: there is nothing to listen to any more.
            Err(error) => {
                let gone = probes.by_token.remove(&token);
                tracing::debug!(%error, interface = gone.map(|probe| probe.what.label), "an announced link is gone");
            }
        }
    }

    fn advance(&self) {
        let now = Instant::now();
        locked(&self.probes).by_token.retain(|_, probe| match probe.advance(now) {
            Ok(goes_on) => goes_on,
            Err(error) => {
                self.failure(&probe.what.label, &AnnounceError::Socket(error));
                false
            }
        });
    }

    fn failure(&self, interface: &str, error: &AnnounceError) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(interface, %error, "the addresses of an interface could not be announced");
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
