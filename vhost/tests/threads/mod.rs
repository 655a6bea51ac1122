//! How many poll threads a file of tests has. `NAME_two_threads.rs` is `NAME.rs` once more, with two: their ports are on both in turn.

use fairlead_host::topology::CpuList;
use fairlead_vhost::dataplane::{Options, PollPlace};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// Two in the files whose name says so.
pub(crate) fn count() -> usize {
    if env!("CARGO_CRATE_NAME").ends_with("_two_threads") { 2 } else { 1 }
}

/// The options of a data plane with so many threads, on any processors.
pub(crate) fn options() -> Options {
    Options { places: vec![PollPlace::default(); count()], ..Options::default() }
}

/// The same for the program.
pub(crate) fn arguments() -> Vec<String> {
    let allowed = allowed_cpus();
    (0..count()).map(|_| format!("--cpus={allowed}")).collect()
}

/// The processors that this process, and what it starts, may use.
pub(crate) fn allowed_cpus() -> CpuList {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let allowed = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap());
    allowed.map(|cpu| u32::try_from(cpu).unwrap()).collect()
}
