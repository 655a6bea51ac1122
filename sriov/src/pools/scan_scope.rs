//! How much of the machine the reconciler compares with the pools. Whoever finds that something may have changed asks for a
//! look; of several that are asked for, the one that compares the most is done.

/// How much of the machine a look compares; a later variant includes the ones before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Look {
    /// Only the members that events were about.
    News,
    /// Everything that is there, before anybody is served: no VFs are created.
    First,
    /// What has come and gone, and what somebody else used.
    Quick,
    /// Also whether what is ready still is.
    Thorough,
}
