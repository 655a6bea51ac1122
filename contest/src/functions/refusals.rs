//! What can't be had is refused, and nothing is left of the attempt.

use serde_json::{Value, json};

use super::Behaviour;
use super::lending::{as_taken, taken};
use super::world::{Fault, World, ensure};

const GROUP: &str = "an ADD is refused";

pub(super) const CASES: &[Behaviour] = &[
    Behaviour {
        group: GROUP,
        title: "a link state that the NIC refuses: as before, and named",
        judge: link_state,
    },
    Behaviour {
        group: GROUP,
        title: "802.1ad, which the NIC refuses: as before, and named",
        judge: vlan_proto,
    },
    Behaviour {
        group: GROUP,
        title: "a guaranteed rate that it refuses: as before, and named",
        judge: min_rate,
    },
    Behaviour { group: GROUP, title: "vlan 4095, which the NIC would take", judge: vlan_4095 },
    Behaviour {
        group: GROUP,
        title: "the name is taken in the pod: the VF stays at home",
        judge: name_taken,
    },
    Behaviour { group: GROUP, title: "no address can be had: the VF is as it was", judge: no_address },
    Behaviour { group: GROUP, title: "another pod has the VF: its settings stay", judge: in_use },
    Behaviour {
        group: GROUP,
        title: "a driver that is neither the kernel's nor vfio-pci",
        judge: other_driver,
    },
];

/// Asked for beside settings that the NIC takes: these must be as before, and what was refused must be told.
fn setting(world: &mut World<'_>, more: Value, named: &str) -> Result<(), Fault> {
    world.pod("pod")?;
    let mut fields = json!({"vlan": 100, "trust": "on"});
    if let (Some(fields), Value::Object(more)) = (fields.as_object_mut(), more) {
        fields.extend(more);
    }
    let told = world.refused(&world.attachment("pod", fields), "what the NIC does not take")?;
    ensure(told.contains(named), || format!("not told of: {told}"))?;
    world.home(world.first())
}

fn link_state(world: &mut World<'_>) -> Result<(), Fault> {
    setting(world, json!({"link_state": "enable"}), "link")
}

fn vlan_proto(world: &mut World<'_>) -> Result<(), Fault> {
    setting(world, json!({"vlanProto": "802.1ad"}), "802.1ad")
}

fn min_rate(world: &mut World<'_>) -> Result<(), Fault> {
    setting(world, json!({"min_tx_rate": 5}), "min_tx_rate")
}

fn vlan_4095(world: &mut World<'_>) -> Result<(), Fault> {
    setting(world, json!({"vlan": 4095}), "4095")
}

fn name_taken(world: &mut World<'_>) -> Result<(), Fault> {
    world.pod("pod")?;
    world.ip_in("pod", "link add net1 type dummy")?;
    world.refused(&world.attachment("pod", taken()), "the pod has such an interface")?;
    world.home(world.first())
}

/// The network's only address is another container's: what is asked for last is what fails.
fn no_address(world: &mut World<'_>) -> Result<(), Fault> {
    world.pod("pod")?;
    let directory = "/var/lib/cni/exhausted";
    world.keep(&format!("{directory}/lab/10.20.0.2"), "somebody\r\neth0")?;
    let mut fields = taken();
    fields["ipam"] = json!({"type": "host-local", "dataDir": directory,
        "ranges": [[{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.2", "rangeEnd": "10.20.0.2"}]]});
    world.refused(&world.attachment("pod", fields), "no address is free")?;
    world.home(world.first())
}

fn in_use(world: &mut World<'_>) -> Result<(), Fault> {
    world.pod("pod")?;
    world.pod("other")?;
    let holder = world.attachment("pod", taken());
    world.add(&holder)?;
    world.refused(&world.attachment("other", json!({})), "another pod has it")?;
    world.set(world.first(), &as_taken())?;
    ensure(world.interface("pod")?.is_some(), || "the one that had it has lost it".into())?;
    world.del(&holder)?;
    world.home(world.first())
}

fn other_driver(world: &mut World<'_>) -> Result<(), Fault> {
    world.pod("pod")?;
    let user = world.user.clone();
    user.bind("uio_pci_generic")?;
    let attachment = super::world::Attachment { pod: "pod", vf: user.clone(), fields: json!({}) };
    let refused = world.refused(&attachment, "nothing protects memory from it");
    user.bind(super::nic::USER_DRIVER)?;
    let told = refused?;
    ensure(told.contains("uio_pci_generic"), || format!("not told of: {told}"))
}
