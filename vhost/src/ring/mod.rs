//! Split virtqueues in guest memory, as the device sees them (virtio 1.2, section 2.7), and the network frames in them (5.1.6).
//!
//! - where things lie in a ring: [`layout`]
//! - taking descriptors and giving them back: [`SplitRing`]
//! - from a descriptor to the memory that it names: [`chain`]
//! - frames that a guest sent: [`FrameSource`], [`Frame`]; frames that it gets: [`FrameSink`]
//! - telling the guest, and how long that takes: [`Caller`], [`CallTimes`]
//!
//! virtio-queue, rust-vmm's crate for this, publishes `used.idx` for each packet and looks each address up anew; it was measured at a
//! third to a fifth of this code's speed, hence an own one.
//!
//! Invariants: the guest's words are read once, and every index, address, length and chain is checked at each use. Whatever a guest
//! writes, the answer is a frame, nothing, or a [`RingFault`], after a bounded number of steps.
//!
//! A ring never decides where a frame goes, and never waits.

mod caller;
mod chain;
mod frame;
mod frame_sink;
mod frame_source;
mod layout;
mod ring_fault;
mod split_ring;

#[cfg(test)]
mod call_tests;
#[cfg(test)]
pub(crate) mod guest_model;
#[cfg(test)]
mod hostile_guest_tests;
#[cfg(test)]
mod ring_tests;

pub(crate) use caller::{CallTimes, Caller, GuestEvent, is_eventfd};
pub(crate) use frame::{Frame, HeadSpace};
pub(crate) use frame_sink::{FrameSink, copy_with_head};
pub(crate) use frame_source::{BURST_DESCRIPTORS, FrameSource, FrameTaker};
pub(crate) use ring_fault::RingFault;
pub(crate) use split_ring::{RingFeatures, RingPlace, SplitRing};
