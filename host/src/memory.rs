//! How much memory a process uses, and how much its cgroup allows. Only reads; changes no limit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the kernel shows a process and the cgroups.
#[derive(Debug, Clone)]
pub struct MemoryFiles {
    /// The process's directory: `/proc/self`, or `/proc/<pid>`.
    pub process: PathBuf,
    /// Where cgroups are mounted: `/sys/fs/cgroup`.
    pub cgroups: PathBuf,
}

impl Default for MemoryFiles {
    fn default() -> MemoryFiles {
        MemoryFiles { process: "/proc/self".into(), cgroups: "/sys/fs/cgroup".into() }
    }
}

impl MemoryFiles {
    /// Resident memory in bytes (proc(5), `VmRSS`).
    ///
    /// # Errors
    /// When it can't be read; the text names the file.
    pub fn resident(&self) -> io::Result<u64> {
        let status = self.process.join("status");
        let text = fs::read_to_string(&status)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", status.display())))?;
        let kib = text
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok());
        kib.map(|kib: u64| kib << 10)
            .ok_or_else(|| io::Error::other(format!("{} has no line VmRSS", status.display())))
    }

    /// The lowest limit of the process's cgroup and those above it, in bytes; of version 2, or of version 1's memory
    /// controller. `None`: there is no limit, or it can't be read.
    pub fn limit(&self) -> Option<u64> {
        let membership = fs::read_to_string(self.process.join("cgroup")).unwrap_or_default();
        let lines = || membership.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let v1 = lines().find(|(controllers, _)| controllers.split(',').any(|one| one == "memory"));
        let v2 = lines().find(|(controllers, _)| controllers.is_empty());
        // Version 1 first: where both are mounted, version 2 has no memory controller.
        let (root, file, path) = match (v1, v2) {
            (Some((_, path)), _) => (self.cgroups.join("memory"), "memory.limit_in_bytes", path),
            (None, Some((_, path))) => (self.cgroups.clone(), "memory.max", path),
            (None, None) => return None,
        };
        // In a container the cgroup's path may not exist, and the mount's root is the container's own: each level that can be
        // read counts, the others are passed over.
        let limits = Path::new(path).ancestors().filter_map(|above| {
            let directory = root.join(above.strip_prefix("/").ok()?);
            fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok()
        });
        // Version 1 has a number for none: the largest that is a whole page.
        limits.filter(|limit| *limit < 1 << 62).min()
    }
}
