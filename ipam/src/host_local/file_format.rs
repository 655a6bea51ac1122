//! The format of host-local's files: what their names and contents mean.
//!
//! The invariant: contents are compared as the reference plugin compares them (trimmed text, byte by byte), so that both sides
//! always agree on whose an address is.

use std::net::IpAddr;

use serde::Serialize;

/// Between container id and interface name in a file (host-local's `LineBreak`).
const LINE_BREAK: &str = "\r\n";

/// Whose an allocation is, as its file says.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Owner {
    /// One interface of one container.
    Attachment {
        /// The container's id (`CNI_CONTAINERID`).
        container_id: String,
        /// The interface's name in the container (`CNI_IFNAME`).
        ifname: String,
    },
    /// A container, without an interface: written by host-local before 0.7.
    Container {
        /// The container's id (`CNI_CONTAINERID`).
        container_id: String,
    },
    /// The file is empty: its writer was killed, or the power failed, between creating and writing it.
    Nobody,
}

impl Owner {
    /// The owner that a file's content names.
    pub(super) fn parse(content: &str) -> Owner {
        let content = content.trim();
        match content.split_once(LINE_BREAK) {
            _ if content.is_empty() => Owner::Nobody,
            Some((id, ifname)) => {
                Owner::Attachment { container_id: id.to_owned(), ifname: ifname.to_owned() }
            }
            None => Owner::Container { container_id: content.to_owned() },
        }
    }
}

/// The content of a file that belongs to this interface of this container.
pub(super) fn content_of(container_id: &str, ifname: &str) -> String {
    format!("{}{LINE_BREAK}{ifname}", container_id.trim())
}

/// The address that a directory entry is named after: written as the reference plugin writes it on Linux, and in no other way.
/// `None` for anything else, the lock and the cursors among it: such a file allocates nothing, and is never opened.
pub(super) fn address_of(entry: &str) -> Option<IpAddr> {
    entry.parse::<IpAddr>().ok().filter(|ip| *ip == ip.to_canonical() && ip.to_string() == entry)
}

/// A longer file is no allocation, in bytes: it holds a container id and an interface's name.
pub(super) const MAX_CONTENT: u64 = 4 << 10;

/// The file that `flock(2)` is taken on.
pub(super) const LOCK: &str = "lock";

/// Begin of the name of the file that holds the address given out last; the range set's position follows.
pub(super) const CURSOR: &str = "last_reserved_ip.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_todays_format_names_container_and_interface() {
        let owner = Owner::parse("abc\r\neth0");
        assert_eq!(owner, Owner::Attachment { container_id: "abc".into(), ifname: "eth0".into() });
        assert_eq!(content_of(" abc ", "eth0"), "abc\r\neth0");
    }

    #[test]
    fn a_file_of_the_old_format_names_the_container_only() {
        assert_eq!(Owner::parse("abc\n"), Owner::Container { container_id: "abc".into() });
        assert_eq!(Owner::parse(" \r\n"), Owner::Nobody);
    }

    #[test]
    fn only_canonical_addresses_are_taken_for_addresses() {
        assert_eq!(address_of("10.0.0.1"), Some("10.0.0.1".parse().unwrap()));
        assert_eq!(address_of("fd00::1"), Some("fd00::1".parse().unwrap()));
        for other in
            ["FD00::1", "fd00__1", "::ffff:10.0.0.1", "010.0.0.1", "lock", "last_reserved_ip.0", "ls"]
        {
            assert_eq!(address_of(other), None, "{other}");
        }
    }
}
