//! A pod's namespace, and what `ip` sees in one.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use fairlead_cni::wire::Inode;
use fairlead_host::real::RealKernel;
use fairlead_host::scratch_netns::ScratchNetns;
use serde_json::Value;

use super::Rig;

/// A pod's network namespace, which lives as long as this value.
pub(crate) struct Pod {
    netns: ScratchNetns,
}

impl Rig {
    /// Makes a new network namespace for a pod.
    pub(crate) fn pod(&self, name: &str) -> Pod {
        Pod { netns: ScratchNetns::new(&self.path("pods"), name).unwrap() }
    }

    /// Does `work` in the node's namespace, with a kernel whose own namespace that is.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce(&RealKernel) -> T + Send) -> T {
        self.node.inside(|| work(&RealKernel::new().unwrap())).unwrap()
    }

    /// The interfaces of the node, one line each.
    pub(crate) fn links(&self) -> Vec<String> {
        links(&self.node)
    }
}

impl Rig {
    /// The settings that the node's PFs hold for their VFs.
    pub(crate) fn vfs(&self) -> Vec<String> {
        let links: Vec<Value> = serde_json::from_slice(&ip(&self.node, "-j link show")).unwrap();
        links.iter().filter_map(|l| l["vfinfo_list"].as_array()).flatten().map(Value::to_string).collect()
    }
}

impl Pod {
    pub(crate) fn path(&self) -> &Path {
        self.netns.path()
    }

    pub(crate) fn inode(&self) -> Inode {
        let meta = std::fs::metadata(self.path()).unwrap();
        Inode { dev: meta.dev(), ino: meta.ino() }
    }

    /// Does `work` in the pod's namespace, with a kernel whose own namespace that is.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce(&RealKernel) -> T + Send) -> T {
        self.netns.inside(|| work(&RealKernel::new().unwrap())).unwrap()
    }

    /// Runs `ip` in the pod's namespace.
    pub(crate) fn ip(&self, words: &str) {
        ip(&self.netns, words);
    }

    /// Runs these orders of `ip` in the pod's namespace, a line each. What one of them meets does not stop the rest.
    pub(crate) fn ip_batch(&self, orders: &str) {
        let mut command = Command::new("ip");
        command.args(["-force", "-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::null());
        let mut child = self.netns.inside(|| command.spawn().unwrap()).unwrap();
        child.stdin.take().unwrap().write_all(orders.as_bytes()).unwrap();
        child.wait().unwrap();
    }

    /// The interfaces of the pod, one line each.
    pub(crate) fn links(&self) -> Vec<String> {
        links(&self.netns)
    }

    /// Checks that the interface is there just as the answer says: name, MAC address and addresses.
    pub(crate) fn has_what_was_answered(&self, ifname: &str, result: &Value) {
        let link = interfaces(&self.netns).into_iter().find(|l| l["ifname"] == ifname);
        let link = link.unwrap_or_else(|| panic!("no {ifname}: {result}"));
        assert_eq!(link["address"], result["interfaces"][0]["mac"], "{link}");
        let ips = result["ips"].as_array().cloned().unwrap_or_default();
        let told: Vec<String> = ips.iter().map(|ip| ip["address"].as_str().unwrap().to_owned()).collect();
        assert_eq!(addresses(&link, &["global", "host"]), told, "{link}");
    }
}

/// Runs `ip` with these words in a namespace.
pub(super) fn ip(netns: &ScratchNetns, words: &str) -> Vec<u8> {
    let out = netns.inside(|| Command::new("ip").args(words.split(' ')).output().unwrap()).unwrap();
    assert!(out.status.success(), "ip {words}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

fn interfaces(netns: &ScratchNetns) -> Vec<Value> {
    serde_json::from_slice(&ip(netns, "-j -d address show")).unwrap()
}

fn addresses(link: &Value, scopes: &[&str]) -> Vec<String> {
    let all = link["addr_info"].as_array().unwrap();
    let wanted = all.iter().filter(|a| a["scope"].as_str().is_some_and(|scope| scopes.contains(&scope)));
    wanted.map(|a| format!("{}/{}", a["local"].as_str().unwrap(), a["prefixlen"])).collect()
}

fn links(netns: &ScratchNetns) -> Vec<String> {
    // A `lo` that is down keeps 127.0.0.1 (scope host), which is nobody's leavings.
    let line = |l: &Value| {
        let up = l["flags"].as_array().unwrap().iter().any(|f| f == "UP");
        let text = |key: &str| l[key].as_str().unwrap_or("-").to_owned();
        let kind = l["linkinfo"]["info_kind"].as_str().unwrap_or("-");
        let fields = [&text("ifname"), kind, &text("address"), &l["mtu"].to_string(), &text("ifalias")];
        let names = &l["altnames"];
        format!("{} up={up} {names} {:?} {}", fields.join(" "), addresses(l, &["global"]), settings(l))
    };
    let mut lines: Vec<String> = interfaces(netns).iter().map(line).collect();
    lines.sort();
    lines
}

/// What else can be set of a link: none of it changes by itself.
fn settings(link: &Value) -> String {
    const FLAGS: [&str; 6] = ["NOARP", "MULTICAST", "PROMISC", "ALLMULTI", "DYNAMIC", "DEBUG"];
    let flags: Vec<&str> = link["flags"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let flags: Vec<&str> = flags.into_iter().filter(|flag| FLAGS.contains(flag)).collect();
    let others = ["group", "txqlen", "broadcast", "gso_max_size", "gso_max_segs", "gro_max_size"];
    format!("{flags:?} {:?}", others.map(|key| link[key].to_string()))
}

impl Pod {
    /// The index of the pod's interface, whatever its name is now.
    pub(crate) fn index(&self) -> Option<u64> {
        interfaces(&self.netns).into_iter().find(|l| l["ifname"] != "lo")?["ifindex"].as_u64()
    }

    /// The name that the pod's interface of this index has now.
    pub(crate) fn name_of(&self, index: u64) -> String {
        let all = interfaces(&self.netns);
        let link = all.iter().find(|l| l["ifindex"] == index).unwrap();
        link["ifname"].as_str().unwrap().to_owned()
    }
}
