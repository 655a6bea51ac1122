//! Where the path of a spooled request's namespace leads by now: it may have been given to another pod since (X22).

use std::path::Path;

use fairlead_cni::wire::{Inode, Spooled};
use fairlead_host::NetnsId;

use super::Core;
use crate::engine::attachment_request::Sandbox;

impl Core {
    /// The path of a request's namespace. Of a spooled request it is empty, which the specification has for a namespace that is gone,
    /// where the path leads to another one by now.
    pub(crate) fn netns_now<'a>(&self, sandbox: &Sandbox<'a>) -> &'a str {
        let Some(spooled) = sandbox.spooled else { return sandbox.netns };
        let path = Path::new(sandbox.netns);
        if !self.records.is_of_this_boot(&spooled.boot_id) {
            return "";
        }
        match self.kernel().pod(path) {
            Ok(pod) if !is_that(spooled, sandbox.netns_inode, pod.id()) => "",
            // What cannot be entered now is told by whoever enters it.
            Ok(_) | Err(_) => sandbox.netns,
        }
    }
}

/// Whether the namespace is provably the one that the executable saw.
fn is_that(spooled: &Spooled, seen: Option<Inode>, here: &NetnsId) -> bool {
    match (spooled.cookie, here.cookie) {
        (Some(seen), Some(here)) => seen == here,
        _ => seen == Some(Inode { dev: here.dev, ino: here.ino }),
    }
}
