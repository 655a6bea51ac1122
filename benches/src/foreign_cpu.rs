//! Who else had the processors during a round: the hypervisor, by what it stole, and other processes, by the time that was busy and none
//! of ours.
//!
//! A round in which that was much tells of the neighbours and not of the plugins, so it is not counted. What the kernel does on nobody's
//! account (interrupts, the end of namespaces) is in the foreign time: the bound leaves room for it.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use crate::process_cost;
use crate::subject::Subject;

/// So much of the busy time may be foreign in a round that counts.
const MOST_FOREIGN: f64 = 0.2;
/// So much of a processor may be stolen.
const MOST_STOLEN: f64 = 0.02;
/// The counters of `/proc/stat` go in such steps, and each is rounded by itself.
const TICK: Duration = Duration::from_millis(10);
/// Less than this is in the steps.
const SEEN: Duration = Duration::from_millis(40);

/// What a round is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disturbance {
    /// The time that was stolen, and that of other processes.
    StolenOrForeign,
    /// The stolen time alone: in such a round the kernel itself does much on nobody's account, as it ends namespaces or looks after a NIC.
    Stolen,
}

/// The processors' counters at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CpuUse {
    at: Instant,
    /// The time of all processors that was neither idle nor stolen.
    busy: Duration,
    stolen: Duration,
    /// The time of this process, its children, the daemons that it measures with what they start, and the programs that these need.
    own: Duration,
}

impl CpuUse {
    /// Reads the counters now. `needed`: programs of the suite that belong to no subject, such as an API server.
    pub(crate) fn now(subjects: &[Subject], needed: &[Pid]) -> io::Result<CpuUse> {
        let (busy, stolen) = busy_and_stolen(&fs::read_to_string("/proc/stat")?)
            .ok_or_else(|| io::Error::other("/proc/stat does not begin with the sum of all processors"))?;
        let mut own = process_cost::cpu_of_this_process()? + process_cost::cpu_of_children()?;
        // One daemon may serve several subjects.
        let daemons: HashSet<Pid> = subjects.iter().filter_map(|s| Some(s.daemon.as_ref()?.pid)).collect();
        for pid in daemons {
            own += process_cost::cpu_of(pid)? + process_cost::cpu_of_programs_of(pid)?;
        }
        for pid in needed {
            own += process_cost::cpu_of(*pid)?;
        }
        Ok(CpuUse { at: Instant::now(), busy, stolen, own })
    }

    /// Whether others had so much between this moment and a later one that the round says little.
    pub(crate) fn was_disturbed_until(&self, later: &CpuUse, by: Disturbance) -> bool {
        let busy = later.busy.saturating_sub(self.busy);
        let foreign = busy.saturating_sub(later.own.saturating_sub(self.own));
        let stolen = later.stolen.saturating_sub(self.stolen);
        let took = later.at.saturating_duration_since(self.at);
        let is_others = foreign > SEEN && foreign > busy.mul_f64(MOST_FOREIGN);
        let is_stolen = stolen > TICK && stolen > took.mul_f64(MOST_STOLEN);
        is_stolen || (is_others && by == Disturbance::StolenOrForeign)
    }

    /// The same moment, had all that was ever busy been so since, and by others.
    #[cfg(test)]
    pub(crate) fn before_all_others(self) -> CpuUse {
        CpuUse { busy: Duration::ZERO, own: Duration::MAX, ..self }
    }
}

/// The busy and the stolen time of all processors together, from the text of `/proc/stat`.
fn busy_and_stolen(stat: &str) -> Option<(Duration, Duration)> {
    let ticks = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = ticks.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; the guests' time is in the first two.
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = *ticks else { return None };
    let time = |ticks: u64| Duration::from_millis(10 * ticks);
    Some((time(user + nice + system + irq + softirq), time(steal)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(busy: u64, stolen: u64, own: u64) -> CpuUse {
        let ms = Duration::from_millis;
        CpuUse { at: Instant::now(), busy: ms(busy), stolen: ms(stolen), own: ms(own) }
    }

    #[test]
    fn a_round_is_disturbed_by_others_and_by_what_is_stolen() {
        let before = at(1000, 50, 300);
        let is_disturbed = |later, by| before.was_disturbed_until(&later, by);
        let any = Disturbance::StolenOrForeign;
        assert!(!is_disturbed(at(2000, 50, 1250), any), "five per cent are nobody's");
        assert!(is_disturbed(at(2000, 50, 1000), any), "three tenths are others'");
        assert!(!is_disturbed(at(2000, 50, 1000), Disturbance::Stolen), "they may be the kernel's");
        assert!(
            is_disturbed(at(2000, 80, 1300), any) && is_disturbed(at(2000, 80, 1300), Disturbance::Stolen)
        );
        assert!(!is_disturbed(at(1030, 60, 300), any), "too little to be told from the steps");
    }

    #[test]
    fn the_counters_of_all_processors_are_read() {
        let stat = "cpu  10 1 20 400 5 2 3 7 4 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(busy_and_stolen(stat), Some((TICK * 36, TICK * 7)));
        assert_eq!(busy_and_stolen("intr 1"), None);
        CpuUse::now(&[], &[Pid::this()]).unwrap();
    }
}
