//! What Multus leaves on a node: its configuration ([`MultusConfig`]) and what it attached ([`cached_attachments`]).
//!
//! Both are read as they are, so that a node changes over with its pods running. Nothing in here opens a file.

mod cache;
mod config;

pub use cache::{CachedAttachment, cached_attachments, cached_result, entry, result_file};
pub use config::{MultusConfig, NetworkSource, is_multus};
