//! What definitions may use that tenants wrote, and what no text of theirs may ever reach.
//!
//! A tenant's text comes in by one door, [`Definition::read`]. It is judged by [`decide`], which is pure: it knows the section
//! `policy` of the configuration ([`PolicySettings`]), whose text it is ([`Source`]), and the values that the engine's own parsers
//! read ([`Interface`]). It never looks at the host, nor at the raw text. The administrator's text is never judged here.

mod data_dir;
mod decide;
mod definition;
mod host_ports;
mod interface;
mod invariants;
mod isolation;
mod refusal;
mod rule;
mod settings;
mod source;
#[cfg(test)]
mod tests;

pub use decide::{decide, rule_of};
pub use definition::{Definition, DefinitionError};
pub(crate) use definition::{executed_data_dir, with_name};
pub use host_ports::may_have_host_ports;
pub use interface::{Addresses, Interface, Link};
pub use invariants::data_dir_root;
pub use isolation::{may_use, may_use_isolated};
pub use refusal::Refusal;
pub use settings::{Glob, NamespaceSelector, PolicySettings, PortRange, Privilege, Rule, VlanRange};
pub use source::{InvalidNamespace, Source, Tenant, address_directory};
