//! What the connection thread tells the poll thread, and what that tells back.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use super::counters::Counters;
use crate::capture::Tap;
use crate::ring::{GuestEvent, RingFault, SplitRing};
use crate::switch::{LearntAddress, PortIndex, PortRules, TableSlice, TooManyPorts};
use crate::uplink::Queues;

/// A port of the data plane. Never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PortKey(pub(super) u64);

/// One connection of a port's guest. Never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnectionKey(pub(super) u64);

/// One ring of a port: even indices are the guest's receive queues, odd ones its transmit queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RingKey {
    pub(super) port: PortKey,
    pub(super) index: usize,
}

/// What the poll thread is to do, between two rounds.
pub(super) enum Command {
    /// A port more, without rings.
    AddPort {
        port: PortKey,
        rules: PortRules,
        queues: u16,
        counters: Arc<Counters>,
        done: Sender<Result<(), TooManyPorts>>,
    },
    /// An uplink more.
    AddUplink {
        port: PortKey,
        rules: PortRules,
        queues: Box<Queues>,
        counters: Arc<Counters>,
        done: Sender<Result<(), TooManyPorts>>,
    },
    /// An uplink fewer, wherever it is served. Its queues are handed back, so that their memory is unmapped elsewhere.
    RemoveUplink { port: PortKey, done: Sender<Option<Box<Queues>>> },
    /// A port or an uplink more, which another thread serves.
    AddElsewhere {
        port: PortKey,
        rules: PortRules,
        thread: usize,
        counters: Arc<Counters>,
        done: Sender<Result<(), TooManyPorts>>,
    },
    /// A port fewer, wherever it is served; its rings have been stopped before.
    RemovePort { port: PortKey, done: Sender<()> },
    /// A ring is at work from now on, of this connection; enabled or not at once, since what a disabled one has is dropped.
    StartRing {
        ring: RingKey,
        connection: ConnectionKey,
        work: Box<SplitRing>,
        kick: Arc<GuestEvent>,
        enabled: bool,
        done: Sender<()>,
    },
    /// A ring is at work no longer. It is handed back, so that its memory is unmapped elsewhere.
    StopRing { ring: RingKey, done: Sender<Option<Box<SplitRing>>> },
    /// Frames go through a ring, or don't.
    EnableRing { ring: RingKey, enabled: bool, done: Sender<()> },
    /// A guest is called by another eventfd.
    SetCall { ring: RingKey, call: Option<Arc<GuestEvent>>, done: Sender<()> },
    /// A port's frames are copied from now on, or no longer. What copied them before is handed back, so that its memory is unmapped
    /// elsewhere.
    SetTap { port: PortKey, tap: Option<Box<Tap>>, done: Sender<Option<Box<Tap>>> },
    /// About how many addresses are known.
    CountAddresses { done: Sender<usize> },
    /// What addresses of a slice are known, and of which ports, as far as this thread serves them. Frames wait meanwhile, so a slice is to
    /// have few.
    MacTable { slice: TableSlice, done: Sender<Vec<(PortKey, LearntAddress)>> },
    /// The end of the thread.
    Stop,
}

/// What a guest did to its rings: its connection is to be ended. The port is not served meanwhile.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) port: PortKey,
    pub(super) connection: ConnectionKey,
    pub(super) fault: RingFault,
}

/// Every port of the poll thread by its index in the switch.
pub(super) fn slot(index: PortIndex) -> usize {
    usize::from(index.0)
}
