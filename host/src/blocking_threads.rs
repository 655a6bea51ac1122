//! Threads for the blocking work of a runtime (`spawn_blocking`, the look-up of a host's name) where the node has none to give.
//!
//! tokio panics where such work is begun, the runtime has no thread for it and the system refuses one (TasksMax, a pod's limit of
//! processes): whoever began it ends, and often nobody notices. A runtime of here has a thread from the start and never gives it
//! back, so the work is late and never panics. For the same reason it has a bound: what comes at once would leave a thread each.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use nix::errno::Errno;
use tokio::runtime::{Builder, Runtime};

/// Builds a runtime that has a thread for blocking work from now on, and `most` of them at most, which is one or more. Threads that it
/// begins later stay, too.
///
/// # Errors
/// When the kernel has no descriptors left for it, or no thread.
pub fn runtime_with_a_kept_thread(builder: &mut Builder, most: usize) -> io::Result<Runtime> {
    let runtime = builder.max_blocking_threads(most).thread_keep_alive(Duration::MAX).build()?;
    // This first one may be refused.
    let begun = catch_unwind(AssertUnwindSafe(|| runtime.spawn_blocking(|| ())));
    begun.map(|_| runtime).map_err(|_| Errno::EAGAIN.into())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};
    use std::{fs, thread};

    use nix::sys::resource::{Resource, setrlimit};

    use super::*;

    const CHILD: &str = "blocking_threads::tests::a_process_that_gets_no_thread_any_more";
    /// Room for what is allocated meanwhile, in bytes; a thread's stack is larger.
    const ROOM: u64 = 1 << 20;

    #[test]
    #[ignore = "it limits its process: the next test starts one for it"]
    fn a_process_that_gets_no_thread_any_more() {
        let mut builder = Builder::new_current_thread();
        // A thread that does not stay would have gone before the limit comes.
        let builder = builder.thread_keep_alive(Duration::from_millis(1));
        let runtime = runtime_with_a_kept_thread(builder, 2).unwrap();
        thread::sleep(Duration::from_millis(100));
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
        let limit = size.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024 + ROOM;
        setrlimit(Resource::RLIMIT_AS, limit, limit).unwrap();
        thread::Builder::new().spawn(|| ()).unwrap_err();
        for n in 0..3 {
            assert_eq!(runtime.block_on(runtime.spawn_blocking(move || n)).unwrap(), n);
        }
    }

    #[test]
    fn blocking_work_is_done_where_the_system_refuses_every_thread() {
        let program = std::env::current_exe().unwrap();
        let ended = Command::new(program).args(["--exact", "--ignored", CHILD]).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
    }

    #[test]
    fn work_that_comes_at_once_has_no_more_threads_than_are_allowed() {
        let runtime = runtime_with_a_kept_thread(&mut Builder::new_current_thread(), 2).unwrap();
        let (begin, begun) = channel();
        let (let_go, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..10 {
            let (begin, held) = (begin.clone(), Arc::clone(&held));
            runtime.spawn_blocking(move || {
                begin.send(()).unwrap();
                let _ = held.lock().unwrap().recv();
            });
        }
        assert_eq!(begun.iter().take(2).count(), 2);
        assert!(begun.recv_timeout(Duration::from_millis(100)).is_err());
        drop(let_go);
        assert_eq!(begun.iter().take(8).count(), 8);
    }

    #[test]
    fn a_runtime_whose_first_thread_is_refused_is_an_error_and_no_panic() {
        let mut builder = Builder::new_current_thread();
        // No address space has room for such a stack.
        let refused = runtime_with_a_kept_thread(builder.thread_stack_size(1 << 60), 1).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::EAGAIN as i32));
    }
}
