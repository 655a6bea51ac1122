//! One rule of the policy, applied to one interface.

use std::fmt::Display;

use fairlead_cni::args::Args;
use fairlead_cni::config::host_device::Device;
use fairlead_cni::config::macvlan::Mode;
use fairlead_cni::config::vhost_user::{Place, Switch};
use fairlead_cni::config::{HostDevice, HostLocal, Sriov, StaticIpam, VhostUser, sriov};
use fairlead_cni::{CniError, addr};
use ipnet::IpNet;

use super::refusal::shown;
use super::settings::{Glob, VlanRange};
use super::{Addresses, Interface, Link, Privilege, Refusal, Rule, Tenant};

/// What is judged, and by which rule.
pub(super) struct Judgement<'a> {
    pub(super) tenant: &'a Tenant,
    /// The rule's number, from 1.
    pub(super) number: usize,
    pub(super) rule: &'a Rule,
    pub(super) interface: &'a Interface,
}

impl Judgement<'_> {
    /// Whether the rule allows the interface.
    pub(super) fn pass(&self) -> Result<(), Refusal> {
        self.kind()?;
        match &self.interface.link {
            Link::Macvlan(n) => {
                self.masters(&n.masters, n.link_in_container)?;
                self.privilege(n.mode == Mode::Passthru, Privilege::Passthru, "mode", "\"passthru\"")?;
            }
            Link::Ipvlan(n) => self.masters(&n.masters, n.link_in_container)?,
            Link::Vlan(n) => {
                self.master(Some(&n.master), n.link_in_container)?;
                self.vlan("vlanId", n.vlan_id)?;
            }
            Link::HostDevice(Some(device)) => self.host_device(device)?,
            Link::Sriov(sriov, device) => self.sriov(sriov, device.as_ref())?,
            Link::VhostUser(port) => self.vhost_user(port)?,
            // Who is to be given which device, the runtime knows.
            Link::HostDevice(None) => {}
            Link::Nothing | Link::ClusterNetwork(_) | Link::Executed => {}
        }
        self.addresses()
    }

    fn refuse<T: Display>(&self, key: &str, value: String, list: &'static str, allowed: &[T]) -> Refusal {
        let joined = |texts: Vec<String>| texts.join(", ").into_boxed_str();
        Refusal::NotAllowed {
            namespace: self.tenant.namespace().to_owned(),
            rule: self.number,
            selectors: joined(self.rule.namespaces.iter().map(ToString::to_string).collect()),
            key: self.interface.key(key),
            value: value.into(),
            list,
            allowed: joined(allowed.iter().map(ToString::to_string).collect()),
        }
    }

    /// The type is listed. One whose configuration is read by another program, or is the administrator's own, must be listed
    /// wherever the rule limits what it might use.
    fn kind(&self) -> Result<(), Refusal> {
        let kind = &self.interface.conf.plugin_type;
        let rule = self.rule;
        let opaque = matches!(self.interface.link, Link::Executed | Link::ClusterNetwork(_));
        let limits =
            rule.masters.is_some() || rule.pools.is_some() || rule.vlans.is_some() || rule.ranges.is_some();
        match &rule.types {
            Some(types) if types.contains(kind) => Ok(()),
            None if !(opaque && (limits || rule.ipam_types.is_some())) => Ok(()),
            types => Err(self.refuse("type", shown(kind), "types", types.as_deref().unwrap_or_default())),
        }
    }

    fn name(
        &self,
        key: &str,
        name: Option<&str>,
        list: &'static str,
        allowed: Option<&[Glob]>,
    ) -> Result<(), Refusal> {
        match (allowed, name) {
            (None, _) => Ok(()),
            (Some(globs), Some(name)) if globs.iter().any(|glob| glob.matches(name)) => Ok(()),
            (Some(globs), name) => {
                Err(self.refuse(key, name.map_or_else(|| "none is named".to_owned(), shown), list, globs))
            }
        }
    }

    /// Any of them may be the one that is taken.
    fn masters(&self, names: &[String], in_container: bool) -> Result<(), Refusal> {
        match names {
            [] => self.master(None, in_container),
            names => names.iter().try_for_each(|name| self.master(Some(name), in_container)),
        }
    }

    fn master(&self, name: Option<&str>, in_container: bool) -> Result<(), Refusal> {
        // The pod's own interface is none of the host's.
        if in_container {
            return Ok(());
        }
        self.name("master", name, "masters", self.rule.masters.as_deref())
    }

    fn host_device(&self, device: &HostDevice) -> Result<(), Refusal> {
        let masters = self.rule.masters.as_deref();
        match (&device.device, masters) {
            (Device::Name(name), _) => self.name("device", Some(name), "masters", masters),
            // The runtime's goes before the configuration's.
            (Device::BusId(_), _) if self.interface.conf.runtime.device_id.is_some() => Ok(()),
            // Which interface it is, only the host knows.
            (Device::HwAddr(mac), Some(globs)) => Err(self.refuse("hwaddr", shown(mac), "masters", globs)),
            (Device::BusId(id), Some(globs)) => Err(self.refuse("pciBusID", shown(id), "masters", globs)),
            (Device::KernelPath(path), Some(globs)) => {
                Err(self.refuse("kernelpath", shown(path), "masters", globs))
            }
            (_, None) => Ok(()),
        }
    }

    fn sriov(&self, sriov: &Sriov, device: Option<&sriov::Device>) -> Result<(), Refusal> {
        let pools = self.rule.pools.as_deref();
        match device {
            Some(sriov::Device::OfPool(pool)) => self.name("pool", Some(pool), "pools", pools)?,
            Some(sriov::Device::OfResource(of)) => self.name("resourceName", Some(of), "pools", pools)?,
            Some(sriov::Device::Named(id)) if self.interface.conf.runtime.device_id.is_none() => {
                // Whose VF it is, only the host knows.
                let lists = [("pools", pools), ("masters", self.rule.masters.as_deref())];
                if let Some((list, globs)) = lists.into_iter().find_map(|(list, globs)| Some((list, globs?)))
                {
                    return Err(self.refuse("deviceID", shown(id), list, globs));
                }
            }
            // The runtime names it, now or at ADD.
            Some(sriov::Device::Named(_)) | None => {}
        }
        if let Some(vlan) = sriov.vlan {
            self.vlan("vlan", vlan.id)?;
        }
        let rates = [("min_tx_rate", sriov.min_tx_rate), ("max_tx_rate", sriov.max_tx_rate)];
        for (key, rate) in rates.into_iter().filter_map(|(key, rate)| Some((key, rate?))) {
            self.privilege(true, Privilege::Rates, key, &rate.to_string())?;
        }
        self.privilege(sriov.trust == Some(true), Privilege::Trust, "trust", "\"on\"")?;
        self.privilege(sriov.spoofchk == Some(false), Privilege::SpoofchkOff, "spoofchk", "\"off\"")?;
        self.privilege(sriov.on_host, Privilege::DeviceAccess, "deviceAccess", "\"host\"")
    }

    fn vhost_user(&self, port: &VhostUser) -> Result<(), Refusal> {
        let is_userspace = port.container_side.is_some();
        let [bridge_key, vlan_key] = match is_userspace {
            true => ["host.bridge.bridgeName", "host.bridge.vlanId"],
            false => ["bridge", "vlan"],
        };
        if let Switch::OvsDpdk(bridge) = &port.switch {
            self.name(bridge_key, Some(&bridge.name), "masters", self.rule.masters.as_deref())?;
            if let (true, Some(vlans)) = (bridge.every_vlan, self.rule.vlans.as_deref()) {
                return Err(self.refuse(vlan_key, "none, which is every VLAN".to_owned(), "vlans", vlans));
            }
        }
        let pools = self.rule.pools.as_deref();
        match (&port.place, pools) {
            (Place::Resource(of), _) => self.name("resourceName", Some(of), "pools", pools)?,
            // Which pool has it, only the host knows. The runtime names only what kubelet has allocated.
            (Place::Port(id), Some(globs)) if self.interface.conf.runtime.device_id.is_none() => {
                return Err(self.refuse("deviceID", shown(id), "pools", globs));
            }
            (Place::Port(_) | Place::Volume(_) | Place::Directory(_) | Place::SharedDir(_), _) => {}
        }
        port.master.as_deref().map_or(Ok(()), |master| self.master(Some(master), false))?;
        port.vlan.map_or(Ok(()), |id| self.vlan(vlan_key, id))?;
        port.trunk.iter().try_for_each(|id| self.vlan("trunk", *id))?;
        let rates = [("max_tx_rate", port.max_tx_rate), ("max_rx_rate", port.max_rx_rate)];
        for (key, rate) in rates.into_iter().filter_map(|(key, rate)| Some((key, rate?))) {
            self.privilege(true, Privilege::Rates, key, &rate.to_string())?;
        }
        self.privilege(!port.spoofchk, Privilege::SpoofchkOff, "spoofchk", "\"off\"")
    }

    fn vlan(&self, key: &str, id: u16) -> Result<(), Refusal> {
        match self.rule.vlans.as_deref() {
            Some(vlans) if !vlans.iter().any(|range: &VlanRange| range.contains(id)) => {
                Err(self.refuse(key, id.to_string(), "vlans", vlans))
            }
            _ => Ok(()),
        }
    }

    fn privilege(&self, asked: bool, privilege: Privilege, key: &str, value: &str) -> Result<(), Refusal> {
        if !asked || self.rule.privileged.contains(&privilege) {
            return Ok(());
        }
        let allowed: Vec<&str> = self.rule.privileged.iter().map(|p| p.name()).collect();
        let value = format!("{value}, the privilege {:?}", privilege.name());
        Err(self.refuse(key, value, "privileged", &allowed))
    }

    fn addresses(&self) -> Result<(), Refusal> {
        let kind = self.interface.conf.ipam_type.as_deref();
        if let (Some(kind), Some(types)) = (kind, &self.rule.ipam_types)
            && !types.iter().any(|listed| listed == kind)
        {
            return Err(self.refuse("ipam.type", shown(kind), "ipamTypes", types));
        }
        let Some(ranges) = &self.rule.ranges else { return Ok(()) };
        let allowed = |net: &IpNet| ranges.iter().any(|range| range.contains(net));
        self.asked_of_others(ranges, allowed)?;
        // What `CNI_ARGS` ask for is judged by now.
        let (conf, args) = (&self.interface.conf, Args::default());
        let unreadable = |error: CniError| self.refuse("ipam", error.msg, "ranges", ranges);
        let (key, odd) = match &self.interface.addresses {
            Addresses::HostLocal(config) => subnets(config, allowed),
            Addresses::Static(config) => assigned(config, allowed),
            // What it gives is not in its configuration: it must be listed by name.
            Addresses::Executed(kind) if self.rule.ipam_types.is_none() => {
                return Err(self.refuse("ipam.type", shown(kind), "ipamTypes", &[] as &[String]));
            }
            // Of these the configuration says it whoever reads it.
            Addresses::Executed(kind) if kind == "host-local" => {
                subnets(&HostLocal::parse(conf, &args).map_err(unreadable)?, allowed)
            }
            Addresses::Executed(kind) if kind == "static" => {
                assigned(&StaticIpam::parse(conf, &args).map_err(unreadable)?, allowed)
            }
            Addresses::Executed(_) | Addresses::None => return Ok(()),
        };
        odd.map_or(Ok(()), |net| Err(self.refuse(key, net.to_string(), "ranges", ranges)))
    }

    /// What cannot be read as an address is refused: whoever gets it could read another one.
    fn asked_of_others(&self, ranges: &[IpNet], allowed: impl Fn(&IpNet) -> bool) -> Result<(), Refusal> {
        let net = |ip: &str| addr::cidr(ip).or_else(|| addr::ip(ip).map(IpNet::from));
        let is_odd = |ip: &str| net(ip).is_none_or(|net| !allowed(&net));
        match self.interface.ips_asked_of_others().find(|&(_, ip)| is_odd(ip)) {
            Some((key, ip)) => {
                Err(self.refuse(key, format!("{}, which is asked for", shown(ip)), "ranges", ranges))
            }
            None => Ok(()),
        }
    }
}

/// The first subnet of the ranges that is not allowed.
fn subnets(config: &HostLocal, allowed: impl Fn(&IpNet) -> bool) -> (&'static str, Option<IpNet>) {
    let mut subnets = config.ranges.iter().flat_map(|set| &set.0).map(|range| range.subnet);
    ("ipam.ranges", subnets.find(|subnet| !allowed(subnet)))
}

/// The first address that is not allowed.
fn assigned(config: &StaticIpam, allowed: impl Fn(&IpNet) -> bool) -> (&'static str, Option<IpNet>) {
    let mut addresses = config.addresses.iter().map(|one| one.address);
    ("ipam.addresses", addresses.find(|address| !allowed(address)))
}
