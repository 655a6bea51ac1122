//! Virtual functions before they are lent: who has one, how it is, and what its physical function and its driver are to
//! do to it. What is done here is undone by the homecoming.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_cni::{CniError, Code};
use fairlead_host::{Kind, Link, Mac, Net, NetError, Op, SetLink, Vf, VfChange};
use fairlead_sriov::{Function, InventoryError, PciAddr, Physical, VfProfile};
use nix::errno::Errno;

use super::claims::Claim;
use super::job::Job;
use super::{Engine, errors};
use crate::networks::Network;
use crate::networks::host_device::USER_SPACE_DRIVERS;
use crate::networks::sriov::{AtHome, Sriov};
use crate::store::{Attachment, Lent, LentVf, Phase};

/// How long an ADD waits for a function that is still coming home.
const HOMECOMING: Duration = Duration::from_secs(10);
/// How long an interface may take to be there after its driver has it, or its namespace has died.
pub(super) const APPEARS: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// Drivers whose interface takes the administrator's MAC address over only when they take the function anew.
const BOUND_ANEW: [&str; 2] = ["igbvf", "ixgbevf"];

impl Engine {
    /// Keeps every other ADD from the function that this one wants, until the intent is on record. Code 11 for one that is
    /// lent already, or that does not come home in time.
    pub(super) fn reserve(&self, job: &Job, network: &Network) -> Result<Option<Claim<'_>>, CniError> {
        let Some(address) = network.function().map(|f| f.device) else { return Ok(None) };
        let limit = job.deadline.min(Instant::now() + HOMECOMING);
        let claim = self.reserved.take(&address.to_string(), limit);
        let claim = claim.ok_or_else(|| lent(address, "another call takes it just now"))?;
        loop {
            let mine = |a: &Arc<Attachment>| a.function().is_some_and(|f| f.address == address);
            let Some(holder) = self.store.all().into_iter().find(mine) else { return Ok(Some(claim)) };
            self.collect_if_dead(&holder, None); // X22: an older sandbox's
            match self.store.get(holder.id).map(|now| now.phase) {
                Some(Phase::Adding | Phase::Attached) => {
                    let (container, ifname) = (&holder.key.container, &holder.key.ifname);
                    return Err(lent(
                        address,
                        &format!("it is interface {ifname:?} of container {container}"),
                    ));
                }
                Some(_) if Instant::now() >= limit => {
                    return Err(lent(address, "it has not come home from its last pod yet"));
                }
                _ => sleep(LOOK),
            }
        }
    }

    /// The function that is wanted, if it can be lent, with its interface.
    pub(super) fn at_home(&self, wanted: &Sriov) -> Result<(Link, AtHome), CniError> {
        let function = self.inventory.function(wanted.device).map_err(|e| unusable(&e))?;
        let driver = kernel_driver(&function)?;
        let told = |e: NetError| errors::kernel("", "looking for the function's interface", &e);
        let mut host = self.kernel.host().map_err(told)?;
        let link = interface(host.as_mut(), wanted.device, &function.interfaces).map_err(told)?;
        let link = link.ok_or_else(|| lent(wanted.device, "its interface is not in the host's namespace"))?;
        let settings = match wanted.profile.is_empty() {
            true => None,
            false => Some(self.settings(host.as_mut(), &function)?.1),
        };
        Ok((link, AtHome { function, driver, settings }))
    }

    /// The settings of a function that is lent, where its configuration asks for any.
    pub(super) fn settings_now(&self, wanted: &Sriov) -> Result<Option<Vf>, CniError> {
        if wanted.profile.is_empty() {
            return Ok(None);
        }
        let function = self.inventory.function(wanted.device).map_err(|e| unusable(&e))?;
        let mut host =
            self.kernel.host().map_err(|e| errors::kernel("", "opening the host's namespace", &e))?;
        self.settings(host.as_mut(), &function).map(|(_, settings)| Some(settings))
    }

    /// The physical function's link and the function's settings there.
    pub(super) fn settings(&self, host: &mut dyn Net, function: &Function) -> Result<(u32, Vf), CniError> {
        let read = settings(host, &function.physical, function.index);
        let found = read.map_err(|e| errors::kernel("", "reading the function's settings", &e))?;
        found.ok_or_else(|| {
            let physical = function.physical.address;
            CniError::new(
                Code::InvalidConfig,
                format!(
                    "the physical function {physical} of {} has no interface here that tells its settings",
                    function.address
                ),
            )
            .with("bring the physical function's interface back into the host's namespace")
        })
    }

    /// Sets what differs and has the function take its MAC address over; answers the index of its interface.
    pub(super) fn prepare(&self, given: &Lent, change: &VfChange, mac: Option<Mac>) -> Result<u32, CniError> {
        let Some(vf) = &given.function else { return Ok(given.index) };
        let told = |e: NetError| errors::kernel("", &format!("setting up function {}", vf.address), &e);
        let mut host = self.kernel.host().map_err(told)?;
        if !change.is_empty() {
            let function = self.inventory.function(vf.address).map_err(|e| unusable(&e))?;
            let (pf, _) = self.settings(host.as_mut(), &function)?;
            let set = Op::SetVf { pf, vf: vf.index, change: change.clone() };
            host.batch(&[set]).map_err(|e| self.guilty(host.as_mut(), &function, change, &e))?;
        }
        let (Some(mac), Some(link)) = (mac, host.link_by_index(given.index).map_err(told)?) else {
            return Ok(given.index);
        };
        if link.mac == Some(mac) {
            return Ok(link.index);
        }
        let link = self.take_over(host.as_mut(), vf, &link, mac).map_err(told)?;
        as_before(host.as_mut(), &link, given, vf, None).map_err(told)?;
        Ok(link.index)
    }

    /// Has a function's interface take the MAC address over that the administrator has given it, by a new binding where its
    /// driver needs that. Answers the interface as it is then.
    fn take_over(&self, host: &mut dyn Net, vf: &LentVf, link: &Link, mac: Mac) -> Result<Link, NetError> {
        let link = if BOUND_ANEW.contains(&vf.driver.as_str()) {
            self.bound_anew(host, vf)?
        } else {
            match try_mac(host, vf, link, mac)? {
                Some(link) => link,
                None => self.bound_anew(host, vf)?,
            }
        };
        match link.mac == Some(mac) {
            true => Ok(link),
            false => Err(NetError::Driver {
                device: vf.address.to_string(),
                doing: format!("taking the MAC address {mac} over"),
                source: std::io::Error::other(format!("driver {} did not", vf.driver)),
            }),
        }
    }

    /// Gives a function's interface its own MAC address again. One that the administrator's address has for good keeps that.
    pub(super) fn take_back(
        &self,
        host: &mut dyn Net,
        vf: &LentVf,
        link: &Link,
        mac: Mac,
    ) -> Result<Link, NetError> {
        if let Some(link) = try_mac(host, vf, link, mac)? {
            return Ok(link);
        }
        let link = self.bound_anew(host, vf)?;
        if link.mac == Some(mac) {
            return Ok(link);
        }
        let taken = try_mac(host, vf, &link, mac)?;
        if taken.is_none() {
            tracing::warn!(pci = %vf.address, was = %mac,
                "a function keeps the MAC address that its physical function has for it");
        }
        Ok(taken.unwrap_or(link))
    }

    fn bound_anew(&self, host: &mut dyn Net, vf: &LentVf) -> Result<Link, NetError> {
        self.kernel.bind_anew(&vf.address.to_string(), &vf.driver)?;
        appear(host, vf.address, APPEARS)?.ok_or_else(|| absent(vf))
    }

    /// After a refusal: which of the settings is the one, in the kernel's order the first that is not there.
    fn guilty(
        &self,
        host: &mut dyn Net,
        function: &Function,
        change: &VfChange,
        error: &NetError,
    ) -> CniError {
        let now = self.settings(host, function).map(|(_, now)| VfProfile::from(change).plan(&now).change);
        let first =
            now.ok().and_then(|left| left.singly().next()).map_or(change.describe(), |one| one.describe());
        let (address, physical) = (function.address, function.physical.address);
        let refused = error.errno().is_some_and(is_refusal);
        let told =
            errors::kernel("", &format!("setting {first} for function {address} by {physical}"), error);
        match refused {
            true => CniError { code: Code::InvalidConfig, ..told }
                .with("this NIC does not take the setting: leave it out of the network's configuration"),
            false => told,
        }
    }
}

/// What a driver answers to a setting that it will never take.
pub(super) fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EINVAL | Errno::ERANGE | Errno::EPERM)
}

/// A driver that keeps the address that it was given until it takes the function anew.
fn needs_binding(error: &NetError) -> bool {
    let refusals = [Errno::EADDRNOTAVAIL, Errno::EPERM, Errno::EACCES, Errno::EOPNOTSUPP, Errno::EINVAL];
    error.errno().is_some_and(|errno| refusals.contains(&errno))
}

/// Gives an interface a MAC address by itself; `None`: its driver does not let it have that. Some drivers change it only
/// while the interface is down.
pub(super) fn try_mac(
    host: &mut dyn Net,
    vf: &LentVf,
    link: &Link,
    mac: Mac,
) -> Result<Option<Link>, NetError> {
    let index = link.index;
    let set = host.batch(&[
        Op::SetLink(SetLink { index, up: Some(false), ..SetLink::default() }),
        Op::SetLink(SetLink { index, mac: Some(mac), ..SetLink::default() }),
    ]);
    match set {
        Ok(()) => present(host, vf, &link.name).map(Some),
        Err(e) if needs_binding(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

fn present(host: &mut dyn Net, vf: &LentVf, name: &str) -> Result<Link, NetError> {
    interface(host, vf.address, &[name.to_owned()])?.ok_or_else(|| absent(vf))
}

fn absent(vf: &LentVf) -> NetError {
    NetError::Driver {
        device: vf.address.to_string(),
        doing: format!("having its interface back from driver {}", vf.driver),
        source: std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            "it did not appear in the host's namespace",
        ),
    }
}

/// Moves an interface of the host into the pod under the pod's name for it, and sets it up.
pub(super) fn lend(pod: &mut dyn Net, index: u32, ifname: &str) -> Result<u32, NetError> {
    pod.batch(&[Op::TakeFromHost { index, name: ifname.to_owned() }])?;
    let index = pod.link_by_name(ifname)?.map_or(index, |l| l.index);
    pod.batch(&[Op::SetLink(SetLink { index, up: Some(true), ..SetLink::default() })])?;
    Ok(index)
}

/// Name, MTU, alias, alternative names, and with `up` whether it is that.
pub(super) fn as_before(
    host: &mut dyn Net,
    link: &Link,
    was: &Lent,
    vf: &LentVf,
    up: Option<bool>,
) -> Result<(), NetError> {
    let index = link.index;
    let mut ops = Vec::new();
    for name in link.alt_names.iter().filter(|name| !vf.alt_names.contains(name)) {
        ops.push(Op::DeleteAltName { index, name: name.clone() });
    }
    if link.name != was.name {
        ops.push(Op::SetLink(SetLink { index, up: Some(false), ..SetLink::default() }));
        ops.push(Op::SetLink(SetLink { index, name: Some(was.name.clone()), ..SetLink::default() }));
    }
    let alias =
        Some(was.alias.clone()).filter(|alias| link.alias.as_ref().unwrap_or(&String::new()) != alias);
    let mtu = Some(was.mtu).filter(|mtu| link.mtu != *mtu);
    if mtu.is_some() || alias.is_some() {
        ops.push(Op::SetLink(SetLink { index, mtu, alias, ..SetLink::default() }));
    }
    for name in vf.alt_names.iter().filter(|name| !link.alt_names.contains(name)) {
        ops.push(Op::AddAltName { index, name: name.clone() });
    }
    let is_up = link.up && link.name == was.name;
    if up.is_some_and(|up| up != is_up) {
        ops.push(Op::SetLink(SetLink { index, up, ..SetLink::default() }));
    }
    host.batch(&ops)
}

/// The interface of a function in a namespace; `names` are looked at first.
pub(super) fn interface(
    net: &mut dyn Net,
    address: PciAddr,
    names: &[String],
) -> Result<Option<Link>, NetError> {
    let wanted = address.to_string();
    for name in names {
        if let Some(link) = net.link_by_name(name)?
            && link.device.as_ref().is_none_or(|device| *device == wanted)
        {
            return Ok(Some(link));
        }
    }
    // Sysfs lists those of the namespace that it was mounted in, which need not be the daemon's.
    Ok(net.links()?.into_iter().find(|link| is_of(link, &wanted)))
}

/// The interface of a lent function among the pod's links; by name and MAC address where the kernel does not tell whose
/// it is (before 5.14).
pub(super) fn interface_among<'l>(
    links: &'l [Link],
    vf: &LentVf,
    names: &[&str],
    mac: Option<Mac>,
) -> Option<&'l Link> {
    let wanted = vf.address.to_string();
    let by_name = |link: &&Link| {
        link.device.is_none() && !link.loopback && link.mac == mac && names.contains(&link.name.as_str())
    };
    links.iter().find(|link| is_of(link, &wanted)).or_else(|| links.iter().find(by_name))
}

/// What stands on the interface (macvlan, vlan) has a kind.
fn is_of(link: &Link, address: &str) -> bool {
    link.device.as_deref() == Some(address) && link.kind == (Kind::Other { name: String::new() })
}

/// The same, waited for.
pub(super) fn appear(
    host: &mut dyn Net,
    address: PciAddr,
    limit: Duration,
) -> Result<Option<Link>, NetError> {
    let until = Instant::now() + limit;
    loop {
        match interface(host, address, &[])? {
            None if Instant::now() < until => sleep(LOOK),
            found => return Ok(found),
        }
    }
}

/// Of all interfaces of a physical function (in switchdev mode its functions' too), the one that tells the settings.
fn settings(host: &mut dyn Net, physical: &Physical, index: u32) -> Result<Option<(u32, Vf)>, NetError> {
    let mut links = Vec::new();
    for name in &physical.interfaces {
        links.extend(host.link_by_name(name)?);
    }
    if links.is_empty() {
        let wanted = physical.address.to_string();
        links.extend(host.links()?.into_iter().filter(|link| is_of(link, &wanted)));
    }
    for link in links {
        if let Some(vf) = host.vfs(link.index)?.into_iter().find(|vf| vf.index == index) {
            return Ok(Some((link.index, vf)));
        }
    }
    Ok(None)
}

fn kernel_driver(function: &Function) -> Result<String, CniError> {
    let address = function.address;
    let refuse = |msg: String, remedy: &str| Err(CniError::new(Code::InvalidConfig, msg).with(remedy));
    match &function.driver {
        Some(driver) if USER_SPACE_DRIVERS.contains(&driver.as_str()) => refuse(
            format!(
                "function {address} is bound to {driver}, and type sriov serves functions with an interface only"
            ),
            "bind it to its kernel driver, or take another function",
        ),
        Some(driver) => Ok(driver.clone()),
        None => refuse(format!("function {address} has no driver"), "bind it to its kernel driver"),
    }
}

fn lent(address: PciAddr, why: &str) -> CniError {
    CniError::new(Code::TryAgain, format!("function {address} cannot be had: {why}"))
        .with("a function is one pod's at a time: DEL the attachment that has it, or take another one")
}

pub(super) fn unusable(error: &InventoryError) -> CniError {
    let code = match error {
        InventoryError::Io { .. } => Code::Io,
        _ => Code::InvalidConfig,
    };
    CniError::new(code, error.to_string()).with("correct the deviceID, or make the function (sriov_numvfs)")
}
