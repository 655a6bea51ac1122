//! Behaviour cases for CNI plugins that take the implementation as an argument: the same cases judge the reference
//! plugins, Fairlead, and any other that is named by its directory.
//!
//! Three parts: the equality [`table`] (reference and subject side by side, everything that can be seen of them
//! compared), the cases of the specification ([`spec`]), and both at once on one host-local directory
//! ([`shared_store`]). Everything happens in mount, process and network namespaces that die with the program
//! ([`test_node`]); the host's own interfaces and files are never touched.

#![forbid(unsafe_code)]

pub mod allowed_differences;
pub mod case;
pub mod diff;
pub mod disturbance;
pub mod implementation;
pub mod kernel_kinds;
mod link_removal;
pub mod node_commands;
pub mod normalise;
pub mod observe;
pub mod process;
pub mod report;
pub mod row_attempts;
pub mod run_row;
pub mod shared_store;
pub mod spec;
pub mod table;
pub mod test_node;
pub mod vf;
