//! `function-vfio`: ADD of a VF that vfio-pci has, beside a macvlan by the same daemon; and how long it takes until the
//! VF can be given again, beside a reset.

use std::io;
use std::time::Instant;

use fairlead_host::PciKernel;
use serde_json::{Value, json};

use super::home::until;
use super::{Functions, rest, succeeded};
use crate::bench::{BenchError, CallFailure};
use crate::cases::Settings;
use crate::exec::Verb;
use crate::network::of_vf;
use crate::subject::{Attachment, Done, Job, Removal, Role};
use crate::verify::{self, Expected};

const CASE: &str = "function-vfio";

/// Runs it.
pub(crate) fn run(vfs: &mut Functions, settings: &Settings) -> Result<(), BenchError> {
    let ours = vfs.subjects.iter().position(|subject| subject.role == Role::Ours);
    let Some(who) = ours else { return Ok(()) };
    for round in 0..settings.warmup + settings.rounds {
        let counts = round >= settings.warmup;
        for address in vfs.in_user_space.clone() {
            given(vfs, who, &address, counts)?;
            beside(vfs, who, counts)?;
        }
    }
    Ok(())
}

/// ADD, DEL, ready again, and a reset of it.
fn given(vfs: &mut Functions, who: usize, address: &str, counts: bool) -> Result<(), BenchError> {
    let config = vfs.subjects[who].config.clone().map(|config| {
        let mut config = of_vf(config, address);
        config["cniVersion"] = json!("1.1.0"); // the first that tells a PCI address
        config
    });
    for pod in vfs.pods(who, 1)? {
        rest();
        let added = named(vfs.call(who, Verb::Add, &pod, config.as_ref()), address);
        rest();
        let done = vfs.call(who, Verb::Del, &pod, config.as_ref());
        let answered = done.as_ref().map_or_else(|_| Instant::now(), |done| done.answer.finished);
        let deleted = succeeded(done);
        let ready = until(address, |address| vfs.subjects[who].has_ready(address))?;
        let begun = Instant::now();
        let reset = vfs.node.kernel.reset(address).map_err(io::Error::other);
        reset.map_err(BenchError::process("resetting a VF"))?;
        let took = begun.elapsed();
        let added = vfs.record(CASE, who, "ADD", Verb::Add, added, counts)?;
        let deleted = vfs.record(CASE, who, "DEL", Verb::Del, deleted, counts)?;
        if added && deleted && counts {
            vfs.figure(CASE, who, "ready again")?.series.record(ready - answered);
            vfs.results.figure_mut(CASE, "floor", "reset")?.series.record(took);
        }
    }
    Ok(())
}

/// ADD and DEL of a macvlan on the PF.
fn beside(vfs: &mut Functions, who: usize, counts: bool) -> Result<(), BenchError> {
    let config = vfs.macvlan.clone();
    for mut pod in vfs.pods(who, 1)? {
        rest();
        let done = vfs.call(who, Verb::Add, &pod, Some(&config));
        let added = succeeded(done).and_then(|done| {
            pod.result = Some(done.answer.stdout.clone());
            verify::attached(&vfs.node, &pod.pod, &Expected::of_result(&done.answer.stdout)?)?;
            Ok(done)
        });
        rest();
        let done = vfs.call(who, Verb::Del, &pod, Some(&config));
        let deleted = succeeded(done).and_then(|done| {
            verify::detached(&vfs.node, &pod.pod, Removal::Silenced)?;
            Ok(done)
        });
        vfs.record(CASE, who, "ADD of a macvlan", Verb::Add, added, counts)?;
        vfs.record(CASE, who, "DEL of a macvlan", Verb::Del, deleted, counts)?;
    }
    Ok(())
}

/// There is no link to look at: the answer names the VF.
fn named(done: io::Result<Done>, address: &str) -> Result<Done, CallFailure> {
    let done = succeeded(done)?;
    let told: Value = serde_json::from_slice(&done.answer.stdout).unwrap_or_default();
    let is_named = told["interfaces"][0]["pciID"] == address && told["ips"][0]["address"].is_string();
    if is_named { Ok(done) } else { Err(CallFailure::NotNamed(address.to_owned())) }
}

impl Functions {
    fn call(&self, who: usize, verb: Verb, pod: &Attachment, config: Option<&Value>) -> io::Result<Done> {
        Job::from(self.subjects[who].invocation(verb, pod, config)).run()
    }
}
