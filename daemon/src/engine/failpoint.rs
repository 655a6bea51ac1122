//! The steps of a call at which the crash tests end the daemon ([`fairlead_host::failpoint`]).

/// The steps, in the order in which a call passes them; with an executed IPAM `add.linked` comes before `add.allocated`. Every one has a test that dies there; `forget.released`,
/// a step of the operator's order, has its own in `daemon/tests/crash/removals_that_fail.rs`.
pub const STEPS: [&str; 14] = [
    "add.begun",
    "add.allocated",
    "add.prepared",
    "add.linked",
    "add.configured",
    "add.committed",
    "del.removing",
    "del.silent",
    "del.silenced",
    "del.leaving",
    "del.home",
    "del.unlinked",
    "del.released",
    "del.removed",
];
