//! A private node for one implementation and one case: a network namespace with masters to build on, pods beside
//! it, and its own empty `/run` and `/var/lib`.
//!
//! Two test nodes are alike to the last MAC, index and path, so what two implementations leave on them can be
//! compared word for word. A test node belongs to the thread that created it and dies with it: nothing is
//! mounted, created or named outside. Only [`TestNode::of_this_machine`] looks at the network that the program
//! was started in.

use std::collections::BTreeMap;
use std::fs::{self, File};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::node_commands::{NodeError, ip_batch, put, system};

/// The names and MAC addresses of the masters on every test node, and the MAC addresses of their peers.
pub const MASTER_MACS: [(&str, &str, &str); 4] = [
    ("eth0", "02:00:5e:00:00:01", "02:00:5e:00:00:81"),
    ("eth1", "02:00:5e:00:00:02", "02:00:5e:00:00:82"),
    ("small0", "02:00:5e:00:00:03", "02:00:5e:00:00:83"),
    ("dev0", "02:00:5e:00:00:04", "02:00:5e:00:00:84"),
];

/// The directory of the node's own files (resolv.conf for host-local and the like), the same on every test node.
pub const FILES_DIR: &str = "/run/contest";

/// The node of one implementation.
#[derive(Debug)]
pub struct TestNode {
    node: File,
    pods: BTreeMap<String, File>,
}

impl TestNode {
    /// Moves the calling thread into a new node with masters. The thread can't come back: use a thread made for
    /// the case, and let it end with the case.
    pub fn create() -> Result<TestNode, NodeError> {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
            .map_err(system("leave the host's namespaces"))?;
        mount_over("sysfs", "/sys")?;
        let node = TestNode::with_empty_directories()?;
        node.make_masters()?;
        crate::observe::settle()?;
        Ok(node)
    }

    /// The same on the machine's own network, for real NICs, which cannot exist twice. Only pods, `/run` and
    /// `/var/lib` are the test node's.
    pub fn of_this_machine() -> Result<TestNode, NodeError> {
        unshare(CloneFlags::CLONE_NEWNS).map_err(system("leave the host's mounts"))?;
        TestNode::with_empty_directories()
    }

    fn with_empty_directories() -> Result<TestNode, NodeError> {
        mount_over("tmpfs", "/run")?;
        mount_over("tmpfs", "/var/lib")?;
        for dir in ["/run/netns", "/run/lock", FILES_DIR] {
            fs::create_dir_all(dir).map_err(system(format!("make {dir}")))?;
        }
        Ok(TestNode { node: own_netns()?, pods: BTreeMap::new() })
    }

    fn make_masters(&self) -> Result<(), NodeError> {
        // Without this the masters' own link-local addresses appear at a time of their own choosing.
        put("/proc/sys/net/ipv6/conf/default/accept_dad", "0")?;
        let mut lines = vec!["link set lo up".to_owned()];
        for (name, mac, wire_mac) in MASTER_MACS {
            let wire = format!("{name}.wire");
            lines
                .push(format!("link add {name} address {mac} type veth peer name {wire} address {wire_mac}"));
            lines.push(format!("link set {wire} up"));
        }
        lines.push("link set small0 mtu 1400".into());
        for name in ["eth0", "eth1", "small0"] {
            lines.push(format!("link set {name} up"));
        }
        lines.push("addr add 192.0.2.10/24 dev eth0".into());
        lines.push("route add default via 192.0.2.1 dev eth0".into());
        ip_batch(&lines)?;
        put(&format!("{FILES_DIR}/resolv.conf"), RESOLV_CONF)
    }

    /// Makes a pod: a network namespace with nothing but `lo`, mounted at `/run/netns/<name>`. With `settled` the
    /// kernel assigns its link-local addresses at once, so that nobody has to wait for them.
    pub fn add_pod(&mut self, name: &str, settled: bool) -> Result<(), NodeError> {
        let path = TestNode::netns_path(name);
        File::create(&path).map_err(system(format!("make {path}")))?;
        unshare(CloneFlags::CLONE_NEWNET).map_err(system(format!("make the pod {name}")))?;
        let made = own_netns().and_then(|pod| {
            mount(
                Some("/proc/thread-self/ns/net"),
                path.as_str(),
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )
            .map_err(system(format!("hold {path}")))?;
            if settled {
                put("/proc/sys/net/ipv6/conf/default/accept_dad", "0")?;
            }
            Ok(pod)
        });
        self.return_to_node()?;
        self.pods.insert(name.to_owned(), made?);
        Ok(())
    }

    /// Removes a pod as a runtime does: first its path, and with the last reference the namespace.
    pub fn remove_pod(&mut self, name: &str) -> Result<(), NodeError> {
        self.pods.remove(name);
        let path = TestNode::netns_path(name);
        // Somebody may be looking at it just now: runtimes and ip(8) detach it, too.
        umount2(path.as_str(), MntFlags::MNT_DETACH).map_err(system(format!("release {path}")))?;
        fs::remove_file(&path).map_err(system(format!("remove {path}")))
    }

    /// The value of `CNI_NETNS` for a pod.
    pub fn netns_path(pod: &str) -> String {
        format!("/run/netns/{pod}")
    }

    /// Does `work` inside a pod's network namespace.
    pub fn in_pod<T>(&self, name: &str, work: impl FnOnce() -> Result<T, NodeError>) -> Result<T, NodeError> {
        let pod = self.pods.get(name).ok_or_else(|| NodeError::NoPod(name.to_owned()))?;
        setns(pod, CloneFlags::CLONE_NEWNET).map_err(system(format!("enter the pod {name}")))?;
        let done = work();
        self.return_to_node()?;
        done
    }

    fn return_to_node(&self) -> Result<(), NodeError> {
        setns(&self.node, CloneFlags::CLONE_NEWNET).map_err(system("return to the node"))
    }
}

fn mount_over(fstype: &str, target: &str) -> Result<(), NodeError> {
    mount(Some(fstype), target, Some(fstype), MsFlags::empty(), None::<&str>)
        .map_err(system(format!("mount {target}")))
}

fn own_netns() -> Result<File, NodeError> {
    File::open("/proc/thread-self/ns/net").map_err(system("open its own network namespace"))
}

const RESOLV_CONF: &str = "# as a node has it\nnameserver 192.0.2.53\nnameserver 2001:db8::53\n\
                           domain example.org\nsearch a.example.org b.example.org\noptions ndots:2 timeout:1\n";
