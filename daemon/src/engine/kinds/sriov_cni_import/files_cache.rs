//! A cache of the files that sriov-cni has left, for whoever asks often. They are read again only when one has come or gone.
//!
//! A directory's time of change shows that. The kernel's clock for it is coarse: two changes close together may have the same
//! time. So nothing is cached while the last change is young.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fairlead_host::HostRoot;
use parking_lot::Mutex;
use rustix::fs::fstat;

use super::files::{PCI, SriovCniFiles, directory, read_all};

/// The kernel's clock for files goes in steps of some milliseconds.
const YOUNG: Duration = Duration::from_secs(1);

/// Which directories there are, and when each has changed.
type Stamp = [Option<(u64, u64, SystemTime)>; 2];

/// What was read last, and of which state of the directories.
#[derive(Debug, Default)]
pub(crate) struct CachedFiles(Mutex<Option<(Stamp, Arc<SriovCniFiles>)>>);

impl CachedFiles {
    /// All of it. Where a file that was there is written again, what it said before may be returned.
    pub(crate) fn read(&self, root: &HostRoot) -> io::Result<Arc<SriovCniFiles>> {
        // Taken before the files are read: a change in between makes the next call read them again.
        let (stamp, now) = (stamp(root)?, SystemTime::now());
        let mut kept = self.0.lock();
        if let Some((_, left)) = kept.as_ref().filter(|(of, _)| *of == stamp) {
            return Ok(Arc::clone(left));
        }
        let found = Arc::new(read_all(root)?);
        let is_old = |changed: &SystemTime| now.duration_since(*changed).is_ok_and(|age| age > YOUNG);
        let settled = stamp.iter().flatten().all(|(_, _, changed)| is_old(changed));
        *kept = settled.then(|| (stamp, Arc::clone(&found)));
        Ok(found)
    }
}

fn stamp(root: &HostRoot) -> io::Result<Stamp> {
    let one = |below: &str| {
        let Some(dir) = directory(root, below)? else { return Ok(None) };
        let stat = fstat(dir)?;
        let seconds = Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or_default());
        let nanos = Duration::from_nanos(stat.st_mtime_nsec);
        Ok::<_, io::Error>(Some((stat.st_dev, stat.st_ino, SystemTime::UNIX_EPOCH + seconds + nanos)))
    };
    Ok([one("")?, one(PCI)?])
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::super::files::DIRECTORY;
    use super::*;

    #[test]
    fn a_file_that_comes_or_goes_is_seen_at_once_and_nothing_is_read_while_none_does() {
        let dir = tempfile::tempdir().unwrap();
        let (root, all) = (HostRoot::new(dir.path().into()), CachedFiles::default());
        assert!(all.read(&root).unwrap().is_empty());
        let place = dir.path().join(DIRECTORY.trim_start_matches('/'));
        fs::create_dir_all(place.join("pci")).unwrap();
        let (one, two) = (place.join("pci/0000:21:10.0"), place.join("pci/0000:21:10.1"));
        let names = || all.read(&root).unwrap().taken.len();
        fs::write(&one, "/run/netns/a").unwrap();
        assert_eq!(names(), 1);
        fs::write(&two, "/run/netns/b").unwrap();
        assert_eq!(names(), 2, "though the first has hardly been read");
        fs::remove_file(&two).unwrap();
        assert_eq!(names(), 1);
        let age = |seconds| {
            for place in [place.clone(), place.join("pci")] {
                let past = SystemTime::now() - Duration::from_secs(seconds);
                File::open(place).unwrap().set_modified(past).unwrap();
            }
        };
        age(60);
        let first = all.read(&root).unwrap();
        assert!(Arc::ptr_eq(&first, &all.read(&root).unwrap()));
        fs::write(&two, "/run/netns/b").unwrap();
        assert_eq!(names(), 2);
    }
}
