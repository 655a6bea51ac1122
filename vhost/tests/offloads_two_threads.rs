//! Offloads, once more, with two poll threads.

#[path = "offloads.rs"]
mod offloads;
