//! The MAC address of each port, in the state directory: `Allocate` tells a pod of it before its ADD comes, and kubelet keeps what was told
//! beyond a restart of the node.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fairlead_host::{Mac, files};

/// Its file in the state directory.
const FILE: &str = "port-mac-addresses.json";

/// What is on record.
#[derive(Debug)]
pub(super) struct MacAddresses {
    file: PathBuf,
    of_ports: BTreeMap<String, Mac>,
}

impl MacAddresses {
    /// What is on record. Of a file that cannot be read nothing is: the next pods' ports get new addresses.
    pub(super) fn read(state_dir: &Path) -> MacAddresses {
        let file = state_dir.join(FILE);
        let read = fs::read(&file).and_then(|text| Ok(serde_json::from_slice(&text)?));
        let of_ports = read.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(file = %file.display(), %error, "ports of pools get new MAC addresses: the old ones cannot be read");
            }
            BTreeMap::new()
        });
        MacAddresses { file, of_ports }
    }

    /// The address of a port that [`MacAddresses::record`] was told of.
    pub(super) fn of(&self, port: &str) -> Option<Mac> {
        self.of_ports.get(port).copied()
    }

    /// Has an address for each of these ports, which are in the order of their names, and for no other, on record.
    ///
    /// # Errors
    /// When the file cannot be written; what was on record before still is.
    pub(super) fn record<'p>(
        &mut self,
        ports: impl Iterator<Item = &'p String> + Clone,
        random: impl Fn() -> u64,
    ) -> io::Result<()> {
        if ports.clone().eq(self.of_ports.keys()) {
            return Ok(());
        }
        let with_address =
            |port: &String| (port.clone(), self.of(port).unwrap_or_else(|| Mac::local(random())));
        let all: BTreeMap<String, Mac> = ports.map(with_address).collect();
        files::replace(&self.file, &serde_json::to_vec(&all)?)?;
        self.of_ports = all;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

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
}
