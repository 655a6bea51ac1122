//! The changes that can be made in a namespace, each one netlink message.

use nix::errno::Errno;

use super::addressing::{Address, Route};
use super::link::{NewLink, SetLink};
use super::link_name::LinkName;
use crate::vf_settings::VfChange;

/// One request to the kernel about one namespace: one netlink message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Makes a link (`RTM_NEWLINK`, NLM_F_CREATE | NLM_F_EXCL).
    CreateLink(NewLink),
    /// Changes a link that exists (`RTM_SETLINK`, or `RTM_NEWLINK` on its index).
    SetLink(SetLink),
    /// Has the kernel announce a link's IPv4 addresses when it comes up or gets another MAC address: the sysctl `arp_notify`, by
    /// its index (`RTM_SETLINK` with `IFLA_INET_CONF`). Opening the sysctl takes the longer the more namespaces have one of that name.
    SetArpNotify(u32),
    /// Deletes a link (`RTM_DELLINK`), which takes the kernel 16–30 ms of waiting.
    DeleteLink(u32),
    /// Moves a link from this namespace to the daemon's own, under a new name in the same message. It arrives down.
    MoveToHost {
        /// Index of the link in this namespace.
        index: u32,
        /// The index that it is to have there (`IFLA_NEW_IFINDEX`, kernel ≥ 5.13; EBUSY where that is taken). `None`: its
        /// own where that is free, else one that the kernel chooses.
        as_index: Option<u32>,
        /// Its name there.
        name: String,
    },
    /// Takes a link of the daemon's own namespace into this one, under a new name in the same message. Refused at the last
    /// step, it is here under that name and down.
    TakeFromHost {
        /// Its index in the daemon's namespace.
        index: u32,
        /// The index that it is to have here, as in [`Op::MoveToHost`].
        as_index: Option<u32>,
        /// Its name here.
        name: String,
        /// Also set it up.
        up: bool,
    },
    /// Gives a link one more alternative name (`RTM_NEWLINKPROP`).
    AddAltName {
        /// Index of the link.
        index: u32,
        /// The name, 0–127 bytes.
        name: LinkName,
    },
    /// Takes an alternative name from a link (`RTM_DELLINKPROP`).
    DeleteAltName {
        /// Index of the link.
        index: u32,
        /// The name that goes.
        name: LinkName,
    },
    /// Changes settings of VFs (`RTM_SETLINK` with `IFLA_VFINFO_LIST`). The kernel stops at the first setting that is refused and
    /// keeps what came before it (VF by VF, and in the order of [`VfChange::singly`]).
    SetVfs {
        /// Index of the PF's link.
        pf: u32,
        /// Numbers of VFs, each with its settings: 64 KiB in all, which is more than 400.
        changes: Vec<(u32, VfChange)>,
    },
    /// Adds an address (`RTM_NEWADDR`, NLM_F_CREATE | NLM_F_EXCL).
    AddAddress(Address),
    /// Deletes an address (`RTM_DELADDR`), whatever its peer. Of IPv4 addresses that differ in nothing but peer or prefix length the
    /// kernel takes the first, so that as many deletions take all of them.
    DeleteAddress(Address),
    /// Adds a route (`RTM_NEWROUTE`, NLM_F_CREATE). A second route to the same destination by another interface stands beside
    /// the first; the very same one is refused (EEXIST).
    AddRoute(Route),
    /// Deletes a route (`RTM_DELROUTE`).
    DeleteRoute(Route),
}

impl Op {
    /// Whether it takes something away, and is refused because that, or the link that had it, is gone already.
    pub fn wants_gone(&self, refusal: Errno) -> bool {
        match self {
            Op::DeleteAddress(_) => matches!(refusal, Errno::EADDRNOTAVAIL | Errno::ENODEV),
            // EINVAL: another link has that name by now, or it is this one's first name.
            Op::DeleteAltName { .. } => matches!(refusal, Errno::ENOENT | Errno::EINVAL | Errno::ENODEV),
            Op::DeleteRoute(_) => matches!(refusal, Errno::ESRCH | Errno::ENODEV),
            Op::DeleteLink(_) => refusal == Errno::ENODEV,
            _ => false,
        }
    }
}
