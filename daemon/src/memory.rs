//! Compares the daemon's memory with the limit of its cgroup: near the limit the kernel is about to kill it.
//!
//! It looks at the daemon's own resident memory only, because executed plugins have a cgroup of their own. It
//! changes no limit.

use std::fs;
use std::path::{Path, PathBuf};

use crate::health::Probe;

/// The share of the limit, in percent, from which on the daemon is unhealthy.
const HIGH: u64 = 90;

/// The health condition: less than 90 % of the limit is used. `process` is this process's directory in procfs,
/// `cgroups` the directory where cgroups are mounted.
pub(crate) fn probe(process: PathBuf, cgroups: PathBuf) -> Probe {
    Box::new(move || {
        let used = resident(&process)?;
        let Some(limit) = limit(&process, &cgroups) else {
            return Ok(format!("{} MiB, no limit", used >> 20));
        };
        let seen = format!("{} MiB of {} MiB", used >> 20, limit >> 20);
        if used >= limit / 100 * HIGH {
            return Err(format!(
                "{seen}: raise the limit (systemd: MemoryMax; a container: resources.limits.memory)"
            ));
        }
        Ok(seen)
    })
}

/// Resident memory in bytes (proc(5), `VmRSS`).
fn resident(process: &Path) -> Result<u64, String> {
    let status = process.join("status");
    let text = fs::read_to_string(&status).map_err(|e| format!("{}: {e}", status.display()))?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.map(|kib: u64| kib << 10).ok_or_else(|| format!("{} has no line VmRSS", status.display()))
}

/// The lowest limit of the process's cgroup and those above it, in bytes; of version 2, or of version 1's memory
/// controller. In a container the cgroup's path may not exist, and the mount's root is the container's own.
fn limit(process: &Path, cgroups: &Path) -> Option<u64> {
    let membership = fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    let lines = || membership.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let v1 = lines().find(|(controllers, _)| controllers.split(',').any(|one| one == "memory"));
    let v2 = lines().find(|(controllers, _)| controllers.is_empty());
    let (root, file, path) = match (v1, v2) {
        (Some((_, path)), _) => (cgroups.join("memory"), "memory.limit_in_bytes", path),
        (None, Some((_, path))) => (cgroups.to_owned(), "memory.max", path),
        (None, None) => return None,
    };
    let limits = Path::new(path).ancestors().filter_map(|above| {
        let directory = root.join(above.strip_prefix("/").ok()?);
        fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok()
    });
    // Version 1 writes the largest multiple of a page where there is no limit.
    limits.filter(|limit| *limit < 1 << 62).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new(membership: &str, resident_kib: u64) -> Machine {
            let machine = Machine(tempfile::tempdir().unwrap());
            machine.write("proc/cgroup", membership);
            machine.write("proc/status", &format!("Name:\tx\nVmRSS:\t{resident_kib:8} kB\nThreads:\t1\n"));
            machine
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn ask(&self) -> Result<String, String> {
            probe(self.0.path().join("proc"), self.0.path().join("cgroup"))()
        }
    }

    #[test]
    fn k19_memory_at_ninety_percent_of_the_lowest_limit_is_an_illness_with_the_remedy() {
        let machine = Machine::new("0::/system.slice/fairleadd.service\n", 91 << 10);
        machine.write("cgroup/system.slice/fairleadd.service/memory.max", "max\n");
        machine.write("cgroup/system.slice/memory.max", "104857600\n");
        let told = machine.ask().unwrap_err();
        assert!(told.starts_with("91 MiB of 100 MiB: raise the limit (systemd: MemoryMax"), "{told}");
        machine.write("cgroup/system.slice/memory.max", "209715200\n");
        assert_eq!(machine.ask(), Ok("91 MiB of 200 MiB".into()));
    }

    #[test]
    fn k19_memory_is_held_against_the_limit_of_cgroup_version_1_too_and_in_a_container_against_its_root() {
        let machine = Machine::new("9:cpu:/a\n4:cpuset,memory:/kubepods/pod1/c1\n0::/\n", 95 << 10);
        machine.write("cgroup/memory/memory.limit_in_bytes", "104857600\n");
        assert!(machine.ask().unwrap_err().starts_with("95 MiB of 100 MiB"));
    }

    #[test]
    fn k19_memory_without_a_limit_is_said_to_have_none() {
        for membership in ["0::/x\n", "4:memory:/x\n", "1:cpu:/\n"] {
            let machine = Machine::new(membership, 19 << 10);
            machine.write("cgroup/x/memory.max", "max\n");
            machine.write("cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
            assert_eq!(machine.ask(), Ok("19 MiB, no limit".into()), "{membership}");
        }
    }

    #[test]
    fn k19_memory_of_this_very_process_is_seen() {
        let seen = probe("/proc/self".into(), "/sys/fs/cgroup".into())().unwrap();
        assert!(seen.contains(" MiB"), "{seen}");
    }
}
