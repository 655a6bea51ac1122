//! Addresses and routes of a namespace, as data.

use std::net::IpAddr;

use ipnet::IpNet;

/// `IFA_FLAGS` that Fairlead sets or reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddressFlags {
    /// `IFA_F_NODAD`: usable at once, no duplicate address detection by the kernel.
    pub nodad: bool,
    /// `IFA_F_TENTATIVE`, read only: duplicate address detection is running.
    pub tentative: bool,
    /// `IFA_F_DADFAILED`, read only.
    pub dad_failed: bool,
    /// No `IFA_F_PERMANENT`, read only: it has a lifetime, as one that DHCP leased or a router announced.
    pub dynamic: bool,
}

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Index of the interface.
    pub index: u32,
    /// Address and prefix length (host bits kept).
    pub net: IpNet,
    /// IPv4 broadcast address, where one is set.
    pub broadcast: Option<IpAddr>,
    /// How the kernel treats it.
    pub flags: AddressFlags,
}

/// A route of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination; `0.0.0.0/0` and `::/0` are the default routes.
    pub dst: IpNet,
    /// The next hop; `None` where the destination is on the link itself.
    pub gateway: Option<IpAddr>,
    /// Index of the interface that packets leave by.
    pub index: u32,
    /// Preferred source address (`RTA_PREFSRC`).
    pub source: Option<IpAddr>,
    /// Table; 0 and `None` are main (254).
    pub table: Option<u32>,
    /// Scope (`RT_SCOPE_*`); `None`: universe with a gateway, link without (IPv4).
    pub scope: Option<u8>,
    /// Metric (`RTA_PRIORITY`): of two routes to a destination the lower one counts.
    pub priority: Option<u32>,
    /// MTU of the route (`RTAX_MTU`).
    pub mtu: Option<u32>,
    /// Advertised MSS (`RTAX_ADVMSS`).
    pub advmss: Option<u32>,
    /// `RTPROT_*`, read only; new routes are `RTPROT_BOOT`.
    pub protocol: Option<u8>,
}
