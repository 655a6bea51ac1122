//! Which port a frame goes to: a learning Ethernet switch for each network, with VLANs, spoof check, isolation and limits.
//!
//! - what one port may do: [`PortRules`]; what a switch holds in all: [`Limits`]
//! - what is decided of a frame: [`Decision`]
//!
//! Invariants: no frame reaches a port of another network or of another VLAN; isolated ports do not reach each other; a port's own
//! address is never learnt behind another port; no table grows past its bound. A frame costs at most five look-ups in tables: where its
//! destination is, and whether its source is known and nobody else's. Nothing is allocated for it.
//!
//! Where several threads forward frames, each has a switch of its own, and every switch has all ports under the same indices: those that
//! its thread serves, and those that are elsewhere. So whatever is decided is decided by all rules that there are. A frame to a port
//! elsewhere is judged where it came in, and once more, for what its receiver may get, where it goes out ([`Switch::relay`]). What one
//! switch learns it tells the others ([`Sighting`]).
//!
//! The module is pure: it does no I/O, it has no clock but the time that it is given, and it never reads a frame past the head that
//! it is shown. It never trusts a byte of that head.

mod address_table;
mod decision;
mod frame_head;
mod keyed_hash;
mod learning_switch;
mod port_rules;
mod port_state;
mod source_check;
mod token_bucket;
mod vlan_membership;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod test_frames;

pub use address_table::TableSlice;
pub use decision::{
    Coarse, Decision, FloodedFrame, FrameSize, LearntAddress, PortIndex, Sighting, TagChange,
};
pub use frame_head::HEAD_BYTES;
pub(crate) use frame_head::network_header;
pub use learning_switch::Switch;
pub use port_rules::{Limits, PortRules, TooManyPorts};
