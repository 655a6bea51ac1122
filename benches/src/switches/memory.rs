//! The memory of DPDK's programs: huge pages where the machine has enough of them, else ordinary ones, for all alike.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

/// What testpmd and a switch of DPDK's need together, in MiB.
const NEEDED: u64 = 1400;

/// Which memory is used.
#[derive(Debug, Clone)]
pub(crate) enum Memory {
    /// Huge pages, of this mount.
    Huge(PathBuf),
    /// Pages of 4 KiB.
    Ordinary,
}

impl Memory {
    /// Huge pages, if so many are free; they are mounted below `dir`. The error has the path that it is about.
    pub(crate) fn of_this_machine(dir: &Path) -> Result<Memory, (PathBuf, io::Error)> {
        if free_huge_mib(&fs::read_to_string("/proc/meminfo").unwrap_or_default()) < NEEDED {
            return Ok(Memory::Ordinary);
        }
        let mounted = dir.join("huge");
        let failed = |source| (mounted.clone(), source);
        fs::create_dir_all(&mounted).map_err(failed)?;
        let none: Option<&str> = None;
        mount(none, &mounted, Some("hugetlbfs"), MsFlags::empty(), none)
            .map_err(|errno| failed(errno.into()))?;
        Ok(Memory::Huge(mounted))
    }

    /// For the report.
    pub(crate) fn about(&self) -> &'static str {
        match self {
            Memory::Huge(_) => "huge pages",
            Memory::Ordinary => {
                "pages of 4 KiB (`sysctl vm.nr_hugepages=1024` before the run gives huge ones)"
            }
        }
    }

    /// DPDK's options for a program of this name with so many MiB.
    pub(crate) fn options(&self, name: &str, mib: u32) -> String {
        match self {
            Memory::Huge(mounted) => {
                let dir = mounted.display();
                format!("--huge-dir {dir} --single-file-segments --file-prefix={name} -m {mib}")
            }
            Memory::Ordinary => format!("--no-huge --legacy-mem --no-shconf --file-prefix={name} -m {mib}"),
        }
    }
}

/// What `/proc/meminfo` tells of free huge pages.
fn free_huge_mib(meminfo: &str) -> u64 {
    let number = |key: &str| -> u64 {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    number("HugePages_Free:") * number("Hugepagesize:") / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_huge_pages_are_told_in_mebibytes() {
        let text = "MemTotal: 1 kB\nHugePages_Total:    1024\nHugePages_Free:      700\nHugepagesize:       2048 kB\n";
        assert_eq!(free_huge_mib(text), 1400);
        assert_eq!(free_huge_mib(""), 0);
    }
}
