//! Captures, once more, with two poll threads.

#[path = "capture.rs"]
mod capture;
