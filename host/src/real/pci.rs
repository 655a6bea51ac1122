//! PCI devices: who drives one, its reset, whether it answers, and whether its IOMMU group is free. By the files of sysfs
//! and the nodes of vfio.
//!
//! A write there lasts until the driver has done its work, and a broken driver never does: so each goes through
//! [`DriverCalls`], on a thread of its own and with a time limit.
//!
//! Nothing here opens a device, a descriptor of a group lives for one call, and no node's owner or mode is ever changed.

mod device_probe;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::driver_call_timeout::DriverCalls;
use super::vfio_node_turns::{OpenNode, VfioNodes};
use crate::VFIO_PCI;
use crate::seam::{IommuGroup, NetError, Override};

/// A driver has its device ready in a tenth of a second; in bad cases it tries for some seconds.
const LIMIT: Duration = Duration::from_secs(20);
/// Creating VFs takes a driver longer, a little for each of them.
const CREATE_LIMIT: Duration = Duration::from_secs(120);
/// A call that only reads is done at once; but those that open a node wait on each other.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// The PCI bus of a machine.
#[derive(Debug, Clone)]
pub(super) struct PciBus {
    bus: PathBuf,
    nodes: PathBuf,
    limit: Duration,
    calls: DriverCalls,
    open_nodes: VfioNodes,
}

impl PciBus {
    /// The bus of this machine; `nodes` is the directory of vfio's groups. Calls that hang are recorded in `calls`.
    pub(super) fn of_this_machine(nodes: &Path, calls: &DriverCalls) -> PciBus {
        PciBus { calls: calls.clone(), ..PciBus::at(Path::new("/sys"), nodes, LIMIT) }
    }

    /// The bus that is shown in the sysfs that is mounted at `sysfs`.
    fn at(sysfs: &Path, nodes: &Path, limit: Duration) -> PciBus {
        let (calls, open_nodes) = (DriverCalls::default(), VfioNodes::default());
        PciBus { bus: sysfs.join("bus/pci"), nodes: nodes.to_owned(), limit, calls, open_nodes }
    }

    pub(super) fn unbind(&self, address: &str) -> Result<(), NetError> {
        let unbound = self.check_unused(address).and_then(|driven| self.unbind_driver(address, driven));
        unbound.map_err(failed(address, "taking it from its driver"))
    }

    pub(super) fn bind(&self, address: &str, driver: &str, fixed: Override) -> Result<(), NetError> {
        let bind = self.bus.join("drivers").join(driver).join("bind");
        let bound = (|| {
            if !bind.exists() {
                return Err(io::Error::other("the kernel has no such driver; load its module"));
            }
            // Before anything is written: a device that a process uses stays as it is.
            let driven = self.check_unused(address)?;
            // First: as soon as a device has no driver the kernel may bind it to any that fits.
            match fixed {
                Override::Keep => {}
                Override::Set => self.write(address, "driver_override", driver)?,
                // An empty line clears it; a text of no bytes would not be written at all.
                Override::Clear => self.write(address, "driver_override", "\n")?,
            }
            self.unbind_driver(address, driven)?;
            // By the driver's own file, not by drivers_probe: a driver that refuses is an error here.
            self.write_within(
                address,
                SysfsWrite { file: bind, text: address.to_owned(), held: None },
                self.limit,
            )
        })();
        bound.map_err(failed(address, &format!("binding it to {driver}")))
    }

    /// On a thread as well: the kernel takes the device's lock to show it, and a driver that hangs holds that lock.
    pub(super) fn fixed_driver(&self, address: &str) -> Result<Option<String>, NetError> {
        let file = self.device(address).join("driver_override");
        let what = format!("reading {}", file.display());
        let read = self.calls.run(address, what, self.limit.min(READ_LIMIT), move || {
            match fs::read_to_string(&file) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()), // the device is gone
                text => text,
            }
        });
        let text = read.map_err(failed(address, "reading the driver that is fixed for it"))?;
        // The kernel shows a missing override as `(null)`.
        Ok(Some(text.trim()).filter(|driver| !["", "(null)"].contains(driver)).map(str::to_owned))
    }

    pub(super) fn reset(&self, address: &str) -> Result<(), NetError> {
        let reset = (|| {
            let held = match self.driver(address)? {
                None => None,
                // While the group's node is open here, no process can begin to use the device.
                Some(driver) if driver == VFIO_PCI => Some(self.hold(address)?),
                Some(driver) => {
                    let why =
                        format!("{driver} drives it: only a device that vfio-pci or nobody has is reset");
                    return Err(io::Error::other(why));
                }
            };
            let write = SysfsWrite { file: self.device(address).join("reset"), text: "1".to_owned(), held };
            self.write_within(address, write, self.limit)
        })();
        reset.map_err(failed(address, "resetting it"))
    }

    pub(super) fn create_vfs(&self, address: &str, count: u32) -> Result<(), NetError> {
        let write = SysfsWrite {
            file: self.device(address).join("sriov_numvfs"),
            text: count.to_string(),
            held: None,
        };
        let made = self.write_within(address, write, self.limit.max(CREATE_LIMIT));
        made.map_err(failed(address, &format!("making {count} VFs")))
    }

    fn device(&self, address: &str) -> PathBuf {
        self.bus.join("devices").join(address)
    }

    fn driver(&self, address: &str) -> io::Result<Option<String>> {
        last_of_link(&self.device(address).join("driver"))
    }

    /// Makes sure that the device can be taken from its driver, and answers whether it has one. EBUSY where the kernel would wait
    /// for the process that uses the device.
    fn check_unused(&self, address: &str) -> io::Result<bool> {
        let driver = self.driver(address)?;
        if driver.as_deref() == Some(VFIO_PCI) {
            drop(self.hold(address)?);
        }
        Ok(driver.is_some())
    }

    fn unbind_driver(&self, address: &str, driven: bool) -> io::Result<()> {
        match driven {
            true => self.write(address, "driver/unbind", address),
            false => Ok(()),
        }
    }

    /// Opens the device's group, so that nobody else can open it meanwhile. EBUSY: a process has it.
    fn hold(&self, address: &str) -> io::Result<OpenNode> {
        let group = last_of_link(&self.device(address).join("iommu_group"))?;
        let node = group.and_then(|group| group.parse().ok()).and_then(|number| self.node(number));
        let (node, _) = node.ok_or_else(|| io::Error::other("its IOMMU group has no node"))?;
        self.open_node(node)
    }

    fn open_node(&self, node: PathBuf) -> io::Result<OpenNode> {
        let (name, limit) = (node.display().to_string(), self.limit.min(READ_LIMIT));
        let nodes = self.open_nodes.clone();
        self.calls.run(&name, format!("opening {name}"), limit, move || nodes.reserve(&node, limit)?.open())
    }

    /// The node of a group, and what it is if it can be opened.
    fn node(&self, group: u32) -> Option<(PathBuf, IommuGroup)> {
        let kinds = [
            (self.nodes.join(group.to_string()), IommuGroup::Free),
            // The kernel's name for the node of a group that no IOMMU protects.
            (self.nodes.join(format!("noiommu-{group}")), IommuGroup::NoIommu),
        ];
        kinds.into_iter().find(|(node, _)| node.exists())
    }

    /// Writes to a device's own file.
    fn write(&self, address: &str, file: &str, text: &str) -> io::Result<()> {
        let file = self.device(address).join(file);
        self.write_within(address, SysfsWrite { file, text: text.to_owned(), held: None }, self.limit)
    }

    fn write_within(&self, address: &str, write: SysfsWrite, limit: Duration) -> io::Result<()> {
        let what = format!("writing {:?} to {}", write.text.trim(), write.file.display());
        self.calls.run(address, what, limit, move || {
            let SysfsWrite { file, text, held } = write;
            let opened = OpenOptions::new().write(true).open(&file);
            let written = opened.and_then(|mut open| open.write_all(text.as_bytes()));
            // Only now: while the driver works nobody else may open the group.
            drop(held);
            written
        })
    }
}

/// A text to be written to a file of sysfs; the node in `held` is kept open until that has ended.
struct SysfsWrite {
    file: PathBuf,
    text: String,
    held: Option<OpenNode>,
}

fn failed(device: &str, doing: &str) -> impl FnOnce(io::Error) -> NetError + use<> {
    let (device, doing) = (device.to_owned(), doing.to_owned());
    move |source| NetError::Driver { device, doing, source }
}

/// The last name of where a link leads; `None` where there is none.
fn last_of_link(link: &Path) -> io::Result<Option<String>> {
    match fs::read_link(link) {
        Ok(to) => Ok(to.file_name().map(|name| name.to_string_lossy().into_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests;
