//! The allocations of one network's directory, in memory: which addresses are taken, and by whom.
//!
//! It mirrors the disk and decides nothing: an address is taken by creating its file, never by its absence here.
//! It saves an ADD from looking at thousands of files when a range is nearly full. Its size is bounded, whatever lies in the
//! directory.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

/// What one directory may take of memory, in bytes. A /16 whose addresses all belong to containers with ids of 64 characters takes
/// two thirds of it, and no node has that many pods.
const LARGEST: usize = 32 << 20;

/// What an entry takes beside its content, in bytes: its share of tables that have just grown, and what the allocator adds.
const ENTRY: usize = 256;

/// The least address there is.
const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

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
    /// Its content, trimmed; empty where it could not be read, or must not be.
    pub(super) content: String,
    /// Which version of it was read.
    pub(super) version: FileVersion,
}

impl Entry {
    fn size(&self) -> usize {
        ENTRY + self.content.len()
    }
}

/// The files of a directory that are named after an address.
#[derive(Debug, Default)]
pub(super) struct FileIndex {
    files: HashMap<IpAddr, Entry>,
    /// From the hash of a file's content to the files with that content: whatever thousands of files hold in common, one comes
    /// and goes without a look at the others.
    held: BTreeSet<(u64, IpAddr)>,
    hashes: RandomState,
    size: usize,
}

impl FileIndex {
    /// True when a file of this address is known.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.files.contains_key(&ip)
    }

    /// What is known of the file of this address.
    pub(super) fn get(&self, ip: IpAddr) -> Option<&Entry> {
        self.files.get(&ip)
    }

    /// The addresses whose files have this content.
    pub(super) fn held_by<'a>(&'a self, content: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
        let hash = self.hashes.hash_one(content);
        let same = self.held.range((hash, FIRST)..).take_while(move |(other, _)| *other == hash);
        // Two contents may have one hash.
        same.map(|(_, ip)| *ip)
            .filter(move |ip| self.files.get(ip).is_some_and(|entry| entry.content == content))
    }

    /// All files, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, &Entry)> {
        self.files.iter().map(|(ip, entry)| (*ip, entry))
    }

    /// What it takes of memory, in bytes.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Records that a file exists, in place of what was known of it.
    ///
    /// # Errors
    /// Kind `InvalidInput` where the directory would take more memory than one may.
    pub(super) fn insert(&mut self, ip: IpAddr, entry: Entry) -> io::Result<()> {
        self.remove(ip);
        if self.size + entry.size() > LARGEST {
            let (count, limit) = (self.files.len(), LARGEST >> 20);
            let text =
                format!("it has more allocations than {count}, for which {limit} MiB of memory are kept");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.size += entry.size();
        self.held.insert((self.hashes.hash_one(&entry.content), ip));
        self.files.insert(ip, entry);
        Ok(())
    }

    /// Records that a file is gone.
    pub(super) fn remove(&mut self, ip: IpAddr) {
        let Some(entry) = self.files.remove(&ip) else { return };
        self.size -= entry.size();
        self.held.remove(&(self.hashes.hash_one(&entry.content), ip));
    }

    /// Keeps only the files for which `there` says so.
    pub(super) fn retain(&mut self, there: impl Fn(IpAddr) -> bool) {
        let gone: Vec<IpAddr> = self.files.keys().copied().filter(|ip| !there(*ip)).collect();
        for ip in gone {
            self.remove(ip);
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
        let ip = "10.0.0.1".parse().unwrap();
        let mut index = FileIndex::default();
        index.insert(ip, entry("a\r\neth0")).unwrap();
        index.insert(ip, entry("b\r\neth0")).unwrap();
        assert_eq!(index.held_by("a\r\neth0").count(), 0);
        assert_eq!(index.held_by("b\r\neth0").collect::<Vec<_>>(), [ip]);
        index.retain(|_| false);
        assert_eq!(index.held_by("b\r\neth0").count(), 0);
        assert_eq!((index.iter().count(), index.size()), (0, 0));
    }

    #[test]
    fn a_full_16_is_kept_and_no_more_than_a_directory_may_take_whatever_its_files_hold() {
        for (content, at_least) in
            [(format!("{}\r\neth0", "f".repeat(64)), 1 << 16), ("x".repeat(4096), 1 << 10)]
        {
            let mut index = FileIndex::default();
            let all = (0..).map(|bits| IpAddr::from(Ipv4Addr::from_bits(bits)));
            let refused = all.map(|ip| index.insert(ip, entry(&content))).find_map(Result::err).unwrap();
            assert!(refused.to_string().contains("32 MiB"), "{refused}");
            assert!(index.iter().count() > at_least && index.size() <= LARGEST, "{}", index.iter().count());
        }
    }
}
