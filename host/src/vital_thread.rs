//! Threads that their process can't do without.
//!
//! Where one panics, the process ends: the others would go on, and nobody would notice what is not done any more. Whoever supervises
//! the process starts it again. A panic that the thread's own work catches ends nothing, so this is no hook for all panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{io, process, thread};

/// Begins a thread of this name. Where `work` panics, the process ends by SIGABRT.
///
/// # Errors
/// When there is no thread to be had.
pub fn begin(name: impl Into<String>, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let or_abort = move || {
        // The panic itself, its text and place, has been printed by then.
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            let current = thread::current();
            tracing::error!(
                thread = current.name(),
                "a thread that must not end has panicked; this process ends, to be started again"
            );
            process::abort();
        }
    };
    thread::Builder::new().name(name.into()).spawn(or_abort).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use nix::sys::signal::Signal;

    use super::*;

    const CHILD: &str = "vital_thread::tests::a_process_of_which_a_vital_thread_panics";

    #[test]
    #[ignore = "it ends its process: the next test starts one for it"]
    fn a_process_of_which_a_vital_thread_panics() {
        begin("vital", || panic!("as a bug of it would")).unwrap();
        thread::sleep(Duration::from_secs(600));
    }

    #[test]
    fn a_vital_thread_that_panics_ends_the_process() {
        let program = std::env::current_exe().unwrap();
        let ended = Command::new(program).args(["--exact", "--ignored", CHILD]).output().unwrap();
        assert_eq!(ended.status.signal(), Some(Signal::SIGABRT as i32), "{ended:?}");
    }

    #[test]
    fn a_vital_thread_that_catches_a_panic_and_ends_leaves_the_process() {
        let (sender, names) = channel();
        let work = move || {
            catch_unwind(|| panic!("as a test of it")).unwrap_err();
            sender.send(thread::current().name().map(str::to_owned)).unwrap();
        };
        begin("vital", work).unwrap();
        assert_eq!(names.recv_timeout(Duration::from_secs(20)), Ok(Some("vital".to_owned())));
        // The sender goes with the thread's work.
        names.recv_timeout(Duration::from_secs(20)).unwrap_err();
    }
}
