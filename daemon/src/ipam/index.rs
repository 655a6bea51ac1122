//! The files of one network's directory, in memory: which addresses are taken, and by whom.
//!
//! It mirrors the disk and decides nothing: an address is taken by creating its file, never by its absence here.
//! It saves an ADD from looking at thousands of files when a range is nearly full.

use std::collections::HashMap;
use std::net::IpAddr;

use super::owner::Name;

/// What tells one version of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    /// `st_ino`
    pub(super) inode: u64,
    /// `st_mtime` with nanoseconds.
    pub(super) modified: (i64, i64),
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its content, trimmed.
    pub(super) content: String,
    /// Which version of it was read.
    pub(super) version: Version,
}

/// All files of a directory but the lock and the cursors.
#[derive(Debug, Default)]
pub(super) struct Index {
    files: HashMap<Name, Entry>,
    /// From a file's content to the files with that content.
    held: HashMap<String, Vec<Name>>,
}

impl Index {
    /// True when a file of this address is known.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.files.contains_key(&Name::Ip(ip))
    }

    /// The file of this name.
    pub(super) fn get(&self, name: &Name) -> Option<&Entry> {
        self.files.get(name)
    }

    /// The names of the files with this content.
    pub(super) fn held_by(&self, content: &str) -> &[Name] {
        self.held.get(content).map_or(&[], Vec::as_slice)
    }

    /// All files.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &Entry)> {
        self.files.iter()
    }

    /// A file is there.
    pub(super) fn insert(&mut self, name: Name, entry: Entry) {
        self.remove(&name);
        self.held.entry(entry.content.clone()).or_default().push(name.clone());
        self.files.insert(name, entry);
    }

    /// A file is gone.
    pub(super) fn remove(&mut self, name: &Name) {
        let Some(entry) = self.files.remove(name) else { return };
        if let Some(names) = self.held.get_mut(&entry.content) {
            names.retain(|n| n != name);
            if names.is_empty() {
                self.held.remove(&entry.content);
            }
        }
    }

    /// Keeps only the files for which `there` says so.
    pub(super) fn retain(&mut self, there: impl Fn(&Name) -> bool) {
        let gone: Vec<Name> = self.files.keys().filter(|name| !there(name)).cloned().collect();
        for name in gone {
            self.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(content: &str) -> Entry {
        Entry { content: content.into(), version: Version { inode: 1, modified: (0, 0) } }
    }

    #[test]
    fn a_file_that_changed_hands_is_found_under_its_new_owner_only() {
        let name = Name::of("10.0.0.1").unwrap();
        let mut index = Index::default();
        index.insert(name.clone(), entry("a\r\neth0"));
        index.insert(name.clone(), entry("b\r\neth0"));
        assert!(index.held_by("a\r\neth0").is_empty());
        assert_eq!(index.held_by("b\r\neth0"), std::slice::from_ref(&name));
        index.retain(|_| false);
        assert!(index.held_by("b\r\neth0").is_empty());
        assert_eq!(index.iter().count(), 0);
    }
}
