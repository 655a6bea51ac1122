//! How a pod, a VF or a NIC may end, and what is left of it.

use serde_json::json;

use super::Behaviour;
use super::lending::{as_taken, taken};
use super::nic::KERNEL_DRIVER;
use super::world::{Attachment, Fault, World, ensure};
use crate::stage;

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
        title: "x17 it is made anew under the pod: CHECK finds that, DEL is success",
        judge: anew,
    },
];

fn lent(world: &mut World<'_>) -> Result<Attachment, Fault> {
    world.pod("pod")?;
    let attachment = world.attachment("pod", taken());
    world.add(&attachment)?;
    Ok(attachment)
}

/// The machine has an interface of the pod's name, so that the kernel finds another for what comes home.
fn namespace_first(world: &mut World<'_>) -> Result<(), Fault> {
    stage::ip("link add net1 type dummy")?;
    let attachment = lent(world)?;
    world.pod_dies("pod")?;
    world.del(&attachment)?;
    world.home(world.first())
}

fn no_del(world: &mut World<'_>) -> Result<(), Fault> {
    stage::ip("link add net1 type dummy")?;
    let attachment = lent(world)?;
    world.pod_dies("pod")?;
    world.home(world.first())?;
    world.del(&attachment)?;
    world.home(world.first())
}

fn gc(world: &mut World<'_>) -> Result<(), Fault> {
    lent(world)?;
    world.of_network("GC", &json!({"cni.dev/valid-attachments": []}))?;
    world.home(world.first())
}

/// The old sandbox died, the new one has the VF with settings of its own, and then the DEL comes.
fn late_del(world: &mut World<'_>) -> Result<(), Fault> {
    let old = lent(world)?;
    world.pod_dies("pod")?;
    world.on_the_machine(world.first())?;
    world.pod("other")?;
    let new = world.attachment("other", json!({"vlan": 200, "max_tx_rate": 300}));
    world.add(&new)?;
    world.del(&old)?;
    ensure(world.interface("other")?.is_some(), || "the new sandbox has lost its interface".into())?;
    world.set(world.first(), &json!({"vlan": 200, "max_tx_rate": 300}))?;
    world.del(&new)?;
    world.home(world.first())
}

fn unbound(world: &mut World<'_>) -> Result<(), Fault> {
    let attachment = lent(world)?;
    world.first().unbind()?;
    world.del(&attachment)?;
    world.home(world.first())?;
    let driver = world.first().driver();
    ensure(driver == KERNEL_DRIVER, || format!("its driver is {driver:?}"))
}

fn nic_down(world: &mut World<'_>) -> Result<(), Fault> {
    let attachment = lent(world)?;
    world.near_nic("down")?;
    let ended = world.del(&attachment).and_then(|()| world.home(world.first()));
    world.near_nic("up")?;
    ended
}

fn far(world: &mut World<'_>) -> Result<(Attachment, serde_json::Value), Fault> {
    world.pod("pod")?;
    let attachment = Attachment { pod: "pod", vf: world.far.clone(), fields: taken() };
    let result = world.add(&attachment)?;
    Ok((attachment, result))
}

fn gone(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, _) = far(world)?;
    world.far_vanish()?;
    let ended = world.del(&attachment);
    world.far_begin_anew()?;
    ended?;
    world.pod("other")?;
    let next = Attachment { pod: "other", ..attachment };
    world.add(&next)?;
    world.set(&world.far, &as_taken())?;
    world.del(&next)?;
    world.home(&world.far)
}

fn anew(world: &mut World<'_>) -> Result<(), Fault> {
    let (attachment, result) = far(world)?;
    world.far_vanish()?;
    world.far_are_made()?;
    let ended = world.check_finds(&attachment, &result, "").and_then(|()| world.del(&attachment));
    ended?;
    ensure(world.interface("pod")?.is_none(), || "the new VF is in the old pod".into())?;
    world.home(&world.far)
}
