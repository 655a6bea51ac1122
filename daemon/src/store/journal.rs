//! The journal: an append-only file of framed records, each with a checksum.
//!
//! A frame is `FLJ1`, the payload's length and its CRC-32 (both little endian, 4 bytes), the payload. A torn last
//! frame is what a kill leaves, and is cut off. Damage elsewhere is skipped up to the next frame and reported, so
//! that one bad sector does not lose the node's attachments.
//!
//! Space is reserved ahead (`fallocate`), in smaller steps where a large one can't be had. A record that ends an
//! attachment may use the last of it, a record that begins one may not: so a full /run refuses ADD and still lets
//! DEL through. The file that a compaction writes is reserved too, half as large as the journal, so that a full
//! /run can be compacted without touching the reserve. Nothing is synced: the file lives and dies with the boot,
//! and a killed process loses nothing that `write` has taken.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FallocateFlags, fallocate};

use fairlead_host::files::regular;

const MAGIC: &[u8; 4] = b"FLJ1";
const HEADER: usize = 12;
/// The steps in bytes in which space is reserved; with little space left the smaller ones, down to what one
/// record needs.
const STEPS: [u64; 3] = [512 << 10, 64 << 10, 0];
/// The space in bytes that only records which end an attachment may use.
const RESERVE: u64 = 128 << 10;
/// The size in bytes above which a payload is no record of ours: a configuration is at most 1 MiB, and JSON can
/// double it.
const MAX_PAYLOAD: usize = 16 << 20;

/// The purpose of a record, which decides whether it may use the reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The record begins something, and is refused when only the reserve is left.
    Begin,
    /// The record continues or ends something, and may use the reserve.
    Finish,
}

/// What was read back of a journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// The payloads of all whole frames, in order.
    pub payloads: Vec<Vec<u8>>,
    /// The number of bytes that belong to no whole frame, without a torn last one.
    pub damaged: usize,
    /// The number of bytes up to the end of the last whole frame.
    pub length: usize,
}

/// Reads the frames of `bytes`; never fails and never reads beyond.
pub fn replay(bytes: &[u8]) -> Replay {
    let mut out = Replay::default();
    let mut at = 0;
    let mut torn = None;
    while at < bytes.len() {
        match frame(&bytes[at..]) {
            Some(payload) => {
                out.damaged += at - out.length;
                out.payloads.push(payload.to_vec());
                at += HEADER + payload.len();
                out.length = at;
                torn = None;
            }
            None => {
                if is_torn(&bytes[at..]) {
                    torn.get_or_insert(at);
                }
                let next = bytes[at + 1..].windows(MAGIC.len()).position(|w| w == MAGIC);
                at = next.map_or(bytes.len(), |n| at + 1 + n);
            }
        }
    }
    // Behind the last whole frame, a frame that a kill has cut off is no damage.
    out.damaged += torn.unwrap_or(bytes.len()) - out.length;
    out
}

/// Whether this is the beginning of a frame that would go on after the end of the file.
fn is_torn(bytes: &[u8]) -> bool {
    let Some(head) = bytes.get(..HEADER) else {
        return bytes.iter().zip(MAGIC).all(|(found, magic)| found == magic);
    };
    let length = head.get(4..8).and_then(|l| l.try_into().ok()).map(u32::from_le_bytes);
    head.starts_with(MAGIC)
        && length.is_some_and(|l| l as usize <= MAX_PAYLOAD && HEADER + l as usize > bytes.len())
}

fn frame(bytes: &[u8]) -> Option<&[u8]> {
    let head = bytes.get(..HEADER)?;
    if &head[..4] != MAGIC {
        return None;
    }
    let length = u32::from_le_bytes(head[4..8].try_into().ok()?) as usize;
    let crc = u32::from_le_bytes(head[8..12].try_into().ok()?);
    if length > MAX_PAYLOAD {
        return None;
    }
    let payload = bytes.get(HEADER..HEADER.checked_add(length)?)?;
    (crc32fast::hash(payload) == crc).then_some(payload)
}

fn put_frame(buffer: &mut Vec<u8>, payload: &[u8]) -> io::Result<()> {
    let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a record of more than 4 GiB");
    let length = u32::try_from(payload.len()).map_err(|_| too_long())?;
    buffer.extend_from_slice(MAGIC);
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    buffer.extend_from_slice(payload);
    Ok(())
}

/// An open journal: its file, and how much space of it is reserved.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    end: u64,
    reserved: u64,
    buffer: Vec<u8>,
    /// The file for the next [`Journal::rewrite`], and how many bytes are reserved in it.
    spare: Option<(File, u64)>,
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

impl Journal {
    /// Opens or makes the journal at `path` and reads it back. A torn end is cut off; a damaged journal is left
    /// as it is.
    pub(super) fn open(path: &Path) -> io::Result<(Journal, Replay)> {
        // A pipe or a device must be refused, because reading it would never end.
        let mut file = regular(open(path)?)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let replayed = replay(&bytes);
        let whole = if replayed.damaged == 0 { replayed.length } else { bytes.len() };
        // Only a torn end is cut off: set_len gives back the space that is reserved behind the end.
        if whole < bytes.len() {
            file.set_len(whole as u64)?;
        }
        let mut journal = Journal::from_file(file, path.to_owned(), whole as u64);
        journal.spare = journal.open_spare();
        // On a full file system it serves what is on record; nothing is begun until there is space again.
        if let Err(e) = journal.reserve(0) {
            tracing::warn!(store = %path.display(), error = %e, "no space can be reserved for the store; ADD is refused");
        }
        Ok((journal, replayed))
    }

    fn from_file(file: File, path: PathBuf, end: u64) -> Journal {
        Journal { file, path, end, reserved: end, buffer: Vec::with_capacity(4096), spare: None }
    }

    fn rewrite_path(&self) -> PathBuf {
        self.path.with_extension("new")
    }

    /// Opens the file for the next compaction. Without it the journal grows until there is space for one.
    fn open_spare(&self) -> Option<(File, u64)> {
        let file = open(&self.rewrite_path()).ok()?;
        // A killed compaction has left something in it. An empty file is not truncated, since that would give its
        // reserved space back.
        if file.metadata().is_ok_and(|m| m.len() > 0) {
            file.set_len(0).ok()?;
        }
        Some((file, 0))
    }

    /// The length of all records in bytes, without the space that is only reserved.
    pub(super) fn length(&self) -> u64 {
        self.end
    }

    /// Makes sure that a record of so many bytes that begins something can be appended.
    pub(super) fn make_room(&mut self, payload: u64) -> io::Result<()> {
        let size = HEADER as u64 + payload;
        if self.reserved == u64::MAX {
            // This file system can't reserve: its free blocks are all that can be asked about.
            let stat = nix::sys::statvfs::fstatvfs(&self.file)?;
            let free = stat.blocks_free().saturating_mul(stat.fragment_size());
            return if free < size { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) };
        }
        if self.end + size + RESERVE > self.reserved { self.reserve(size) } else { Ok(()) }
    }

    /// Appends records with one `write`; when this returns, a killed process does not lose them.
    pub(super) fn append(&mut self, payloads: &[&[u8]], purpose: Purpose) -> io::Result<()> {
        self.buffer.clear();
        payloads.iter().try_for_each(|payload| put_frame(&mut self.buffer, payload))?;
        let size = self.buffer.len() as u64;
        if self.end + size + RESERVE > self.reserved {
            let extended = self.reserve(size);
            // A record that ends something goes on without: the reserve is kept for it.
            if purpose == Purpose::Begin {
                extended?;
            }
        }
        if let Err(e) = self.file.write_all_at(&self.buffer, self.end) {
            // Half a record must not stay behind a shorter one that is written over it.
            if self.file.set_len(self.end).is_ok() {
                self.reserved = self.end;
            }
            return Err(e);
        }
        self.end += size;
        Ok(())
    }

    /// Reserves what a record of so many bytes needs beside the reserve, and one step more, the largest that can
    /// be had.
    fn reserve(&mut self, size: u64) -> io::Result<()> {
        let mut done = Ok(());
        for step in STEPS {
            done = self.reserve_up_to(self.end + size + RESERVE + step);
            if !done.as_ref().is_err_and(is_full) {
                break;
            }
        }
        done
    }

    fn reserve_up_to(&mut self, size: u64) -> io::Result<()> {
        if let Some((spare, there)) = &mut self.spare {
            // A compaction is worth it only when it halves the journal, so half is the most that it writes.
            let half = size / 2;
            if *there > half {
                // A larger step had reserved more here, and then there was too little for the journal itself.
                *there = 0;
                spare.set_len(0)?;
            }
            *there = reserve_space(spare, half)?;
        }
        self.reserved = reserve_space(&self.file, size)?.max(self.reserved);
        Ok(())
    }

    /// Replaces the journal by one of just these records: writes a new file beside it and renames it over the old
    /// one.
    pub(super) fn rewrite<'a>(&mut self, mut payloads: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        let beside = self.rewrite_path();
        let (file, there) =
            self.spare.take().or_else(|| self.open_spare()).ok_or(io::ErrorKind::StorageFull)?;
        // MAX, so that `append` reserves nothing: the spare file has its space already.
        let mut fresh = Journal { reserved: u64::MAX, ..Journal::from_file(file, self.path.clone(), 0) };
        let written = payloads.try_for_each(|payload| fresh.append(&[payload], Purpose::Finish));
        // A kill before the rename leaves the old journal in force, and a file that the next start empties.
        if let Err(e) = written.and_then(|()| std::fs::rename(&beside, &self.path)) {
            self.spare = self.open_spare();
            return Err(e);
        }
        fresh.reserved = there.max(fresh.end);
        *self = fresh;
        self.spare = self.open_spare();
        // The space of the old file is free now. If others took it already, what was reserved ahead is enough to
        // go on.
        let _ = self.reserve(0);
        Ok(())
    }
}

/// Whether an error means that the file system has no space.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Reserves so many bytes of a file; returns how many are reserved now.
fn reserve_space(file: &File, size: u64) -> io::Result<u64> {
    let bytes = i64::try_from(size).map_err(io::Error::other)?;
    match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, bytes) {
        Ok(()) => Ok(size),
        // This file system cannot reserve (tmpfs, ext4 and xfs can), so a full disk shows only when it is written
        // to.
        Err(nix::errno::Errno::EOPNOTSUPP) => Ok(u64::MAX),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes_of(payloads: &[Vec<u8>]) -> (tempfile::TempDir, PathBuf, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = Journal::open(&path).unwrap();
        for payload in payloads {
            journal.append(&[payload], Purpose::Begin).unwrap();
        }
        let bytes = std::fs::read(&path).unwrap();
        (dir, path, bytes)
    }

    proptest! {
        #[test]
        fn what_was_appended_is_read_back(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)) {
            let (_dir, path, _) = bytes_of(&payloads);
            let (_, replayed) = Journal::open(&path).unwrap();
            prop_assert_eq!(replayed.payloads, payloads);
            prop_assert_eq!(replayed.damaged, 0);
        }

        #[test]
        fn a_journal_cut_anywhere_keeps_every_whole_record(cut in 0usize..400) {
            let payloads: Vec<_> = (0u8..8).map(|n| vec![n; 30]).collect();
            let (_dir, _, bytes) = bytes_of(&payloads);
            let cut = cut.min(bytes.len());
            let replayed = replay(&bytes[..cut]);
            prop_assert_eq!(replayed.payloads.len(), cut / 42);
            prop_assert_eq!(replayed.damaged, 0);
        }

        #[test]
        fn every_record_without_a_flipped_bit_survives_and_the_damage_is_told(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 2..20),
            flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 1..12),
        ) {
            let (_dir, path, mut bytes) = bytes_of(&payloads);
            let frames: Vec<usize> = payloads.iter().map(|payload| HEADER + payload.len()).collect();
            let ends: Vec<usize> = frames.iter().scan(0, |end, frame| { *end += frame; Some(*end) }).collect();
            // In the last one a longer length looks like a record that a kill has torn.
            let flips: Vec<_> = flips.iter().map(|(at, bit)| (at.index(ends[ends.len() - 2]), bit)).collect();
            let whole = bytes.clone();
            flips.iter().for_each(|(at, bit)| bytes[*at] ^= 1 << *bit);
            let kept: Vec<_> = frames.iter().zip(&ends).zip(&payloads)
                .filter(|((frame, end), _)| whole[*end - *frame..**end] == bytes[*end - *frame..**end])
                .map(|(_, payload)| payload.clone())
                .collect();
            std::fs::write(&path, &bytes).unwrap();
            let (_, replayed) = Journal::open(&path).unwrap();
            prop_assert_eq!(replayed.damaged > 0, kept.len() < payloads.len());
            prop_assert_eq!(replayed.payloads, kept);
        }

        #[test]
        fn any_bytes_are_replayed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            replay(&bytes);
        }
    }

    #[test]
    fn damage_in_the_middle_costs_only_the_damaged_record() {
        let payloads: Vec<_> = (0u8..5).map(|n| vec![n + 1; 30]).collect();
        let (_dir, path, mut bytes) = bytes_of(&payloads);
        bytes[42 * 2 + 20] ^= 0xff;
        std::fs::write(&path, &bytes).unwrap();
        let (_, replayed) = Journal::open(&path).unwrap();
        assert_eq!(
            replayed.payloads,
            [payloads[0].clone(), payloads[1].clone(), payloads[3].clone(), payloads[4].clone()]
        );
        assert_eq!(replayed.damaged, 42);
    }

    #[test]
    fn a_damaged_last_record_is_told_and_a_torn_one_is_cut_off() {
        let payloads: Vec<_> = (0u8..3).map(|n| vec![n + 1; 30]).collect();
        let (_dir, path, mut bytes) = bytes_of(&payloads);
        bytes[42 * 2 + 20] ^= 0xff;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Journal::open(&path).unwrap().1.damaged, 42);
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "it is left as it is, to be set aside");
        std::fs::write(&path, &bytes[..42 * 2 + 20]).unwrap();
        assert_eq!(Journal::open(&path).unwrap().1.damaged, 0);
        assert_eq!(std::fs::read(&path).unwrap().len(), 42 * 2);
    }

    #[test]
    fn a_payload_that_ends_in_zeros_survives_a_restart() {
        let payloads = vec![vec![7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]];
        let (_dir, path, _) = bytes_of(&payloads);
        assert_eq!(Journal::open(&path).unwrap().1.payloads, payloads);
    }

    #[test]
    fn a_rewritten_journal_holds_just_the_records_given_and_goes_on() {
        let (_dir, path, _) = bytes_of(&[vec![1], vec![2], vec![3]]);
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.rewrite([&[2u8][..]].into_iter()).unwrap();
        journal.append(&[&[9]], Purpose::Finish).unwrap();
        assert_eq!(Journal::open(&path).unwrap().1.payloads, [vec![2], vec![9]]);
    }
}
