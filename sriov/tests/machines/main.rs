//! Machines as their sysfs shows them: an Intel 82576 as captured from the lab, and what it cannot show, written after
//! documentation that is named where it is used.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod device_plugin;
mod machine;
mod scan;
mod selectors;
mod vf;
