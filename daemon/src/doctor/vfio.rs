//! VFs that vfio-pci has: whether a pod can get them, and what a pod that is not root needs besides.
//!
//! It opens no group, and never changes the owner or mode of a node: the operator decides who may have a device.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fairlead_sriov::{Inventory, ScannedVf, VFIO_PCI};

use crate::finding::{Finding, good, less, wrong};
use crate::node_paths::VFIO_NODES;

const ABOUT: &str = "vfio";

/// The remedy where only root may open the VFs' groups.
const FOR_OTHERS: &str = "for pods that are not root: a rule of udev for SUBSYSTEM==\"vfio\" with the OWNER, GROUP and MODE of their user, \
or containerd's device_ownership_from_security_context; and a limit of locked memory (memlock) for all that they map, or CAP_IPC_LOCK";

/// The remedy where no node of a VF's group is seen.
const NO_NODE: &str = "the daemon must see the host's /dev below --host-root, in a privileged container: deploy/overlays/sriov-dpdk, \
or the chart with vfio: true";

/// Looks at every VF that vfio-pci has. `nodes` is the host's [`VFIO_NODES`] as this process sees it.
pub(super) fn findings(sysfs: &Path, nodes: &Path) -> Vec<Finding> {
    let scan = match Inventory::new(sysfs).scan(&[]) {
        Ok(scan) => scan,
        Err(error) => return vec![less(ABOUT, error.to_string(), "mount sysfs")],
    };
    let all = scan.physical.into_iter().flat_map(|physical| physical.vfs);
    let given: Vec<_> = all.filter(|f| f.vf.driver.as_deref() == Some(VFIO_PCI)).collect();
    let (mut findings, mut roots) = (Vec::new(), Vec::new());
    for vf in &given {
        match unfit(vf, nodes) {
            Some(finding) => findings.push(finding),
            None => roots.extend(vf.vf.iommu_group.filter(|group| is_roots_alone(nodes, *group))),
        }
    }
    roots.sort_unstable();
    roots.dedup();
    if !roots.is_empty() {
        let listed: Vec<_> = roots.iter().map(|group| on_host(*group)).collect();
        findings.push(less(ABOUT, format!("{}: root's alone", listed.join(", ")), FOR_OTHERS));
    }
    if findings.is_empty() && !given.is_empty() {
        findings.push(good(ABOUT, format!("{} VFs for processes to drive", given.len())));
    }
    findings
}

/// The finding about a VF that no pod can use; `None` for one that is fit.
fn unfit(vf: &ScannedVf, nodes: &Path) -> Option<Finding> {
    let address = vf.vf.address;
    let no_iommu = "switch the machine's IOMMU on (in its firmware, and intel_iommu=on or amd_iommu=on)";
    let Some(group) = vf.vf.iommu_group else {
        return Some(wrong(ABOUT, format!("{address} is in no IOMMU group"), no_iommu));
    };
    if let Some(member) = vf.group.iter().find(|member| member.is_in_the_way_of_vfio()) {
        let driver = member.driver.as_deref().unwrap_or_default();
        let seen =
            format!("{address} shares IOMMU group {group} with {}, which {driver} drives", member.device);
        return Some(wrong(ABOUT, seen, "bind that device to vfio-pci or to no driver"));
    }
    if nodes.join(format!("noiommu-{group}")).exists() {
        let seen = format!("{address} is behind no IOMMU (noiommu-{group}): only a pool may give it out");
        let remedy = format!("{no_iommu}, or have its pool say allowNoIommu: true");
        return Some(less(ABOUT, seen, remedy));
    }
    if !nodes.join(group.to_string()).exists() {
        return Some(wrong(ABOUT, format!("{address} has no node {}", on_host(group)), NO_NODE));
    }
    None
}

/// The node of a group as the host has it, for a person.
fn on_host(group: u32) -> String {
    format!("{VFIO_NODES}/{group}")
}

fn is_roots_alone(nodes: &Path, group: u32) -> bool {
    let node = fs::metadata(nodes.join(group.to_string()));
    node.is_ok_and(|node| {
        let by_group = node.mode() & 0o060 == 0o060 && node.gid() != 0;
        node.uid() == 0 && !by_group && node.mode() & 0o006 != 0o006
    })
}
