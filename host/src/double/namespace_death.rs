//! The death of a namespace in memory: its virtual links end with it, its physical ones come home.

use std::path::Path;
use std::time::Instant;

use super::left_on_link::LeftOnLink;
use super::model::{HOST, Model};
use crate::seam::{Kind, Link};

/// A physical link of a dead namespace, on its way to the host's.
#[derive(Debug)]
pub(super) struct FallingLink {
    /// When it is there.
    home: Instant,
    link: Link,
    left: Option<LeftOnLink>,
}

impl Model {
    pub(super) fn kill_namespace(&mut self, path: &Path) {
        let Some(key) = self.paths.remove(path).filter(|key| *key != HOST) else { return };
        self.paths.retain(|_, other| *other != key);
        let Some(mut dead) = self.namespaces.remove(&key) else { return };
        self.free_inodes.push(dead.id.ino);
        let physical = |link: &Link| !link.loopback && link.kind == Kind::Other { name: String::new() };
        let home = Instant::now() + self.fall;
        let links = dead.links.into_values().filter(physical);
        self.falling.extend(links.map(|link| {
            let left = dead.left.remove(&link.index);
            FallingLink { home, link, left }
        }));
        self.end_falls();
    }

    /// Moves the physical links of dead namespaces home when their time has come, as the kernel does: down, renamed where the
    /// name is taken, and without those alternative names that are.
    pub(super) fn end_falls(&mut self) {
        let Some(host) = self.namespaces.get_mut(&HOST) else { return };
        let now = Instant::now();
        let fallen = self.falling.extract_if(.., |falling| falling.home <= now);
        for FallingLink { mut link, left, .. } in fallen {
            link.up = false;
            link.alt_names.retain(|name| host.named(&name.text()).is_none());
            let clash = host.named(&link.name).is_some();
            let index = host.insert(link);
            host.left.extend(left.map(|left| (index, left)));
            if let Some(link) = host.links.get_mut(&index).filter(|_| clash) {
                link.name = format!("dev{index}");
            }
        }
    }
}
