//! What processes use: CPU time and memory, as the kernel accounts them.
//!
//! The CPU time of plugins is what the kernel charged to reaped children of this process and to theirs
//! (`RUSAGE_CHILDREN`). So it is exact and includes a delegated IPAM plugin. The CPU time of a daemon is its CPU
//! clock, which keeps what ended threads used. Work that the kernel does later on nobody's account (namespace
//! removal) is in neither.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde::Serialize;

/// A clock tick, in which the kernel shows processor time (`USER_HZ`).
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// The user and system time of all reaped children so far.
pub(crate) fn cpu_of_children() -> io::Result<Duration> {
    cpu(UsageWho::RUSAGE_CHILDREN)
}

/// The user and system time of this process so far.
pub(crate) fn cpu_of_this_process() -> io::Result<Duration> {
    cpu(UsageWho::RUSAGE_SELF)
}

fn cpu(of: UsageWho) -> io::Result<Duration> {
    let usage = getrusage(of)?;
    let micros = [usage.user_time(), usage.system_time()]
        .iter()
        .map(|t| t.tv_sec() * 1_000_000 + t.tv_usec())
        .sum::<i64>();
    Ok(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}

/// User and system time of one process so far.
pub(crate) fn cpu_of(pid: Pid) -> io::Result<Duration> {
    Ok(clock_gettime(clock_getcpuclockid(pid)?)?.into())
}

/// User and system time of the programs that a process has started and that have ended.
pub(crate) fn cpu_of_programs_of(pid: Pid) -> io::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = after_name(&stat);
    let ticks = [13, 14].iter().filter_map(|&at| fields.get(at)?.parse::<u32>().ok()).sum();
    Ok(TICK.saturating_mul(ticks))
}

/// A process's memory in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    /// `VmRSS`: resident now.
    pub(crate) rss_kib: u64,
    /// `VmHWM`: the most that was resident since the start, or since [`reset_peak`].
    pub(crate) peak_kib: u64,
}

/// Reads the memory of one process.
pub(crate) fn memory_of(pid: Pid) -> io::Result<Memory> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(Memory { rss_kib: kib(&status, "VmRSS:"), peak_kib: kib(&status, "VmHWM:") })
}

/// Resets `VmHWM`, the peak, to the memory of now.
pub(crate) fn reset_peak(pid: Pid) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")
}

/// The proportional memory of a process and of all its descendants, in KiB.
pub(crate) fn memory_of_family(root: Pid) -> io::Result<u64> {
    Ok(pss_of(root.as_raw()) + descendants_memory(root, &[])?)
}

/// The proportional memory of all descendants of this process except `excluded`, in KiB (PSS: a page that several
/// processes share counts once). A process that ends while it is looked at counts as nothing.
pub(crate) fn memory_of_descendants(excluded: &[Pid]) -> io::Result<u64> {
    descendants_memory(Pid::this(), excluded)
}

fn descendants_memory(root: Pid, excluded: &[Pid]) -> io::Result<u64> {
    let mut family = HashSet::from([root.as_raw()]);
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if let Some(parent) = after_name(&stat).get(1).and_then(|field| field.parse::<i32>().ok()) {
            parents.push((pid, parent));
        }
    }
    let ours = fs::read_link("/proc/self/exe")?;
    let mut total = 0;
    // Children mostly have higher numbers than their parents; where numbers wrapped, one sample is a little low.
    parents.sort_unstable();
    for (pid, parent) in parents {
        if family.contains(&parent) && !excluded.contains(&Pid::from_raw(pid)) && family.insert(pid) {
            // Between spawn and exec a child shares this process's memory.
            if fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == ours) {
                continue;
            }
            total += pss_of(pid);
        }
    }
    Ok(total)
}

/// Nothing for a process that has ended.
fn pss_of(pid: i32) -> u64 {
    kib(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default(), "Pss:")
}

/// The fields of `/proc/<pid>/stat` after the name, which may contain blanks and parentheses.
fn after_name(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default()
}

fn kib(text: &str, key: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) b (c) S 7 42 42 0 -1 4194304 1 2 3 4 50 60 0 0";
        assert_eq!(after_name(stat)[1], "7");
        assert_eq!((after_name(stat)[11], after_name(stat)[12]), ("50", "60"));
    }

    #[test]
    fn this_process_has_used_cpu_and_memory() {
        let me = Pid::this();
        assert!(cpu_of(me).unwrap() > Duration::ZERO);
        let memory = memory_of(me).unwrap();
        assert!(memory.rss_kib > 0 && memory.peak_kib >= memory.rss_kib);
        cpu_of_programs_of(me).unwrap();
    }

    #[test]
    fn a_child_counts_in_the_memory_of_descendants_until_it_is_excluded() {
        let mut child = std::process::Command::new("/bin/sleep").arg("30").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let all = memory_of_descendants(&[]).unwrap();
        let others = memory_of_descendants(&[pid]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(kib(&rollup, "Pss:") > 0);
        assert!(all > others, "{all} is not more than {others}");
    }
}
