//! What a pod is given, and what is back after an orderly end.

use serde_json::{Value, json};

use super::Behaviour;
use super::world::{Attachment, Fault, IFNAME, World, ensure};

const GROUP: &str = "a VF is lent";

pub(super) const CASES: &[Behaviour] = &[
    Behaviour { group: GROUP, title: "k27 settings are made, and are as before after DEL", judge: settings },
    Behaviour { group: GROUP, title: "the pod has the VF's MTU, and is told it", judge: mtu },
    Behaviour { group: GROUP, title: "a vlan of 0 takes the administrator's away until DEL", judge: vlan_0 },
    Behaviour { group: GROUP, title: "k27 a MAC address is given, and the own one comes back", judge: mac },
    Behaviour { group: GROUP, title: "the wire hears of the pod's address unasked", judge: announced },
    Behaviour { group: GROUP, title: "pods on one VLAN reach each other over two NICs", judge: together },
    Behaviour { group: GROUP, title: "pods on two VLANs do not", judge: apart },
    Behaviour { group: GROUP, title: "a pod on a VLAN and one on none do not", judge: apart_from_none },
    Behaviour {
        group: GROUP,
        title: "x04 CHECK finds a setting that somebody changed",
        judge: check_settings,
    },
    Behaviour {
        group: GROUP,
        title: "x04 CHECK finds that the interface is missing",
        judge: check_interface,
    },
    Behaviour { group: GROUP, title: "x04 CHECK finds another MAC address", judge: check_mac },
    Behaviour { group: GROUP, title: "x04 STATUS answers", judge: status },
    Behaviour { group: GROUP, title: "whatever the pod did to it, it comes home as it was", judge: misused },
    Behaviour { group: GROUP, title: "DEL twice is success, and it is home", judge: del_twice },
];

/// Settings that the NIC takes, all at once.
pub(super) fn taken() -> Value {
    json!({"vlan": 100, "vlanQoS": 3, "spoofchk": "off", "trust": "on", "max_tx_rate": 200})
}

/// How the PF tells them.
pub(super) fn as_taken() -> Value {
    json!({"vlan": 100, "qos": 3, "spoofchk": false, "trust": true, "max_tx_rate": 200})
}

/// Fields with a fixed address beside them.
pub(super) fn with_address(mut fields: Value, address: &str) -> Value {
    fields["ipam"] = json!({"type": "static", "addresses": [{"address": address}]});
    fields
}

/// The first VF with all settings in a new pod, and the result of its ADD.
fn lent(world: &mut World<'_>) -> Result<(Attachment, Value), Fault> {
    world.pod("pod")?;
    let attachment = world.attachment("pod", taken());
    let result = world.add(&attachment)?;
    Ok((attachment, result))
}

fn settings(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(world)?;
    world.set(world.first(), &as_taken())?;
    world.check(&attachment, &result)?;
    world.del(&attachment)?;
    world.home(world.first())
}

fn mtu(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(world)?;
    let interface = world.interface("pod")?.unwrap_or_default();
    ensure(interface["mtu"] == 1400, || format!("the pod's interface has {}", interface["mtu"]))?;
    let told = &result["interfaces"][0]["mtu"];
    ensure(*told == 1400, || format!("the result says {told}"))?;
    world.del(&attachment)
}

fn vlan_0(world: &mut World<'_>) -> Result<(), Fault> {
    world.pod("pod")?;
    world.administer(world.first(), "vlan 55")?;
    let before = world.seen(world.first())?;
    let attachment = world.attachment("pod", json!({"vlan": 0}));
    world.add(&attachment)?;
    world.set(world.first(), &json!({"vlan": null}))?;
    world.del(&attachment)?;
    world.home_as(world.first(), &before)?;
    world.administer(world.first(), "vlan 0")
}

const GIVEN: &str = "02:00:00:00:00:77";

fn mac(world: &mut World<'_>) -> Result<(), Fault> {
    world.pod("pod")?;
    world.pod("other")?;
    let attachment = world.attachment("pod", with_address(json!({"mac": GIVEN}), "10.9.0.1/24"));
    let result = world.add(&attachment)?;
    let told = &result["interfaces"][0]["mac"];
    ensure(told == GIVEN, || format!("the result says {told}"))?;
    let interface = world.interface("pod")?.unwrap_or_default();
    ensure(interface["address"] == GIVEN, || format!("the pod has {}", interface["address"]))?;
    world.set(world.first(), &json!({"mac": GIVEN}))?;
    let peer = other(world, json!({}));
    world.add(&peer)?;
    world.in_time(|| ensure(world.ping("pod", "-c 1 -W 2 10.9.0.2")?, || "no ping is answered".into()))?;
    world.del(&peer)?;
    world.del(&attachment)?;
    world.home(world.first())
}

/// The second NIC's VF in the pod `other`, as 10.9.0.2.
pub(super) fn other(world: &World<'_>, fields: Value) -> Attachment {
    Attachment { pod: "other", vf: world.far.clone(), fields: with_address(fields, "10.9.0.2/24") }
}

fn announced(world: &mut World<'_>) -> Result<(), Fault> {
    world.pod("pod")?;
    world.pod("other")?;
    let (one, listener) =
        (world.attachment("pod", with_address(json!({}), "10.9.0.1/24")), other(world, json!({})));
    world.add(&listener)?;
    world.carrier("other")?;
    world.write_in("other", &format!("/proc/sys/net/ipv4/conf/{IFNAME}/arp_accept"), "1")?;
    world.add(&one)?;
    world.in_time(|| {
        let known = world.told_in("other", "neigh show 10.9.0.1")?;
        ensure(known.contains("lladdr"), || "the wire does not know the address".into())
    })?;
    world.del(&one)?;
    world.del(&listener)
}

/// Two pods on these VLANs; `judge` finds out what of it works.
fn on_vlans(
    world: &mut World<'_>,
    vlans: [u16; 2],
    judge: impl FnOnce(&World<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    world.pod("pod")?;
    world.pod("other")?;
    let one = world.attachment("pod", with_address(json!({"vlan": vlans[0]}), "10.9.0.1/24"));
    let another = other(world, json!({"vlan": vlans[1]}));
    for attachment in [&one, &another] {
        world.add(attachment)?;
    }
    world.carrier("pod")?;
    world.carrier("other")?;
    judge(world)?;
    world.del(&one)?;
    world.del(&another)
}

fn together(world: &mut World<'_>) -> Result<(), Fault> {
    on_vlans(world, [100, 100], |world| {
        world.in_time(|| ensure(world.ping("pod", "-c 1 -W 2 10.9.0.2")?, || "no ping is answered".into()))
    })
}

fn do_not_reach(world: &World<'_>) -> Result<(), Fault> {
    ensure(!world.ping("pod", "-c 3 -W 1 10.9.0.2")?, || "a ping is answered".into())
}

fn apart(world: &mut World<'_>) -> Result<(), Fault> {
    on_vlans(world, [100, 200], do_not_reach)
}

fn apart_from_none(world: &mut World<'_>) -> Result<(), Fault> {
    on_vlans(world, [100, 0], do_not_reach)
}

fn check_settings(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(world)?;
    world.administer(world.first(), "vlan 7")?;
    world.check_finds(&attachment, &result, "vlan 7")?;
    world.del(&attachment)?;
    world.home(world.first())
}

fn check_interface(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(world)?;
    world.ip_in("pod", "link set net1 down; link set net1 name else1")?;
    let found = world.check_finds(&attachment, &result, IFNAME);
    world.ip_in("pod", "link set else1 name net1; link set net1 up")?;
    found?;
    world.del(&attachment)
}

fn check_mac(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(world)?;
    world.ip_in("pod", "link set net1 down; link set net1 address 02:00:00:00:00:66; link set net1 up")?;
    world.check_finds(&attachment, &result, "02:00:00:00:00:66")?;
    world.del(&attachment)?;
    world.home(world.first())
}

fn status(world: &mut World<'_>) -> Result<(), Fault> {
    world.of_network("STATUS", &json!({}))
}

fn misused(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, _) = lent(world)?;
    let marks = world.interface("pod")?.unwrap_or_default();
    let altname = marks["altnames"][0].as_str().unwrap_or_default();
    world.ip_in(
        "pod",
        &format!(
            "link set net1 down; link set net1 mtu 1300 address 02:00:00:00:00:66 alias theirs promisc on; \
             link property add dev net1 altname theirs; link property del dev net1 altname {altname}"
        ),
    )?;
    world.del(&attachment)?;
    world.home(world.first())
}

fn del_twice(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, _) = lent(world)?;
    world.del(&attachment)?;
    world.del(&attachment)?;
    world.home(world.first())
}
