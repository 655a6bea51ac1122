//! The journal: an append-only file of framed records, each with a checksum.
//!
//! A frame is `FLJ1`, the payload's length and its CRC-32 (both little endian, 4 bytes), the payload. A torn last frame
//! is what a kill leaves and is cut off; damage elsewhere is stepped over to the next frame and told, so that one bad
//! sector does not lose the node's attachments.
//!
//! Space is reserved ahead (`fallocate`): what ends an attachment may use the reserve, what begins one may not, so a
//! full /run refuses ADD and still lets DEL through. Nothing is synced: the file lives and dies with the boot, and a
//! killed process loses nothing that `write` has taken.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FallocateFlags, fallocate};

const MAGIC: &[u8; 4] = b"FLJ1";
const HEADER: usize = 12;
/// Reserved in steps of this many bytes.
const STEP: u64 = 512 << 10;
/// What only the end of an attachment may use.
const RESERVE: u64 = 128 << 10;
/// A longer payload is not a record of ours: a configuration is at most 1 MiB, and JSON can double it.
const MAX_PAYLOAD: usize = 16 << 20;

/// What a record is for, as far as the space reserve goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It begins something: refused when only the reserve is left.
    Begin,
    /// It goes on with something or ends it: may use the reserve.
    Finish,
}

/// What was read back.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Payloads in order.
    pub payloads: Vec<Vec<u8>>,
    /// Bytes that were stepped over in the middle.
    pub damaged: usize,
    /// Bytes up to the end of the last whole frame.
    pub length: usize,
}

/// Reads the frames of `bytes`; never fails and never reads beyond.
pub fn replay(bytes: &[u8]) -> Replay {
    let mut out = Replay::default();
    let mut at = 0;
    let mut lost = 0;
    while at < bytes.len() {
        match frame(&bytes[at..]) {
            Some(payload) => {
                out.damaged += std::mem::take(&mut lost);
                out.payloads.push(payload.to_vec());
                at += HEADER + payload.len();
                out.length = at;
            }
            None => {
                let next = bytes[at + 1..].windows(MAGIC.len()).position(|w| w == MAGIC);
                let step = next.map_or(bytes.len() - at, |n| n + 1);
                lost += step;
                at += step;
            }
        }
    }
    out
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

/// An open journal.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    end: u64,
    reserved: u64,
    buffer: Vec<u8>,
}

impl Journal {
    /// Opens or makes the journal at `path` and reads it back; a torn end is cut off.
    pub(super) fn open(path: &Path) -> io::Result<(Journal, Replay)> {
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let replayed = replay(&bytes);
        // Not where nothing is torn: it would give back the space that the journal before has reserved.
        if replayed.length < bytes.len() {
            file.set_len(replayed.length as u64)?;
        }
        let end = replayed.length as u64;
        let mut journal =
            Journal { file, path: path.to_owned(), end, reserved: end, buffer: Vec::with_capacity(4096) };
        // On a full file system it serves what is on record: nothing is begun until there is space again.
        if let Err(e) = journal.reserve() {
            tracing::warn!(store = %path.display(), error = %e, "no space can be reserved for the store; ADD is refused");
        }
        Ok((journal, replayed))
    }

    /// Bytes in use.
    pub(super) fn length(&self) -> u64 {
        self.end
    }

    /// Appends one record with one `write`; when this returns, a killed process does not lose it.
    pub(super) fn append(&mut self, payload: &[u8], purpose: Purpose) -> io::Result<()> {
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a record of more than 4 GiB");
        let length = u32::try_from(payload.len()).map_err(|_| too_long())?;
        let size = HEADER as u64 + u64::from(length);
        if self.end + size + RESERVE > self.reserved {
            let extended = self.reserve();
            if purpose == Purpose::Begin {
                extended?;
            }
        }
        self.buffer.clear();
        self.buffer.extend_from_slice(MAGIC);
        self.buffer.extend_from_slice(&length.to_le_bytes());
        self.buffer.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
        self.buffer.extend_from_slice(payload);
        self.file.write_all_at(&self.buffer, self.end)?;
        self.end += size;
        Ok(())
    }

    fn reserve(&mut self) -> io::Result<()> {
        let size = self.end + RESERVE + STEP;
        let size = i64::try_from(size).map_err(io::Error::other)?;
        match fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, size) {
            Ok(()) => {
                self.reserved = self.end + RESERVE + STEP;
                Ok(())
            }
            // A file system that cannot reserve (none of tmpfs, ext4, xfs): then a full disk is seen at the write.
            Err(nix::errno::Errno::EOPNOTSUPP) => {
                self.reserved = u64::MAX;
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Replaces the journal by one of just these records: a new file beside it, renamed over it.
    pub(super) fn rewrite<'a>(&mut self, payloads: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        let beside = self.path.with_extension("new");
        let _ = std::fs::remove_file(&beside);
        let (mut fresh, _) = Journal::open(&beside)?;
        for payload in payloads {
            fresh.append(payload, Purpose::Begin).inspect_err(|_| {
                let _ = std::fs::remove_file(&beside);
            })?;
        }
        std::fs::rename(&beside, &self.path)?;
        fresh.path.clone_from(&self.path);
        *self = fresh;
        Ok(())
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
            journal.append(payload, Purpose::Begin).unwrap();
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
        journal.append(&[9], Purpose::Finish).unwrap();
        assert_eq!(Journal::open(&path).unwrap().1.payloads, [vec![2], vec![9]]);
    }
}
