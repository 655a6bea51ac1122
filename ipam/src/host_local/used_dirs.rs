//! The list of all directories that Fairlead has ever allocated in, so that after a reboot it knows where to look.
//!
//! One line a directory, `dataDir<TAB>network`, in `<state-dir>/ipam-dirs`, with a third column for the root below which a tenant's has
//! to lie; only ever appended to, and on the disk before the first allocation in the directory is made. Of two lines about one
//! directory the later counts.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use parking_lot::Mutex;

use super::dir_path::NetworkDir;

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
        let mut known = BTreeSet::new();
        for directory in String::from_utf8_lossy(&text).lines().filter_map(parse_line) {
            note(&mut known, directory);
        }
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
        file.write_all(format!("\n{}\n", line_of(directory)).as_bytes())?;
        file.sync_data()?;
        // The file's own name must be on the disk too, or a crash loses the whole list.
        if let Some(parent) = self.path.parent().filter(|_| new) {
            File::open(parent)?.sync_all()?;
        }
        note(&mut known, directory.clone());
        Ok(())
    }
}

fn note(known: &mut BTreeSet<NetworkDir>, directory: NetworkDir) {
    known.retain(|known| !known.is_same_place(&directory));
    known.insert(directory);
}

fn line_of(directory: &NetworkDir) -> String {
    let NetworkDir { data_dir, network, root } = directory;
    match root {
        Some(root) => format!("{data_dir}\t{network}\t{root}"),
        None => format!("{data_dir}\t{network}"),
    }
}

fn parse_line(line: &str) -> Option<NetworkDir> {
    let mut columns = line.split('\t').map(str::to_owned);
    Some(NetworkDir { data_dir: columns.next()?, network: columns.next()?, root: columns.next() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_written_down_once_and_a_torn_line_harms_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipam-dirs");
        let directory = |n: &str| NetworkDir::of_administrator("/var/lib/cni/networks", n);
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
        let directory = |n: &str| NetworkDir::of_administrator("/var/lib/cni/networks", n);
        let list = UsedDirs::open(path.clone()).unwrap();
        list.add(&directory("pods")).unwrap();
        list.add(&directory("cluster")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(before).unwrap());
        let earlier = UsedDirs::open(before.into()).unwrap();
        assert_eq!(earlier.all(), [directory("cluster"), directory("pods")]);
    }

    #[test]
    fn a_tenants_directory_is_written_down_with_its_root_and_the_later_root_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipam-dirs");
        let below = |root: &str| NetworkDir {
            root: Some(root.into()),
            ..NetworkDir::of_administrator("/data/radio", "net@a")
        };
        let list = UsedDirs::open(path.clone()).unwrap();
        for root in ["/data", "/data", "/data/radio"] {
            list.add(&below(root)).unwrap();
        }
        assert_eq!(list.all(), [below("/data/radio")]);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "\n/data/radio\tnet@a\t/data\n\n/data/radio\tnet@a\t/data/radio\n");
        assert_eq!(UsedDirs::open(path).unwrap().all(), [below("/data/radio")]);
    }
}
