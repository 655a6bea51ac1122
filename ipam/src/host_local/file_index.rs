//! The files of one network's directory, in memory: which addresses are taken, and by whom.
//!
//! It mirrors the disk and decides nothing: an address is taken by creating its file, never by its absence here.
//! It saves an ADD from looking at thousands of files when a range is nearly full.

use std::collections::HashMap;
use std::net::IpAddr;

use super::file_format::FileName;

/// What differs between two versions of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileVersion {
    /// Number of its inode (`st_ino`).
    pub(super) inode: u64,
    /// Time of its last change (`st_mtime`), in seconds and nanoseconds.
    pub(super) modified: (i64, i64),
}

/// What is known of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its content, trimmed.
    pub(super) content: String,
    /// Which version of it was read.
    pub(super) version: FileVersion,
}

/// All files of a directory but the lock and the cursors.
#[derive(Debug, Default)]
pub(super) struct FileIndex {
    files: HashMap<FileName, Entry>,
    /// From a file's content to the files with that content.
    held: HashMap<String, Vec<FileName>>,
}

impl FileIndex {
    /// True when a file of this address is known.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.files.contains_key(&FileName::Ip(ip))
    }

    /// What is known of the file of this name.
    pub(super) fn get(&self, name: &FileName) -> Option<&Entry> {
        self.files.get(name)
    }

    /// The names of the files with this content.
    pub(super) fn held_by(&self, content: &str) -> &[FileName] {
        self.held.get(content).map_or(&[], Vec::as_slice)
    }

    /// All files, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&FileName, &Entry)> {
        self.files.iter()
    }

    /// Records that a file exists, in place of what was known of it.
    pub(super) fn insert(&mut self, name: FileName, entry: Entry) {
        self.remove(&name);
        self.held.entry(entry.content.clone()).or_default().push(name.clone());
        self.files.insert(name, entry);
    }

    /// Records that a file is gone.
    pub(super) fn remove(&mut self, name: &FileName) {
        let Some(entry) = self.files.remove(name) else { return };
        if let Some(names) = self.held.get_mut(&entry.content) {
            names.retain(|n| n != name);
            if names.is_empty() {
                self.held.remove(&entry.content);
            }
        }
    }

    /// Keeps only the files for which `there` says so.
    pub(super) fn retain(&mut self, there: impl Fn(&FileName) -> bool) {
        let gone: Vec<FileName> = self.files.keys().filter(|name| !there(name)).cloned().collect();
        for name in gone {
            self.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(content: &str) -> Entry {
        Entry { content: content.into(), version: FileVersion { inode: 1, modified: (0, 0) } }
    }

    #[test]
    fn a_file_that_changed_hands_is_found_under_its_new_owner_only() {
        let name = FileName::of("10.0.0.1").unwrap();
        let mut index = FileIndex::default();
        index.insert(name.clone(), entry("a\r\neth0"));
        index.insert(name.clone(), entry("b\r\neth0"));
        assert!(index.held_by("a\r\neth0").is_empty());
        assert_eq!(index.held_by("b\r\neth0"), std::slice::from_ref(&name));
        index.retain(|_| false);
        assert!(index.held_by("b\r\neth0").is_empty());
        assert_eq!(index.iter().count(), 0);
    }
}
