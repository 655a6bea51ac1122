//! The format of the spool, in which a DEL or GC that found no daemon is kept until the next daemon carries it out.
//!
//! An entry is one file in `<state-dir>/spool/`, two lines of JSON: a header with the format's version, the
//! checksum and the length, and the [`Request`] with `spooled` set. Names sort in the order of replay.
//!
//! `flock(2)` on [`LOCK_FILE`] decides who may do what. An executable holds the lock shared from its last attempt to reach
//! the daemon until its entry is in place. The daemon holds it exclusively from before it reads the directory until it
//! listens. So no entry is written after a starting daemon has read the spool. Executables take turns by an exclusive
//! `flock(2)` on the directory itself, so that the limits hold and names are unique.
//!
//! Nobody ever removes [`LOCK_FILE`]: two files of that name would be two locks. Half-written entries
//! ([`EntryName::parse_partial`]) may be removed by whoever holds it exclusively, and by nobody else.
//!
//! Pure data: nothing in here opens a file.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::wire::{Command, MAX_BODY, Request};

/// The version of the entry format.
pub const VERSION: u32 = 1;

/// The spool's directory inside the state directory, mode 0700.
pub const DIRECTORY: &str = "spool";

/// The lock file inside the spool's directory.
pub const LOCK_FILE: &str = ".lock";

/// The most entries that are kept. Half-written ones count.
pub const MAX_ENTRIES: usize = 4096;

/// The most bytes that all entries may have together. Half-written ones count.
pub const MAX_BYTES: u64 = 64 << 20;

/// The largest entry that is written or read, in bytes.
pub const MAX_ENTRY: usize = MAX_BODY + MAX_HEADER;

/// The longest header line with its newline, in bytes.
const MAX_HEADER: usize = 1024;

/// The ending of a whole entry's file name.
const WHOLE: &str = ".json";

/// The ending of an entry that is still being written, or whose writer died. No caller got a success for it.
const PARTIAL: &str = ".tmp";

/// The number of digits of a sequence number in a file name.
const SEQUENCE_DIGITS: usize = 20;
/// The number of digits of a process id in a file name.
const PID_DIGITS: usize = 10;

/// The name of an entry: `<sequence>-<pid>`, both with leading zeros, so that names sort as numbers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName {
    /// Nanoseconds since the epoch, or one more than the last entry's if the clock has been set back.
    pub sequence: u64,
    /// The process id of the executable that wrote it.
    pub pid: u32,
}

impl EntryName {
    /// The file's name once it is whole.
    pub fn whole(self) -> String {
        self.with_ending(WHOLE)
    }

    /// The file's name while it is being written.
    pub fn partial(self) -> String {
        self.with_ending(PARTIAL)
    }

    /// Reads the name of a whole entry; `None` for every other file.
    pub fn parse_whole(file_name: &str) -> Option<EntryName> {
        EntryName::parse_stem(file_name.strip_suffix(WHOLE)?)
    }

    /// Reads the name of an entry that was not finished; `None` for every other file.
    pub fn parse_partial(file_name: &str) -> Option<EntryName> {
        EntryName::parse_stem(file_name.strip_suffix(PARTIAL)?)
    }

    fn with_ending(self, ending: &str) -> String {
        format!("{:0SEQUENCE_DIGITS$}-{:0PID_DIGITS$}{ending}", self.sequence, self.pid)
    }

    fn parse_stem(stem: &str) -> Option<EntryName> {
        let (sequence, pid) = stem.split_once('-')?;
        let digits = |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(sequence, SEQUENCE_DIGITS) || !digits(pid, PID_DIGITS) {
            return None;
        }
        Some(EntryName { sequence: sequence.parse().ok()?, pid: pid.parse().ok()? })
    }
}

/// Why an entry can't be used. Such a file is set aside for a person and never deleted.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The file has more bytes than an entry may have.
    #[error("the entry has {found} bytes, more than the {MAX_ENTRY} that an entry may have")]
    TooLarge {
        /// The size of the file in bytes.
        found: usize,
    },
    /// The first line is not a header of the spool.
    #[error("the entry's first line is no spool header")]
    NoHeader,
    /// The entry is of a later version of the format.
    #[error("the entry is of format version {found}, this daemon reads version {VERSION}{}", written_by(.by.as_deref()))]
    Version {
        /// The version in the header.
        found: u32,
        /// The version of Fairlead that wrote it.
        by: Option<String>,
    },
    /// The entry was cut short, or something was appended to it.
    #[error("the entry's request has {found} bytes where its header says {expected}")]
    Length {
        /// The length in the header, in bytes.
        expected: usize,
        /// The length in the file, in bytes.
        found: usize,
    },
    /// Bytes of the request have changed since they were written.
    #[error("the entry's checksum is {found:08x} where its header says {expected:08x}")]
    Checksum {
        /// The checksum in the header.
        expected: u32,
        /// The checksum of the bytes in the file.
        found: u32,
    },
    /// The bytes are as they were written, but they are no request that this version knows.
    #[error("the entry's request can't be read: {source}{}", written_by(.by.as_deref()))]
    Request {
        /// What can't be read.
        #[source]
        source: serde_json::Error,
        /// The version of Fairlead that wrote it.
        by: Option<String>,
    },
    /// The request is of a kind that is never spooled.
    #[error("the entry holds this request, which is never spooled: {}{}", .command.name(), if *.marked { "" } else { " without spool data" })]
    Unexpected {
        /// The command of the request.
        command: Command,
        /// Whether the request has its `spooled` part.
        marked: bool,
    },
}

fn written_by(by: Option<&str>) -> String {
    by.map_or_else(String::new, |by| format!("; fairlead {by} wrote it"))
}

impl SpoolError {
    /// Whether the entry is whole and only the version that wrote it, or a later one, can carry it out.
    pub fn is_of_newer_version(&self) -> bool {
        matches!(
            self,
            SpoolError::Version { .. } | SpoolError::Request { .. } | SpoolError::Unexpected { .. }
        )
    }
}

/// CRC-32 (IEEE 802.3), one byte at a time. Entries are few, and the table of a faster way would be a thirtieth of the
/// executable's size.
fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut n = 0;
        while n < 256 {
            #[expect(clippy::cast_possible_truncation, reason = "n is below 256")]
            let mut remainder = n as u32;
            let mut bit = 0;
            while bit < 8 {
                remainder = (remainder >> 1) ^ (0xEDB8_8320 & (remainder & 1).wrapping_neg());
                bit += 1;
            }
            table[n] = remainder;
            n += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc: u32, byte| (crc >> 8) ^ TABLE[usize::from(*byte ^ crc.to_le_bytes()[0])])
}

#[derive(Serialize, Deserialize)]
struct Header {
    /// The version of the format that a reader must know.
    #[serde(rename = "fairleadSpool")]
    version: u32,
    crc32: u32,
    bytes: usize,
    /// The version of Fairlead that wrote the entry; none in entries of 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<Cow<'static, str>>,
}

/// What the header of every version says.
#[derive(Deserialize)]
struct Writer {
    #[serde(rename = "fairleadSpool")]
    version: u32,
    #[serde(default)]
    by: Option<String>,
}

/// Serialises a request as the bytes of an entry.
///
/// # Errors
/// Those of the serialiser, which has none for a [`Request`].
pub fn serialise(request: &Request) -> Result<Vec<u8>, serde_json::Error> {
    let body = serde_json::to_vec(request)?;
    let by = Some(Cow::Borrowed(env!("CARGO_PKG_VERSION")));
    let header = Header { version: VERSION, crc32: crc32(&body), bytes: body.len(), by };
    let mut entry = Vec::with_capacity(body.len() + MAX_HEADER);
    serde_json::to_writer(&mut entry, &header)?;
    entry.push(b'\n');
    entry.extend_from_slice(&body);
    entry.push(b'\n');
    Ok(entry)
}

/// Reads the request out of the bytes of an entry.
///
/// # Errors
/// When the bytes are not as [`serialise`] wrote them.
pub fn parse(entry: &[u8]) -> Result<Request, SpoolError> {
    if entry.len() > MAX_ENTRY {
        return Err(SpoolError::TooLarge { found: entry.len() });
    }
    let end = entry.iter().take(MAX_HEADER).position(|b| *b == b'\n').ok_or(SpoolError::NoHeader)?;
    let (header, rest) = entry.split_at(end);
    // First what every version's header has: a later one may have another checksum.
    let written: Writer = serde_json::from_slice(header).map_err(|_| SpoolError::NoHeader)?;
    if written.version != VERSION {
        return Err(SpoolError::Version { found: written.version, by: written.by });
    }
    let header: Header = serde_json::from_slice(header).map_err(|_| SpoolError::NoHeader)?;
    let body = rest.get(1..rest.len() - usize::from(rest.len() > 1)).unwrap_or_default();
    if body.len() != header.bytes || !rest.ends_with(b"\n") {
        return Err(SpoolError::Length { expected: header.bytes, found: rest.len().saturating_sub(1) });
    }
    let found = crc32(body);
    if found != header.crc32 {
        return Err(SpoolError::Checksum { expected: header.crc32, found });
    }
    let request: Request = serde_json::from_slice(body)
        .map_err(|source| SpoolError::Request { source, by: written.by.clone() })?;
    match (request.command, request.spooled.is_some()) {
        (Command::Del | Command::Gc, true) => Ok(request),
        (command, marked) => Err(SpoolError::Unexpected { command, marked }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{Spooled, WIRE};

    fn request(config: &str) -> Request {
        Request {
            wire: WIRE,
            command: Command::Del,
            container_id: "c1".into(),
            netns: "/run/netns/a".into(),
            netns_inode: None,
            own_netns: None,
            own_netns_cookie: None,
            ifname: "eth0".into(),
            args: String::new(),
            path: "/opt/cni/bin".into(),
            env: vec![("CNI_COMMAND".into(), "DEL".into())],
            config: config.into(),
            deadline_ms: 0,
            issued_ns: None,
            spooled: Some(Spooled { boot_id: "b".into(), at: 7, cookie: Some(9) }),
        }
    }

    #[test]
    fn the_checksum_is_the_standards() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn names_sort_as_their_numbers_do() {
        let names = [(9, 4_000_000), (10, 2), (10, 11), (u64::MAX, u32::MAX)];
        let names: Vec<_> = names.map(|(sequence, pid)| EntryName { sequence, pid }.whole()).into();
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(names, sorted);
    }

    #[test]
    fn a_name_is_read_back_and_other_files_are_not_entries() {
        let name = EntryName { sequence: 1_800_000_000_000_000_000, pid: 4242 };
        assert_eq!(name.whole(), "01800000000000000000-0000004242.json");
        assert_eq!(EntryName::parse_whole(&name.whole()), Some(name));
        assert_eq!(EntryName::parse_partial(&name.partial()), Some(name));
        assert_eq!(EntryName::parse_whole(&name.partial()), None);
        for other in [
            ".lock",
            "1-2.json",
            "x.json",
            "99999999999999999999-0000000001.json",
            "+0000000000000000001-0000000001.json",
        ] {
            assert_eq!(EntryName::parse_whole(other), None, "{other}");
        }
    }

    #[test]
    fn an_entry_is_read_back() {
        let request = request("{\"name\":\"a\\nb\"}\n\u{1}");
        let entry = serialise(&request).unwrap();
        assert_eq!(parse(&entry).unwrap(), request);
        assert_eq!(entry.iter().filter(|b| **b == b'\n').count(), 2);
    }

    #[test]
    fn an_entry_that_is_cut_anywhere_is_refused() {
        let entry = serialise(&request("{}")).unwrap();
        for end in 0..entry.len() {
            assert!(parse(&entry[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn an_entry_with_one_changed_byte_is_refused_or_says_the_same() {
        let original = request("{}");
        let entry = serialise(&original).unwrap();
        for at in 0..entry.len() {
            let mut changed = entry.clone();
            changed[at] ^= 0x20;
            if let Ok(read) = parse(&changed) {
                assert_eq!(read, original, "{at}");
            }
        }
    }

    #[test]
    fn another_version_and_another_command_are_refused_by_name() {
        let entry = String::from_utf8(serialise(&request("{}")).unwrap()).unwrap();
        let later = entry.replace("\"fairleadSpool\":1", "\"fairleadSpool\":2");
        let told = parse(later.as_bytes()).unwrap_err();
        assert!(told.is_of_newer_version() && told.to_string().contains("version 2"), "{told}");
        assert!(
            told.to_string().ends_with(concat!("; fairlead ", env!("CARGO_PKG_VERSION"), " wrote it")),
            "{told}"
        );
        let other_header = "{\"fairleadSpool\":2,\"by\":\"9.0.0\",\"sha256\":\"…\"}\n{}\n";
        assert!(parse(other_header.as_bytes()).unwrap_err().to_string().contains("9.0.0"));
        let mut add = request("{}");
        add.command = Command::Add;
        let refused = parse(&serialise(&add).unwrap()).unwrap_err().to_string();
        assert_eq!(refused, "the entry holds this request, which is never spooled: ADD");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn no_body_behind_a_true_header_makes_it_panic(body in ".{0,200}") {
            let header = Header { version: VERSION, crc32: crc32(body.as_bytes()), bytes: body.len(), by: None };
            let entry = format!("{}\n{body}\n", serde_json::to_string(&header).unwrap());
            prop_assert!(parse(entry.as_bytes()).is_err());
        }
    }
}
