//! Which directories Fairlead has allocated in, so that after a reboot it knows where to look.
//!
//! One line a directory, `dataDir<TAB>network`, in `<state-dir>/ipam-dirs`; only ever appended to, and on the
//! disk before the first allocation in the directory is made.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A network's directory by the names in its configuration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// `dataDir`
    pub data_dir: String,
    /// The network's name.
    pub network: String,
}

/// The file and what stands in it.
#[derive(Debug)]
pub(super) struct Roster {
    path: PathBuf,
    known: Mutex<BTreeSet<Place>>,
}

impl Roster {
    /// Reads the file; there may be none. A line that is not of its form (a torn write) is passed over.
    pub(super) fn open(path: PathBuf) -> io::Result<Roster> {
        let text = match std::fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            text => text?,
        };
        let known = String::from_utf8_lossy(&text).lines().filter_map(place).collect();
        Ok(Roster { path, known: Mutex::new(known) })
    }

    /// All directories.
    pub(super) fn places(&self) -> Vec<Place> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Writes a directory down if it is not yet.
    pub(super) fn add(&self, place: &Place) -> io::Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(place) {
            return Ok(());
        }
        let new = !self.path.exists();
        let mut file = OpenOptions::new().append(true).create(true).open(&self.path)?;
        // It begins with a line break of its own, in case the last line was torn.
        file.write_all(format!("\n{}\t{}\n", place.data_dir, place.network).as_bytes())?;
        file.sync_data()?;
        if let Some(parent) = self.path.parent().filter(|_| new) {
            File::open(parent)?.sync_all()?;
        }
        known.insert(place.clone());
        Ok(())
    }
}

fn place(line: &str) -> Option<Place> {
    let (data_dir, network) = line.split_once('\t')?;
    Some(Place { data_dir: data_dir.to_owned(), network: network.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_written_down_once_and_a_torn_line_harms_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipam-dirs");
        let place = |n: &str| Place { data_dir: "/var/lib/cni/networks".into(), network: n.into() };
        let roster = Roster::open(path.clone()).unwrap();
        roster.add(&place("a")).unwrap();
        roster.add(&place("a")).unwrap();
        std::fs::write(&path, [&std::fs::read(&path).unwrap()[..], b"/var/lib/to"].concat()).unwrap();
        let roster = Roster::open(path.clone()).unwrap();
        roster.add(&place("b")).unwrap();
        assert_eq!(Roster::open(path).unwrap().places(), [place("a"), place("b")]);
    }

    #[test]
    fn a_file_of_an_earlier_release_is_read_completely_and_only_appended_to() {
        let before = concat!(env!("CARGO_MANIFEST_DIR"), "/../daemon/testdata/records/0.1.0/state/ipam-dirs");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ipam-dirs");
        let place = |n: &str| Place { data_dir: "/var/lib/cni/networks".into(), network: n.into() };
        let roster = Roster::open(path.clone()).unwrap();
        roster.add(&place("pods")).unwrap();
        roster.add(&place("cluster")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(before).unwrap());
        let earlier = Roster::open(before.into()).unwrap();
        assert_eq!(earlier.places(), [place("cluster"), place("pods")]);
    }
}
