//! The way to the wire of a network: a kernel interface that is the switch's alone, while a port of the network is on record with it.
//!
//! The kernel's part of it hangs on descriptors that the switch has; what is left to undo are two settings of the interface, and what the
//! links below it merge. Both are on record with each port, as they were before the first.

use std::collections::BTreeMap;

use fairlead_cni::config::VhostUser;
use fairlead_cni::{CniError, Code};
use fairlead_host::uplink::{MOST_MTU, MOST_QUEUES};
use fairlead_host::{Link, LinkSettings, Net, NetError, NetdevSettings, Op, SetLink, failpoint};
use fairlead_vhost::port::{UplinkConfig, UplinkView};
use nix::errno::Errno;

use super::services::VhostUserServices;
use crate::engine::attachment_request::AttachmentRequest;
use crate::engine::errors;
use crate::engine::kinds::made::must_fit;
use crate::engine::kinds::{Kinds, lendable};
use crate::store::{Attachment, LinkBelowRecord, UplinkRecord, VhostUserRecord};

/// The MTU in bytes of a port where nobody asks for another.
pub(super) const ETHERNET_MTU: u16 = 1500;
/// The least MTU in bytes that an interface has.
const LEAST_MTU: u16 = 68;
/// `IFF_PROMISC`: it hears frames to addresses other than its own, such as pods'.
const IFF_PROMISC: u32 = 0x100;
/// The number of the feature `rx-vlan-hw-parse` (`NETIF_F_HW_VLAN_CTAG_RX_BIT`): the card takes tags out of frames, and tells the
/// kernel's stack of them beside the frame, where a socket of AF_XDP does not see them.
const TAKES_TAGS_OUT: usize = 8;
/// Kinds of links that hear a frame after a port of theirs: the kernel has taken a tag out of it there, before the program of these runs.
const HEAR_AFTER_PORTS: [&str; 2] = ["bond", "team"];
/// The features by which a card, or the kernel behind it, makes one frame of several. Merged below an uplink they are longer than what it
/// takes, or than its MTU, and lost; the kernel itself sees to that only on the interface that has the program. `rx-gro` is also the switch
/// of what the kernel merges by `rx-gro-list` and `rx-udp-gro-forwarding`.
const MERGING: [&str; 3] = ["rx-gro", "rx-gro-hw", "rx-lro"];

/// What goes on record of the uplink that a configuration names, which is one that the switch may have to itself and that passes what the
/// port asks for, and the MTU of the port.
pub(super) fn plan(
    kinds: &Kinds,
    network: &str,
    master: &str,
    config: &VhostUser,
    request: &AttachmentRequest<'_>,
) -> Result<(UplinkRecord, u16), CniError> {
    let services = &kinds.vhost_user;
    let known = services.uplink_on_record(network, master)?;
    let told = |e: NetError| errors::kernel(&request.key.network, "looking at the host's interfaces", &e);
    let mut host = kinds.kernel.host().map_err(told)?;
    let link = find(host.as_mut(), master)?;
    must_keep_tags(&link, config)?;
    let mtu = mtu_over(&link, config.mtu)?;
    if let Some(known) = known {
        return Ok((known, mtu));
    }
    services.must_be_alone_on(host.as_mut(), &link, network)?;
    lendable::must_be_free(kinds, host.as_mut(), request, &link)?;
    let settings = host.netdev_settings(link.index).map_err(told)?;
    let uplink = UplinkRecord {
        below: services.merging_below(host.as_mut(), &link).map_err(told)?,
        interface: link.name,
        was_promiscuous: link.settings.flags.is_some_and(|flags| flags & IFF_PROMISC != 0),
        features: settings.features,
    };
    Ok((uplink, mtu))
}

/// Refuses a port with tags over a link from which frames come without their tags: those of its VLANs would never reach it.
fn must_keep_tags(link: &Link, config: &VhostUser) -> Result<(), CniError> {
    let (name, kind) = (&link.name, link.kind.name());
    let Some(vlan) = config.vlan.or(config.trunk.first().copied()) else { return Ok(()) };
    if !HEAR_AFTER_PORTS.contains(&kind) {
        return Ok(());
    }
    let key = if config.vlan.is_some() { "vlan" } else { "trunk" };
    let msg = format!(
        "master {name:?} is a {kind}, from which the switch gets frames without their tags, so \"{key}\" cannot be had"
    );
    let remedy = format!(
        "make the VLAN's interface on it (ip link add link {name} name {name}.{vlan} type vlan id {vlan}), and name that as `master` of a \
         network of its own without \"{key}\""
    );
    Err(CniError::new(Code::InvalidConfig, msg).with(remedy))
}

/// The MTU of a port that reaches the wire by this link: the one that is wanted, if its frames pass.
fn mtu_over(link: &Link, wanted: Option<u16>) -> Result<u16, CniError> {
    let Some(mtu) = wanted else { return Ok(ETHERNET_MTU.min(passed_by(link))) };
    must_fit(mtu.into(), &link.name, link.mtu)?;
    if mtu > MOST_MTU {
        let msg = format!(
            "mtu {mtu} is above {MOST_MTU}, the most that passes an uplink, and {:?} is one",
            link.name
        );
        return Err(CniError::new(Code::InvalidConfig, msg)
            .with("lower `mtu` in the network's configuration, or leave `master` out"));
    }
    Ok(mtu)
}

/// The longest payload in bytes of frames that pass an uplink by this link.
fn passed_by(link: &Link) -> u16 {
    u16::try_from(link.mtu).unwrap_or(MOST_MTU).clamp(LEAST_MTU, MOST_MTU)
}

/// Refuses the uplink of a port that is on record, where another attachment that needs its interface has come on record since it was planned.
pub(super) fn must_still_be_alone(
    services: &VhostUserServices,
    record: &VhostUserRecord,
) -> Result<(), CniError> {
    let Some(uplink) = &record.uplink else { return Ok(()) };
    let network = &record.port.network;
    let told = |e: NetError| errors::kernel(network, "looking at the host's interfaces", &e);
    let mut host = services.kernel.host().map_err(told)?;
    let link = find(host.as_mut(), &uplink.interface)?;
    services.must_be_alone_on(host.as_mut(), &link, network)
}

fn find(host: &mut dyn Net, master: &str) -> Result<Link, CniError> {
    let told = |e: NetError| errors::kernel("", "looking for the master interface", &e);
    let refused = |why: &str| CniError::new(Code::InvalidConfig, format!("master {master:?}: {why}"));
    let link = host.link_by_name(master).map_err(told)?.ok_or_else(|| {
        refused("the host has no interface of that name")
            .with("correct `master` in the network's configuration, or create the interface")
    })?;
    if link.loopback {
        return Err(refused("it leads to the host itself").with("name an interface that leads to the wire"));
    }
    if link.kind.name() == "bridge" {
        return Err(refused("it is a bridge, whose own frames alone could be had").with(
            "name one end of a veth pair, whose other end is a port of the bridge (docs/vhost-user.md)",
        ));
    }
    if !link.up {
        let why = format!("master {master:?} is down");
        return Err(CniError::new(Code::TryAgain, why).with(format!("ip link set {master} up")));
    }
    Ok(link)
}

impl VhostUserServices {
    /// What is on record of a network's uplink. One whose last port is ending counts as far as it is the same interface: until that
    /// port is gone the interface is as the uplink has it, and only the record tells how it was before.
    fn uplink_on_record(&self, network: &str, master: &str) -> Result<Option<UplinkRecord>, CniError> {
        let of_network = |a: &Attachment| {
            let port = a.vhost_user().filter(|port| port.port.network == network)?;
            Some((a.is_ending(), port.uplink.clone()?))
        };
        let all = self.store.filter_map(of_network);
        let counts = |(is_ending, uplink): &&(bool, UplinkRecord)| !is_ending || uplink.interface == master;
        match all.iter().filter(counts).min_by_key(|(is_ending, _)| *is_ending).map(|(_, uplink)| uplink) {
            Some(uplink) if uplink.interface != master => {
                let why = format!("network {network:?} reaches the wire by {:?} already", uplink.interface);
                Err(CniError::new(Code::InvalidConfig, format!("master {master:?}: {why}")).with(
                    "name the same interface in all definitions of a network, or give it another \"network\"",
                ))
            }
            known => Ok(known.cloned()),
        }
    }

    /// What is to go on record of the links below an interface that becomes an uplink.
    fn merging_below(&self, host: &mut dyn Net, link: &Link) -> Result<Vec<LinkBelowRecord>, NetError> {
        // With the turn: what was changed for another network's uplink is on record until it is changed back.
        let _turn = self.turn.lock();
        let mut all = Vec::new();
        for Link { index, name: interface, .. } in links_below(host, link)? {
            let known =
                self.store.filter_map(|a| Some(below(a.uplink()?, &interface)?.features.clone())).pop();
            let features = match known {
                Some(features) => features,
                None => host.features_on(index, &MERGING)?,
            };
            if !features.is_empty() {
                all.push(LinkBelowRecord { interface, features });
            }
        }
        Ok(all)
    }

    /// Sees to it that the switch has the uplink of a port's network. Whoever calls has the turn.
    pub(super) fn ensure_uplink(&self, record: &VhostUserRecord) -> Result<(), CniError> {
        let Some(wanted) = &record.uplink else { return Ok(()) };
        let network = &record.port.network;
        let told = |e: NetError| errors::kernel(network, "preparing the uplink", &e);
        let mut host = self.kernel.host().map_err(told)?;
        let link = find(host.as_mut(), &wanted.interface)?;
        let there = self.switch.uplinks()?.into_iter().find(|there| there.config.network == *network);
        match there {
            Some(there) if there.config.index == link.index && there.bound => return Ok(()),
            // The interface has gone and come back, or its last port was on record with another; or a daemon that was killed has not come
            // to bind the sockets, into which all frames of the interface go.
            Some(_) => self.switch.remove_uplink(network)?,
            None => {}
        }
        self.open_uplink(network, wanted, &link, host.as_mut())
    }

    fn open_uplink(
        &self,
        network: &str,
        wanted: &UplinkRecord,
        link: &Link,
        host: &mut dyn Net,
    ) -> Result<(), CniError> {
        let told = |e: NetError| unusable(link, &e);
        let queues = queues(host, link)?;
        set_promiscuous(host, link, true).map_err(told)?;
        if let Some(features) = wanted.features.as_deref().and_then(without_taking_tags_out) {
            set_features(host, link, features).map_err(told)?;
        }
        stop_merging(host, link, wanted).map_err(told)?;
        // Where it is not known, any memory and any thread will do.
        let numa_node = self.inventory.node_of(&link.name).unwrap_or_default();
        let uplink = self.kernel.open_uplink(link.index, queues, numa_node).map_err(told)?;
        let config = UplinkConfig {
            network: network.to_owned(),
            interface: link.name.clone(),
            index: link.index,
            mtu: passed_by(link),
            native: uplink.native,
        };
        self.switch.add_uplink(&config, &uplink, numa_node)?;
        failpoint::pass("add.uplink");
        if let Err(error) = self.kernel.bind_uplink(link.index, &uplink, numa_node) {
            self.switch.remove_uplink(network)?;
            return Err(told(error));
        }
        tracing::info!(
            network,
            interface = link.name,
            native = uplink.native,
            queues,
            numa_node,
            "a network has its uplink"
        );
        Ok(())
    }

    /// Gives the interface back, if no other port on record needs it. Whoever calls has the turn.
    pub(super) fn release_uplink(
        &self,
        attachment: &Attachment,
        record: &VhostUserRecord,
    ) -> Result<(), CniError> {
        let Some(uplink) = &record.uplink else { return Ok(()) };
        let network = &record.port.network;
        let needs = |other: &Attachment| other.vhost_user().is_some_and(|of| of.port.network == *network);
        if self.store.with_uplink().iter().any(|other| other.id != attachment.id && needs(other)) {
            return Ok(());
        }
        // Somebody may have given the interface another name meanwhile.
        let index = self.switch.uplink_of(network).map(|view| view.config.index);
        self.switch.remove_uplink(network)?;
        failpoint::pass("del.uplink");
        let told = |e: NetError| errors::kernel(network, "giving the uplink back", &e);
        let mut host = self.kernel.host().map_err(told)?;
        let link = match index.map(|index| host.link_by_index(index)).transpose().map_err(told)?.flatten() {
            None => host.link_by_name(&uplink.interface).map_err(told)?,
            known => known,
        };
        if let Some(link) = link {
            if !uplink.was_promiscuous {
                set_promiscuous(host.as_mut(), &link, false).map_err(told)?;
            }
            if let Some(features) = &uplink.features {
                set_features(host.as_mut(), &link, features.clone()).map_err(told)?;
            }
        }
        // After the interface: no link has `rx-lro` that one above it lacks.
        self.let_merge_again(host.as_mut(), uplink, network).map_err(told)
    }

    /// Has the links below an uplink merge frames as before, but for those that are below the uplink of another network, too.
    fn let_merge_again(
        &self,
        host: &mut dyn Net,
        uplink: &UplinkRecord,
        network: &str,
    ) -> Result<(), NetError> {
        let ports = self.store.with_uplink();
        let of_others = ports.iter().filter(|a| a.vhost_user().is_some_and(|of| of.port.network != network));
        let of_others: Vec<&UplinkRecord> = of_others.filter_map(|a| a.uplink()).collect();
        let is_needed = |interface: &str| of_others.iter().any(|other| below(other, interface).is_some());
        for lower in uplink.below.iter().filter(|lower| !is_needed(&lower.interface)) {
            let Some(link) = host.link_by_name(&lower.interface)? else {
                let interface = &lower.interface;
                tracing::warn!(interface, features = ?lower.features,
                    "a link below an uplink is gone, or has another name: if it is there, switch its features on by hand (ethtool -K)");
                continue;
            };
            for refused in host.switch_features(link.index, &lower.features, true)? {
                tracing::warn!(
                    interface = link.name,
                    refused,
                    "a link below an uplink does not merge frames as before"
                );
            }
        }
        Ok(())
    }

    /// Compares the switch's uplinks with the records: makes what is missing, and removes what nobody has on record. Answers the network of
    /// each that cannot be made, and why.
    pub(super) fn mend_uplinks(&self) -> Result<BTreeMap<String, CniError>, CniError> {
        let _turn = self.turn.lock();
        let all = self.store.with_uplink();
        let wanted = all.iter().filter_map(|a| a.vhost_user());
        let wanted: BTreeMap<&str, &VhostUserRecord> =
            wanted.map(|record| (record.port.network.as_str(), record)).collect();
        let there = match self.switch.uplinks() {
            Ok(there) => there,
            // One of before there were uplinks.
            Err(_) if wanted.is_empty() => return Ok(BTreeMap::new()),
            Err(error) => return Err(error),
        };
        for UplinkView { config, .. } in there {
            if !wanted.contains_key(config.network.as_str()) {
                tracing::warn!(
                    network = config.network,
                    "an uplink of the switch that no attachment has is removed"
                );
                self.switch.remove_uplink(&config.network)?;
            }
        }
        let failed = |(network, record): (&str, &VhostUserRecord)| {
            Some((network.to_owned(), self.ensure_uplink(record).err()?))
        };
        Ok(wanted.into_iter().filter_map(failed).collect())
    }

    /// Why the switch has not the uplink of a port's network, if that has one.
    pub(super) fn lacks_uplink(&self, record: &VhostUserRecord) -> Result<Option<String>, CniError> {
        let Some(wanted) = &record.uplink else { return Ok(None) };
        let network = &record.port.network;
        let all = self.switch.uplinks()?;
        let why = match all.iter().find(|there| there.config.network == *network) {
            Some(there) => self.why_dead(there)?,
            None => Some("the switch has it not".to_owned()),
        };
        Ok(why.map(|why| format!("network {network:?} has lost its uplink {:?}: {why}", wanted.interface)))
    }

    /// Why no frames pass an uplink that the switch has, or will not when the switch is started again; `None` where all is as it was.
    pub(super) fn why_dead(&self, there: &UplinkView) -> Result<Option<String>, CniError> {
        let uplink = &there.config;
        let told = |e: NetError| errors::kernel(&uplink.network, "looking at the uplink", &e);
        let link = self.kernel.host().and_then(|mut host| host.link_by_index(uplink.index)).map_err(told)?;
        Ok(match link {
            None => Some("the host has the interface no more".to_owned()),
            Some(link) if link.name != uplink.interface => {
                Some(format!("the interface is called {:?} by now", link.name))
            }
            Some(link) if !link.up => Some("the interface is down".to_owned()),
            Some(_) if !there.bound => Some("the switch's sockets are not bound to the interface".to_owned()),
            Some(_) => None,
        })
    }
}

/// The receive queues that are to be served: those that are in use. A bond hands a frame on with the number of the queue of the port that it
/// came to, so it has as many as the port that has the most.
fn queues(host: &mut dyn Net, link: &Link) -> Result<u32, CniError> {
    let told = |e: NetError| unusable(link, &e);
    let mut with_queues = vec![link.clone()];
    if link.kind.name() == "bond" {
        let links = host.links().map_err(told)?;
        with_queues.extend(links.into_iter().filter(|port| port.master == Some(link.index)));
    }
    let mut most = 1;
    for Link { index, name, .. } in with_queues {
        let channels = host.netdev_settings(index).map_err(told)?.channels.unwrap_or_default();
        let queues = channels.rx.unwrap_or(0) + channels.combined.unwrap_or(0);
        if queues > MOST_QUEUES {
            let why = format!("{name:?} has {queues} receive queues, and the switch serves {MOST_QUEUES}");
            return Err(CniError::new(Code::InvalidConfig, why)
                .with(format!("ethtool -L {name} combined {MOST_QUEUES}")));
        }
        most = most.max(queues);
    }
    Ok(most)
}

/// The links of the host by which an interface gets its frames, the upper ones first: the device of a VLAN, the ports of a bond or a team.
fn links_below(host: &mut dyn Net, link: &Link) -> Result<Vec<Link>, NetError> {
    let has_ports = |link: &Link| HEAR_AFTER_PORTS.contains(&link.kind.name());
    if link.lower().is_none() && !has_ports(link) {
        return Ok(Vec::new());
    }
    let links = host.links()?;
    let (mut found, mut at) = (vec![link.clone()], 0);
    // Each link comes in once, so a ring of links ends the search too.
    while let Some(upper) = found.get(at).cloned() {
        let is_below = |link: &&Link| {
            upper.lower() == Some(link.index) || has_ports(&upper) && link.master == Some(upper.index)
        };
        for lower in links.iter().filter(is_below) {
            if found.iter().all(|known| known.index != lower.index) {
                found.push(lower.clone());
            }
        }
        at += 1;
    }
    found.remove(0);
    Ok(found)
}

/// What is on record of a link below an uplink.
fn below<'r>(uplink: &'r UplinkRecord, interface: &str) -> Option<&'r LinkBelowRecord> {
    uplink.below.iter().find(|known| known.interface == interface)
}

/// Keeps the links below an uplink from merging frames, as far as it is on record that they do. What goes on merging is told.
fn stop_merging(host: &mut dyn Net, link: &Link, uplink: &UplinkRecord) -> Result<(), NetError> {
    for lower in links_below(host, link)? {
        let mut refused = Vec::new();
        if let Some(known) = below(uplink, &lower.name) {
            refused = host.switch_features(lower.index, &known.features, false)?;
        }
        let on = host.features_on(lower.index, &MERGING)?;
        if !on.is_empty() {
            tracing::warn!(
                uplink = link.name,
                interface = lower.name,
                ?on,
                ?refused,
                "a link below an uplink merges frames, and the merged ones are lost: switch that off (ethtool -K INTERFACE gro off lro off)"
            );
        }
    }
    Ok(())
}

fn set_promiscuous(host: &mut dyn Net, link: &Link, wanted: bool) -> Result<(), NetError> {
    let now = link.settings.flags.unwrap_or(0);
    let flags = if wanted { now | IFF_PROMISC } else { now & !IFF_PROMISC };
    if flags == now {
        return Ok(());
    }
    let settings = LinkSettings::of_flags(flags);
    host.batch(&[Op::SetLink(SetLink { index: link.index, settings, ..SetLink::default() })])
}

fn set_features(host: &mut dyn Net, link: &Link, features: String) -> Result<(), NetError> {
    // All else as it is.
    let settings = NetdevSettings { features: Some(features), ..host.netdev_settings(link.index)? };
    for refused in host.restore_netdev_settings(link.index, &settings)? {
        tracing::warn!(interface = link.name, refused, "the features of an uplink are not as they should be");
    }
    Ok(())
}

/// The features but for the one that hides tags. `None`: it is not there.
fn without_taking_tags_out(features: &str) -> Option<String> {
    // Two digits are a byte, the lowest bits first.
    let at = TAKES_TAGS_OUT / 8 * 2;
    let byte = u8::from_str_radix(features.get(at..at + 2)?, 16).ok()?;
    let without = byte & !(1 << (TAKES_TAGS_OUT % 8));
    (without != byte).then(|| format!("{}{without:02x}{}", &features[..at], &features[at + 2..]))
}

fn unusable(link: &Link, error: &NetError) -> CniError {
    let msg = format!("{:?} cannot be an uplink: {error}", link.name);
    match error.errno() {
        Some(Errno::EBUSY) => CniError::new(Code::TryAgain, msg)
            .with(format!("a program of XDP has it already: ip link set {} xdp off, or name another", link.name)),
        Some(Errno::ENOBUFS | Errno::ENOMEM) => CniError::new(Code::TryAgain, msg)
            .with("give the daemon the capability IPC_LOCK (deploy/overlays/vhost-user, the chart's vhostUser and the systemd unit do), or raise its limit of locked memory"),
        _ => CniError::new(Code::TryAgain, msg).with("see that the kernel is built with CONFIG_XDP_SOCKETS"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_stay_in_frames_and_no_other_feature_changes() {
        assert_eq!(without_taking_tags_out("ffff00").as_deref(), Some("fffe00"));
        assert_eq!(without_taking_tags_out("fffe00"), None);
        assert_eq!(without_taking_tags_out("ff"), None);
    }
}
