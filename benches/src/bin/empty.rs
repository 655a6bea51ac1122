//! A program that does nothing: what the spawn of a static Rust program costs before it has done anything.
//!
//! Built without relocations, as the CNI executable is, it is the floor that the suite's targets were set against. It has the start of
//! Rust's standard library (16 system calls, 8 page faults), which the CNI executable leaves out: a spawn can cost less than this one.

#![forbid(unsafe_code)]

fn main() {}
