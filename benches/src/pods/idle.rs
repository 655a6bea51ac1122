//! `pod-idle`: what a daemon that has nothing to do holds in memory of a large node's pods and definitions.

use std::thread;

use super::{BY_WATCH, PodBench, networks};
use crate::bench::BenchError;
use crate::case_size::CaseSize;
use crate::process_cost;

const CASE: &str = "pod-idle";
/// The reading of its memory.
pub(crate) const WATCHING: &str = "RSS while it watches";

/// Runs it: `calls` pods, `at_once` definitions.
pub(crate) fn run(run: &mut PodBench, settings: &CaseSize) -> Result<(), BenchError> {
    if run.own.is_none() {
        return Ok(());
    }
    let names: Vec<_> = (0..settings.calls).map(|at| format!("idle-{at}")).collect();
    run.cluster.make_pods(&names)?;
    run.cluster.has_definitions(settings.at_once, &networks::second(&run.bench.data_dir))?;
    for _ in 0..settings.rounds {
        let Some(own) = &run.own else { break };
        let daemon = own.start()?;
        thread::sleep(settings.time);
        let read = process_cost::memory_of(daemon.pid);
        let memory = read.map_err(BenchError::process("the memory of an idle daemon"))?;
        run.bench.results.read(CASE, BY_WATCH, WATCHING, "MiB", memory.rss_kib as f64 / 1024.0);
        run.bench.results.read(CASE, BY_WATCH, "its peak", "MiB", memory.peak_kib as f64 / 1024.0);
    }
    run.forget(&names)
}
