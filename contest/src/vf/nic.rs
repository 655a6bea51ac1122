//! The machine's NICs and VFs: found in sysfs, and seen through one listing of all links, as an administrator
//! sees them. Also changes what a case changes from outside: the number of VFs, and their drivers.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::node_commands::{self, NodeError, put, system};

const DEVICES: &str = "/sys/bus/pci/devices";
/// The time that a NIC may be without a carrier.
const CARRIER: Duration = Duration::from_secs(60);

/// A NIC that makes VFs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// The PCI address, such as `0000:21:00.0`.
    pub address: String,
}

/// One VF of a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vf {
    /// The PCI address of the VF.
    pub address: String,
    /// The NIC of the VF.
    pub nic: Nic,
    /// The number of the VF on its NIC.
    pub index: usize,
}

/// What can be seen of a VF: name, addresses and marks of its interface, its driver, and the settings that the PF
/// reports.
pub type VfSnapshot = Map<String, Value>;

impl Nic {
    fn path(&self) -> PathBuf {
        Path::new(DEVICES).join(&self.address)
    }

    /// The name of its interface.
    pub fn name(&self) -> Result<String, NodeError> {
        interface(&self.path())
    }

    /// Removes all VFs of the NIC, and makes so many new ones.
    pub fn make(&self, count: usize) -> Result<Vec<Vf>, NodeError> {
        let numvfs = self.path().join("sriov_numvfs");
        let numvfs = numvfs.to_string_lossy();
        put(&numvfs, "0")?;
        if count > 0 {
            put(&numvfs, &count.to_string())?;
            self.wait_for_carrier()?;
        }
        (0..count).map(|index| self.vf(index)).collect()
    }

    /// Waits for a carrier: igb restarts the link for a new number of VFs, and refuses rates until it has a
    /// carrier again.
    fn wait_for_carrier(&self) -> Result<(), NodeError> {
        let carrier = Path::new("/sys/class/net").join(self.name()?).join("carrier");
        let deadline = Instant::now() + CARRIER;
        // It cannot be read while the interface is down.
        while fs::read_to_string(&carrier).map_or(true, |text| text.trim() != "1") {
            if Instant::now() > deadline {
                let what = format!("wait for a carrier of NIC {}", self.address);
                return Err(system(what)(io::Error::from(io::ErrorKind::TimedOut)));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn vf(&self, index: usize) -> Result<Vf, NodeError> {
        let address = linked(&self.path().join(format!("virtfn{index}")))?;
        Ok(Vf { address, nic: self.clone(), index })
    }
}

impl Vf {
    fn path(&self) -> PathBuf {
        Path::new(DEVICES).join(&self.address)
    }

    /// The name of its interface, where it has one in this namespace.
    pub fn name(&self) -> Result<String, NodeError> {
        interface(&self.path())
    }

    /// The driver that the VF is bound to; empty without one.
    pub fn driver(&self) -> String {
        linked(&self.path().join("driver")).unwrap_or_default()
    }

    /// Unbinds the VF from its driver.
    pub fn unbind(&self) -> Result<(), NodeError> {
        put(&self.path().join("driver/unbind").to_string_lossy(), &self.address)
    }

    /// Binds the VF to this driver and, unless it is the kernel's own, to no other from now on.
    pub fn bind(&self, driver: &str) -> Result<(), NodeError> {
        let fixed = if driver == KERNEL_DRIVER { "\n" } else { driver };
        put(&self.path().join("driver_override").to_string_lossy(), fixed)?;
        if !self.driver().is_empty() {
            self.unbind()?;
        }
        put("/sys/bus/pci/drivers_probe", &self.address)
    }

    /// Opens the IOMMU group of the VF, as a process does that drives it.
    pub fn open_group(&self) -> Result<File, NodeError> {
        let group = linked(&self.path().join("iommu_group"))?;
        let node = format!("/dev/vfio/{group}");
        File::options().read(true).write(true).open(&node).map_err(system(format!("open {node}")))
    }
}

/// The kernel's driver for VFs of the NICs in the lab.
pub const KERNEL_DRIVER: &str = "igbvf";
/// The driver for VFs that a process in user space drives.
pub const USER_DRIVER: &str = "vfio-pci";

fn interface(device: &Path) -> Result<String, NodeError> {
    let names = device.join("net");
    let what = || format!("find an interface in {}", names.display());
    let mut entries = fs::read_dir(&names).map_err(system(what()))?;
    match entries.next() {
        Some(Ok(entry)) => Ok(entry.file_name().to_string_lossy().into_owned()),
        _ => Err(system(what())(io::Error::from(io::ErrorKind::NotFound))),
    }
}

fn linked(link: &Path) -> Result<String, NodeError> {
    let target = fs::read_link(link).map_err(system(format!("read {}", link.display())))?;
    Ok(target.file_name().unwrap_or_default().to_string_lossy().into_owned())
}

/// All interfaces of the current namespace, one object each.
pub fn links() -> Result<Vec<Value>, NodeError> {
    Ok(serde_json::from_str(&node_commands::ip("-j -d link show")?).unwrap_or_default())
}

/// What can be seen of these VFs in the current namespace, by PCI address.
pub fn seen(vfs: &[Vf]) -> Result<BTreeMap<String, VfSnapshot>, NodeError> {
    let links = links()?;
    let of = |address: &str| links.iter().find(|link| link["parentdev"] == address);
    Ok(vfs
        .iter()
        .map(|vf| {
            let mut seen = of(&vf.address).map(of_interface).unwrap_or_default();
            let settings = of(&vf.nic.address)
                .and_then(|nic| nic["vfinfo_list"].as_array()?.iter().find(|entry| entry["vf"] == vf.index));
            seen.extend(settings.map(of_settings).unwrap_or_default());
            seen.insert("driver".into(), json!(vf.driver()));
            (vf.address.clone(), seen)
        })
        .collect())
}

fn of_interface(link: &Value) -> VfSnapshot {
    let is = |flag: &str| link["flags"].as_array().is_some_and(|flags| flags.contains(&json!(flag)));
    object(
        &json!({"name": link["ifname"], "address": link["address"], "mtu": link["mtu"], "alias": link["ifalias"],
        "altnames": link["altnames"], "up": is("UP"), "promiscuous": is("PROMISC") || is("ALLMULTI")}),
    )
}

fn of_settings(entry: &Value) -> VfSnapshot {
    let vlan = &entry["vlan_list"][0];
    object(&json!({"mac": entry["address"], "vlan": vlan["vlan"], "qos": vlan["qos"],
        "max_tx_rate": entry["rate"]["max_tx"], "spoofchk": entry["spoofchk"], "trust": entry["trust"],
        "link_state": entry["link_state"]}))
}

fn object(value: &Value) -> VfSnapshot {
    value.as_object().cloned().unwrap_or_default()
}

/// How `is` differs from `was`, for a reader; `None` when it does not.
pub fn difference(was: &VfSnapshot, is: &VfSnapshot) -> Option<String> {
    let names: std::collections::BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    let changes: Vec<String> = names
        .into_iter()
        .filter(|name| was.get(*name) != is.get(*name))
        .map(|name| {
            let plain = |seen: &VfSnapshot| seen.get(name).map_or("none".to_owned(), Value::to_string);
            format!("{name} {} was {}", plain(is), plain(was))
        })
        .collect();
    (!changes.is_empty()).then(|| changes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_with_both_values_and_what_is_alike_is_not() {
        let was = object(&json!({"name": "eth3", "mtu": 1400}));
        let is = object(&json!({"name": "net1", "mtu": 1400, "vlan": 7}));
        assert_eq!(difference(&was, &was), None);
        assert_eq!(difference(&was, &is).unwrap(), "name \"net1\" was \"eth3\", vlan 7 was none");
    }
}
