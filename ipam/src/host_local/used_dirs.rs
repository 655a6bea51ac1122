//! The list of all directories that Fairlead has ever allocated in, so that after a reboot it knows where to look.
//!
//! One line a directory, `dataDir<TAB>network`, in `<state-dir>/ipam-dirs`; only ever appended to, and on the
//! disk before the first allocation in the directory is made.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use parking_lot::Mutex;

/// A network's directory by the names in its configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkDir {
    /// The directory of all networks (`dataDir`).
    pub data_dir: String,
    /// The network's name.
    pub network: String,
}

/// The list, in memory and in its file.
#[derive(Debug)]
pub(super) struct UsedDirs {
    path: PathBuf,
    known: Mutex<BTreeSet<NetworkDir>>,
}

impl UsedDirs {
    /// Reads the file; there may be none. A line that is not of its form (a torn write) is passed over.
    pub(super) fn open(path: PathBuf) -> io::Result<UsedDirs> {
        let text = match std::fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            text => text?,
        };
        let known = String::from_utf8_lossy(&text).lines().filter_map(parse_line).collect();
        Ok(UsedDirs { path, known: Mutex::new(known) })
    }

    /// All directories of the list.
    pub(super) fn all(&self) -> Vec<NetworkDir> {
        self.known.lock().iter().cloned().collect()
    }

    /// Adds a directory to the list, on the disk too, unless it is in it.
    pub(super) fn add(&self, directory: &NetworkDir) -> io::Result<()> {
        let mut known = self.known.lock();
        if known.contains(directory) {
            return Ok(());
        }
        let new = !self.path.exists();
        let mut file = OpenOptions::new().append(true).create(true).open(&self.path)?;
        // It begins with a line break of its own, in case the last line was torn.
        file.write_all(format!("\n{}\t{}\n", directory.data_dir, directory.network).as_bytes())?;
        file.sync_data()?;
        // The file's own name must be on the disk too, or a crash loses the whole list.
        if let Some(parent) = self.path.parent().filter(|_| new) {
            File::open(parent)?.sync_all()?;
        }
        known.insert(directory.clone());
        Ok(())
    }
}

fn parse_line(line: &str) -> Option<NetworkDir> {
    let (data_dir, network) = line.split_once('\t')?;
    Some(NetworkDir { data_dir: data_dir.to_owned(), network: network.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_written_down_once_and_a_torn_line_harms_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipam-dirs");
        let directory = |n: &str| NetworkDir { data_dir: "/var/lib/cni/networks".into(), network: n.into() };
        let list = UsedDirs::open(path.clone()).unwrap();
        list.add(&directory("a")).unwrap();
        list.add(&directory("a")).unwrap();
        std::fs::write(&path, [&std::fs::read(&path).unwrap()[..], b"/var/lib/to"].concat()).unwrap();
        let list = UsedDirs::open(path.clone()).unwrap();
        list.add(&directory("b")).unwrap();
        assert_eq!(UsedDirs::open(path).unwrap().all(), [directory("a"), directory("b")]);
    }

    #[test]
    fn a_file_of_an_earlier_release_is_read_completely_and_only_appended_to() {
        let before = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/testdata/records/0.1.0/state/ipam-dirs");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipam-dirs");
        let directory = |n: &str| NetworkDir { data_dir: "/var/lib/cni/networks".into(), network: n.into() };
        let list = UsedDirs::open(path.clone()).unwrap();
        list.add(&directory("pods")).unwrap();
        list.add(&directory("cluster")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(before).unwrap());
        let earlier = UsedDirs::open(before.into()).unwrap();
        assert_eq!(earlier.all(), [directory("cluster"), directory("pods")]);
    }
}
