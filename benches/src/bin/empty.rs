//! A program that does nothing: what the spawn of a CNI plugin costs before the plugin has done anything.
//!
//! Built static and without relocations, as the CNI executable is, it is the floor that the suite measures against.

#![forbid(unsafe_code)]

fn main() {}
