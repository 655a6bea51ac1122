//! VFs under vfio-pci, which a process of the pod drives: there is no interface, and only the PF shows their
//! settings.

use serde_json::{Value, json};

use super::Behaviour;
use super::nic::KERNEL_DRIVER;
use super::testbed::{Attachment, Fault, VfTestbed, ensure};

const GROUP: &str = "a VF under vfio-pci";
const MAC: &str = "02:00:00:00:aa:00";

pub(super) const CASES: &[Behaviour] = &[
    Behaviour { group: GROUP, title: "d24 the answer names the device, its MAC and address", judge: answer },
    Behaviour { group: GROUP, title: "k27 settings are made, and are as before after DEL", judge: settings },
    Behaviour {
        group: GROUP,
        title: "d24 device information is written, and gone after DEL",
        judge: information,
    },
    Behaviour { group: GROUP, title: "x04 CHECK finds a setting that somebody changed", judge: check },
    Behaviour { group: GROUP, title: "another pod has the VF: refused, its settings stay", judge: in_use },
    Behaviour {
        group: GROUP,
        title: "a process has its group: refused before anything is changed",
        judge: held,
    },
    Behaviour {
        group: GROUP,
        title: "x23 settings stay while a process has it, and DEL says so",
        judge: held_at_del,
    },
    Behaviour {
        group: GROUP,
        title: "x06 the namespace is gone before DEL: settings as before",
        judge: namespace_first,
    },
    Behaviour { group: GROUP, title: "x06 the namespace is gone and no DEL comes: as before", judge: no_del },
    Behaviour {
        group: GROUP,
        title: "another driver at DEL: settings as before, driver kept",
        judge: driver_changes,
    },
];

fn fields() -> Value {
    json!({"mac": MAC, "vlan": 100, "vlanQoS": 3, "trust": "on", "max_tx_rate": 200})
}

fn as_asked() -> Value {
    json!({"mac": MAC, "vlan": 100, "qos": 3, "trust": true, "max_tx_rate": 200})
}

fn attachment(testbed: &VfTestbed<'_>, pod: &'static str, fields: Value) -> Attachment {
    Attachment { pod, vf: testbed.user.clone(), fields }
}

fn lent(testbed: &mut VfTestbed<'_>) -> Result<(Attachment, Value), Fault> {
    testbed.pod("pod")?;
    let attachment = attachment(testbed, "pod", fields());
    let result = testbed.add(&attachment)?;
    Ok((attachment, result))
}

fn answer(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.pod("pod")?;
    let attachment = attachment(testbed, "pod", super::attach::with_address(fields(), "10.20.0.2/24"));
    let result = testbed.add(&attachment)?;
    let (interface, address) = (&result["interfaces"][0], &result["ips"][0]["address"]);
    let device = json!(attachment.vf.address);
    ensure(interface["pciID"] == device, || format!("the device is {} in the result", interface["pciID"]))?;
    ensure(interface["mac"] == MAC, || format!("the result has MAC {}", interface["mac"]))?;
    ensure(interface["mtu"] == 1500, || {
        format!("the PF has an MTU of 1500, the result {}", interface["mtu"])
    })?;
    ensure(address == "10.20.0.2/24", || format!("the address is {address} in the result"))?;
    ensure(testbed.interface("pod")?.is_none(), || "the pod has an interface".into())?;
    testbed.del(&attachment)
}

fn settings(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(testbed)?;
    testbed.set(&testbed.user, &as_asked())?;
    testbed.check(&attachment, &result)?;
    testbed.del(&attachment)?;
    testbed.is_restored(&testbed.user)
}

fn information(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.pod("pod")?;
    let path = "/run/k8s.cni.cncf.io/devinfo/cni/of-pod.json";
    let mut fields = fields();
    fields["runtimeConfig"] = json!({"CNIDeviceInfoFile": path});
    let attachment = attachment(testbed, "pod", fields);
    testbed.add(&attachment)?;
    let written: Value =
        std::fs::read(path).ok().and_then(|t| serde_json::from_slice(&t).ok()).unwrap_or_default();
    let vf = &attachment.vf;
    let wanted = json!({"type": "pci", "version": "1.1.0",
        "pci": {"pci-address": vf.address, "pf-pci-address": vf.nic.address}});
    testbed.del(&attachment)?;
    ensure(written == wanted, || format!("it says {written}"))?;
    ensure(!std::path::Path::new(path).exists(), || "it is left behind".into())
}

fn check(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(testbed)?;
    testbed.administer(&testbed.user, "vlan 7")?;
    testbed.check_finds(&attachment, &result, "settings of its VF")?;
    testbed.del(&attachment)?;
    testbed.is_restored(&testbed.user)
}

fn in_use(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (holder, _) = lent(testbed)?;
    testbed.pod("other")?;
    testbed.refused(&attachment(testbed, "other", json!({})), "another pod has it")?;
    testbed.set(&testbed.user, &as_asked())?;
    testbed.del(&holder)?;
    testbed.is_restored(&testbed.user)
}

fn held(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.pod("pod")?;
    let group = testbed.user.open_group()?;
    let refused = testbed.refused(&attachment(testbed, "pod", fields()), "a process drives it");
    drop(group);
    refused?;
    testbed.is_restored(&testbed.user)
}

fn held_at_del(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, _) = lent(testbed)?;
    let group = testbed.user.open_group()?;
    let answer = testbed.call("DEL", &attachment, &json!({}))?;
    let stay = testbed.set(&testbed.user, &as_asked());
    drop(group);
    ensure(!answer.ok(), || "DEL succeeds under a process that drives it".into())?;
    stay?;
    testbed.del(&attachment)?;
    testbed.is_restored(&testbed.user)
}

fn namespace_first(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, _) = lent(testbed)?;
    testbed.pod_dies("pod")?;
    testbed.del(&attachment)?;
    testbed.is_restored(&testbed.user)
}

fn no_del(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.pod("pod")?;
    let mut fields = fields();
    fields["ipam"] = json!({"type": "host-local", "ranges": [[{"subnet": "10.20.0.0/24"}]]});
    testbed.add(&attachment(testbed, "pod", fields))?;
    testbed.pod_dies("pod")?;
    testbed.is_restored(&testbed.user)?;
    let address = std::path::Path::new("/var/lib/cni/networks/lab/10.20.0.2");
    testbed.in_time(|| ensure(!address.exists(), || "its address stays taken".into()))
}

/// The kernel's driver has it by then: an interface is no reason to take it away again.
fn driver_changes(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, _) = lent(testbed)?;
    testbed.user.bind(KERNEL_DRIVER)?;
    let ended = testbed.del(&attachment);
    let driver = testbed.user.driver();
    testbed.user.bind(super::nic::USER_DRIVER)?;
    ended?;
    ensure(driver == KERNEL_DRIVER, || format!("its driver is {driver:?}"))?;
    testbed.is_restored(&testbed.user)
}
