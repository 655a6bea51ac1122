//! The real kernel, over netlink sockets of our own.
//!
//! Every request is synchronous: rtnetlink carries a message out inside `send`, so its answer is there when `send`
//! returns. Host sockets are kept, one for each thread; a pod's socket lives exactly as long as the view of its
//! namespace, because it would keep that namespace and its links alive.
//!
//! It never acts on the daemon's own namespace by mistake: a host socket is used only if its namespace is the one
//! that [`RealKernel::new`] saw, and a view of a pod refuses that one.

mod af_xdp;
pub(crate) mod bpf;
mod driver_call_timeout;
mod known_parents;
mod link_kind_probe;
mod link_programs;
mod namespace;
mod namespace_views;
mod netlink;
mod netns_contents;
mod numa_memory;
mod pci;
mod vfio_node_turns;

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

pub(crate) use link_programs::attach_xdp;
pub(crate) use namespace::{
    Entered, OwnNetns, cookie_of, home_of_this_thread, kind_of_namespace, open_netns,
};
pub(crate) use namespace_views::{PodView, carrier_here, write_sysctl};
pub use netlink::decode::{Answer, Body, Unreadable, decode};
pub(crate) use netlink::socket::{
    attach_filter, netlink_news, no_virtual_devices, only_of_type, only_with_a_device, uevents,
};

use crate::devlink::DevlinkDevice;
use crate::seam::{
    Answers, IommuGroup, Link, Net, NetError, NetKernel, NetnsError, NetnsId, Nsid, Override, PciKernel,
    Uplink,
};
use driver_call_timeout::DriverCalls;
use namespace_views::{HostView, with_host};
use netlink::socket::Failure;
use netlink::{devlink, encode};
use numa_memory::with_memory_of;
use pci::PciBus;

/// How long devlink is waited for. A healthy driver answers it at once.
const DEVLINK_LIMIT: Duration = Duration::from_secs(5);

/// The kernel of this machine, seen from the namespace that the thread was in when this was made.
#[derive(Debug)]
pub struct RealKernel {
    own: OwnNetns,
    bus: PciBus,
    renames_while_up: bool,
    driver_calls: DriverCalls,
}

impl RealKernel {
    /// Takes the calling thread's network namespace for the daemon's own.
    pub fn new() -> Result<RealKernel, NetError> {
        let own = OwnNetns::of_this_thread().map_err(NetError::Socket)?;
        let driver_calls = DriverCalls::default();
        Ok(RealKernel {
            own,
            bus: PciBus::of_this_machine(Path::new("/dev/vfio"), &driver_calls),
            // An older kernel renames only a link that is down, and setting one down stalls every other ADD.
            renames_while_up: kernel_is_at_least(6, 2),
            driver_calls,
        })
    }

    /// The same kernel with the nodes of vfio in another directory: the host's `/dev/vfio`, seen from a container.
    pub fn with_vfio_nodes(mut self, directory: &Path) -> RealKernel {
        self.bus = PciBus::of_this_machine(directory, &self.driver_calls);
        self
    }

    /// The same kernel with its sysctls read and written below another directory: in a container `/proc/sys` is read-only,
    /// and the host's procfs is mounted elsewhere.
    pub fn with_sysctls(mut self, directory: &Path) -> RealKernel {
        self.own.sysctls = directory.to_owned();
        self
    }

    /// The identity of the daemon's own namespace.
    pub fn own_id(&self) -> &NetnsId {
        &self.own.id
    }

    /// Does `work` in the daemon's own namespace: a thread that hangs in a driver must not keep a pod's namespace alive.
    fn pci<T>(&self, work: impl FnOnce(&PciBus) -> T) -> T {
        self.own.at_home(|| work(&self.bus))
    }
}

impl NetKernel for RealKernel {
    fn host(&self) -> Result<Box<dyn Net + '_>, NetError> {
        Ok(Box::new(HostView::new(&self.own)))
    }

    fn pod(&self, path: &Path) -> Result<Box<dyn Net + '_>, NetnsError> {
        Ok(Box::new(PodView::open(&self.own, path)?))
    }

    fn at_home(&self, work: &mut dyn FnMut()) {
        self.own.at_home(work);
    }

    fn link_at(&self, nsid: Nsid, index: u32) -> Result<Option<Link>, NetError> {
        let request = encode::get_link_at(nsid, index);
        match with_host(&self.own, |socket| socket.link(request)) {
            Ok(link) => Ok(Some(link)),
            Err(failure) if is_gone(&failure) => Ok(None),
            Err(failure) => Err(failure.into_net(0, || format!("read link {index} of namespace {}", nsid.0))),
        }
    }

    fn delete_at(&self, nsid: Nsid, index: u32) -> Result<(), NetError> {
        let request = encode::delete_link_at(nsid, index);
        match with_host(&self.own, |socket| socket.acknowledged(request)) {
            Ok(()) => Ok(()),
            Err(failure) if is_gone(&failure) => Ok(()),
            Err(failure) => {
                Err(failure.into_net(0, || format!("delete link {index} of namespace {}", nsid.0)))
            }
        }
    }

    fn nsids(&self) -> Result<Vec<Nsid>, NetError> {
        let listed = with_host(&self.own, |socket| {
            let mut found = Vec::new();
            let mut keep = |body: Body| found.extend(nsid_in(&body));
            socket.dump(encode::dump_nsids, &mut keep)?;
            // Asked about a link by number, the kernel gives the asking namespace a number in itself.
            let mut own = None;
            socket.exchange(encode::get_nsid(self.own.fd.as_fd()), &mut |body| own = nsid_in(&body))?;
            found.retain(|nsid| Some(*nsid) != own);
            Ok(found)
        });
        listed.map_err(|failure| failure.into_net(0, || "list the known namespaces".to_owned()))
    }

    fn knows(&self, kind: &str) -> Result<bool, NetError> {
        link_kind_probe::knows(kind)
    }

    fn renames_while_up(&self) -> bool {
        self.renames_while_up
    }

    fn open_uplink(&self, index: u32, queues: u32, numa_node: Option<u32>) -> Result<Uplink, NetError> {
        // The drivers of a bond's ports would run the program for the ports, whose sockets the bond's are not: nothing would be received.
        let is_bond = self.host()?.link_by_index(index)?.is_some_and(|link| link.kind.name() == "bond");
        self.own
            .at_home(|| with_memory_of(numa_node, || af_xdp::open(index, queues, !is_bond))?)
            .map_err(|source| of_link(index, "open an AF_XDP socket on it", source))
    }

    fn bind_uplink(&self, index: u32, uplink: &Uplink, numa_node: Option<u32>) -> Result<(), NetError> {
        self.own
            .at_home(|| with_memory_of(numa_node, || af_xdp::bind(uplink, index))?)
            .map_err(|source| of_link(index, "bind an AF_XDP socket to it", source))
    }
}

impl PciKernel for RealKernel {
    fn unbind(&self, address: &str) -> Result<(), NetError> {
        self.pci(|bus| bus.unbind(address))
    }

    fn bind(&self, address: &str, driver: &str, fixed: Override) -> Result<(), NetError> {
        self.pci(|bus| bus.bind(address, driver, fixed))
    }

    fn reset(&self, address: &str) -> Result<(), NetError> {
        self.pci(|bus| bus.reset(address))
    }

    fn fixed_driver(&self, address: &str) -> Result<Option<String>, NetError> {
        self.pci(|bus| bus.fixed_driver(address))
    }

    fn create_vfs(&self, address: &str, count: u32) -> Result<(), NetError> {
        self.pci(|bus| bus.create_vfs(address, count))
    }

    fn iommu_group(&self, number: u32) -> Result<IommuGroup, NetError> {
        self.pci(|bus| bus.group(number))
    }

    fn answers(&self, address: &str) -> Result<bool, NetError> {
        self.pci(|bus| bus.answers(address))
    }

    fn devlink(&self) -> Result<Vec<DevlinkDevice>, NetError> {
        let read = self.own.at_home(|| {
            // All of it at home: the thread of the call begins in this one's namespace, and may hang there.
            let mut socket = self.own.generic_socket()?;
            let what =
                "asking devlink for all ports, which waits for a driver that loads firmware".to_owned();
            self.driver_calls.run("devlink", what, DEVLINK_LIMIT, move || Ok(devlink::devices(&mut socket)))
        });
        let doing = "asking for all ports";
        match read {
            Ok(devices) => devices.map_err(|failure| failure.into_net(0, || format!("devlink: {doing}"))),
            Err(source) => {
                Err(NetError::Driver { device: "devlink".to_owned(), doing: doing.to_owned(), source })
            }
        }
    }

    fn answers_of(&self, addresses: &[String], groups: &[u32]) -> Answers {
        self.pci(|bus| bus.answers_of(addresses, groups))
    }

    fn stuck_driver_calls(&self) -> Vec<String> {
        self.driver_calls.stuck()
    }
}

fn of_link(index: u32, doing: &str, source: std::io::Error) -> NetError {
    NetError::Driver { device: format!("of link {index}"), doing: doing.to_owned(), source }
}

fn nsid_in(body: &Body) -> Option<Nsid> {
    if let Body::Nsid(nsid) = body { *nsid } else { None }
}

/// Neither the namespace of that number (EINVAL) nor the link (ENODEV) is there any more.
fn is_gone(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Refused { errno: Errno::ENODEV | Errno::EINVAL | Errno::ESRCH | Errno::ENOENT, .. }
    )
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    // An unknown kernel counts as an old one: what an old one can do, every kernel can.
    let Ok(names) = nix::sys::utsname::uname() else { return false };
    let release = names.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}
