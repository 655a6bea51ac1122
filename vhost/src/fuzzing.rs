//! The entry points of the fuzzer (the crate `fairlead-fuzz`): each takes any bytes, and panics if something does not hold that must.
//!
//! They exist with the feature `fuzzing` alone, which no program of a release has. So what they need of the crate stays private: the
//! harnesses lie beside what they drive, and only these functions are seen from outside.

pub use crate::control::fuzzed_requests as control_requests;
pub use crate::dataplane::{fuzzed_messages as messages, fuzzed_rings as rings};
pub use crate::ovs_dpdk::fuzzed_replies as ovsdb_replies;
