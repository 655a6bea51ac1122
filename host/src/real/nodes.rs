//! Nodes that one of our own threads has open. The kernel has a VFIO group open once: who finds it open by another of us would
//! take that for a process that uses it, and so each waits for the one before.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// All that are open, or being opened.
#[derive(Debug, Clone, Default)]
pub(super) struct Nodes(Arc<Table>);

#[derive(Debug, Default)]
struct Table {
    taken: Mutex<BTreeSet<PathBuf>>,
    freed: Condvar,
}

/// The right to open a node.
#[derive(Debug)]
pub(super) struct Turn {
    nodes: Nodes,
    node: PathBuf,
}

/// A node that is open: closed first, and the next one's then.
#[derive(Debug)]
pub(super) struct Opened {
    _file: File,
    _turn: Turn,
}

impl Nodes {
    /// Waits until no other thread of ours has the node; `TimedOut` when one has it for longer than the limit.
    pub(super) fn turn(&self, node: &Path, limit: Duration) -> io::Result<Turn> {
        let taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut taken, _) = self
            .0
            .freed
            .wait_timeout_while(taken, limit, |taken| taken.contains(node))
            .unwrap_or_else(PoisonError::into_inner);
        if !taken.insert(node.to_owned()) {
            let why = format!("what is done with it just now has not ended within {} s", limit.as_secs_f32());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        Ok(Turn { nodes: self.clone(), node: node.to_owned() })
    }
}

impl Turn {
    /// Opens it.
    pub(super) fn open(self) -> io::Result<Opened> {
        let file = OpenOptions::new().read(true).write(true).open(&self.node)?;
        Ok(Opened { _file: file, _turn: self })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let table = &self.nodes.0;
        table.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.node);
        table.freed.notify_all();
    }
}
