//! One namespace in memory, and what the kernel lets happen inside it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nix::errno::Errno;

use super::left_on_link::LeftOnLink;
use crate::Mac;
use crate::seam::{Address, Kind, Link, LinkName, LinkSettings, NetnsId, Nsid, Route};

const RTPROT_KERNEL: u8 = 2;
const MAIN_TABLE: u32 = 254;
pub(super) const LOCAL_TABLE: u32 = 255;
/// `ALTIFNAMSIZ` without the NUL.
const LONGEST_ALT_NAME: usize = 127;
/// The kernel counts 132 bytes for each, and all of them have to go into one attribute of less than 64 KiB.
const MOST_ALT_NAMES: usize = 496;

/// Links, and all that hangs on them.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) id: NetnsId,
    pub(super) nsid: Option<Nsid>,
    pub(super) links: BTreeMap<u32, Link>,
    pub(super) addresses: Vec<Address>,
    pub(super) routes: Vec<Route>,
    pub(super) sysctls: BTreeMap<String, String>,
    /// What hangs on links and goes where they go, by index.
    pub(super) left: BTreeMap<u32, LeftOnLink>,
    next_index: u32,
}

impl Namespace {
    pub(super) fn new(id: NetnsId) -> Namespace {
        let lo = Link { loopback: true, ..bare_link(1, "lo", Kind::Other { name: String::new() }, 65_536) };
        let mut links = BTreeMap::new();
        links.insert(1, lo);
        Namespace {
            id,
            nsid: None,
            links,
            addresses: Vec::new(),
            routes: Vec::new(),
            sysctls: BTreeMap::new(),
            left: BTreeMap::new(),
            next_index: 2,
        }
    }

    pub(super) fn named(&self, name: &str) -> Option<&Link> {
        self.links
            .values()
            .find(|link| link.name == name || link.alt_names.iter().any(|other| other.text() == name))
    }

    fn free_index(&mut self) -> u32 {
        while self.links.contains_key(&self.next_index) {
            self.next_index += 1;
        }
        self.next_index
    }

    pub(super) fn insert(&mut self, mut link: Link) -> u32 {
        if link.index == 0 || self.links.contains_key(&link.index) {
            link.index = self.free_index();
        }
        let index = link.index;
        self.links.insert(index, link);
        index
    }

    /// Takes a link out with all that hangs on it.
    pub(super) fn take(&mut self, index: u32) -> Option<Link> {
        let link = self.links.remove(&index)?;
        self.left.remove(&index);
        self.addresses.retain(|address| address.index != index);
        self.routes.retain(|route| route.index != index);
        let part = format!("/{}/", link.name);
        self.sysctls.retain(|key, _| !key.contains(&part));
        Some(link)
    }

    /// The routes that the kernel makes for addresses of links that are up.
    pub(super) fn connected(&self) -> Vec<Route> {
        let up = |address: &&Address| self.links.get(&address.index).is_some_and(|link| link.up);
        let partial =
            self.addresses.iter().filter(up).filter(|a| a.net.prefix_len() < a.net.max_prefix_len());
        partial
            .map(|address| Route {
                dst: address.net.trunc(),
                gateway: None,
                index: address.index,
                source: address.net.addr().is_ipv4().then(|| address.net.addr()),
                table: Some(MAIN_TABLE),
                scope: Some(if address.net.addr().is_ipv4() { 253 } else { 0 }),
                priority: address.net.addr().is_ipv6().then_some(256),
                mtu: None,
                advmss: None,
                protocol: Some(RTPROT_KERNEL),
            })
            .collect()
    }

    fn reaches(&self, gateway: IpAddr, index: u32) -> bool {
        let on_link =
            |route: &Route| route.index == index && route.gateway.is_none() && route.dst.contains(&gateway);
        self.connected().iter().any(on_link) || self.routes.iter().any(on_link)
    }
}

pub(super) fn bare_link(index: u32, name: &str, kind: Kind, mtu: u32) -> Link {
    Link { mtu, carrier: true, settings: SETTINGS, ..Link::bare(index, name.to_owned(), kind) }
}

/// What an Ethernet link begins with.
const SETTINGS: LinkSettings = LinkSettings {
    flags: Some(libc::IFF_MULTICAST as u32),
    mode: Some(0),
    group: Some(0),
    queue_length: Some(1000),
    broadcast: Some(Mac([0xff; 6])),
    proto_down: Some(0),
    gso_max_size: Some(65_536),
    gso_max_segs: Some(65_535),
    gro_max_size: Some(65_536),
    gso_ipv4_max_size: Some(65_536),
    gro_ipv4_max_size: Some(65_536),
};

impl Namespace {
    pub(super) fn add_alt_name(&mut self, index: u32, name: &LinkName) -> Result<(), Errno> {
        let link = self.links.get(&index).ok_or(Errno::ENODEV)?;
        if name.as_bytes().len() > LONGEST_ALT_NAME {
            return Err(Errno::ERANGE);
        }
        if link.alt_names.len() >= MOST_ALT_NAMES {
            return Err(Errno::EINVAL);
        }
        if self.named(&name.text()).is_some() {
            return Err(Errno::EEXIST);
        }
        let link = self.links.get_mut(&index).ok_or(Errno::ENODEV)?;
        link.alt_names.push(name.clone());
        Ok(())
    }

    pub(super) fn delete_alt_name(&mut self, index: u32, name: &LinkName) -> Result<(), Errno> {
        // A name that another link has, or that is this one's first name, is another error than one that nobody has.
        let elsewhere = if self.named(&name.text()).is_some() { Errno::EINVAL } else { Errno::ENOENT };
        let link = self.links.get_mut(&index).ok_or(Errno::ENODEV)?;
        let at = link.alt_names.iter().position(|other| other == name).ok_or(elsewhere)?;
        link.alt_names.remove(at);
        Ok(())
    }

    pub(super) fn rename_sysctls(&mut self, old: &str, new: &str) {
        let part = format!("/{old}/");
        let renamed = std::mem::take(&mut self.sysctls).into_iter();
        self.sysctls = renamed.map(|(key, value)| (key.replace(&part, &format!("/{new}/")), value)).collect();
    }

    pub(super) fn add_address(&mut self, address: &Address) -> Result<(), Errno> {
        self.links.get(&address.index).ok_or(Errno::ENODEV)?;
        if self.addresses.iter().any(|other| other.index == address.index && other.net == address.net) {
            return Err(Errno::EEXIST);
        }
        self.addresses.push(address.clone());
        Ok(())
    }

    pub(super) fn delete_address(&mut self, address: &Address) -> Result<(), Errno> {
        self.links.get(&address.index).ok_or(Errno::ENODEV)?;
        let same = |other: &Address| other.index == address.index && other.net == address.net;
        let at = self.addresses.iter().position(same).ok_or(Errno::EADDRNOTAVAIL)?;
        let gone = self.addresses.remove(at).net.addr();
        self.routes.retain(|route| route.source != Some(gone));
        let v4 = |ip: IpAddr| ip.is_ipv4();
        let left = self.addresses.iter().any(|other| other.index == address.index && v4(other.net.addr()));
        if v4(gone) && !left {
            self.routes.retain(|route| route.index != address.index || !v4(route.dst.addr()));
        }
        Ok(())
    }

    pub(super) fn add_route(&mut self, route: &Route) -> Result<(), Errno> {
        let link = self.links.get(&route.index).ok_or(Errno::ENODEV)?;
        let (up, v4) = (link.up, route.dst.addr().is_ipv4());
        if route.gateway.is_some_and(|gateway| !up || !self.reaches(gateway, route.index)) {
            return Err(if v4 { Errno::ENETUNREACH } else { Errno::EHOSTUNREACH });
        }
        if !up {
            return Err(Errno::ENETDOWN);
        }
        let ours = |source: IpAddr| self.addresses.iter().any(|address| address.net.addr() == source);
        if route.source.is_some_and(|source| !ours(source)) {
            return Err(Errno::EINVAL);
        }
        let wanted = resolved(route);
        let mut all = self.connected().into_iter().chain(self.routes.iter().cloned());
        if all.any(|other| clashes(&other, &wanted)) {
            return Err(Errno::EEXIST);
        }
        self.routes.push(wanted);
        Ok(())
    }

    pub(super) fn delete_route(&mut self, route: &Route) -> Result<(), Errno> {
        let wanted = resolved(route);
        let same = |other: &Route| {
            other.dst == wanted.dst
                && other.table == wanted.table
                && other.index == wanted.index
                && (route.gateway.is_none() || other.gateway == route.gateway)
                && (route.priority.is_none() || other.priority == wanted.priority)
        };
        let at = self.routes.iter().position(same).ok_or(Errno::ESRCH)?;
        self.routes.remove(at);
        Ok(())
    }
}

/// A route with the values that the kernel fills in.
fn resolved(route: &Route) -> Route {
    let v6 = route.dst.addr().is_ipv6();
    let on_link = !v6 && route.gateway.is_none();
    Route {
        dst: route.dst.trunc(),
        table: Some(route.table.filter(|table| *table != 0).unwrap_or(MAIN_TABLE)),
        scope: Some(route.scope.unwrap_or(if on_link { 253 } else { 0 })),
        priority: route.priority.or(v6.then_some(1024)),
        protocol: Some(3),
        ..route.clone()
    }
}

/// IPv4 knows one route for a destination, table and metric; IPv6 one for each next hop besides.
fn clashes(other: &Route, wanted: &Route) -> bool {
    let same = other.dst == wanted.dst && other.table == wanted.table && other.priority == wanted.priority;
    same && other.gateway == wanted.gateway && other.index == wanted.index
}
