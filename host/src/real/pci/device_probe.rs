//! Probes of devices: whether they answer, and whether their IOMMU groups are free; of one, or of many on one thread.
//!
//! A thread for each would cost more than the probe itself, and on a busy machine wait for a processor every time.

use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use nix::errno::Errno;
use parking_lot::Mutex;

use super::{PciBus, READ_LIMIT, failed};
use crate::seam::{Answers, IommuGroup, NetError};

impl PciBus {
    pub(crate) fn answers(&self, address: &str) -> Result<bool, NetError> {
        let file = self.config(address);
        let answer =
            self.calls.run(address, reading(&file), self.limit.min(READ_LIMIT), move || is_answering(&file));
        answer.map_err(failed(address, READING))
    }

    pub(crate) fn group(&self, number: u32) -> Result<IommuGroup, NetError> {
        let Some((node, free)) = self.node(number) else { return Ok(IommuGroup::Absent) };
        let opened = self.open_node(node.clone()).map(drop);
        group_state(&node, free, opened)
    }

    /// Whatever has answered in the time that one may take. The one that hangs is recorded as stuck from then on.
    pub(crate) fn answers_of(&self, addresses: &[String], groups: &[u32]) -> Answers {
        let limit = self.limit.min(READ_LIMIT);
        let (ends, ended) = channel::<()>();
        let round = ProbeRound { bus: self.clone(), until: Instant::now() + limit, all: Arc::default() };
        let all = Arc::clone(&round.all);
        let (addresses, groups) = (addresses.to_vec(), groups.to_vec());
        let begun = thread::Builder::new().name("device".to_owned()).spawn(move || {
            round.probe(&addresses, &groups);
            drop(ends);
        });
        if begun.is_ok() {
            // Nothing is ever sent: the channel's end tells that the round is over, also after a panic.
            let _ = ended.recv_timeout(limit);
        }
        // A thread that hangs still has the other end; what it adds later is nobody's answer.
        mem::take(&mut *all.lock())
    }

    fn config(&self, address: &str) -> PathBuf {
        self.device(address).join("config")
    }
}

/// A probe of many devices and groups, one after the other.
struct ProbeRound {
    bus: PciBus,
    until: Instant,
    all: Arc<Mutex<Answers>>,
}

impl ProbeRound {
    fn probe(&self, addresses: &[String], groups: &[u32]) {
        for address in addresses {
            let file = self.bus.config(address);
            let Some(answer) = self.one(address, reading(&file), || is_answering(&file)) else { return };
            let answer = answer.map_err(failed(address, READING));
            self.all.lock().devices.insert(address.clone(), answer);
        }
        for number in groups {
            let Some(answer) = self.group(*number) else { return };
            self.all.lock().groups.insert(*number, answer);
        }
    }

    fn group(&self, number: u32) -> Option<Result<IommuGroup, NetError>> {
        let Some((node, free)) = self.bus.node(number) else { return Some(Ok(IommuGroup::Absent)) };
        let name = node.display().to_string();
        let open = || self.bus.open_nodes.reserve(&node, self.bus.limit.min(READ_LIMIT))?.open().map(drop);
        Some(group_state(&node, free, self.one(&name, format!("opening {name}"), open)?))
    }

    /// Does one probe; `None` when nobody waits any more.
    fn one<T>(
        &self,
        device: &str,
        what: String,
        work: impl FnOnce() -> io::Result<T>,
    ) -> Option<io::Result<T>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        // Its limit is what is left of the round's: a probe of it alone, after the round, is then refused at once.
        Some(self.bus.calls.begin(device, what, left).and_then(|_running| work()))
    }
}

const READING: &str = "reading its configuration space";

fn reading(file: &Path) -> String {
    format!("reading {}", file.display())
}

/// A VF's vendor and device id read as ones by the standard (SR-IOV 3.4.1.1); the rest of a header never does.
fn is_answering(file: &Path) -> io::Result<bool> {
    let mut header = [0_u8; 16];
    File::open(file)?.read_exact(&mut header)?;
    Ok(header.iter().any(|byte| *byte != 0xff))
}

/// The state of a group by what opening its node came to; `free` is what it is when it can be opened.
fn group_state(node: &Path, free: IommuGroup, opened: io::Result<()>) -> Result<IommuGroup, NetError> {
    let group = match opened {
        Ok(()) => Ok(free),
        Err(e) => match e.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EBUSY) => Ok(IommuGroup::InUse),
            Some(Errno::ENOENT | Errno::ENODEV | Errno::ENXIO) => Ok(IommuGroup::Absent), // gone meanwhile
            _ => Err(e),
        },
    };
    group.map_err(failed(&node.display().to_string(), "opening it"))
}
