//! What is done to links: made, lent, silenced, taken down. Each is the other's undo, and each may be begun again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_cni::{CniError, Code};
use fairlead_host::{Kernel, Link, Mac, Net, NetError, NetnsError, NewLink, Nsid, Op, SetLink};
use fairlead_sriov::interface::{APPEARS, interface_among};
use nix::errno::Errno;

use super::errors;
use crate::networks::interface::{Must, Setup};
use crate::networks::{DeviceRef, ParentRef};
use crate::store::{Attachment, Lent, LinkRecord, Namespace};

/// How long an address may be under the kernel's duplicate address detection (the reference plugins' limit).
const SETTLE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

/// How a namespace that is on record can be reached now.
pub(super) enum Reach<'k> {
    /// By its path: the thread is in it.
    Inside(Box<dyn Net + 'k>),
    /// Its path is gone or leads elsewhere, but it lives.
    ByNumber(Nsid),
    /// It is dead, and its links with it.
    Dead,
    /// Its path is gone and nothing else is known of it.
    Unknown,
}

/// Finds the namespace of a record: by path and identity, else by its number.
pub(super) fn reach<'k>(kernel: &'k dyn Kernel, netns: &Namespace) -> Result<Reach<'k>, NetError> {
    if !netns.path.is_empty() {
        match kernel.pod(netns.path.as_ref()) {
            Ok(view) if view.id().same(&netns.id) => return Ok(Reach::Inside(view)),
            Ok(_)
            | Err(NetnsError::Missing { .. } | NetnsError::NotANetns { .. } | NetnsError::Host { .. }) => {}
            Err(NetnsError::Net { source, .. }) => return Err(source),
            Err(NetnsError::Io { source, .. }) => return Err(NetError::Socket(source)),
        }
    }
    match netns.nsid {
        Some(nsid) if kernel.nsids()?.contains(&nsid) => Ok(Reach::ByNumber(nsid)),
        Some(_) => Ok(Reach::Dead),
        None => Ok(Reach::Unknown),
    }
}

/// Whether a link inside the right namespace is the attachment's own. With a cookie the namespace is certain, and an
/// index that we chose plus the kind leaves no doubt, whatever MAC address the pod has given it since; without one
/// the MAC address must agree too.
fn is_made_here(attachment: &Attachment, link: &Link, certain: bool) -> bool {
    let LinkRecord::Made { index, kind, mac } = &attachment.link else { return false };
    let same = link.index == *index && link.kind.name() == kind.name();
    same && (certain || *mac == link.mac || link.name == attachment.parked_name())
}

/// The link of an attachment in its namespace, if it is still there.
pub(super) fn find(attachment: &Attachment, pod: &mut dyn Net) -> Result<Option<Link>, NetError> {
    match &attachment.link {
        LinkRecord::Made { index, .. } => {
            let certain = attachment.netns.id.cookie.is_some();
            Ok(pod.link_by_index(*index)?.filter(|l| is_made_here(attachment, l, certain)))
        }
        LinkRecord::Moved(lent) => match &lent.vf {
            Some(vf) => {
                let parked = attachment.parked_name();
                let names = [attachment.key.ifname.as_str(), &parked, &lent.was.name];
                let own = |links: &[Link]| interface_among(links, vf.address, &names, lent.was.mac).cloned();
                // Mostly it has the name that it was given, and a list of all links is dear.
                let named = pod.link_by_name(&attachment.key.ifname)?;
                match named.and_then(|link| own(&[link])) {
                    Some(link) => Ok(Some(link)),
                    None => Ok(own(&pod.links()?)),
                }
            }
            None => find_lent(lent, &attachment.key.ifname, pod),
        },
        LinkRecord::Given(_) | LinkRecord::Loopback | LinkRecord::List { .. } | LinkRecord::None => Ok(None),
    }
}

/// A lent device in the pod: by the alias that it was given, else by the MAC address and one of its two names.
fn find_lent(lent: &Lent, ifname: &str, pod: &mut dyn Net) -> Result<Option<Link>, NetError> {
    let links = pod.links()?;
    let by_alias = links.iter().find(|l| l.alias.as_deref() == Some(lent.was.name.as_str()) && !l.loopback);
    let by_mac = || {
        links
            .iter()
            .find(|l| l.mac == lent.was.mac && (l.name == ifname || l.name == lent.was.name) && !l.loopback)
    };
    Ok(by_alias.or_else(by_mac).cloned())
}

/// The parent that a configuration names.
pub(super) fn parent(kernel: &dyn Kernel, pod: &mut dyn Net, wanted: &ParentRef) -> Result<Link, CniError> {
    let mut host;
    let net: &mut dyn Net = if wanted.in_container {
        pod
    } else {
        host = kernel.host().map_err(|e| errors::kernel("", "opening the host's namespace", &e))?;
        host.as_mut()
    };
    let place = if wanted.in_container { "the pod's namespace" } else { "the host" };
    let told = |e: NetError| errors::kernel("", "looking for the master interface", &e);
    match &wanted.name {
        Some(name) => net.link_by_name(name).map_err(told)?.ok_or_else(|| {
            CniError::new(
                Code::InvalidConfig,
                format!("master {name:?}: {place} has no interface of that name"),
            )
            .with("correct `master` in the network's configuration, or create the interface")
        }),
        None => default_route(net).map_err(told)?.ok_or_else(|| {
            CniError::new(
                Code::InvalidConfig,
                format!("no `master` is given and {place} has no default route"),
            )
            .with("name the interface in `master`")
        }),
    }
}

fn default_route(net: &mut dyn Net) -> Result<Option<Link>, NetError> {
    let index = net.routes()?.iter().find(|r| r.dst.prefix_len() == 0).map(|r| r.index);
    index.map_or(Ok(None), |index| net.link_by_index(index))
}

/// The host's device that a configuration names; `names` are the interfaces that a bus address or sysfs path has.
pub(super) fn device(
    kernel: &dyn Kernel,
    wanted: &DeviceRef,
    names: impl Fn(&DeviceRef) -> Result<Vec<String>, CniError>,
) -> Result<Link, CniError> {
    let told = |e: NetError| errors::kernel("", "looking for the host's device", &e);
    let mut host = kernel.host().map_err(told)?;
    let found = match wanted {
        DeviceRef::Name(name) => host.link_by_name(name).map_err(told)?,
        DeviceRef::Mac(mac) => {
            host.links().map_err(told)?.into_iter().find(|l| l.mac == Some(*mac) && !l.loopback)
        }
        DeviceRef::Sysfs(_) | DeviceRef::Bus(_) => {
            let mut found = None;
            for name in names(wanted)? {
                found = found.or(host.link_by_name(&name).map_err(told)?);
            }
            found
        }
    };
    found.ok_or_else(|| {
        CniError::new(Code::InvalidConfig, format!("the host has no interface for {}", described(wanted)))
            .with("it may be lent to another pod, bound to another driver, or named wrongly in the configuration")
    })
}

fn described(device: &DeviceRef) -> String {
    match device {
        DeviceRef::Name(name) => format!("device {name:?}"),
        DeviceRef::Mac(mac) => format!("hwaddr {mac}"),
        DeviceRef::Sysfs(path) => format!("kernelpath {path:?}"),
        DeviceRef::Bus(id) => format!("device id {id:?}"),
    }
}

/// Makes a link; answers what it has become.
pub(super) fn make(pod: &mut dyn Net, new: &NewLink) -> Result<(), NetError> {
    pod.batch(&[Op::CreateLink(new.clone())])
}

/// Moves a device of the host into the pod, with the pod's name for it, and leaves its host name in the alias, as the
/// reference plugin does. With the name taken in the pod the kernel moves it all the same: so that is looked at first.
pub(super) fn lend(pod: &mut dyn Net, lent: &Lent, ifname: &str) -> Result<u32, NetError> {
    pod.batch(&[Op::TakeFromHost { index: lent.index, name: ifname.to_owned(), up: false }])?;
    let index = pod.link_by_name(ifname)?.map_or(lent.index, |l| l.index);
    pod.batch(&[
        Op::SetLink(SetLink { index, alias: Some(lent.was.name.clone()), ..SetLink::default() }),
        Op::SetLink(SetLink { index, up: Some(true), ..SetLink::default() }),
    ])?;
    Ok(index)
}

/// Gives a lent device back: its name, MTU, MAC address, alias and whether it was up.
pub(super) fn give_back(
    kernel: &dyn Kernel,
    pod: &mut dyn Net,
    link: &Link,
    lent: &Lent,
) -> Result<(), NetError> {
    let index = link.index;
    let mut ops = vec![Op::SetLink(SetLink { index, up: Some(false), ..SetLink::default() })];
    let restored = SetLink {
        index,
        mtu: (link.mtu != lent.was.mtu).then_some(lent.was.mtu),
        mac: lent.was.mac.filter(|mac| link.mac != Some(*mac)),
        alias: Some(lent.was.alias.clone()),
        ..SetLink::default()
    };
    ops.push(Op::SetLink(restored));
    ops.push(Op::MoveToHost { index, name: lent.was.name.clone() });
    pod.batch(&ops)?;
    bring_up(kernel, lent)
}

fn bring_up(kernel: &dyn Kernel, lent: &Lent) -> Result<(), NetError> {
    if !lent.was.up {
        return Ok(());
    }
    let mut host = kernel.host()?;
    let Some(link) = host.link_by_name(&lent.was.name)? else { return Ok(()) };
    host.batch(&[Op::SetLink(SetLink { index: link.index, up: Some(true), ..SetLink::default() })])
}

/// A lent device that its namespace's death, or a failed move, left in the host's: it gets everything back. Out of a dead
/// namespace it falls a little after the kernel has told of the death: so long (`falls`) it is waited for.
fn bring_home(kernel: &dyn Kernel, lent: &Lent, ifname: &str, falls: Duration) -> Result<(), NetError> {
    let mut host = kernel.host()?;
    let until = Instant::now() + falls;
    let link = loop {
        match find_lent(lent, ifname, host.as_mut())? {
            None if Instant::now() < until => sleep(LOOK),
            found => break found,
        }
    };
    let Some(link) = link else { return Ok(()) };
    let mut ops = Vec::new();
    if let Some(mac) = lent.was.mac.filter(|mac| link.mac != Some(*mac)) {
        ops.push(Op::SetLink(SetLink { index: link.index, mac: Some(mac), ..SetLink::default() }));
    }
    ops.extend(lent.was.look().restored(&link));
    host.batch(&ops)
}

/// Sysctls, addresses, routes.
pub(super) fn configure(pod: &mut dyn Net, setup: &Setup, index: u32) -> Result<(), NetError> {
    for (key, value, must) in &setup.sysctls {
        let written = match must {
            Must::ClearIfSet => match pod.sysctl(key) {
                Ok(now) if now.trim() != *value => pod.set_sysctl(key, value),
                Ok(_) | Err(_) => Ok(()),
            },
            Must::Succeed | Must::Try => pod.set_sysctl(key, value),
        };
        if *must != Must::Try {
            written?;
        }
    }
    if !setup.settle {
        let all: Vec<Op> = setup.addresses.iter().chain(&setup.routes).cloned().collect();
        return pod.batch(&all);
    }
    pod.batch(&setup.addresses)?;
    settle(pod, index)?;
    pod.batch(&setup.routes)
}

fn settle(pod: &mut dyn Net, index: u32) -> Result<(), NetError> {
    let until = Instant::now() + SETTLE;
    loop {
        let addresses = pod.addresses(index)?;
        if let Some(double) = addresses.iter().find(|a| a.flags.dad_failed) {
            return Err(NetError::Answer(format!("{} is in use by another host on the link", double.net)));
        }
        if !addresses.iter().any(|a| a.flags.tentative) {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(NetError::Answer(format!(
                "duplicate address detection did not end within {} s",
                SETTLE.as_secs()
            )));
        }
        sleep(LOOK);
    }
}

/// Makes an interface silent and frees its name: nobody answers for its addresses any more, link-local ones included.
/// What is gone already is no error.
pub(super) fn silence(pod: &mut dyn Net, index: u32, parked: &str) -> Result<(), NetError> {
    let mut ops: Vec<Op> = pod.addresses(index)?.into_iter().map(Op::DeleteAddress).collect();
    ops.push(Op::SetLink(SetLink { index, name: Some(parked.to_owned()), ..SetLink::default() }));
    let mut rest = ops.as_slice();
    while !rest.is_empty() {
        match pod.batch(rest) {
            Ok(()) => return Ok(()),
            Err(NetError::Op(e)) if matches!(e.errno, Errno::EADDRNOTAVAIL | Errno::ENODEV) => {
                rest = &rest[e.at + 1..]
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Takes the attachment's link down for good, or gives it back. Waits for the kernel: 16–30 ms for a deletion.
pub(super) fn take_down(
    kernel: &dyn Kernel,
    attachment: &Attachment,
    reach: Reach<'_>,
) -> Result<(), NetError> {
    match (&attachment.link, reach) {
        (LinkRecord::Made { .. }, Reach::Inside(mut pod)) => match find(attachment, pod.as_mut())? {
            Some(link) => gone_is_fine(pod.batch(&[Op::DeleteLink(link.index)])),
            None => Ok(()),
        },
        (LinkRecord::Made { index, .. }, Reach::ByNumber(nsid)) => match kernel.link_at(nsid, *index)? {
            Some(link) if is_made_here(attachment, &link, false) => kernel.delete_at(nsid, *index),
            _ => Ok(()),
        },
        (LinkRecord::Moved(lent), Reach::Inside(mut pod)) => {
            if let Some(link) = find(attachment, pod.as_mut())? {
                return give_back(kernel, pod.as_mut(), &link, lent);
            }
            drop(pod);
            bring_home(kernel, lent, &attachment.key.ifname, Duration::ZERO)
        }
        (LinkRecord::Moved(lent), Reach::Dead) => bring_home(kernel, lent, &attachment.key.ifname, APPEARS),
        (LinkRecord::Moved(lent), Reach::Unknown | Reach::ByNumber(_)) => {
            bring_home(kernel, lent, &attachment.key.ifname, Duration::ZERO)
        }
        (LinkRecord::Loopback, Reach::Inside(mut pod)) => match pod.link_by_name("lo")? {
            Some(lo) => {
                pod.batch(&[Op::SetLink(SetLink { index: lo.index, up: Some(false), ..SetLink::default() })])
            }
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn gone_is_fine(result: Result<(), NetError>) -> Result<(), NetError> {
    match result {
        Err(e) if e.errno() == Some(Errno::ENODEV) => Ok(()),
        other => other,
    }
}

/// The MAC address of a link that was just made, where it was not chosen.
pub(super) fn mac_of(pod: &mut dyn Net, index: u32, chosen: Option<Mac>) -> Result<Option<Mac>, NetError> {
    match chosen {
        Some(mac) => Ok(Some(mac)),
        None => Ok(pod.link_by_index(index)?.and_then(|l| l.mac)),
    }
}
