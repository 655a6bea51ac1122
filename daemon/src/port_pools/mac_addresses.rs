//! The MAC address of each port, in the state directory: `Allocate` tells a pod of it before its ADD comes, and kubelet keeps what was told
//! beyond a restart of the node.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use fairlead_host::record_content::{self, ReadFile, UnreadRecord};
use fairlead_host::{Mac, files};

/// Its file in the state directory.
const FILE: &str = "port-mac-addresses.json";

/// What is on record.
#[derive(Debug)]
pub(super) struct MacAddresses {
    file: PathBuf,
    read: ReadFile,
    /// Or why it is not known what is on record.
    of_ports: Result<BTreeMap<String, Mac>, UnreadRecord>,
}

impl MacAddresses {
    /// What is on record. While the file cannot be read for a reason that can pass, no port has an address.
    pub(super) fn read(state_dir: &Path) -> MacAddresses {
        MacAddresses::read_by(state_dir, record_content::read)
    }

    fn read_by(state_dir: &Path, read: ReadFile) -> MacAddresses {
        let file = state_dir.join(FILE);
        let of_ports = on_record(&file, read);
        if let Err(error) = &of_ports {
            tracing::error!(%error, "ports of pools are kept from pods until their MAC addresses can be read");
        }
        MacAddresses { file, read, of_ports }
    }

    /// The address of a port that [`MacAddresses::record`] was told of.
    pub(super) fn of(&self, port: &str) -> Option<Mac> {
        self.of_ports.as_ref().ok()?.get(port).copied()
    }

    /// Why it is not known what is on record.
    pub(super) fn unread(&self) -> Option<&UnreadRecord> {
        self.of_ports.as_ref().err()
    }

    /// Has an address for each of these ports, which are in the order of their names, and for no other, on record. A file that
    /// could not be read is read first.
    ///
    /// # Errors
    /// When the file cannot be read for a reason that can pass, or not be written; what was on record before still is.
    pub(super) fn record<'p>(
        &mut self,
        ports: impl Iterator<Item = &'p String> + Clone,
        random: impl Fn() -> u64,
    ) -> io::Result<()> {
        if self.of_ports.is_err() {
            self.of_ports = on_record(&self.file, self.read);
        }
        let known = self.of_ports.as_ref().map_err(|unread| io::Error::other(unread.to_string()))?;
        if ports.clone().eq(known.keys()) {
            return Ok(());
        }
        let with_address =
            |port: &String| (port.clone(), self.of(port).unwrap_or_else(|| Mac::local(random())));
        let all: BTreeMap<String, Mac> = ports.map(with_address).collect();
        files::replace(&self.file, &serde_json::to_vec(&all)?)?;
        self.of_ports = Ok(all);
        Ok(())
    }
}

/// The addresses in the file; none where it holds none: the next pods' ports get new ones.
fn on_record(file: &Path, read: ReadFile) -> Result<BTreeMap<String, Mac>, UnreadRecord> {
    let parsed = record_content::bytes_of(file, read)?.and_then(|text| Ok(serde_json::from_slice(&text)?));
    Ok(parsed.unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(file = %file.display(), %error, "ports of pools get new MAC addresses: the old ones cannot be read");
        }
        BTreeMap::new()
    }))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use nix::errno::Errno;

    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_port_keeps_its_address_and_one_that_is_gone_gets_another() {
        let dir = tempfile::tempdir().unwrap();
        let count = Cell::new(0);
        let next = || count.replace(count.get() + 1) << 8;
        let mut addresses = MacAddresses::read(dir.path());
        addresses.record(names(&["a", "b"]).iter(), next).unwrap();
        let [a, b] = ["a", "b"].map(|port| addresses.of(port).unwrap().to_string());
        assert_eq!((a.as_str(), b.as_str()), ("02:00:00:00:00:00", "02:01:00:00:00:00"));
        let mut again = MacAddresses::read(dir.path());
        again.record(names(&["b", "c"]).iter(), next).unwrap();
        assert_eq!((again.of("a"), again.of("b").unwrap().to_string()), (None, b));
        again.record(names(&["a", "b"]).iter(), next).unwrap();
        assert_ne!(again.of("a").unwrap().to_string(), a);
    }

    #[test]
    fn an_address_that_is_not_on_record_is_not_told() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "damaged").unwrap();
        let mut addresses = MacAddresses::read(dir.path());
        assert_eq!(addresses.of("a"), None);
        addresses.file = dir.path().join("absent/file");
        addresses.record(names(&["a"]).iter(), || 7).unwrap_err();
        assert_eq!(addresses.of("a"), None);
        addresses.file = dir.path().join(FILE);
        addresses.record(names(&["a"]).iter(), || 7).unwrap();
        assert_eq!(MacAddresses::read(dir.path()).of("a"), addresses.of("a"));
    }

    #[test]
    fn addresses_that_cannot_be_read_for_a_reason_that_can_pass_are_neither_drawn_anew_nor_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let mut before = MacAddresses::read(dir.path());
        before.record(names(&["a"]).iter(), || 7 << 8).unwrap();
        let written = fs::read(&file).unwrap();
        let shortages: [ReadFile; 2] = [|_| Err(Errno::EMFILE.into()), |_| Err(Errno::EACCES.into())];
        for read in shortages {
            let mut addresses = MacAddresses::read_by(dir.path(), read);
            let told = addresses.record(names(&["a", "b"]).iter(), || 9 << 8).unwrap_err().to_string();
            assert!(told.starts_with(&format!("{} cannot be read", file.display())), "{told}");
            assert!(addresses.of("a").is_none() && addresses.unread().is_some());
            assert_eq!(fs::read(&file).unwrap(), written);
            addresses.read = record_content::read;
            addresses.record(names(&["a"]).iter(), || 9 << 8).unwrap();
            assert!(addresses.of("a").is_some() && addresses.unread().is_none());
            assert_eq!(addresses.of("a"), before.of("a"));
        }
    }
}
