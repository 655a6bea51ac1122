//! `function-vfio`: ADD of a VF that vfio-pci has, compared with a macvlan by the same daemon; and how long it
//! takes until the VF is ready again, compared with a reset alone.

use std::io;
use std::time::Instant;

use fairlead_host::PciKernel;
use serde_json::{Value, json};

use super::vf_on_host::until_ready;
use super::{VfBench, let_machine_settle};
use crate::bench::{BenchError, CallFailure, succeeded};
use crate::case_size::CaseSize;
use crate::network_config::IFNAME;
use crate::network_config::of_vf;
use crate::plugin_exec::Verb;
use crate::round::until_one_counts;
use crate::subject::{Attachment, Done, Job, Removal, Role};
use crate::verify::{self, Expected};

const CASE: &str = "function-vfio";

/// Runs `function-vfio`.
pub(crate) fn run(bench: &mut VfBench, settings: &CaseSize) -> Result<(), BenchError> {
    let ours = bench.subjects.iter().position(|subject| subject.role == Role::Ours);
    let Some(who) = ours else { return Ok(()) };
    for round in 0..settings.warmup + settings.rounds {
        until_one_counts(|| one_round(bench, who, round >= settings.warmup))?;
    }
    Ok(())
}

/// All VFs under vfio-pci; false where the hypervisor had the processors meanwhile, so that they are not counted.
fn one_round(bench: &mut VfBench, who: usize, counts: bool) -> Result<bool, BenchError> {
    let round = bench.begin_round()?;
    for address in bench.in_user_space.clone() {
        vfio_add_and_del(bench, who, &address, counts)?;
        macvlan_beside(bench, who, counts)?;
    }
    bench.end_round(CASE, round)
}

/// Measures ADD, DEL, the time until the VF is ready again, and a reset.
fn vfio_add_and_del(bench: &mut VfBench, who: usize, address: &str, counts: bool) -> Result<(), BenchError> {
    let config = bench.subjects[who].config.clone().map(|config| {
        let mut config = of_vf(config, address);
        config["cniVersion"] = json!("1.1.0"); // the first version with PCI addresses in results
        config
    });
    for pod in bench.pods(who, 1)? {
        let_machine_settle();
        let added = named(bench.call(who, Verb::Add, &pod, config.as_ref()), address);
        let_machine_settle();
        let done = bench.call(who, Verb::Del, &pod, config.as_ref());
        let answered = done.as_ref().map_or_else(|_| Instant::now(), |done| done.answer.finished);
        let deleted = succeeded(done);
        let ready = until_ready(address, |address| bench.subjects[who].has_ready(address))?;
        let begun = Instant::now();
        let reset = bench.node.kernel.reset(address).map_err(io::Error::other);
        reset.map_err(BenchError::process("resetting a VF"))?;
        let took = begun.elapsed();
        let added = bench.record(CASE, who, "ADD", Verb::Add, added, counts)?;
        let deleted = bench.record(CASE, who, "DEL", Verb::Del, deleted, counts)?;
        if added && deleted && counts {
            bench.figure(CASE, who, "ready again")?.series.record(ready - answered);
            bench.results.figure_mut(CASE, "floor", "reset")?.series.record(took);
        }
    }
    Ok(())
}

/// Measures ADD and DEL of a macvlan on the PF.
fn macvlan_beside(bench: &mut VfBench, who: usize, counts: bool) -> Result<(), BenchError> {
    let config = bench.macvlan.clone();
    for mut pod in bench.pods(who, 1)? {
        let_machine_settle();
        let done = bench.call(who, Verb::Add, &pod, Some(&config));
        let added = succeeded(done).and_then(|done| {
            pod.result = Some(done.answer.stdout.clone());
            verify::attached(&bench.node, &pod.pod, &Expected::of_result(&done.answer.stdout)?)?;
            Ok(done)
        });
        let_machine_settle();
        let done = bench.call(who, Verb::Del, &pod, Some(&config));
        let deleted = succeeded(done).and_then(|done| {
            verify::detached(&bench.node, &pod.pod, &[IFNAME], Removal::Silenced)?;
            Ok(done)
        });
        bench.record(CASE, who, "ADD of a macvlan", Verb::Add, added, counts)?;
        bench.record(CASE, who, "DEL of a macvlan", Verb::Del, deleted, counts)?;
    }
    Ok(())
}

/// Checks that the answer names the VF, since there is no link to look at.
fn named(done: io::Result<Done>, address: &str) -> Result<Done, CallFailure> {
    let done = succeeded(done)?;
    let result: Value = serde_json::from_slice(&done.answer.stdout).unwrap_or_default();
    let is_named = result["interfaces"][0]["pciID"] == address && result["ips"][0]["address"].is_string();
    if is_named { Ok(done) } else { Err(CallFailure::NotNamed(address.to_owned())) }
}

impl VfBench {
    fn call(&self, who: usize, verb: Verb, pod: &Attachment, config: Option<&Value>) -> io::Result<Done> {
        Job::from(self.subjects[who].invocation(verb, pod, config)).run()
    }
}
