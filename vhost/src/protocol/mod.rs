//! The vhost-user protocol, as the backend speaks it (QEMU, docs/interop/vhost-user.rst).
//!
//! - the messages and their payloads: [`message`]
//! - messages and file descriptors over the socket: [`Channel`]
//! - what one connection has agreed on and set up: [`Session`], [`Rings`]
//! - why a frontend is refused: [`Refusal`]
//!
//! Message numbers, payload types and feature bits are those of the crate `vhost`. Its backend loop and its state are not used: DPDK's
//! virtio_user in server mode sends SET_VRING_ENABLE before SET_FEATURES when it reconnects, which the crate refuses; it sends
//! SET_VRING_BASE 0 for a ring that was at work and expects us to go on at `used->idx`; and it may send SET_OWNER twice. With the
//! crate, the connection is dropped each time. Its message header and its socket are private.
//!
//! Invariants: every size, index and number of file descriptors is checked before anything is done. A frontend that breaks the
//! protocol loses its own connection and nothing else. Nothing here waits: a socket that has no data is left until it has,
//! and what guests sent is closed elsewhere.

mod channel;
mod features;
mod message;
mod received_fd;
mod refusal;
mod session;
mod vring;

pub(crate) use channel::Channel;
pub(crate) use features::Offer;
pub(crate) use message::Reply;
pub(crate) use refusal::Refusal;
pub(crate) use session::{Rings, Session};
