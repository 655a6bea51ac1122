//! Uplinks, once more, with two poll threads.

#[path = "uplink.rs"]
mod uplink;
