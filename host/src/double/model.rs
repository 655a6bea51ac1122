//! The rules of the kernel in memory.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::thread::ThreadId;
use std::time::Duration;

use nix::errno::Errno;

use super::namespace::{LOCAL_TABLE, Namespace, bare_link};
use super::namespace_death::FallingLink;
use super::vfs::Vfs;
use super::{Call, KernelRequest, NetnsSnapshot, Place, Snapshot};
use crate::Mac;
use crate::devlink::DevlinkDevice;
use crate::seam::{
    Address, Kind, Link, LinkSettings, MacvlanMode, NetnsId, NewLink, Nsid, Op, Parent, Route, SetLink,
};

/// The key (and cookie) of the daemon's own namespace.
pub(super) const HOST: u64 = 1;

/// By what number every pod's namespace knows the daemon's own.
pub(super) const HOST_IN_A_POD: Nsid = Nsid(0);

/// By what number the host knows a namespace that is none of the model's, and the index of a wire's end there: no link of the host has it.
const OUT_OF_SIGHT: Nsid = Nsid(i32::MAX);
const OTHER_END: u32 = u32::MAX;

/// The whole state behind the double's lock.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) namespaces: BTreeMap<u64, Namespace>,
    pub(super) paths: BTreeMap<PathBuf, u64>,
    next_cookie: u64,
    next_inode: u64,
    pub(super) free_inodes: Vec<u64>,
    next_mac: u64,
    pub(super) reuse_inodes: bool,
    pub(super) no_cookies: bool,
    pub(super) no_rename_while_up: bool,
    pub(super) vfs: Vfs,
    pub(super) like_igb: bool,
    pub(super) unknown_kinds: BTreeSet<String>,
    pub(super) stuck_driver_calls: Vec<String>,
    pub(super) devlink: Vec<DevlinkDevice>,
    /// How long a link takes from a dead namespace to the host's.
    pub(super) fall: Duration,
    pub(super) falling: Vec<FallingLink>,
    /// Where the pod hides the next link that is moved to the host; one of its own goes in its place.
    pub(super) swap: Option<PathBuf>,
    pub(super) calls: Vec<Call>,
    pub(super) failures: BTreeMap<usize, Errno>,
    pub(super) failing_from: Option<(usize, Errno)>,
    /// Threads that are in a pod's namespace: each can be in one at a time.
    pub(super) away: HashSet<ThreadId>,
}

impl Default for Model {
    fn default() -> Model {
        let host = NetnsId { dev: 4, ino: 4_026_531_840, cookie: Some(HOST) };
        Model {
            namespaces: BTreeMap::from([(HOST, Namespace::new(host))]),
            paths: BTreeMap::from([(PathBuf::from("/proc/1/ns/net"), HOST)]),
            next_cookie: HOST + 1,
            next_inode: 4_026_532_000,
            free_inodes: Vec::new(),
            next_mac: 1,
            reuse_inodes: false,
            no_cookies: false,
            no_rename_while_up: false,
            vfs: Vfs::default(),
            like_igb: false,
            unknown_kinds: BTreeSet::new(),
            stuck_driver_calls: Vec::new(),
            devlink: Vec::new(),
            fall: Duration::ZERO,
            falling: Vec::new(),
            swap: None,
            calls: Vec::new(),
            failures: BTreeMap::new(),
            failing_from: None,
            away: HashSet::new(),
        }
    }
}

impl Model {
    pub(super) fn record(&mut self, place: Place, request: KernelRequest) -> Result<(), Errno> {
        let n = self.calls.len();
        self.calls.push(Call { place, request });
        let ordered = self.failures.get(&n).copied();
        match ordered.or(self.failing_from.filter(|(from, _)| n >= *from).map(|(_, errno)| errno)) {
            Some(errno) => Err(errno),
            None => Ok(()),
        }
    }

    pub(super) fn add_namespace(&mut self, path: PathBuf) -> NetnsId {
        let key = self.next_cookie;
        self.next_cookie += 1;
        // The real kernel gives the inode of the namespace that died last to the next one.
        let old = if self.reuse_inodes { self.free_inodes.pop() } else { None };
        let ino = old.unwrap_or_else(|| {
            self.next_inode += 1;
            self.next_inode
        });
        let id = NetnsId { dev: 4, ino, cookie: Some(key) };
        self.namespaces.insert(key, Namespace::new(id));
        self.paths.insert(path, key);
        self.id_of(key)
    }

    pub(super) fn plug(&mut self, key: u64, name: &str, kind: Kind) -> u32 {
        let mac = self.fresh_mac();
        let Some(namespace) = self.namespaces.get_mut(&key) else { return 0 };
        namespace.insert(Link { mac: Some(mac), up: true, ..bare_link(0, name, kind, 1500) })
    }

    pub(super) fn plug_wire_end(&mut self, name: &str) -> u32 {
        let index = self.plug(HOST, name, Kind::Other { name: "veth".to_owned() });
        let link = self.namespaces.get_mut(&HOST).and_then(|host| host.links.get_mut(&index));
        link.into_iter()
            .for_each(|link| (link.parent, link.parent_nsid) = (Some(OTHER_END), Some(OUT_OF_SIGHT)));
        index
    }

    pub(super) fn enslave(&mut self, port: &str, master: &str) {
        let has_both = |one: &Namespace| one.named(port).is_some() && one.named(master).is_some();
        let Some(namespace) = self.namespaces.values_mut().find(|one| has_both(one)) else { return };
        let master = namespace.named(master).map(|link| link.index);
        let port = namespace.links.values_mut().find(|link| link.name == port);
        port.into_iter().for_each(|link| link.master = master);
    }

    pub(super) fn set_carrier(&mut self, name: &str, carrier: bool) {
        let host = self.namespaces.get_mut(&HOST);
        let link = host.and_then(|host| host.links.values_mut().find(|link| link.name == name));
        link.into_iter().for_each(|link| link.carrier = carrier);
    }

    pub(super) fn id_of(&self, key: u64) -> NetnsId {
        let known = self.namespaces.get(&key).map(|namespace| namespace.id.clone());
        let mut id = known.unwrap_or(NetnsId { dev: 0, ino: 0, cookie: Some(key) });
        id.cookie = id.cookie.filter(|_| !self.no_cookies);
        id
    }

    pub(super) fn by_nsid(&self, nsid: Nsid) -> Option<u64> {
        self.namespaces.iter().find(|(_, namespace)| namespace.nsid == Some(nsid)).map(|(key, _)| *key)
    }

    pub(super) fn nsids(&self) -> Vec<Nsid> {
        self.namespaces.values().filter_map(|namespace| namespace.nsid).collect()
    }

    /// The lowest free number, as the kernel gives it.
    pub(super) fn assign_nsid(&mut self, key: u64) -> Option<Nsid> {
        let taken = self.nsids();
        let free = (0..).map(Nsid).find(|nsid| !taken.contains(nsid));
        let namespace = self.namespaces.get_mut(&key)?;
        namespace.nsid = namespace.nsid.or(free);
        namespace.nsid
    }

    pub(super) fn link(&self, key: u64, index: u32) -> Option<Link> {
        self.namespaces.get(&key)?.links.get(&index).cloned()
    }

    pub(super) fn link_named(&self, key: u64, name: &str) -> Option<Link> {
        self.namespaces.get(&key)?.named(name).cloned()
    }

    pub(super) fn links(&self, key: u64) -> Vec<Link> {
        self.namespaces
            .get(&key)
            .map(|namespace| namespace.links.values().cloned().collect())
            .unwrap_or_default()
    }

    pub(super) fn addresses(&self, key: u64, index: u32) -> Vec<Address> {
        let all =
            self.namespaces.get(&key).map(|namespace| namespace.addresses.as_slice()).unwrap_or_default();
        all.iter().filter(|address| address.index == index).cloned().collect()
    }

    pub(super) fn routes(&self, key: u64) -> Vec<Route> {
        let Some(namespace) = self.namespaces.get(&key) else { return Vec::new() };
        let mut routes = namespace.connected();
        routes.extend(namespace.routes.iter().filter(|route| route.table != Some(LOCAL_TABLE)).cloned());
        routes
    }

    /// Keys of an interface exist while it does; every value is "0" until it is written.
    pub(super) fn sysctl(&self, key: u64, name: &str) -> Result<String, Errno> {
        let namespace = self.namespaces.get(&key).ok_or(Errno::ENODEV)?;
        let parts: Vec<&str> = name.split('/').collect();
        if let ["net", _, "conf" | "neigh", interface, _] = parts.as_slice()
            && !["all", "default"].contains(interface)
            && namespace.named(interface).is_none()
        {
            return Err(Errno::ENOENT);
        }
        Ok(namespace.sysctls.get(name).cloned().unwrap_or_else(|| "0".to_owned()))
    }

    pub(super) fn set_sysctl(&mut self, key: u64, name: &str, value: &str) -> Result<(), Errno> {
        self.sysctl(key, name)?;
        let namespace = self.namespaces.get_mut(&key).ok_or(Errno::ENODEV)?;
        namespace.sysctls.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let picture = |namespace: &Namespace| NetnsSnapshot {
            links: namespace.links.clone(),
            addresses: namespace.addresses.iter().map(|address| format!("{address:?}")).collect(),
            routes: namespace.routes.iter().map(|route| format!("{route:?}")).collect(),
            sysctls: namespace.sysctls.clone(),
        };
        let place = |key: u64| if key == HOST { Place::Host } else { Place::Pod(key) };
        Snapshot {
            namespaces: self.namespaces.iter().map(|(key, one)| (place(*key), picture(one))).collect(),
            vfs: self.vfs.settings.clone(),
            drivers: self.vfs.drivers(),
        }
    }

    pub(super) fn carry_out(&mut self, key: u64, op: &Op) -> Result<(), Errno> {
        match op {
            Op::CreateLink(new) => self.create(key, new),
            Op::SetLink(set) => self.set(key, set),
            Op::SetArpNotify(index) => {
                let link = self.link(key, *index).ok_or(Errno::ENODEV)?;
                self.set_sysctl(key, &format!("net/ipv4/conf/{}/arp_notify", link.name), "1")
            }
            Op::DeleteLink(index) => self.delete(key, *index),
            Op::MoveToHost { index, as_index, name } => {
                self.swap_by_order(key, *index)?;
                self.relocate((key, *index), (HOST, *as_index), name).map(drop)
            }
            Op::TakeFromHost { index, as_index, name, up } => {
                let index = self.relocate((HOST, *index), (key, *as_index), name)?;
                self.set(key, &SetLink { index, up: up.then_some(true), ..SetLink::default() })
            }
            Op::AddAltName { index, name } => self.namespace(key)?.add_alt_name(*index, name),
            Op::DeleteAltName { index, name } => self.namespace(key)?.delete_alt_name(*index, name),
            Op::SetVfs { pf, changes } => self.set_vfs(key, *pf, changes),
            Op::AddAddress(address) => self.namespace(key)?.add_address(address),
            Op::DeleteAddress(address) => self.namespace(key)?.delete_address(address),
            Op::AddRoute(route) => self.namespace(key)?.add_route(route),
            Op::DeleteRoute(route) => self.namespace(key)?.delete_route(route),
        }
    }

    fn swap_by_order(&mut self, key: u64, index: u32) -> Result<(), Errno> {
        let Some(hideout) = self.swap.take() else { return Ok(()) };
        let hideout = *self.paths.get(&hideout).ok_or(Errno::ENODEV)?;
        let lent = self.link(key, index).ok_or(Errno::ENODEV)?;
        self.relocate((key, index), (hideout, None), "hidden")?;
        let veth = Kind::Other { name: "veth".to_owned() };
        let bait = Link { alias: lent.alias, mac: lent.mac, ..bare_link(index, &lent.name, veth, lent.mtu) };
        self.namespace(key)?.insert(bait);
        Ok(())
    }

    pub(super) fn namespace(&mut self, key: u64) -> Result<&mut Namespace, Errno> {
        self.namespaces.get_mut(&key).ok_or(Errno::ENODEV)
    }

    pub(super) fn fresh_mac(&mut self) -> Mac {
        self.next_mac += 1;
        Mac::local(self.next_mac << 8)
    }

    fn create(&mut self, key: u64, new: &NewLink) -> Result<(), Errno> {
        let (parent, parent_nsid) = match new.parent {
            Parent::Host(index) => (Some((HOST, index)), (key != HOST).then_some(HOST_IN_A_POD)),
            Parent::Same(index) => (Some((key, index)), None),
            Parent::None => (None, None),
        };
        if self.unknown_kinds.contains(new.kind.name()) {
            return Err(Errno::EOPNOTSUPP);
        }
        let lower = match parent {
            Some((at, index)) => Some(self.link(at, index).ok_or(Errno::ENODEV)?),
            None => None,
        };
        let inherited = lower.as_ref().map(|lower| lower.mac.unwrap_or(Mac([0; 6])));
        let mac = match (&new.kind, new.mac, inherited) {
            // Whichever it is asked for.
            (Kind::Macvlan { mode: MacvlanMode::Passthru, .. }, _, Some(inherited)) => inherited,
            (_, Some(mac), _) => mac,
            (Kind::Ipvlan { .. } | Kind::Vlan { .. }, None, Some(inherited)) => inherited,
            _ => self.fresh_mac(),
        };
        if matches!(new.kind, Kind::Macvlan { .. }) && self.mac_is_taken(parent, mac) {
            return Err(Errno::EADDRINUSE);
        }
        if matches!(new.kind, Kind::Vlan { .. }) && self.has_port(parent, |port| port.kind == new.kind) {
            return Err(Errno::EEXIST);
        }
        let namespace = self.namespace(key)?;
        check_name_and_mac(&new.name, mac)?;
        if namespace.named(&new.name).is_some() || new.index.is_some_and(|i| namespace.links.contains_key(&i))
        {
            return Err(Errno::EEXIST);
        }
        if lower.as_ref().is_some_and(|lower| new.mtu.is_some_and(|mtu| mtu > lower.mtu)) {
            return Err(Errno::EINVAL);
        }
        let mtu = new.mtu.or(lower.as_ref().map(|lower| lower.mtu)).unwrap_or(1500);
        namespace.insert(Link {
            mac: Some(mac),
            up: new.up,
            parent: parent.map(|(_, index)| index),
            parent_nsid,
            ..bare_link(new.index.unwrap_or(0), &new.name, new.kind.clone(), mtu)
        });
        Ok(())
    }

    /// A macvlan parent knows its ports that are up by their MAC addresses.
    fn mac_is_taken(&self, parent: Option<(u64, u32)>, mac: Mac) -> bool {
        self.has_port(parent, |port| {
            port.up && port.mac == Some(mac) && matches!(port.kind, Kind::Macvlan { .. })
        })
    }

    /// Whether such a link stands on a parent, in whatever namespace.
    fn has_port(&self, parent: Option<(u64, u32)>, is: impl Fn(&Link) -> bool) -> bool {
        let Some(parent) = parent else { return false };
        let mut all =
            self.namespaces.iter().flat_map(|(key, one)| one.links.values().map(move |link| (*key, link)));
        all.any(|(key, link)| is(link) && parent_of(key, link) == Some(parent))
    }

    fn set(&mut self, key: u64, set: &SetLink) -> Result<(), Errno> {
        let no_rename_while_up = self.no_rename_while_up;
        if (set.mac.is_some() || set.up == Some(true)) && self.link_is_resetting(key, set.index) {
            return Err(Errno::EBUSY);
        }
        if let Some(mac) = set.mac {
            self.take_mac(key, set.index, mac)?;
        }
        let namespace = self.namespace(key)?;
        let link = namespace.links.get(&set.index).ok_or(Errno::ENODEV)?;
        let old_name = link.name.clone();
        if let Some(name) = set.name.as_ref().filter(|name| **name != old_name) {
            if namespace.named(name).is_some() {
                return Err(Errno::EEXIST);
            }
            if no_rename_while_up && link.up {
                return Err(Errno::EBUSY);
            }
            namespace.rename_sysctls(&old_name, name);
        }
        let link = namespace.links.get_mut(&set.index).ok_or(Errno::ENODEV)?;
        link.name = set.name.clone().unwrap_or(old_name);
        link.mtu = set.mtu.unwrap_or(link.mtu);
        link.mac = set.mac.or(link.mac);
        link.up = set.up.unwrap_or(link.up);
        link.settings = settings_after(&link.settings, &set.settings);
        if let Some(alias) = &set.alias {
            link.alias = Some(alias.clone()).filter(|alias| !alias.is_empty());
        }
        if set.up == Some(false) {
            namespace.routes.retain(|route| route.index != set.index);
            namespace.addresses.retain(|address| address.index != set.index || address.net.addr().is_ipv4());
        }
        Ok(())
    }

    /// Upper links of a link die with it, wherever they are.
    fn delete(&mut self, key: u64, index: u32) -> Result<(), Errno> {
        let link = self.link(key, index).ok_or(Errno::ENODEV)?;
        if link.loopback || link.kind == (Kind::Other { name: String::new() }) {
            return Err(Errno::EOPNOTSUPP);
        }
        self.namespace(key)?.take(index);
        let mut uppers = Vec::new();
        for (at, namespace) in &self.namespaces {
            let above = namespace.links.values().filter(|link| parent_of(*at, link) == Some((key, index)));
            uppers.extend(above.map(|link| (*at, link.index)));
        }
        uppers.into_iter().try_for_each(|(at, upper)| self.delete(at, upper))
    }

    /// A link that moves arrives down, without addresses, and under the index that is wanted; without one, under a new index if
    /// its own is taken there. Answers its index.
    fn relocate(
        &mut self,
        (from, index): (u64, u32),
        (to, as_index): (u64, Option<u32>),
        name: &str,
    ) -> Result<u32, Errno> {
        let link = self.link(from, index).ok_or(Errno::ENODEV)?;
        if link.loopback {
            return Err(Errno::EINVAL);
        }
        if self.namespace(to)?.named(name).is_some_and(|other| from != to || other.index != index) {
            return Err(Errno::EEXIST);
        }
        if from == to {
            self.set(from, &SetLink { index, name: Some(name.to_owned()), ..SetLink::default() })?;
            return Ok(index);
        }
        if link.alt_names.iter().any(|own| own.text() == name) {
            return Err(Errno::EEXIST);
        }
        let at_the_end = self.namespace(to)?;
        if link.alt_names.iter().any(|own| at_the_end.named(&own.text()).is_some()) {
            return Err(Errno::EEXIST);
        }
        if as_index.is_some_and(|wanted| at_the_end.links.contains_key(&wanted)) {
            return Err(Errno::EBUSY);
        }
        let namespace = self.namespace(from)?;
        let left = namespace.left.remove(&index);
        let Some(mut link) = namespace.take(index) else { return Err(Errno::ENODEV) };
        link.up = false;
        link.index = as_index.unwrap_or(index);
        link.parent_nsid = match (link.parent, link.parent_nsid) {
            (Some(_), None) if from == HOST => Some(HOST_IN_A_POD),
            (Some(_), Some(HOST_IN_A_POD)) if to == HOST => None,
            (_, other) => other,
        };
        name.clone_into(&mut link.name);
        let namespace = self.namespace(to)?;
        let index = namespace.insert(link);
        namespace.left.extend(left.map(|left| (index, left)));
        Ok(index)
    }
}

/// What the settings of a link are after a change.
fn settings_after(now: &LinkSettings, change: &LinkSettings) -> LinkSettings {
    // The limits of IPv4 are apart only where the others are above what IPv4 can have.
    let of_ipv4 = |size: Option<u32>| size.filter(|size| *size <= 65_536);
    let follows = LinkSettings {
        gso_ipv4_max_size: of_ipv4(change.gso_max_size),
        gro_ipv4_max_size: of_ipv4(change.gro_max_size),
        ..*change
    };
    now.overlaid(&follows).overlaid(change)
}

/// What the kernel refuses of a new link whatever its kind is.
fn check_name_and_mac(name: &str, mac: Mac) -> Result<(), Errno> {
    match name.len() {
        0 => Err(Errno::EINVAL),
        16.. => Err(Errno::ERANGE),
        _ if mac.is_multicast() => Err(Errno::EADDRNOTAVAIL),
        _ => Ok(()),
    }
}

/// The namespace and index of a link's lower device.
fn parent_of(key: u64, link: &Link) -> Option<(u64, u32)> {
    let at = if link.parent_nsid.is_some() { HOST } else { key };
    link.parent.map(|parent| (at, parent))
}
