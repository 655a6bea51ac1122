//! Ours with `del: wait`, which answers a DEL when the link is gone, as all other plugins do: so like is held against like. It has a daemon
//! of its own, which lives for as long as the case that measures it.

use std::sync::Arc;

use crate::bench::{Bench, BenchError};
use crate::daemon::Daemon;
use crate::subject::{OURS_WAITING, Role, Subject};

/// Runs a case, and then again with that subject alone: what its daemon still does after a burst, and the end of its pods' namespaces, is in
/// no other's way. Only once where ours is left out.
pub(super) fn after_the_others(
    bench: &mut Bench,
    case: impl Fn(&mut Bench) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    case(bench)?;
    let Some(waiting) = start(bench)? else { return Ok(()) };
    let others = std::mem::replace(&mut bench.subjects, vec![waiting]);
    let outcome = case(bench);
    bench.subjects = others;
    outcome
}

/// Starts it, on the same network and allocations as ours.
fn start(bench: &Bench) -> Result<Option<Subject>, BenchError> {
    let ours = bench.subjects.iter().find(|s| s.role == Role::Ours);
    let (Some(ours), Some(waiting)) = (ours, &bench.waiting) else { return Ok(None) };
    let paths = &waiting.paths;
    let daemon = Daemon::start(&waiting.daemon, paths, "del: wait\n")?;
    Ok(Some(Subject {
        name: OURS_WAITING.to_owned(),
        role: Role::OursWaiting,
        binary: ours.binary.clone(),
        version: ours.version.clone(),
        config: ours.config.clone(),
        environment: paths.environment(),
        daemon: Some(Arc::new(daemon)),
        interfaces: ours.interfaces,
    }))
}
