//! The interface of a VF: found in a namespace, waited for, and made to look again as it did. Its MAC address is its driver's
//! affair and not changed here.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_host::{Kind, Link, LinkName, LinkSettings, Mac, Net, NetError, Op, SetLink};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::PciAddr;

/// How long an interface may take to be there after its driver has it, or its namespace has died.
pub const APPEARS: Duration = Duration::from_secs(5);
/// How long a name may be another interface's, whose VF is being bound just now and has not got its own name yet.
pub const NAMED: Duration = Duration::from_secs(10);
/// The pause between two looks for an interface.
const LOOK: Duration = Duration::from_millis(10);
/// The pause between two tries to take a name.
const PAUSE: Duration = Duration::from_millis(50);

/// What an interface looks like, and is made to look like again; its MAC address is its driver's affair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The name that it is to have.
    pub name: String,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The alias; empty for none.
    pub alias: String,
    /// The alternative names; `None` leaves them as they are, but for one that is the wanted name.
    pub alt_names: Option<Vec<LinkName>>,
    /// Whether it is up; `None` leaves that.
    pub up: Option<bool>,
    /// Whether it is to hear no more than what is for it; false leaves that.
    pub deaf: bool,
}

impl Look {
    /// The operations that give `link` this look: none where it has it.
    pub fn restored(&self, link: &Link) -> Vec<Op> {
        let index = link.index;
        let alt_names = self.alt_names.as_ref().unwrap_or(&link.alt_names);
        let mut ops = Vec::new();
        // Deleted first: the wanted name may be one of them, also where they are left as they are, and the kernel refuses a name
        // that is in use, even by the same interface.
        let is_in_the_way = |name: &&LinkName| !alt_names.contains(name) || name.text() == self.name;
        for name in link.alt_names.iter().filter(is_in_the_way) {
            ops.push(Op::DeleteAltName { index, name: name.clone() });
        }
        if link.name != self.name {
            // Kernels before 6.2 rename no interface that is up.
            if link.up {
                ops.push(Op::SetLink(SetLink { index, up: Some(false), ..SetLink::default() }));
            }
            ops.push(Op::SetLink(SetLink { index, name: Some(self.name.clone()), ..SetLink::default() }));
        }
        let alias = Some(&self.alias).filter(|alias| link.alias.as_deref().unwrap_or_default() != *alias);
        let mtu = Some(self.mtu).filter(|mtu| link.mtu != *mtu);
        if mtu.is_some() || alias.is_some() {
            ops.push(Op::SetLink(SetLink { index, mtu, alias: alias.cloned(), ..SetLink::default() }));
        }
        if self.deaf && link.is_promiscuous() {
            // A pod that has ended has left it so: nobody wants that on a host for long.
            let flags = link.settings.flags.unwrap_or_default() & !LinkSettings::PROMISCUITY;
            let settings = LinkSettings::of_flags(flags);
            ops.push(Op::SetLink(SetLink { index, settings, ..SetLink::default() }));
        }
        // Added after the renaming: the name that the interface had until then may be one of them.
        for name in alt_names.iter().filter(|name| !link.alt_names.contains(name)) {
            ops.push(Op::AddAltName { index, name: name.clone() });
        }
        // The renaming above has set it down.
        let is_up = link.up && link.name == self.name;
        if self.up.is_some_and(|up| up != is_up) {
            ops.push(Op::SetLink(SetLink { index, up: self.up, ..SetLink::default() }));
        }
        ops
    }
}

/// An interface of the host as it was, to come back to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Appearance {
    /// The name that it had.
    pub name: String,
    /// Its MAC address.
    pub mac: Option<Mac>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its alias; empty for none.
    pub alias: String,
    /// Its alternative names.
    pub alt_names: Vec<LinkName>,
    /// Whether it was up.
    pub up: bool,
}

impl Appearance {
    /// The appearance of a link as it is.
    pub fn of(link: &Link) -> Appearance {
        Appearance {
            name: link.name.clone(),
            mac: link.mac,
            mtu: link.mtu,
            alias: link.alias.clone().unwrap_or_default(),
            alt_names: link.alt_names.clone(),
            up: link.up,
        }
    }

    /// The look that it is to have again.
    pub fn look(&self) -> Look {
        Look {
            name: self.name.clone(),
            mtu: self.mtu,
            alias: self.alias.clone(),
            alt_names: Some(self.alt_names.clone()),
            up: Some(self.up),
            deaf: true,
        }
    }
}

/// The operations that take all alternative names from an interface before it leaves a pod: the kernel refuses to move it for ever
/// while one of them is a name at its destination. Those from before are put back there by its [`Look`].
pub fn without_alt_names(link: &Link) -> impl Iterator<Item = Op> {
    let index = link.index;
    link.alt_names.iter().map(move |name| Op::DeleteAltName { index, name: name.clone() })
}

/// Gives a VF's interface its look. A name that another device's interface has is waited for: the kernel gives one that
/// a driver has just made whatever name is free, so that each of two can have the other's. `make_way` is asked meanwhile to have
/// whoever would keep the name give it up.
pub fn restore_look<E: From<NetError>>(
    host: &mut dyn Net,
    address: PciAddr,
    link: Link,
    look: &Look,
    limit: Duration,
    mut make_way: impl FnMut(&mut dyn Net, &str) -> Result<(), E>,
) -> Result<(), E> {
    let until = Instant::now() + limit;
    let mut link = link;
    loop {
        match host.batch_past_gone(&look.restored(&link)) {
            Err(e)
                if e.errno() == Some(Errno::EEXIST)
                    && Instant::now() < until
                    && is_a_devices(host, &look.name)? =>
            {
                // Whoever waits must have no name that another one waits for, or both wait for ever.
                let (index, name) = (link.index, Some(temporary_name(address)));
                host.batch(&[Op::SetLink(SetLink { index, name, ..SetLink::default() })])?;
                make_way(host, &look.name)?;
                sleep(PAUSE);
                // It has the temporary name now, and part of its look: the next try goes by what is there.
                link = interface(host, address, &[])?.unwrap_or(link);
            }
            other => return Ok(other?),
        }
    }
}

fn is_a_devices(host: &mut dyn Net, name: &str) -> Result<bool, NetError> {
    // A name that is free by now counts too: it was given up since the refusal. What is no device (a bridge) keeps its name.
    Ok(host.link_by_name(name)?.is_none_or(|link| link.device.is_some()))
}

/// A name for the interface of a VF that nobody else has, of 15 bytes at most.
pub fn temporary_name(address: PciAddr) -> String {
    let digits: String = address.to_string().chars().filter(char::is_ascii_hexdigit).collect();
    format!("fp{digits}")
}

/// The interface of a VF in a namespace; `names` are looked at first.
pub fn interface(net: &mut dyn Net, address: PciAddr, names: &[String]) -> Result<Option<Link>, NetError> {
    let wanted = address.to_string();
    for name in names {
        if let Some(link) = net.link_by_name(name)?.filter(|link| may_be_of(link, address)) {
            return Ok(Some(link));
        }
    }
    // Sysfs lists those of the namespace that it was mounted in, which need not be the daemon's.
    net.find_link(&|link| is_of(link, &wanted))
}

/// The interface of a VF among the links of a namespace; by name and MAC address where the kernel does not say whose it is
/// (before 5.14).
pub fn interface_among<'l>(
    links: &'l [Link],
    address: PciAddr,
    names: &[&str],
    mac: Option<Mac>,
) -> Option<&'l Link> {
    let wanted = address.to_string();
    let by_name = |link: &&Link| {
        link.device.is_none()
            && may_be_of(link, address)
            && link.mac == mac
            && names.contains(&link.name.as_str())
    };
    links.iter().find(|link| is_of(link, &wanted)).or_else(|| links.iter().find(by_name))
}

/// Waits for the interface of a VF; `None` when it has not appeared within `limit`.
pub fn wait_for_netdev(
    net: &mut dyn Net,
    address: PciAddr,
    limit: Duration,
) -> Result<Option<Link>, NetError> {
    let until = Instant::now() + limit;
    loop {
        match interface(net, address, &[])? {
            None if Instant::now() < until => sleep(LOOK),
            found => return Ok(found),
        }
    }
}

/// Whether a link can be the interface of a VF: of its driver's making, and of no other device. Kernels before 5.14 do not say of
/// which device a link is; there its name has to do beside this.
pub fn may_be_of(link: &Link, address: PciAddr) -> bool {
    let of_a_driver = !link.loopback && link.kind.name().is_empty();
    of_a_driver && link.device.as_ref().is_none_or(|device| *device == address.to_string())
}

/// Whether a link is the interface of a device itself: what stands on it (macvlan, vlan) has a kind.
pub(crate) fn is_of(link: &Link, address: &str) -> bool {
    link.device.as_deref() == Some(address) && link.kind == (Kind::Other { name: String::new() })
}

#[cfg(test)]
mod tests {
    use fairlead_host::NetKernel;
    use fairlead_host::double::FakeKernel;

    use super::*;

    #[test]
    fn a_name_that_is_wanted_and_is_an_alternative_one_of_the_interface_itself_is_freed_and_the_others_stay()
    {
        let kernel = FakeKernel::new();
        let index = kernel.add_host_link("eth7");
        let mut host = kernel.host().unwrap();
        let add = |name: &str| Op::AddAltName { index, name: name.into() };
        host.batch(&[add("vf0"), add("enx020000000007")]).unwrap();
        let link = host.link_by_index(index).unwrap().unwrap();
        let look = Look { name: "vf0".to_owned(), alt_names: None, up: None, ..Appearance::of(&link).look() };
        host.batch(&look.restored(&link)).unwrap();
        let link = host.link_by_index(index).unwrap().unwrap();
        assert_eq!((link.name.as_str(), link.alt_names), ("vf0", vec![LinkName::from("enx020000000007")]));
        assert_eq!(look.restored(&host.link_by_index(index).unwrap().unwrap()), []);
    }
}
