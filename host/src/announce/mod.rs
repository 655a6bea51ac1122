//! Announces an attachment's new addresses to the neighbours (gratuitous ARP, unsolicited neighbour advertisement) and probes
//! whether somebody else has one of them already. It happens after the ADD's answer, so that no ADD waits for it.
//!
//! One thread of the lowest priority serves all interfaces. A failure here is a warning, never an ADD's failure. A packet
//! socket keeps its namespace alive, so none is used longer than 350 ms or past [`Announcer::cancel`]; closing it takes the
//! kernel some milliseconds more.

mod carrier_wait;
mod interface_announcement;
mod packet;
mod packet_filter;
mod socket_closers;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::Mac;
use crate::after_answer::when_answered;
use crate::real::OwnNetns;
use crate::scheduling::run_only_when_idle;
use crate::seam::{NetError, NetnsError, NetnsId};
use carrier_wait::{CarrierWait, Waiting};
use interface_announcement::Probe;
use socket_closers::SocketClosers;

/// So many announcements wait or are under way; further ones are dropped.
const QUEUE: usize = 1024;
/// So many interfaces are listened to at once; the addresses of more are announced without a probe.
const LISTENING: usize = 256;
/// The epoll token of the bell that rings when the queue is no longer empty.
const BELL: u64 = 0;
/// Work begins when no order has come for so long: woken for each, the thread would take a processor from the next
/// call, and so would its packets, which the kernel copies to every neighbour.
const QUIET: Duration = Duration::from_millis(10);
/// But at the latest so long after the first order (RFC 5227 lets a host wait a second before it probes).
const GATHER: Duration = Duration::from_millis(100);

/// An interface whose addresses are to be announced.
#[derive(Debug, Clone)]
pub struct Announcement {
    /// Path of its namespace.
    pub netns: PathBuf,
    /// The namespace that is meant: another one at the path is left alone.
    pub netns_id: NetnsId,
    /// The interface's index there.
    pub ifindex: u32,
    /// The addresses to be announced.
    pub addresses: Vec<IpAddr>,
    /// Also probe whether somebody else has them.
    pub probe: bool,
    /// Wait for the interface's carrier, some seconds at most: it is a NIC's own, which has just been set up.
    pub awaits_carrier: bool,
    /// The interface's name there, where the kernel is to announce IPv6 addresses that it gets later by itself (the sysctl `ndisc_notify`).
    /// A kernel without IPv6 does not have it, and a pod may have given the name away: it is tried only.
    pub ndisc_notify: Option<String>,
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
    /// The namespace that the interface is in.
    pub netns_id: NetnsId,
    /// The address that both have.
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
        /// The path where the namespace was.
        netns: PathBuf,
    },
    /// It has no carrier yet.
    #[error("the interface has no carrier")]
    NoCarrier,
    /// Whether it has a carrier could not be read.
    #[error(transparent)]
    Link(#[from] NetError),
    /// Its packet socket failed.
    #[error("packet socket: {}{}", .0, what_it_takes(.0))]
    Socket(#[from] io::Error),
}

/// What the daemon lacks where the kernel lets it have no packet socket.
fn what_it_takes(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; the daemon needs CAP_NET_RAW",
        _ => "",
    }
}

impl AnnounceError {
    /// True when the namespace has ended: nobody is left to be announced. What it was mounted on may still be there.
    fn has_ended(&self) -> bool {
        matches!(
            self,
            AnnounceError::Replaced { .. }
                | AnnounceError::Netns(NetnsError::Missing { .. } | NetnsError::NotANetns { .. })
        )
    }
}

/// An order to the announcer's thread. It goes by a channel, so that a caller never waits for a lock that a thread of the lowest
/// priority holds.
#[derive(Debug)]
enum Order {
    Announce(Announcement),
    Cancel { ifindex: u32, netns: NetnsId, done: Option<Sender<()>> },
}

/// The thread that announces. Dropping this ends it.
#[derive(Debug)]
pub struct Announcer {
    shared: Arc<Shared>,
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    own: OwnNetns,
    epoll: Epoll,
    bell: EventFd,
    /// Announcements that wait or are under way: where there are none, there is nothing to cancel.
    open: AtomicUsize,
    stop: AtomicBool,
    dropped: AtomicU64,
    failed: AtomicU64,
}

/// The announcements under way; the announcer's thread alone has them.
#[derive(Debug)]
struct Probes {
    by_token: HashMap<u64, Probe>,
    last_token: u64,
    closers: SocketClosers,
    awaiting_carrier: CarrierWait,
}

impl Probes {
    fn new(closers: SocketClosers) -> Probes {
        Probes {
            by_token: HashMap::new(),
            last_token: BELL,
            closers,
            awaiting_carrier: CarrierWait::default(),
        }
    }

    fn timeout(&self) -> EpollTimeout {
        let Some(at) = self.by_token.values().map(Probe::until).chain(self.awaiting_carrier.next()).min()
        else {
            return EpollTimeout::NONE;
        };
        let wait = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::ZERO)
    }

    /// Ends the probes for which `meant` says so; answers how many.
    fn close_where(&mut self, epoll: &Epoll, mut meant: impl FnMut(&mut Probe) -> bool) -> usize {
        let ended: Vec<u64> =
            self.by_token.iter_mut().filter_map(|(token, probe)| meant(probe).then_some(*token)).collect();
        for probe in ended.iter().filter_map(|token| self.by_token.remove(token)) {
            // Else what still comes in would wake the thread until the socket is closed.
            let _ = epoll.delete(probe.fd());
            self.closers.close(probe.into_socket());
        }
        ended.len()
    }
}

/// Called on the announcer's thread for each conflict; must not block for long, and must not call the announcer.
pub type OnConflict = Box<dyn Fn(Conflict) + Send + Sync>;

impl Announcer {
    /// Starts the thread `announcer`. The calling thread's namespace is the one that it comes back to. `sysctls`: `/proc/sys`, or where the
    /// host's is.
    pub fn start(sysctls: &Path, on_conflict: OnConflict) -> io::Result<Announcer> {
        let mut own = OwnNetns::of_this_thread()?;
        own.sysctls = sysctls.to_owned();
        let shared = Arc::new(Shared {
            own,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            bell: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            open: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        });
        shared.epoll.add(&shared.bell, EpollEvent::new(EpollFlags::EPOLLIN, BELL))?;
        let for_thread = Arc::clone(&shared);
        let (orders, taken) = channel();
        let closers = SocketClosers::start()?;
        let builder = std::thread::Builder::new().name("announcer".to_owned());
        let thread = builder.spawn(move || for_thread.serve(&taken, Probes::new(closers), &on_conflict))?;
        Ok(Announcer { shared, orders, thread: Some(thread) })
    }

    /// Puts an interface into the queue; returns at once. With the queue full it is dropped and counted.
    pub fn announce(&self, announcement: Announcement) {
        if self.shared.open.fetch_add(1, Ordering::AcqRel) >= QUEUE {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            self.shared.closed(1);
            return;
        }
        if self.queued(Order::Announce(announcement)) {
            let shared = Arc::clone(&self.shared);
            when_answered(move || shared.ring());
        }
    }

    /// Forgets an interface. Returns at once; its socket is closed right after, which the kernel lets wait some
    /// milliseconds for a grace period.
    pub fn cancel(&self, ifindex: u32, netns: &NetnsId) {
        if self.shared.open.load(Ordering::Acquire) > 0 {
            self.order(Order::Cancel { ifindex, netns: netns.clone(), done: None });
        }
    }

    /// The same, and waits until the announcer's thread is in no namespace for it any more: a path that leads there can be unmounted
    /// then. No longer than `limit`, because that thread comes last of all.
    pub fn cancel_and_wait(&self, ifindex: u32, netns: &NetnsId, limit: Duration) {
        if self.shared.open.load(Ordering::Acquire) > 0 {
            let (done, ended) = channel();
            self.order(Order::Cancel { ifindex, netns: netns.clone(), done: Some(done) });
            // Both outcomes go on: it has ended, or it was waited for long enough.
            let _ = ended.recv_timeout(limit);
        }
    }

    fn order(&self, order: Order) {
        if self.queued(order) {
            self.shared.ring();
        }
    }

    /// Whether the thread gets the order when it is woken: it does not only when it has ended, which it has said itself.
    fn queued(&self, order: Order) -> bool {
        self.orders.send(order).is_ok()
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

    fn serve(&self, orders: &Receiver<Order>, mut probes: Probes, on_conflict: &OnConflict) {
        if let Err(error) = run_only_when_idle() {
            tracing::debug!(%error, "the announcer keeps its priority");
        }
        let mut events = [EpollEvent::empty(); 64];
        while !self.stop.load(Ordering::Acquire) {
            let heard = match self.epoll.wait(&mut events, probes.timeout()) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                Err(error) => {
                    tracing::error!(%error, "the announcer ends");
                    return;
                }
            };
            let woken = Instant::now();
            for event in &events[..heard] {
                match event.data() {
                    BELL => {
                        for what in self.gather(orders, &mut probes) {
                            self.begin_one(Waiting::new(what), &mut probes);
                        }
                    }
                    token => self.listen(&mut probes, token, on_conflict),
                }
            }
            // What has begun since is read first, however long this thread had to wait for a processor.
            self.expire(&mut probes, woken);
            for one in probes.awaiting_carrier.due() {
                self.begin_one(one, &mut probes);
            }
        }
    }

    /// Takes orders until none has come for a while; what is cancelled meanwhile is not begun.
    fn gather(&self, orders: &Receiver<Order>, probes: &mut Probes) -> Vec<Announcement> {
        let latest = Instant::now() + GATHER;
        let mut gathered = Vec::new();
        loop {
            std::thread::sleep(QUIET);
            // Read before the orders are taken: it rings again for those that come after.
            let _ = self.bell.read();
            let before = gathered.len();
            while let Ok(order) = orders.try_recv() {
                match order {
                    Order::Announce(what) => gathered.push(what),
                    // Whoever waits for it is told when `done` is dropped.
                    Order::Cancel { ifindex, netns, done: _done } => {
                        let meant =
                            |what: &Announcement| what.ifindex == ifindex && what.netns_id.same(&netns);
                        let waiting = gathered.len();
                        gathered.retain(|what| !meant(what));
                        let ended = probes.close_where(&self.epoll, |probe| meant(&probe.what));
                        let late = probes.awaiting_carrier.forget(meant);
                        self.closed(ended + late + waiting - gathered.len());
                    }
                }
            }
            self.expire(probes, Instant::now());
            if gathered.len() <= before || Instant::now() >= latest {
                return gathered;
            }
        }
    }

    fn closed(&self, count: usize) {
        self.open.fetch_sub(count, Ordering::Release);
    }

    /// Sends an announcement's packets and begins to listen.
    fn begin_one(&self, one: Waiting, probes: &mut Probes) {
        let mut what = one.what.clone();
        // Each probe costs a socket that keeps a namespace alive; the announcement itself is always sent.
        what.probe &= probes.by_token.len() < LISTENING;
        let label = what.label.clone();
        match self.begin(what, probes) {
            Ok(true) => return,
            Err(AnnounceError::NoCarrier) if probes.awaiting_carrier.wait(one) => return,
            Ok(false) | Err(AnnounceError::NoCarrier) => {}
            Err(error) if error.has_ended() => {}
            Err(error) => self.failure(&label, &error),
        }
        self.closed(1);
    }

    /// Sends the packets; true when the socket goes on listening.
    fn begin(&self, what: Announcement, probes: &mut Probes) -> Result<bool, AnnounceError> {
        let probe = Probe::open(&self.own, what)?;
        let spoken = probe.speak();
        if spoken.is_err() || !probe.what.probe {
            probes.closers.close(probe.into_socket());
            return Ok(spoken.map(|()| false)?);
        }
        probes.last_token += 1;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, probes.last_token);
        self.epoll.add(probe.fd(), event).map_err(io::Error::from)?;
        probes.by_token.insert(probes.last_token, probe);
        Ok(true)
    }

    fn listen(&self, probes: &mut Probes, token: u64, on_conflict: &OnConflict) {
        let Some(probe) = probes.by_token.get_mut(&token) else { return };
        match probe.listen(&self.own) {
            Ok(None) => {}
            Ok(Some(conflict)) => on_conflict(conflict),
            // The link went down or away: there is nothing to listen to any more.
            Err(error) => {
                tracing::debug!(%error, interface = probe.what.label, "an announced link is gone");
                let gone = probe.what.clone();
                self.closed(probes.close_where(&self.epoll, |probe| {
                    probe.what.ifindex == gone.ifindex && probe.what.netns_id == gone.netns_id
                }));
            }
        }
    }

    /// Ends what has listened long enough.
    fn expire(&self, probes: &mut Probes, now: Instant) {
        self.closed(probes.close_where(&self.epoll, |probe| probe.until() <= now));
    }

    fn failure(&self, interface: &str, error: &AnnounceError) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(interface, %error, "the addresses of an interface could not be announced");
    }
}
