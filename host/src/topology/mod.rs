//! The machine's NUMA nodes: their processors and how far they are from each other, as sysfs shows them.
//!
//! A value, read at once and read again when somebody wants to know again: nodes come and go with memory and processors that
//! are plugged. Reads only. A device's node is not here: it stands with the device (`numa_node`).

mod cpu_list;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use cpu_list::{BadCpuList, CpuList, isolated};

/// A node comes or goes while its files are read: they are read once more, this often.
const ATTEMPTS: usize = 5;

/// All nodes that are online; none on a machine (or a kernel) without NUMA.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    nodes: BTreeMap<u32, Node>,
}

/// A NUMA node: a set of processors and the memory next to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its processors; none where it is memory alone (CXL, HBM).
    pub cpus: CpuList,
    /// How far the other nodes' memory is, as the firmware says (SLIT): 10 is its own.
    distances: BTreeMap<u32, u32>,
}

/// Why the nodes are not known.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// Sysfs cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file that was read.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// A file does not say what the kernel writes there.
    #[error("{}: {source}", path.display())]
    List {
        /// The file that was read.
        path: PathBuf,
        /// What it says.
        #[source]
        source: BadCpuList,
    },
    /// A node's distances are not as many as there are nodes.
    #[error("{} has {found:?} for {online} nodes that are online", path.display())]
    Distances {
        /// The file that was read.
        path: PathBuf,
        /// What it says.
        found: String,
        /// How many nodes there are.
        online: usize,
    },
}

impl Topology {
    /// `sysfs` is where sysfs is mounted: `/sys`.
    pub fn read(sysfs: &Path) -> Result<Topology, TopologyError> {
        let dir = sysfs.join("devices/system/node");
        let mut left = ATTEMPTS;
        loop {
            left -= 1;
            match read(&dir) {
                Err(_) if left > 0 => {}
                done => return done,
            }
        }
    }

    /// The nodes that are online, by number.
    pub fn nodes(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.nodes.iter().map(|(number, node)| (*number, node))
    }

    /// The node of a processor; `None` for one that is offline or unknown.
    pub fn node_of_cpu(&self, cpu: u32) -> Option<u32> {
        self.nodes().find(|(_, node)| node.cpus.contains(cpu)).map(|(number, _)| number)
    }

    /// How far `to`'s memory is from `from`'s processors; `None` where one of them is no node that is online.
    pub fn distance(&self, from: u32, to: u32) -> Option<u32> {
        self.nodes.get(&from)?.distances.get(&to).copied()
    }
}

fn read(dir: &Path) -> Result<Topology, TopologyError> {
    let Some(online) = list(&dir.join("online"))? else { return Ok(Topology::default()) };
    let mut nodes = BTreeMap::new();
    for number in online.iter() {
        let dir = dir.join(format!("node{number}"));
        let cpus = list(&dir.join("cpulist"))?.unwrap_or_default();
        nodes.insert(number, Node { cpus, distances: distances(&dir.join("distance"), &online)? });
    }
    Ok(Topology { nodes })
}

/// One number for every node that is online, in their order.
fn distances(path: &Path, online: &CpuList) -> Result<BTreeMap<u32, u32>, TopologyError> {
    let text = fs::read_to_string(path).map_err(failed(path))?;
    let numbers: Result<Vec<u32>, _> = text.split_whitespace().map(str::parse).collect();
    match numbers {
        Ok(numbers) if numbers.len() == online.len() => Ok(online.iter().zip(numbers).collect()),
        _ => Err(TopologyError::Distances {
            path: path.to_owned(),
            found: text.trim().to_owned(),
            online: online.len(),
        }),
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> TopologyError {
    let path = path.to_owned();
    move |source| TopologyError::Io { path, source }
}

/// A list of numbers; `None` where there is no such file.
fn list(path: &Path) -> Result<Option<CpuList>, TopologyError> {
    match fs::read_to_string(path) {
        Ok(text) => match text.parse() {
            Ok(list) => Ok(Some(list)),
            Err(source) => Err(TopologyError::List { path: path.to_owned(), source }),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(path)(e)),
    }
}
