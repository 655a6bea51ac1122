//! Many calls about VFs at the same time.

use std::thread;

use serde_json::{Value, json};

use super::Behaviour;
use super::testbed::{Attachment, Fault, VfTestbed, ensure};

const GROUP: &str = "at once";

pub(super) const CASES: &[Behaviour] = &[
    Behaviour {
        group: GROUP,
        title: "x08 seven pods on one NIC, each with a VLAN, a rate, a MAC: all succeed",
        judge: seven,
    },
    Behaviour {
        group: GROUP,
        title: "two ADDs for one VF: one succeeds, and has it as it asked",
        judge: two,
    },
];

const PODS: [&str; 7] = ["pod0", "pod1", "pod2", "pod3", "pod4", "pod5", "pod6"];

/// Makes the same call for all attachments at once; returns the first fault.
fn at_once(
    attachments: &[Attachment],
    call: impl Fn(&Attachment) -> Result<(), Fault> + Sync,
) -> Vec<Result<(), Fault>> {
    thread::scope(|scope| {
        let call = &call;
        let begun: Vec<_> = attachments.iter().map(|one| scope.spawn(move || call(one))).collect();
        let panicked = |_| Err(Fault::Wrong("the case panicked".into()));
        begun.into_iter().map(|one| one.join().unwrap_or_else(panicked)).collect()
    })
}

fn wanted(number: usize) -> Value {
    json!({"vlan": 100 + number, "max_tx_rate": 200 + number, "mac": format!("02:00:00:00:01:{number:02}")})
}

fn seven(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    for pod in PODS {
        testbed.pod(pod)?;
    }
    let numbered = || PODS.into_iter().zip(testbed.near.iter().cloned()).enumerate();
    let attachments: Vec<Attachment> =
        numbered().map(|(number, (pod, vf))| Attachment { pod, vf, fields: wanted(number) }).collect();
    at_once(&attachments, |one| testbed.add(one).map(drop)).into_iter().collect::<Result<(), _>>()?;
    for (number, (pod, vf)) in numbered() {
        testbed.set(&vf, &wanted(number))?;
        ensure(testbed.interface(pod)?.is_some(), || format!("{pod} has no interface"))?;
    }
    at_once(&attachments, |one| testbed.del(one)).into_iter().collect::<Result<(), _>>()?;
    testbed.near.iter().try_for_each(|vf| testbed.is_restored(vf))
}

fn two(testbed: &mut VfTestbed<'_>) -> Result<(), Fault> {
    testbed.pod("pod")?;
    testbed.pod("other")?;
    let both =
        [testbed.attachment("pod", json!({"vlan": 100})), testbed.attachment("other", json!({"vlan": 200}))];
    let ended = at_once(&both, |one| testbed.add(one).map(drop));
    let won: Vec<&Attachment> =
        both.iter().zip(&ended).filter(|(_, ended)| ended.is_ok()).map(|(one, _)| one).collect();
    let [winner] = won.as_slice() else {
        return Err(Fault::Wrong(format!("{} of two succeed", won.len())));
    };
    testbed.set(testbed.first(), &json!({"vlan": winner.fields["vlan"]}))?;
    ensure(testbed.interface(winner.pod)?.is_some(), || "the one that succeeded has no interface".into())?;
    both.iter().try_for_each(|one| testbed.del(one))?;
    testbed.is_restored(testbed.first())
}
