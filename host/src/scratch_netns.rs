//! Network namespaces for tests and measurements: made, bound to a path as a container runtime does, and removed.
//!
//! Nothing of the daemon uses this.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace that lives as long as this (or longer, if something else holds it).
#[derive(Debug)]
pub struct ScratchNetns {
    path: PathBuf,
}

impl ScratchNetns {
    /// Makes a namespace, with `lo` down in it, at `dir/name`, where nothing may be yet.
    pub fn new(dir: &Path, name: &str) -> io::Result<ScratchNetns> {
        let path = dir.join(name);
        File::create_new(&path)?;
        // On a thread that ends: unshare(2) takes its caller out of its namespace for good.
        let made = thread::scope(|scope| joined(scope.spawn(|| make_at(&path))));
        if let Err(error) = made {
            fs::remove_file(&path)?;
            return Err(error);
        }
        Ok(ScratchNetns { path })
    }

    /// The path that it is bound to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Does `work` on a thread that is in this namespace.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let netns = File::open(&self.path)?;
        thread::scope(|scope| {
            joined(scope.spawn(|| {
                setns(&netns, CloneFlags::CLONE_NEWNET)?;
                Ok(work())
            }))
        })
    }
}

impl Drop for ScratchNetns {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever made the directory.
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        let _ = fs::remove_file(&self.path);
    }
}

fn make_at(path: &Path) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    let none: Option<&str> = None;
    // Not /proc/self: that shows the namespace of the process's first thread.
    mount(Some("/proc/thread-self/ns/net"), path, none, MsFlags::MS_BIND, none)?;
    Ok(())
}

/// What a thread in a namespace of its own came to.
pub(crate) fn joined<T>(thread: thread::ScopedJoinHandle<'_, io::Result<T>>) -> io::Result<T> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace panicked")))
}
