//! The private "node": a network and a mount namespace of this process's own, with a veth pair whose end `eth0` is
//! the master of every interface that is made.
//!
//! Nothing of the host's network is seen or touched, and all of it is gone when the process and its children are.
//! How many macvlans still stand on `eth0` is read from the membership counts of its multicast list: that sees
//! links in namespaces that nobody holds open any more, and takes no lock that an ADD or a DEL waits for.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use fairlead_host::real::RealKernel;
use fairlead_host::{NetError, NetKernel, NetnsError};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// The interface that macvlans are made on.
pub(crate) const MASTER: &str = "eth0";

/// The lines for `ip -batch -` that make the master.
const LINKS: &str =
    "link set lo up\nlink add eth0 type veth peer name wire0\nlink set wire0 up\nlink set eth0 up\n";

/// The all-hosts group, which every interface that is up joins, as `/proc/net/dev_mcast` writes it.
const ALL_HOSTS: &str = "01005e000001";

/// Why the node could not be made or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    /// The kernel refused new namespaces.
    #[error("a network and a mount namespace of its own are refused to the suite: {0}; run it as root")]
    Unshare(#[source] Errno),
    /// A mount failed.
    #[error("mount on {path}: {source}")]
    Mount {
        /// The target of the mount.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: Errno,
    },
    /// A file could not be made, read or removed.
    #[error("{path}: {source}")]
    File {
        /// The file that the step was about.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// `ip` could not be run or failed.
    #[error("the node's links cannot be made with `ip -batch -`: {0}; `apt-get install -y iproute2`")]
    Ip(String),
    /// The kernel refused a question.
    #[error(transparent)]
    Kernel(#[from] NetError),
    /// A pod's namespace cannot be read.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The master is not there, or has not joined the all-hosts group.
    #[error("{MASTER} of the private node is not up within {0:?}")]
    NoMaster(Duration),
    /// Links of removed attachments did not go away.
    #[error("{left} links still stand on {MASTER} {waited:?} after their namespaces were removed")]
    NeverQuiet {
        /// How many links are left.
        left: usize,
        /// How long was waited for them.
        waited: Duration,
    },
}

/// The private node, which this process has entered.
#[derive(Debug)]
pub(crate) struct Node {
    /// The directory where pods' namespaces are mounted.
    dir: PathBuf,
    /// The kernel as seen from the node's namespace.
    pub(crate) kernel: RealKernel,
    /// The interface index of [`MASTER`].
    pub(crate) master: u32,
    /// The links that an empty pod has: the loopback, and what the kernel's tunnel modules add.
    pub(crate) born_with: Vec<String>,
    members_without_pods: usize,
}

impl Node {
    /// Leaves the host's network. Must be called before any other thread is started; `dir` is made.
    pub(crate) fn enter(dir: &Path) -> Result<Node, NodeError> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(NodeError::Unshare)?;
        own_mounts_and(dir)?;
        make_links()?;
        let kernel = RealKernel::new()?;
        let limit = Duration::from_secs(5);
        let started = Instant::now();
        while members()? == 0 {
            if started.elapsed() > limit {
                return Err(NodeError::NoMaster(limit));
            }
            thread::sleep(Duration::from_millis(5));
        }
        let master = kernel.host()?.link_by_name(MASTER)?.ok_or(NodeError::NoMaster(limit))?.index;
        Node::of(dir, kernel, master)
    }

    /// This machine itself, because a VF's driver makes its interface there. Only mounts are private.
    pub(crate) fn this_machine(dir: &Path) -> Result<Node, NodeError> {
        own_mounts_and(dir)?;
        Node::of(dir, RealKernel::new()?, 0)
    }

    fn of(dir: &Path, kernel: RealKernel, master: u32) -> Result<Node, NodeError> {
        let dir = dir.to_owned();
        let mut node = Node { dir, kernel, master, born_with: Vec::new(), members_without_pods: members()? };
        for pod in node.pods("empty", 1)? {
            node.born_with = node.kernel.pod(&pod.path)?.links()?.into_iter().map(|link| link.name).collect();
        }
        Ok(node)
    }

    /// Makes `count` empty namespaces; `tag` distinguishes them from all others of this run.
    pub(crate) fn pods(&self, tag: &str, count: usize) -> Result<Vec<Pod>, NodeError> {
        let (sender, made) = mpsc::channel();
        // A thread of its own: it ends in the last namespace that it made.
        thread::scope(|scope| {
            scope.spawn(|| {
                for at in 0..count {
                    let pod = Pod::make(self.dir.join(format!("{tag}-{at}")));
                    let failed = pod.is_err();
                    if sender.send(pod).is_err() || failed {
                        break;
                    }
                }
                drop(sender);
            });
        });
        made.into_iter().collect()
    }

    /// The number of macvlans on the master, in whatever namespace.
    pub(crate) fn links_left(&self) -> Result<usize, NodeError> {
        Ok(members()?.saturating_sub(self.members_without_pods))
    }

    /// Waits until no macvlan is left on the master, and returns the time at which that was seen.
    pub(crate) fn until_quiet(&self, limit: Duration) -> Result<Instant, NodeError> {
        let started = Instant::now();
        loop {
            let left = self.links_left()?;
            let now = Instant::now();
            if left == 0 {
                return Ok(now);
            }
            if now - started > limit {
                return Err(NodeError::NeverQuiet { left, waited: limit });
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Removes namespaces and waits until the kernel has removed their links.
    pub(crate) fn put_away(&self, pods: Vec<Pod>) -> Result<(), NodeError> {
        drop(pods);
        self.until_quiet(Duration::from_secs(20))?;
        // The rest of the namespaces' end (grace periods, sysctl tables) shows in nothing that could be waited for.
        thread::sleep(Duration::from_millis(20));
        Ok(())
    }
}

/// A pod's network namespace, mounted at a path; removed when dropped.
#[derive(Debug)]
pub(crate) struct Pod {
    /// The path of its namespace, for `CNI_NETNS`.
    pub(crate) path: PathBuf,
}

impl Pod {
    fn make(path: PathBuf) -> Result<Pod, NodeError> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(NodeError::Unshare)?;
        fs::write(&path, "").map_err(|source| NodeError::File { path: path.clone(), source })?;
        mount(Some("/proc/thread-self/ns/net"), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|source| NodeError::Mount { path: path.clone(), source })?;
        Ok(Pod { path })
    }

    /// Removes the namespace, as a runtime does after DEL; the kernel removes its links some milliseconds later.
    pub(crate) fn remove(self) {}
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Nothing to be done about a refusal: the mount namespace dies with this process.
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes mounts private: only this process and its children see what is mounted from now on.
pub(crate) fn own_mounts() -> Result<(), NodeError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(NodeError::Unshare)?;
    let root = Path::new("/");
    mount(None::<&str>, root, None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(|source| NodeError::Mount { path: root.to_owned(), source })
}

/// The same, and makes `dir`, for namespaces.
fn own_mounts_and(dir: &Path) -> Result<(), NodeError> {
    own_mounts()?;
    fs::create_dir_all(dir).map_err(|source| NodeError::File { path: dir.to_owned(), source })
}

fn make_links() -> Result<(), NodeError> {
    let refused = |e: io::Error| NodeError::Ip(e.to_string());
    let mut ip = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(refused)?;
    if let Some(mut stdin) = ip.stdin.take() {
        stdin.write_all(LINKS.as_bytes()).map_err(refused)?;
    }
    let output = ip.wait_with_output().map_err(refused)?;
    if output.status.success() {
        return Ok(());
    }
    Err(NodeError::Ip(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// How many times the all-hosts group was joined on the master: once by the master itself, once for each macvlan.
fn members() -> Result<usize, NodeError> {
    // `/proc/net` is a link to the process's namespace, which is the main thread's: the node's.
    let path = Path::new("/proc/net/dev_mcast");
    let table =
        fs::read_to_string(path).map_err(|source| NodeError::File { path: path.to_owned(), source })?;
    Ok(members_in(&table))
}

fn members_in(table: &str) -> usize {
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|fields| fields.get(1) == Some(&MASTER) && fields.get(4) == Some(&ALL_HOSTS))
        .and_then(|fields| fields.get(2)?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_counted_on_the_master_alone() {
        let table = "1    lo              1     0     01005e000001\n\
                     3    eth0            1     0     3333ff83ec31\n\
                     3    eth0            101   0     01005e000001\n\
                     2    wire0           1     0     01005e000001\n";
        assert_eq!(members_in(table), 101);
        assert_eq!(members_in(""), 0);
    }
}
