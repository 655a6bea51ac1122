//! By what a netdev of the host is known while a pod has it: by what no pod can set.
//!
//! A pod may rename its netdevs and give them any alias, MAC address or alternative name, and it may make new ones that look alike.
//! It can make none without a kind (those are drivers' own), and, in a user namespace of its own, none whose lower device or peer is in
//! the host's namespace. A virtual netdev without either is known by the index that it was given in the pod, and by its kind.

use serde::{Deserialize, Serialize};

use crate::mac::Mac;
use crate::seam::{Link, Nsid};

/// What a netdev of the host is, beyond doubt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "of")]
pub enum NetdevIdentity {
    /// The netdev of a device, made by its driver. No program can make one.
    #[serde(rename_all = "camelCase")]
    Device {
        /// The kind of link that its driver makes it (`ipoib`); mostly none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        kind: String,
        /// The device's address on its bus (`IFLA_PARENT_DEV_NAME`); `None` where it is on none, and before kernel 5.14.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
        /// Its bus; `None` where the kernel does not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bus: Option<String>,
        /// Which port of the device it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
        /// The MAC address that it came with, where the kernel names no device.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        permanent_mac: Option<Mac>,
    },
    /// A link that a program has made.
    Virtual {
        /// Its kind (`IFLA_INFO_KIND`).
        kind: String,
        /// The netdev below it, or its peer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lower: Option<Lower>,
    },
}

/// The netdev that a virtual one stands on, or its peer (`IFLA_LINK`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lower {
    /// Its index in its namespace.
    pub index: u32,
    /// By what number the host knows its namespace; `None`: it is the host's own, into which no pod can put one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nsid: Option<Nsid>,
}

/// The namespace that a netdev is looked for in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookedForIn {
    /// The daemon's own.
    Host,
    /// A pod's, which knows the daemon's own by this number, if by any.
    Pod(Option<Nsid>),
}

impl NetdevIdentity {
    /// The identity of a netdev of the host's namespace.
    pub fn of(link: &Link) -> NetdevIdentity {
        let kind = link.kind.name();
        // What stands on a device may name it too, but has a lower link.
        if kind.is_empty() || (link.device.is_some() && link.parent.is_none()) {
            return NetdevIdentity::Device {
                kind: kind.to_owned(),
                device: link.device.clone(),
                bus: link.bus.clone(),
                port: link.port.clone(),
                permanent_mac: link.permanent_mac,
            };
        }
        let lower = |index| Lower { index, nsid: link.parent_nsid };
        NetdevIdentity::Virtual { kind: kind.to_owned(), lower: link.parent.map(lower) }
    }

    /// Whether it survives the death of its namespace: the kernel moves the netdev of a device to the host, and deletes any other.
    pub fn outlives_its_netns(&self) -> bool {
        matches!(self, NetdevIdentity::Device { .. })
    }

    /// Whether a pod's netdev is known to be this one under any index: a device's, and the end of a veth whose peer is in the host, for
    /// that peer has no other.
    pub fn is_known_under_any_index(&self) -> bool {
        match self {
            NetdevIdentity::Device { .. } => true,
            NetdevIdentity::Virtual { kind, lower } => {
                kind == "veth" && lower.is_some_and(|peer| peer.nsid.is_none())
            }
        }
    }

    /// Whether `link` is this netdev. Another virtual one must be at `index`, and so must one of a driver that says nothing of its device.
    pub fn is(&self, link: &Link, index: u32, looked_for: LookedForIn) -> bool {
        match self {
            NetdevIdentity::Device { kind, device, bus, port, permanent_mac } => {
                // Some drivers of VFs (igbvf, ixgbevf) have the permanent address follow the present one: the device goes before it.
                let by_address = permanent_mac.is_some() && link.permanent_mac == *permanent_mac;
                link.kind.name() == kind
                    && link.parent.is_none()
                    && !link.loopback
                    && (device.is_some() || by_address || link.index == index)
                    && link.device == *device
                    && (bus.is_none() || link.bus == *bus)
                    && (port.is_none() || link.port == *port)
            }
            NetdevIdentity::Virtual { kind, lower } => {
                let in_pod = matches!(looked_for, LookedForIn::Pod(_));
                (link.index == index || (in_pod && self.is_known_under_any_index()))
                    && link.kind.name() == kind
                    && stands_on(link, *lower, looked_for)
            }
        }
    }
}

fn stands_on(link: &Link, lower: Option<Lower>, looked_for: LookedForIn) -> bool {
    let Some(lower) = lower else { return link.parent.is_none() };
    let there = match (looked_for, lower.nsid) {
        (LookedForIn::Host, nsid) => link.parent_nsid == nsid,
        // Where the host has no number in the pod, nothing in the pod can stand on anything of the host.
        (LookedForIn::Pod(host), None) => host.is_some() && link.parent_nsid == host,
        // The pod's own number for a third namespace says nothing here. What it may have put there is known in the host's namespace.
        (LookedForIn::Pod(_), Some(_)) => true,
    };
    link.parent == Some(lower.index) && there
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seam::Kind;

    fn link(index: u32, kind: &str) -> Link {
        Link::bare(index, "x".to_owned(), Kind::Other { name: kind.to_owned() })
    }

    #[test]
    fn a_netdev_of_a_device_is_known_wherever_it_is_and_however_it_is_called() {
        let (device, bus) = (Some("0000:01:00.0".to_owned()), Some("pci".to_owned()));
        let own = Some(Mac([2, 0, 0, 0, 0, 1]));
        let nic = Link { device, bus, permanent_mac: own, ..link(7, "") };
        let identity = NetdevIdentity::of(&nic);
        let pod = LookedForIn::Pod(None);
        assert!(identity.is(&Link { index: 9, name: "y".into(), mac: None, ..nic.clone() }, 7, pod));
        let other = |change: fn(&mut Link)| {
            let mut changed = nic.clone();
            change(&mut changed);
            identity.is(&changed, 7, pod)
        };
        assert!(!other(|l| l.device = Some("0000:01:00.1".into())));
        assert!(!other(|l| l.device = None));
        assert!(!other(|l| l.bus = Some("usb".into())));
        assert!(other(|l| l.permanent_mac = Some(Mac([2, 0, 0, 0, 0, 2]))), "igbvf has it follow the pod's");
        assert!(!other(|l| l.port = Some("p1".into())) || nic.port.is_none());
        assert!(!other(|l| l.kind = Kind::Dummy), "what stands on it");
    }

    #[test]
    fn a_veth_is_known_by_its_index_and_by_its_peer_in_the_host() {
        let lent = Link { parent: Some(4), ..link(7, "veth") };
        let identity = NetdevIdentity::of(&lent);
        let host = Nsid(3);
        let pod = LookedForIn::Pod(Some(host));
        let in_pod = Link { parent_nsid: Some(host), ..lent.clone() };
        assert!(identity.is(&lent, 7, LookedForIn::Host));
        assert!(identity.is(&in_pod, 7, pod));
        assert!(identity.is(&in_pod, 8, pod), "its peer has no other");
        assert!(!identity.is(&lent, 8, LookedForIn::Host), "another index");
        assert!(!identity.is(&lent, 7, pod), "its peer is in the pod");
        assert!(!identity.is(&Link { parent_nsid: Some(Nsid(4)), ..lent }, 7, pod), "a third netns");
        assert!(!identity.is(&Link { parent: Some(5), ..in_pod.clone() }, 7, pod), "another peer");
        assert!(!identity.is(&in_pod, 7, LookedForIn::Pod(None)), "the host has no number there");
        assert!(!identity.is(&Link { kind: Kind::Dummy, ..in_pod }, 7, pod));
    }

    #[test]
    fn a_peer_in_a_third_namespace_is_known_in_the_host_by_that_namespaces_number() {
        let lent = Link { parent: Some(4), parent_nsid: Some(Nsid(7)), ..link(9, "veth") };
        let identity = NetdevIdentity::of(&lent);
        assert!(identity.is(&lent, 9, LookedForIn::Host));
        let of_a_pod = Link { parent_nsid: Some(Nsid(8)), ..lent.clone() };
        assert!(!identity.is(&of_a_pod, 9, LookedForIn::Host), "its peer is in the pod");
        assert!(!identity.is(&Link { parent_nsid: None, ..lent }, 9, LookedForIn::Host));
    }
}
