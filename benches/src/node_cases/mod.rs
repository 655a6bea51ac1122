//! The procedures that run on the private node; each yields the figures of one or two cases.

pub(crate) mod add_under_del;
pub(crate) mod burst;
pub(crate) mod idle;
pub(crate) mod link_removal;
pub(crate) mod one_at_a_time;
mod ours_waiting;
pub(crate) mod standing;
pub(crate) mod vhost_user;
