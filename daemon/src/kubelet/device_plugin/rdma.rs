//! The nodes under `/dev/infiniband` of a function with an RDMA device, from sysfs.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use fairlead_sriov::PciAddr;

use crate::reading::paths_in;

/// Where the kernel lists a function's RDMA nodes below its PCI device, in the order in which they are told.
const CLASSES: [&str; 3] = ["infiniband_cm", "infiniband_mad", "infiniband_verbs"];
/// The connection manager's node, of all devices.
const RDMA_CM: &str = "rdma_cm";

/// A function's RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaNodes {
    /// Its name: `mlx5_2`. Of several (switchdev), the first.
    pub device: String,
    /// Paths of its nodes.
    pub nodes: Vec<String>,
}

impl RdmaNodes {
    /// Those of a function; `None` where it has no RDMA device.
    ///
    /// # Errors
    /// When sysfs can't be read.
    pub fn of(sysfs: &Path, address: PciAddr) -> io::Result<Option<RdmaNodes>> {
        let device = sysfs.join("bus/pci/devices").join(address.to_string());
        let Some(name) = names(&device.join("infiniband"))?.into_iter().next() else { return Ok(None) };
        let mut nodes = Vec::new();
        for class in CLASSES {
            nodes.extend(names(&device.join(class))?);
        }
        if sysfs.join("class/misc").join(RDMA_CM).exists() {
            nodes.push(RDMA_CM.to_owned());
        }
        let nodes = nodes.into_iter().map(|node| format!("/dev/infiniband/{node}")).collect();
        Ok(Some(RdmaNodes { device: name, nodes }))
    }

    /// By kind of node its path; of several of a kind the last.
    pub(super) fn told(&self) -> BTreeMap<&'static str, String> {
        let kinds = ["uverbs", "umad", "issm", "rdma_cm"];
        let of_kind = |path: &String| kinds.into_iter().find(|kind| path.contains(kind));
        let mut told: BTreeMap<&'static str, String> =
            self.nodes.iter().filter_map(|path| Some((of_kind(path)?, path.clone()))).collect();
        told.insert("rdma_dev", self.device.clone());
        told
    }
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let paths = paths_in(directory)?;
    let mut names: Vec<String> =
        paths.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs::create_dir_all;

    use super::*;

    #[test]
    fn the_nodes_of_an_rdma_device_are_those_that_sysfs_lists_for_its_function() {
        let sysfs = tempfile::tempdir().unwrap();
        let address: PciAddr = "0000:08:00.2".parse().unwrap();
        let device = sysfs.path().join("bus/pci/devices/0000:08:00.2");
        for dir in
            ["infiniband/mlx5_2", "infiniband_mad/umad2", "infiniband_mad/issm2", "infiniband_verbs/uverbs2"]
        {
            create_dir_all(device.join(dir)).unwrap();
        }
        create_dir_all(sysfs.path().join("class/misc/rdma_cm")).unwrap();
        let found = RdmaNodes::of(sysfs.path(), address).unwrap().unwrap();
        assert_eq!(found.device, "mlx5_2");
        let wanted = ["issm2", "umad2", "uverbs2", "rdma_cm"].map(|node| format!("/dev/infiniband/{node}"));
        assert_eq!(found.nodes, wanted);
        let other = "0000:08:00.3".parse().unwrap();
        assert_eq!(RdmaNodes::of(sysfs.path(), other).unwrap(), None);
    }
}
