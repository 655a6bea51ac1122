//! The changes that can be made in a namespace, each one netlink message.

use super::addressing::{Address, Route};
use super::link::{NewLink, SetLink};
use crate::vf_settings::VfChange;

/// One request to the kernel about one namespace: one netlink message, in a `send` of its own, because the kernel
/// goes on with a datagram after a message that it refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Makes a link (`RTM_NEWLINK`, NLM_F_CREATE | NLM_F_EXCL).
    CreateLink(NewLink),
    /// Changes a link that exists (`RTM_SETLINK`, or `RTM_NEWLINK` on its index).
    SetLink(SetLink),
    /// Deletes a link (`RTM_DELLINK`), which takes the kernel 16–30 ms of waiting.
    DeleteLink(u32),
    /// Moves a link from this namespace to the daemon's own, under a new name in the same message.
    MoveToHost {
        /// Index of the link in this namespace.
        index: u32,
        /// Its name there.
        name: String,
    },
    /// Takes a link of the daemon's own namespace into this one, under a new name in the same message. Refused at the last
    /// step, it is here under that name and down.
    TakeFromHost {
        /// Its index in the daemon's namespace.
        index: u32,
        /// Its name here.
        name: String,
        /// Also set it up.
        up: bool,
    },
    /// Gives a link one more alternative name (`RTM_NEWLINKPROP`).
    AddAltName {
        /// Index of the link.
        index: u32,
        /// The name, 1–127 bytes.
        name: String,
    },
    /// Takes an alternative name from a link (`RTM_DELLINKPROP`).
    DeleteAltName {
        /// Index of the link.
        index: u32,
        /// The name that goes.
        name: String,
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
    /// Deletes an address (`RTM_DELADDR`).
    DeleteAddress(Address),
    /// Adds a route (`RTM_NEWROUTE`, NLM_F_CREATE). A second route to the same destination by another interface stands beside
    /// the first; the very same one is refused (EEXIST).
    AddRoute(Route),
    /// Deletes a route (`RTM_DELROUTE`).
    DeleteRoute(Route),
}
