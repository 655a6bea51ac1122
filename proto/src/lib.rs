//! Fairlead's own gRPC: the messages, the client and the server of `fairlead/v1/remote_cni.proto`.
//!
//! Nothing in here is written by hand: `make generate` makes it of the interface, and a test says when it is no longer the same. It
//! is kept in the repository, so that whoever reads or builds Fairlead needs no compiler of interfaces.

#![forbid(unsafe_code)]

/// What `fairlead/v1` says.
#[allow(missing_docs, unused_qualifications, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod v1 {
    include!("generated/fairlead.v1.rs");
}

/// The interface in the form that gRPC's reflection answers with: an encoded `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");
