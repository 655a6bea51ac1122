//! What a pod gets at ADD, and what is as before after DEL.

use serde_json::{Value, json};

use super::Behaviour;
use super::testbed::{Attachment, Fault, IFNAME, VfTestbed, ensure};

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

/// Settings that the NIC accepts, all at once.
pub(super) fn taken() -> Value {
    json!({"vlan": 100, "vlanQoS": 3, "spoofchk": "off", "trust": "on", "max_tx_rate": 200})
}

/// The same settings, as the PF reports them.
pub(super) fn as_taken() -> Value {
    json!({"vlan": 100, "qos": 3, "spoofchk": false, "trust": true, "max_tx_rate": 200})
}

/// These fields with a fixed address beside them.
pub(super) fn with_address(mut fields: Value, address: &str) -> Value {
    fields["ipam"] = json!({"type": "static", "addresses": [{"address": address}]});
    fields
}

/// Attaches the first VF with all settings to a new pod; returns the result of its ADD.
fn lent(testbed: &mut VfTestbed<'_>) -> Result<(Attachment, Value), Fault> {
    testbed.pod("pod")?;
    let attachment = testbed.attachment("pod", taken());
    let result = testbed.add(&attachment)?;
    Ok((attachment, result))
}

fn settings(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(testbed)?;
    testbed.set(testbed.first(), &as_taken())?;
    testbed.check(&attachment, &result)?;
    testbed.del(&attachment)?;
    testbed.is_restored(testbed.first())
}

fn mtu(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(testbed)?;
    let interface = testbed.interface("pod")?.unwrap_or_default();
    ensure(interface["mtu"] == 1400, || format!("the pod's interface has {}", interface["mtu"]))?;
    let reported = &result["interfaces"][0]["mtu"];
    ensure(*reported == 1400, || format!("the result says {reported}"))?;
    testbed.del(&attachment)
}

fn vlan_0(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.pod("pod")?;
    testbed.administer(testbed.first(), "vlan 55")?;
    let before = testbed.seen(testbed.first())?;
    let attachment = testbed.attachment("pod", json!({"vlan": 0}));
    testbed.add(&attachment)?;
    testbed.set(testbed.first(), &json!({"vlan": null}))?;
    testbed.del(&attachment)?;
    testbed.is_restored_as(testbed.first(), &before)?;
    testbed.administer(testbed.first(), "vlan 0")
}

const GIVEN: &str = "02:00:00:00:00:77";

fn mac(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.pod("pod")?;
    testbed.pod("other")?;
    let attachment = testbed.attachment("pod", with_address(json!({"mac": GIVEN}), "10.9.0.1/24"));
    let result = testbed.add(&attachment)?;
    let reported = &result["interfaces"][0]["mac"];
    ensure(reported == GIVEN, || format!("the result says {reported}"))?;
    let interface = testbed.interface("pod")?.unwrap_or_default();
    ensure(interface["address"] == GIVEN, || format!("the pod has {}", interface["address"]))?;
    testbed.set(testbed.first(), &json!({"mac": GIVEN}))?;
    let peer = other(testbed, json!({}));
    testbed.add(&peer)?;
    testbed
        .in_time(|| ensure(testbed.ping("pod", "-c 1 -W 2 10.9.0.2")?, || "no ping is answered".into()))?;
    testbed.del(&peer)?;
    testbed.del(&attachment)?;
    testbed.is_restored(testbed.first())
}

/// The VF of the second NIC in the pod `other`, with the address 10.9.0.2.
pub(super) fn other(testbed: &VfTestbed<'_>, fields: Value) -> Attachment {
    Attachment { pod: "other", vf: testbed.far.clone(), fields: with_address(fields, "10.9.0.2/24") }
}

fn announced(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.pod("pod")?;
    testbed.pod("other")?;
    let (one, listener) =
        (testbed.attachment("pod", with_address(json!({}), "10.9.0.1/24")), other(testbed, json!({})));
    testbed.add(&listener)?;
    testbed.carrier("other")?;
    testbed.write_in("other", &format!("/proc/sys/net/ipv4/conf/{IFNAME}/arp_accept"), "1")?;
    testbed.add(&one)?;
    testbed.in_time(|| {
        let known = testbed.ip_output_in("other", "neigh show 10.9.0.1")?;
        ensure(known.contains("lladdr"), || "the wire does not know the address".into())
    })?;
    testbed.del(&one)?;
    testbed.del(&listener)
}

/// Makes two pods on these VLANs; `judge` finds out what works between them.
fn on_vlans(
    testbed: &mut VfTestbed<'_>,
    vlans: [u16; 2],
    judge: impl FnOnce(&VfTestbed<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    testbed.pod("pod")?;
    testbed.pod("other")?;
    let one = testbed.attachment("pod", with_address(json!({"vlan": vlans[0]}), "10.9.0.1/24"));
    let another = other(testbed, json!({"vlan": vlans[1]}));
    for attachment in [&one, &another] {
        testbed.add(attachment)?;
    }
    testbed.carrier("pod")?;
    testbed.carrier("other")?;
    judge(testbed)?;
    testbed.del(&one)?;
    testbed.del(&another)
}

fn together(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    on_vlans(testbed, [100, 100], |testbed| {
        testbed
            .in_time(|| ensure(testbed.ping("pod", "-c 1 -W 2 10.9.0.2")?, || "no ping is answered".into()))
    })
}

fn do_not_reach(testbed: &VfTestbed<'_>) -> Result<(), Fault> {
    ensure(!testbed.ping("pod", "-c 3 -W 1 10.9.0.2")?, || "a ping is answered".into())
}

fn apart(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    on_vlans(testbed, [100, 200], do_not_reach)
}

fn apart_from_none(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    on_vlans(testbed, [100, 0], do_not_reach)
}

fn check_settings(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(testbed)?;
    testbed.administer(testbed.first(), "vlan 7")?;
    testbed.check_finds(&attachment, &result, "vlan 7")?;
    testbed.del(&attachment)?;
    testbed.is_restored(testbed.first())
}

fn check_interface(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(testbed)?;
    testbed.ip_in("pod", "link set net1 down; link set net1 name else1")?;
    let found = testbed.check_finds(&attachment, &result, IFNAME);
    testbed.ip_in("pod", "link set else1 name net1; link set net1 up")?;
    found?;
    testbed.del(&attachment)
}

fn check_mac(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(testbed)?;
    testbed.ip_in("pod", "link set net1 down; link set net1 address 02:00:00:00:00:66; link set net1 up")?;
    testbed.check_finds(&attachment, &result, "02:00:00:00:00:66")?;
    testbed.del(&attachment)?;
    testbed.is_restored(testbed.first())
}

fn status(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.of_network("STATUS", &json!({}))
}

fn misused(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, _) = lent(testbed)?;
    let marks = testbed.interface("pod")?.unwrap_or_default();
    let altname = marks["altnames"][0].as_str().unwrap_or_default();
    testbed.ip_in(
        "pod",
        &format!(
            "link set net1 down; link set net1 mtu 1300 address 02:00:00:00:00:66 alias theirs promisc on; \
             link property add dev net1 altname theirs; link property del dev net1 altname {altname}"
        ),
    )?;
    testbed.del(&attachment)?;
    testbed.is_restored(testbed.first())
}

fn del_twice(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, _) = lent(testbed)?;
    testbed.del(&attachment)?;
    testbed.del(&attachment)?;
    testbed.is_restored(testbed.first())
}
