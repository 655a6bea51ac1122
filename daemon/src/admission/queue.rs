//! The order in which calls are begun: a pure state machine, without threads or clocks.
//!
//! Calls are begun in the order of their arrival, but for the order among namespaces that the slow lane has. At most one
//! call of a container is in a line or at work; the others of that container wait behind it, in order, without holding a
//! thread. An ADD that would overtake a spooled DEL of the same attachment is parked until that DEL is done, and holds up
//! nobody meanwhile.

use std::collections::{BTreeMap, HashMap};

use fairlead_cni::wire::{Command, Request};

use super::queued_call::QueuedCall;

/// A line of calls, which wait for the threads of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// For calls that only talk to the kernel.
    Fast = 0,
    /// For calls that start programs, or wait.
    Slow = 1,
    /// For STATUS, which must answer whatever the other calls do.
    Status = 2,
}

/// One interface of one container: container id and interface name.
pub type PodInterface = (String, String);

/// The interface that a request is about.
pub fn pod_interface_of(request: &Request) -> PodInterface {
    (request.container_id.clone(), request.ifname.clone())
}

/// All calls that have not been begun.
#[derive(Debug, Default)]
pub(super) struct Queue {
    next: u64,
    lines: [BTreeMap<u64, QueuedCall>; 3],
    /// The calls that wait behind another of their container. A container has a key here as long as it has a call
    /// in a line or at work.
    containers: HashMap<String, BTreeMap<u64, QueuedCall>>,
    blocked: HashMap<PodInterface, usize>,
    parked: Vec<QueuedCall>,
    len: usize,
}

impl Queue {
    /// The number of calls that have not been begun.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether calls wait in a line.
    pub(super) fn has(&self, line: Line) -> bool {
        self.in_line(line) > 0
    }

    /// How many calls wait in a line.
    pub(super) fn in_line(&self, line: Line) -> usize {
        self.lines[line as usize].len()
    }

    /// Puts a call at the end; returns the line that has got work by it.
    pub(super) fn push(&mut self, mut call: QueuedCall) -> Option<Line> {
        call.number = self.next;
        self.next += 1;
        self.len += 1;
        self.place(call)
    }

    fn place(&mut self, call: QueuedCall) -> Option<Line> {
        let container = &call.request().container_id;
        // GC and STATUS are for no container: no call waits behind them.
        if !container.is_empty() {
            if let Some(behind) = self.containers.get_mut(container) {
                behind.insert(call.number, call);
                return None;
            }
            self.containers.insert(container.clone(), BTreeMap::new());
        }
        let line = call.line;
        self.lines[line as usize].insert(call.number, call);
        Some(line)
    }

    /// Notes a call that is begun without having been in line; false where another call has to come first. The
    /// caller must [`Queue::finish`] its container.
    pub(super) fn enter(&mut self, request: &Request) -> bool {
        let container = &request.container_id;
        let later = self.containers.contains_key(container)
            || (request.command == Command::Add && self.blocked.contains_key(&pod_interface_of(request)));
        if !later && !container.is_empty() {
            self.containers.insert(container.clone(), BTreeMap::new());
        }
        !later
    }

    /// Takes the next call of a line: of those with the lowest `place` the one that came first; one without a place has to wait. The caller
    /// must [`Queue::finish`] its container. `woken` collects the lines that get work because a blocked ADD is parked.
    pub(super) fn pop(
        &mut self,
        line: Line,
        place: impl Fn(&QueuedCall) -> Option<usize>,
        woken: &mut Vec<Line>,
    ) -> Option<QueuedCall> {
        while let Some(call) = take_next(&mut self.lines[line as usize], &place) {
            if !self.must_park(&call) {
                self.len -= 1;
                return Some(call);
            }
            // A parked ADD gives its container up: a DEL behind it must not wait for the spool.
            woken.extend(self.finish(&call.request().container_id));
            self.parked.push(call);
        }
        None
    }

    fn must_park(&self, call: &QueuedCall) -> bool {
        !self.blocked.is_empty()
            && call.request().command == Command::Add
            && self.blocked.contains_key(&pod_interface_of(call.request()))
    }

    /// Ends the call of a container: the next call of that container enters its line.
    pub(super) fn finish(&mut self, container: &str) -> Option<Line> {
        if container.is_empty() {
            return None;
        }
        let behind = self.containers.get_mut(container)?;
        let Some((number, call)) = behind.pop_first() else {
            self.containers.remove(container);
            return None;
        };
        let line = call.line;
        self.lines[line as usize].insert(number, call);
        Some(line)
    }

    /// Blocks every ADD of this attachment from now on.
    pub(super) fn block(&mut self, attachment: PodInterface) {
        *self.blocked.entry(attachment).or_insert(0) += 1;
    }

    /// Takes one [`Queue::block`] back; returns the lines that have got work by it.
    pub(super) fn unblock(&mut self, attachment: &PodInterface) -> Vec<Line> {
        match self.blocked.get_mut(attachment) {
            // Several spooled DELs may hold the same attachment back.
            Some(count) if *count > 1 => {
                *count -= 1;
                return Vec::new();
            }
            Some(_) => self.blocked.remove(attachment),
            None => return Vec::new(),
        };
        let (free, still): (Vec<QueuedCall>, Vec<QueuedCall>) =
            self.parked.drain(..).partition(|call| pod_interface_of(call.request()) == *attachment);
        self.parked = still;
        free.into_iter().filter_map(|call| self.place(call)).collect()
    }

    /// Takes out every call for which `keep` is false, in order of arrival.
    pub(super) fn drain(&mut self, keep: impl Fn(&QueuedCall) -> bool) -> Vec<QueuedCall> {
        let mut all: BTreeMap<u64, QueuedCall> = BTreeMap::new();
        for line in &mut self.lines {
            for (number, call) in std::mem::take(line) {
                if let Some(behind) = self.containers.remove(&call.request().container_id) {
                    all.extend(behind);
                }
                all.insert(number, call);
            }
        }
        // Those behind a call at work. Its container stays until that call is finished.
        all.extend(self.containers.values_mut().flat_map(std::mem::take));
        all.extend(self.parked.drain(..).map(|call| (call.number, call)));
        let (kept, out): (Vec<QueuedCall>, Vec<QueuedCall>) = all.into_values().partition(keep);
        self.len = kept.len();
        for call in kept {
            self.place(call);
        }
        out
    }
}

/// The place of every call of a line that goes by arrival alone.
pub(super) fn by_arrival(_: &QueuedCall) -> Option<usize> {
    Some(0)
}

fn take_next(
    calls: &mut BTreeMap<u64, QueuedCall>,
    place: &impl Fn(&QueuedCall) -> Option<usize>,
) -> Option<QueuedCall> {
    let mut next: Option<(usize, u64)> = None;
    for (number, call) in &*calls {
        let Some(place) = place(call) else { continue };
        if next.is_none_or(|(first, _)| place < first) {
            next = Some((place, *number));
        }
        // None goes before it.
        if place == 0 {
            break;
        }
    }
    calls.remove(&next?.1)
}
