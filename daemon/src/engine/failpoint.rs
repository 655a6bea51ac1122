//! The steps of a call at which the crash tests end the daemon ([`fairlead_host::failpoint`]).

/// The steps, in the order in which a call passes them. Every one has a test that dies there.
pub const STEPS: [&str; 13] = [
    "add.begun",
    "add.allocated",
    "add.prepared",
    "add.linked",
    "add.configured",
    "add.committed",
    "del.removing",
    "del.silent",
    "del.silenced",
    "del.home",
    "del.unlinked",
    "del.released",
    "del.removed",
];
