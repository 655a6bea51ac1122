//! The health condition of the daemon's memory: near the limit of its cgroup the kernel is about to kill it.
//!
//! Looks at the daemon's own resident memory only: what executed plugins use is in a cgroup of theirs.

use fairlead_host::memory::MemoryFiles;

use crate::health::Probe;

/// From this share of the limit on, in percent, the daemon is unwell.
const HIGH: u64 = 90;

/// The health condition: less than 90 % of the limit is used.
pub(crate) fn probe(files: MemoryFiles) -> Probe {
    Box::new(move || {
        let used = files.resident().map_err(|e| e.to_string())?;
        let Some(limit) = files.limit() else { return Ok(format!("{} MiB, no limit", used >> 20)) };
        let seen = format!("{} MiB of {} MiB", used >> 20, limit >> 20);
        if used >= limit / 100 * HIGH {
            return Err(format!(
                "{seen}: raise the limit (systemd: MemoryMax; a container: resources.limits.memory)"
            ));
        }
        Ok(seen)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

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
            probe(MemoryFiles { process: self.0.path().join("proc"), cgroups: self.0.path().join("cgroup") })(
            )
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
        let seen = probe(MemoryFiles::default())().unwrap();
        assert!(seen.contains(" MiB"), "{seen}");
    }
}
