//! Guests, once more, with two poll threads.

#[path = "hostile_guest.rs"]
mod hostile_guest;
