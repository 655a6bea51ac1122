//! What can't be had is refused, and nothing of the attempt is left.

use serde_json::{Value, json};

use super::Behaviour;
use super::attach::{as_taken, taken};
use super::testbed::{Fault, VfTestbed, ensure};

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

/// Asks for a setting that the NIC refuses, beside settings that it accepts. Those must be as before, and the
/// error must name the refused one.
fn setting(testbed: &mut VfTestbed<'_>, more: Value, named: &str) -> Result<(), Fault> {
    testbed.pod("pod")?;
    let mut fields = json!({"vlan": 100, "trust": "on"});
    if let (Some(fields), Value::Object(more)) = (fields.as_object_mut(), more) {
        fields.extend(more);
    }
    let error = testbed.refused(&testbed.attachment("pod", fields), "what the NIC does not take")?;
    ensure(error.contains(named), || format!("not told of: {error}"))?;
    testbed.is_restored(testbed.first())
}

fn link_state(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    setting(testbed, json!({"link_state": "enable"}), "link")
}

fn vlan_proto(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    setting(testbed, json!({"vlanProto": "802.1ad"}), "802.1ad")
}

fn min_rate(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    setting(testbed, json!({"min_tx_rate": 5}), "min_tx_rate")
}

fn vlan_4095(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    setting(testbed, json!({"vlan": 4095}), "4095")
}

fn name_taken(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.pod("pod")?;
    testbed.ip_in("pod", "link add net1 type dummy")?;
    testbed.refused(&testbed.attachment("pod", taken()), "the pod has such an interface")?;
    testbed.is_restored(testbed.first())
}

/// The network's only address is another container's, so the step that comes last fails.
fn no_address(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.pod("pod")?;
    let directory = "/var/lib/cni/exhausted";
    testbed.keep(&format!("{directory}/lab/10.20.0.2"), "somebody\r\neth0")?;
    let mut fields = taken();
    fields["ipam"] = json!({"type": "host-local", "dataDir": directory,
        "ranges": [[{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.2", "rangeEnd": "10.20.0.2"}]]});
    testbed.refused(&testbed.attachment("pod", fields), "no address is free")?;
    testbed.is_restored(testbed.first())
}

fn in_use(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.pod("pod")?;
    testbed.pod("other")?;
    let holder = testbed.attachment("pod", taken());
    testbed.add(&holder)?;
    testbed.refused(&testbed.attachment("other", json!({})), "another pod has it")?;
    testbed.set(testbed.first(), &as_taken())?;
    ensure(testbed.interface("pod")?.is_some(), || "the one that had it has lost it".into())?;
    testbed.del(&holder)?;
    testbed.is_restored(testbed.first())
}

fn other_driver(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.pod("pod")?;
    let user = testbed.user.clone();
    user.bind("uio_pci_generic")?;
    let attachment = super::testbed::Attachment { pod: "pod", vf: user.clone(), fields: json!({}) };
    let refused = testbed.refused(&attachment, "nothing protects memory from it");
    user.bind(super::nic::USER_DRIVER)?;
    let error = refused?;
    ensure(error.contains("uio_pci_generic"), || format!("not told of: {error}"))
}
