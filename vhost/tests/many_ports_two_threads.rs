//! Many ports, once more, with two poll threads.

#[path = "many_ports.rs"]
mod many_ports;
