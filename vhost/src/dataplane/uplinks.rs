//! Uplinks on the connection thread: what is to be, and the descriptors that keep it.
//!
//! Invariant: the program at the interface is there as long as its attachment is open here; it is closed after the poll thread has let go
//! of the queues. When the process ends, the kernel does the same.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fairlead_host::Uplink;

use super::command::{Command, PortKey};
use super::counters::PortCounts;
use super::handle::UplinkError;
use super::poll_link::PollThreads;
use crate::port::{UplinkConfig, UplinkView};
use crate::switch::PortRules;
use crate::uplink::{Queues, state};

/// An uplink that is served.
#[derive(Debug)]
struct Served {
    key: PortKey,
    config: UplinkConfig,
    counters: PortCounts,
    /// The poll thread that serves it.
    thread: usize,
    sockets: Vec<Arc<OwnedFd>>,
    /// Closed last.
    _attachment: OwnedFd,
}

/// All uplinks, by their networks.
#[derive(Debug, Default)]
pub(super) struct Uplinks(BTreeMap<String, Served>);

impl Uplinks {
    /// Serves an uplink from now on.
    pub(super) fn add(
        &mut self,
        threads: &PollThreads,
        port: PortKey,
        thread: usize,
        config: UplinkConfig,
        uplink: Uplink,
    ) -> Result<(), UplinkError> {
        if let Some(there) = self.0.get(&config.network) {
            let (network, interface) = (config.network, there.config.interface.clone());
            return Err(UplinkError::Taken { network, interface });
        }
        let queues = Queues::map(uplink.queues)?;
        let (sockets, counts) = (queues.sockets(), PortCounts::of_threads(threads.count()));
        let rules = PortRules::from(&config);
        let mut queues = Some(Box::new(queues));
        let added = threads.ask_each(|at, done| {
            let (rules, counters) = (rules.clone(), counts.of_thread(at));
            match queues.take_if(|_| at == thread) {
                Some(queues) => Command::AddUplink { port, rules, queues, counters, done },
                None => Command::AddElsewhere { port, rules, thread, counters, done },
            }
        });
        let added = added
            .map_err(UplinkError::from)
            .and_then(|all| Ok(all.into_iter().collect::<Result<(), _>>()?));
        if added.is_err() {
            // It may have come to some threads, or come to them later: then nobody knows of the uplink.
            threads.tell_each(|done| Command::RemoveUplink { port, done });
        }
        added?;
        let _attachment = uplink.attachment;
        let network = config.network.clone();
        self.0.insert(network, Served { key: port, config, counters: counts, thread, sockets, _attachment });
        Ok(())
    }

    /// Serves an uplink no longer; the interface is the kernel's own when this returns.
    pub(super) fn remove(&mut self, threads: &PollThreads, network: &str) -> Result<(), UplinkError> {
        let missing = || UplinkError::NoSuchUplink(network.to_owned());
        let port = self.0.get(network).ok_or_else(missing)?.key;
        let queues = threads.ask_each(|_, done| Command::RemoveUplink { port, done })?;
        // Unmapped here, not on a poll thread.
        drop(queues);
        self.0.remove(network);
        Ok(())
    }

    /// All of them as they are now.
    pub(super) fn views(&self, threads: &PollThreads) -> Vec<UplinkView> {
        self.0.values().map(|served| served.view(threads)).collect()
    }

    /// How many a poll thread serves.
    pub(super) fn count_of(&self, thread: usize) -> usize {
        self.0.values().filter(|served| served.thread == thread).count()
    }

    /// What each is called in the table of addresses.
    pub(super) fn names(&self) -> impl Iterator<Item = (PortKey, &String)> {
        self.0.values().map(|served| (served.key, &served.config.interface))
    }
}

impl Served {
    fn view(&self, threads: &PollThreads) -> UplinkView {
        let states: Vec<_> = self.sockets.iter().map(|socket| state(socket)).collect();
        UplinkView {
            config: self.config.clone(),
            queues: u16::try_from(states.len()).unwrap_or(u16::MAX),
            bound: states.iter().all(|state| state.is_bound),
            zero_copy: states.iter().all(|state| state.zero_copy),
            lost_frames: states.iter().map(|state| state.lost).sum(),
            counters: self.counters.read(),
            thread: threads.view(self.thread),
        }
    }
}
