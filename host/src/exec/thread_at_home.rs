//! A thread of the daemon that is begun while its maker is in a pod's namespace.
//!
//! A thread is born in the namespace that its maker is in, and keeps that alive, with every interface in it, for as long as it lives
//! there. So one that outlives the call of its maker goes home first.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::channel;
use std::thread;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};

use crate::real::home_of_this_thread;

/// Starts a thread that does `work` in the daemon's own network namespace, also while the calling one is in a pod's.
///
/// # Errors
/// What the kernel says. Then nothing was done, and no thread is left.
pub fn spawn_at_home(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = thread::Builder::new().name(name.to_owned());
    let Some(home) = own_descriptor_of_home()? else { return builder.spawn(work).map(drop) };
    let (tells, told) = channel();
    builder.spawn(move || {
        let went = setns(&home, CloneFlags::CLONE_NEWNET);
        drop(home);
        // It fails only when the maker has ended, which waits for this.
        let _ = tells.send(went);
        if went.is_ok() {
            work();
        }
    })?;
    // Waited for: until then it holds the pod's namespace, which the caller may have left by then.
    told.recv().unwrap_or(Err(Errno::ESRCH)).map_err(io::Error::from)
}

/// A descriptor of the daemon's own namespace for another thread, where this one is in a pod's.
fn own_descriptor_of_home() -> io::Result<Option<OwnedFd>> {
    let Some(home) = home_of_this_thread() else { return Ok(None) };
    // SAFETY: it is open as long as the view is that brought this thread into the pod's namespace, and that is still there.
    let home = unsafe { BorrowedFd::borrow_raw(home) };
    home.try_clone_to_owned().map(Some)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::real::{Entered, OwnNetns, open_netns};
    use crate::scratch_netns::ScratchNetns;

    #[test]
    fn a_thread_that_is_made_in_a_pods_namespace_is_at_home_and_its_maker_stays_where_it_is() {
        let directory = tempfile::TempDir::new().unwrap();
        let pod = ScratchNetns::new(directory.path(), "pod").unwrap();
        let here = || fs::read_link("/proc/thread-self/ns/net").unwrap();
        let place_of_new_thread = || {
            let (tells, told) = channel();
            spawn_at_home("at-home", move || tells.send(here()).unwrap()).unwrap();
            told.recv().unwrap()
        };
        let (own, home) = (OwnNetns::of_this_thread().unwrap(), here());
        assert_eq!(place_of_new_thread(), home);
        let entered = Entered::enter(&own, open_netns(pod.path()).unwrap().0).unwrap();
        let away = here();
        assert_ne!(away, home);
        assert_eq!((place_of_new_thread(), here()), (home.clone(), away));
        drop(entered);
        assert_eq!(here(), home);
    }
}
