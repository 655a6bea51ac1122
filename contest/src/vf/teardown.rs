//! How a pod, a VF or a NIC may end, and what is left of it.

use serde_json::json;

use super::Behaviour;
use super::attach::{as_taken, taken};
use super::nic::KERNEL_DRIVER;
use super::testbed::{Attachment, Fault, VfTestbed, ensure};
use crate::node_commands;

const GROUP: &str = "something ends";

pub(super) const CASES: &[Behaviour] = &[
    Behaviour { group: GROUP, title: "x06 the namespace is gone before DEL: home", judge: namespace_first },
    Behaviour { group: GROUP, title: "x06 the namespace is gone and no DEL comes: home", judge: no_del },
    Behaviour { group: GROUP, title: "x03 GC brings home what is on no list", judge: gc },
    Behaviour {
        group: GROUP,
        title: "x22 the late DEL of an old sandbox takes nothing of the new",
        judge: late_del,
    },
    Behaviour {
        group: GROUP,
        title: "the driver is taken away under the pod: home after DEL",
        judge: unbound,
    },
    Behaviour { group: GROUP, title: "the NIC is down at DEL: home", judge: nic_down },
    Behaviour {
        group: GROUP,
        title: "the VF is gone: DEL is success, and made anew it is lent again",
        judge: gone,
    },
    Behaviour {
        group: GROUP,
        title: "x17 it is made anew under the pod: CHECK finds that, DEL leaves it",
        judge: remade,
    },
];

fn lent(testbed: &mut VfTestbed<'_>) -> Result<Attachment, Fault> {
    testbed.pod("pod")?;
    let attachment = testbed.attachment("pod", taken());
    testbed.add(&attachment)?;
    Ok(attachment)
}

/// The machine has an interface of the pod's name, so the kernel must choose another name for the returning one.
fn namespace_first(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    node_commands::ip("link add net1 type dummy")?;
    let attachment = lent(testbed)?;
    testbed.pod_dies("pod")?;
    testbed.del(&attachment)?;
    testbed.is_restored(testbed.first())
}

fn no_del(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    node_commands::ip("link add net1 type dummy")?;
    let attachment = lent(testbed)?;
    testbed.pod_dies("pod")?;
    testbed.is_restored(testbed.first())?;
    testbed.del(&attachment)?;
    testbed.is_restored(testbed.first())
}

fn gc(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    lent(testbed)?;
    testbed.of_network("GC", &json!({"cni.dev/valid-attachments": []}))?;
    testbed.is_restored(testbed.first())
}

/// The old sandbox died, the new one has the VF with settings of its own, and only then the DEL comes.
fn late_del(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let old = lent(testbed)?;
    testbed.pod_dies("pod")?;
    testbed.on_the_machine(testbed.first())?;
    testbed.pod("other")?;
    let new = testbed.attachment("other", json!({"vlan": 200, "max_tx_rate": 300}));
    testbed.add(&new)?;
    testbed.del(&old)?;
    ensure(testbed.interface("other")?.is_some(), || "the new sandbox has lost its interface".into())?;
    testbed.set(testbed.first(), &json!({"vlan": 200, "max_tx_rate": 300}))?;
    testbed.del(&new)?;
    testbed.is_restored(testbed.first())
}

fn unbound(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let attachment = lent(testbed)?;
    testbed.first().unbind()?;
    testbed.del(&attachment)?;
    testbed.is_restored(testbed.first())?;
    let driver = testbed.first().driver();
    ensure(driver == KERNEL_DRIVER, || format!("its driver is {driver:?}"))
}

fn nic_down(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let attachment = lent(testbed)?;
    testbed.near_nic("down")?;
    let ended = testbed.del(&attachment).and_then(|()| testbed.is_restored(testbed.first()));
    testbed.near_nic("up")?;
    ended
}

fn far(testbed: &mut VfTestbed<'_>) -> Result<(Attachment, serde_json::Value), Fault> {
    testbed.pod("pod")?;
    let attachment = Attachment { pod: "pod", vf: testbed.far.clone(), fields: taken() };
    let result = testbed.add(&attachment)?;
    Ok((attachment, result))
}

fn gone(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, _) = far(testbed)?;
    testbed.remove_far_vfs()?;
    let ended = testbed.del(&attachment);
    testbed.remake_far_vfs_with_marks()?;
    ended?;
    testbed.pod("other")?;
    let next = Attachment { pod: "other", ..attachment };
    testbed.add(&next)?;
    testbed.set(&testbed.far, &as_taken())?;
    testbed.del(&next)?;
    testbed.is_restored(&testbed.far)
}

fn remade(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    let (attachment, result) = far(testbed)?;
    testbed.remove_far_vfs()?;
    testbed.remake_far_vfs()?;
    // It is another VF by now, and may be somebody else's: nothing of the old one comes to it.
    let made = testbed.seen(&testbed.far)?;
    let ended = testbed.check_finds(&attachment, &result, "").and_then(|()| testbed.del(&attachment));
    ended?;
    ensure(testbed.interface("pod")?.is_none(), || "the new VF is in the old pod".into())?;
    testbed.is_restored_as(&testbed.far, &made)?;
    testbed.remake_far_vfs_with_marks()
}
