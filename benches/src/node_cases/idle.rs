//! `idle`: what the daemons use when nobody calls.

use std::thread;
use std::time::Duration;

use crate::bench::{Bench, BenchError};
use crate::case_size::CaseSize;
use crate::process_cost;

/// The case's name.
pub(crate) const CASE: &str = "idle";
/// The reading of a daemon's resident memory.
pub(crate) const RSS: &str = "RSS";

/// Runs `idle`.
pub(crate) fn run(bench: &mut Bench, settings: &CaseSize) -> Result<(), BenchError> {
    let daemons: Vec<_> =
        bench.subjects.iter().filter_map(|s| Some((s.name.clone(), s.daemon.as_ref()?.pid))).collect();
    let failed = || BenchError::process("CPU time and memory of an idle daemon");
    // Whatever the cases before have left to be done is done now.
    thread::sleep(Duration::from_secs(2).min(settings.time));
    for _ in 0..settings.rounds {
        let mut before = Vec::new();
        for (_, pid) in &daemons {
            before.push(process_cost::cpu_of(*pid).map_err(failed())?);
        }
        if !daemons.is_empty() {
            thread::sleep(settings.time);
        }
        for ((name, pid), cpu) in daemons.iter().zip(before) {
            let used = process_cost::cpu_of(*pid).map_err(failed())?.saturating_sub(cpu);
            let memory = process_cost::memory_of(*pid).map_err(failed())?;
            let of_one_cpu = used.as_secs_f64() / settings.time.as_secs_f64().max(1e-9);
            // Whole ones of what was used: where the kernel's own count goes over to the next is chance.
            let ticks = used.as_nanos() / process_cost::TICK.as_nanos();
            bench.results.read(CASE, name, "CPU ticks", "", ticks as f64);
            bench.results.read(CASE, name, "CPU of one core", "%", of_one_cpu * 100.0);
            bench.results.read(CASE, name, RSS, "MiB", memory.rss_kib as f64 / 1024.0);
        }
    }
    Ok(())
}
