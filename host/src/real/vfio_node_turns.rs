//! Nodes of vfio that one of our own threads has open. The kernel lets a VFIO group be open once: a thread that finds it open by
//! another of us would take that for a process that uses the device. So each waits for the one before.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// All nodes that are open, or being opened.
#[derive(Debug, Clone, Default)]
pub(super) struct VfioNodes(Arc<Table>);

#[derive(Debug, Default)]
struct Table {
    reserved: Mutex<BTreeSet<PathBuf>>,
    released: Condvar,
}

/// The right to open a node, which one thread at a time has.
#[derive(Debug)]
pub(super) struct NodeReservation {
    nodes: VfioNodes,
    node: PathBuf,
}

/// A node that is open. The fields drop in order: the file is closed before the next thread may open it.
#[derive(Debug)]
pub(super) struct OpenNode {
    _file: File,
    _reservation: NodeReservation,
}

impl VfioNodes {
    /// Waits until no other thread of ours has the node; `TimedOut` when one has it for longer than the limit.
    pub(super) fn reserve(&self, node: &Path, limit: Duration) -> io::Result<NodeReservation> {
        let mut reserved = self.0.reserved.lock();
        self.0.released.wait_while_for(&mut reserved, |reserved| reserved.contains(node), limit);
        if !reserved.insert(node.to_owned()) {
            let why = format!("what is done with it just now has not ended within {} s", limit.as_secs_f32());
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
        Ok(NodeReservation { nodes: self.clone(), node: node.to_owned() })
    }
}

impl NodeReservation {
    /// Opens the node for reading and writing.
    pub(super) fn open(self) -> io::Result<OpenNode> {
        let file = OpenOptions::new().read(true).write(true).open(&self.node)?;
        Ok(OpenNode { _file: file, _reservation: self })
    }
}

impl Drop for NodeReservation {
    fn drop(&mut self) {
        let table = &self.nodes.0;
        table.reserved.lock().remove(&self.node);
        // All of them: one alone could be a thread that waits for another node.
        table.released.notify_all();
    }
}
