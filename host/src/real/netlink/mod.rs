//! Netlink, byte by byte: messages written, answers read, and the sockets that carry them.
//!
//! Messages are written and read attribute by attribute instead of by the packet types of `netlink-packet-route`: those read every
//! attribute of a link (statistics, per-family settings) and fail the whole message at the first one they do not know; here a
//! dozen are picked and the rest cannot hurt. `request` and `decode` are pure; only `socket` calls the kernel.

mod attributes;
pub(super) mod decode;
pub(super) mod devlink;
pub(super) mod encode;
pub(super) mod ethtool;
mod ethtool_numbers;
mod generic;
mod link_info;
mod message;
pub(super) mod socket;
mod vf_info;
pub(super) mod xdp;

pub(super) use message::Message;
