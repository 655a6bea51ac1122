//! What the cases do: a course is a procedure that yields the figures of one or two cases.

pub(crate) mod burst;
pub(crate) mod contention;
pub(crate) mod idle;
pub(crate) mod one;
pub(crate) mod silence;
