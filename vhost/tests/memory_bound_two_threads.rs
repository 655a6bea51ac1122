//! What guests' memory costs, once more, with two poll threads.

#[path = "memory_bound.rs"]
mod memory_bound;
