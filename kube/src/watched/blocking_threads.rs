//! The threads on which the cluster's thread has files written and names looked up.
//!
//! tokio panics where it has no thread for such work and the system refuses one, and the panic of a task of ours ends the daemon. So
//! one is there from the start and stays: what the system refuses further ones for waits for it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// The runtime of the cluster's thread.
///
/// # Errors
/// When the kernel has no descriptors left for it, or no thread.
pub(super) fn runtime() -> io::Result<Runtime> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .thread_name("cluster-files")
        .thread_keep_alive(Duration::MAX)
        .build()?;
    // This first one may be refused.
    let begun = catch_unwind(AssertUnwindSafe(|| runtime.spawn_blocking(|| ())));
    begun.map(|_| runtime).map_err(|_| io::Error::other("the system has no thread to give; raise TasksMax"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{self, Command};
    use std::thread;

    use super::*;

    const CHILD: &str = "watched::blocking_threads::tests::a_process_that_gets_no_thread_any_more";
    /// Room for what is allocated meanwhile, in bytes; a thread's stack is larger.
    const ROOM: u64 = 1 << 20;

    #[test]
    #[ignore = "it limits its process: the next test starts one for it"]
    fn a_process_that_gets_no_thread_any_more() {
        let runtime = runtime().unwrap();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let bytes = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024 + ROOM;
        let limit = [format!("--pid={}", process::id()), format!("--as={bytes}")];
        assert!(Command::new("prlimit").args(limit).status().unwrap().success());
        thread::Builder::new().spawn(|| ()).unwrap_err();
        for n in 0..3 {
            assert_eq!(runtime.block_on(runtime.spawn_blocking(move || n)).unwrap(), n);
        }
    }

    #[test]
    fn files_are_written_where_the_system_refuses_every_thread() {
        let program = std::env::current_exe().unwrap();
        let ended = Command::new(program).args(["--exact", "--ignored", CHILD]).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
    }
}
