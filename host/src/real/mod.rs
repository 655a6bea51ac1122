//! The real kernel, over netlink sockets of our own.
//!
//! Every request is synchronous: rtnetlink carries a message out inside `send`, so its answer is there when `send`
//! returns. Host sockets are kept, one for each thread; a pod's socket lives exactly as long as the view of its
//! namespace, because it would keep that namespace and its links alive.
//!
//! Messages are written and read attribute by attribute (`message`, `decode`) instead of by the packet types of
//! `netlink-packet-route`: those read every attribute of a link (statistics, per-family settings) and fail the
//! whole message at the first one they do not know; here a dozen are picked and the rest cannot hurt.
//!
//! It never acts on the daemon's own namespace by mistake: a host socket is used only if its namespace is the one
//! that [`RealKernel::new`] saw, and a view of a pod refuses that one.

mod decode;
mod devlink;
mod hung;
mod kinds;
mod message;
mod namespace;
mod nodes;
mod pci;
mod relocate;
mod request;
mod socket;
mod vf;
mod view;

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;

pub use decode::{Answer, Body, Unreadable, decode};
pub(crate) use namespace::{Entered, OwnNetns, cookie_of, home_of_this_thread, open_netns};
pub(crate) use socket::{
    attach_filter, netlink_news, no_virtual_devices, only_of_type, only_with_a_device, uevents,
};
pub(crate) use view::{PodView, carrier_here};

use crate::devlink::DevlinkDevice;
use crate::seam::{
    Answers, IommuGroup, Link, Net, NetError, NetKernel, NetnsError, NetnsId, Nsid, Override, PciKernel,
};
use hung::Hung;
use pci::PciBus;
use socket::Failure;
use view::{HostView, with_host};

/// A healthy driver answers devlink at once.
const DEVLINK: Duration = Duration::from_secs(5);

/// The kernel of this machine, seen from the namespace that the thread was in when this was made.
#[derive(Debug)]
pub struct RealKernel {
    own: OwnNetns,
    bus: PciBus,
    renames_while_up: bool,
    hung: Hung,
}

impl RealKernel {
    /// Takes the calling thread's network namespace for the daemon's own.
    pub fn new() -> Result<RealKernel, NetError> {
        let own = OwnNetns::of_this_thread().map_err(NetError::Socket)?;
        let hung = Hung::default();
        Ok(RealKernel {
            own,
            bus: PciBus::of_this_machine(Path::new("/dev/vfio"), &hung),
            renames_while_up: kernel_is_at_least(6, 2),
            hung,
        })
    }

    /// With the host's `/dev/vfio` where this thread's is not the host's.
    pub fn with_vfio_nodes(mut self, directory: &Path) -> RealKernel {
        self.bus = PciBus::of_this_machine(directory, &self.hung);
        self
    }

    /// The identity of the daemon's own namespace.
    pub fn own_id(&self) -> &NetnsId {
        &self.own.id
    }

    /// A thread that hangs there must not keep a pod's namespace alive.
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

    fn link_at(&self, nsid: Nsid, index: u32) -> Result<Option<Link>, NetError> {
        let request = request::get_link_at(nsid, index);
        match with_host(&self.own, |socket| socket.link(request)) {
            Ok(link) => Ok(Some(link)),
            Err(failure) if is_gone(&failure) => Ok(None),
            Err(failure) => Err(failure.into_net(0, || format!("read link {index} of namespace {}", nsid.0))),
        }
    }

    fn delete_at(&self, nsid: Nsid, index: u32) -> Result<(), NetError> {
        let request = request::delete_link_at(nsid, index);
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
            socket.dump(request::dump_nsids, &mut keep)?;
            // Asked about a link by number, the kernel gives the asking namespace a number in itself.
            let mut own = None;
            socket.exchange(request::get_nsid(self.own.fd.as_fd()), &mut |body| own = nsid_in(&body))?;
            found.retain(|nsid| Some(*nsid) != own);
            Ok(found)
        });
        listed.map_err(|failure| failure.into_net(0, || "list the known namespaces".to_owned()))
    }

    fn knows(&self, kind: &str) -> Result<bool, NetError> {
        kinds::knows(kind)
    }

    fn renames_while_up(&self) -> bool {
        self.renames_while_up
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
        let asked = self.own.at_home(|| {
            let mut socket = self.own.generic_socket()?;
            let what =
                "asking devlink for all ports, which waits for a driver that loads firmware".to_owned();
            self.hung.within("devlink", what, DEVLINK, move || Ok(devlink::devices(&mut socket)))
        });
        let doing = "asking for all ports";
        match asked {
            Ok(told) => told.map_err(|failure| failure.into_net(0, || format!("devlink: {doing}"))),
            Err(source) => {
                Err(NetError::Driver { device: "devlink".to_owned(), doing: doing.to_owned(), source })
            }
        }
    }

    fn answers_of(&self, addresses: &[String], groups: &[u32]) -> Answers {
        self.pci(|bus| bus.answers_of(addresses, groups))
    }

    fn stuck_driver_calls(&self) -> Vec<String> {
        self.hung.told()
    }
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
    let Ok(names) = nix::sys::utsname::uname() else { return false };
    let release = names.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}
