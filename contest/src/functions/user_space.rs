//! VFs under vfio-pci, which a process of the pod drives: there is no interface, and everything is the physical
//! VF's to tell.

use serde_json::{Value, json};

use super::Behaviour;
use super::nic::KERNEL_DRIVER;
use super::world::{Attachment, Fault, World, ensure};

const GROUP: &str = "a VF under vfio-pci";
const MAC: &str = "02:00:00:00:aa:00";

pub(super) const CASES: &[Behaviour] = &[
    Behaviour { group: GROUP, title: "d24 the answer names the device, its MAC and address", judge: told },
    Behaviour { group: GROUP, title: "k27 settings are made, and are as before after DEL", judge: settings },
    Behaviour {
        group: GROUP,
        title: "d24 device information is written, and gone after DEL",
        judge: information,
    },
    Behaviour { group: GROUP, title: "x04 CHECK finds a setting that somebody changed", judge: check },
    Behaviour {
        group: GROUP,
        title: "another pod has the VF: refused, its settings stay",
        judge: in_use,
    },
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

fn attachment(world: &World<'_>, pod: &'static str, fields: Value) -> Attachment {
    Attachment { pod, vf: world.user.clone(), fields }
}

fn lent(world: &mut World<'_>) -> Result<(Attachment, Value), Fault> {
    world.pod("pod")?;
    let attachment = attachment(world, "pod", fields());
    let result = world.add(&attachment)?;
    Ok((attachment, result))
}

fn told(world: &mut World<'_>) -> Result<(), Fault> {
    world.pod("pod")?;
    let attachment = attachment(world, "pod", super::lending::with_address(fields(), "10.20.0.2/24"));
    let result = world.add(&attachment)?;
    let (interface, address) = (&result["interfaces"][0], &result["ips"][0]["address"]);
    let device = json!(attachment.vf.address);
    ensure(interface["pciID"] == device, || format!("the device is {} in the result", interface["pciID"]))?;
    ensure(interface["mac"] == MAC, || format!("the result has MAC {}", interface["mac"]))?;
    ensure(address == "10.20.0.2/24", || format!("the address is {address} in the result"))?;
    ensure(world.interface("pod")?.is_none(), || "the pod has an interface".into())?;
    world.del(&attachment)
}

fn settings(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(world)?;
    world.set(&world.user, &as_asked())?;
    world.check(&attachment, &result)?;
    world.del(&attachment)?;
    world.home(&world.user)
}

fn information(world: &mut World<'_>) -> Result<(), Fault> {
    world.pod("pod")?;
    let path = "/run/devinfo/cni/of-pod.json";
    let mut fields = fields();
    fields["runtimeConfig"] = json!({"CNIDeviceInfoFile": path});
    let attachment = attachment(world, "pod", fields);
    world.add(&attachment)?;
    let written: Value =
        std::fs::read(path).ok().and_then(|t| serde_json::from_slice(&t).ok()).unwrap_or_default();
    let vf = &attachment.vf;
    let wanted = json!({"type": "pci", "version": "1.1.0",
        "pci": {"pci-address": vf.address, "pf-pci-address": vf.nic.address}});
    world.del(&attachment)?;
    ensure(written == wanted, || format!("it says {written}"))?;
    ensure(!std::path::Path::new(path).exists(), || "it is left behind".into())
}

fn check(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, result) = lent(world)?;
    world.administer(&world.user, "vlan 7")?;
    world.check_finds(&attachment, &result, "settings of its VF")?;
    world.del(&attachment)?;
    world.home(&world.user)
}

fn in_use(world: &mut World<'_>) -> Result<(), Fault> {
    let (holder, _) = lent(world)?;
    world.pod("other")?;
    world.refused(&attachment(world, "other", json!({})), "another pod has it")?;
    world.set(&world.user, &as_asked())?;
    world.del(&holder)?;
    world.home(&world.user)
}

fn held(world: &mut World<'_>) -> Result<(), Fault> {
    world.pod("pod")?;
    let group = world.user.open_group()?;
    let refused = world.refused(&attachment(world, "pod", fields()), "a process drives it");
    drop(group);
    refused?;
    world.home(&world.user)
}

fn held_at_del(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, _) = lent(world)?;
    let group = world.user.open_group()?;
    let answer = world.call("DEL", &attachment, &json!({}))?;
    let stay = world.set(&world.user, &as_asked());
    drop(group);
    ensure(!answer.ok(), || "DEL succeeds under a process that drives it".into())?;
    stay?;
    world.del(&attachment)?;
    world.home(&world.user)
}

fn namespace_first(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, _) = lent(world)?;
    world.pod_dies("pod")?;
    world.del(&attachment)?;
    world.home(&world.user)
}

fn no_del(world: &mut World<'_>) -> Result<(), Fault> {
    world.pod("pod")?;
    let mut fields = fields();
    fields["ipam"] = json!({"type": "host-local", "ranges": [[{"subnet": "10.20.0.0/24"}]]});
    world.add(&attachment(world, "pod", fields))?;
    world.pod_dies("pod")?;
    world.home(&world.user)?;
    let address = std::path::Path::new("/var/lib/cni/networks/lab/10.20.0.2");
    world.in_time(|| ensure(!address.exists(), || "its address stays taken".into()))
}

/// The kernel's driver has it by then: an interface is no reason to take it away again.
fn driver_changes(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, _) = lent(world)?;
    world.user.bind(KERNEL_DRIVER)?;
    let ended = world.del(&attachment);
    let driver = world.user.driver();
    world.user.bind(super::nic::USER_DRIVER)?;
    ended?;
    ensure(driver == KERNEL_DRIVER, || format!("its driver is {driver:?}"))?;
    world.home(&world.user)
}
