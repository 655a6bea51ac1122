//! The calls of the seam that belong to no one namespace: namespaces themselves, drivers, IOMMU groups.

use std::io;
use std::path::Path;
use std::thread;

use nix::errno::Errno;

use super::model::{HOST, Model};
use super::net::FakeNet;
use super::{FakeKernel, KernelRequest, Place, refused};
use crate::devlink::DevlinkDevice;
use crate::seam::{
    Answers, IommuGroup, Link, Net, NetError, NetKernel, NetnsError, Nsid, Op, Override, PciKernel, Uplink,
    UplinkQueue,
};

impl FakeKernel {
    fn call_device<T>(
        &self,
        device: &str,
        request: KernelRequest,
        answer: impl FnOnce(&mut Model) -> Result<T, Errno>,
    ) -> Result<T, NetError> {
        let mut model = self.model();
        let doing = format!("{request:?}");
        model
            .record(Place::Kernel, request)
            .and_then(|()| answer(&mut model))
            .map_err(|errno| NetError::Driver { device: device.to_owned(), doing, source: errno.into() })
    }
}

impl NetKernel for FakeKernel {
    fn host(&self) -> Result<Box<dyn Net + '_>, NetError> {
        let id = self.model().id_of(HOST);
        Ok(Box::new(FakeNet { kernel: self, key: HOST, id }))
    }

    fn pod(&self, path: &Path) -> Result<Box<dyn Net + '_>, NetnsError> {
        let mut model = self.model();
        let request = KernelRequest::Open(path.to_owned());
        model
            .record(Place::Kernel, request)
            .map_err(|errno| NetnsError::Io { path: path.to_owned(), source: errno.into() })?;
        let key = *model.paths.get(path).ok_or_else(|| NetnsError::Missing { path: path.to_owned() })?;
        if key == HOST {
            return Err(NetnsError::Host { path: path.to_owned() });
        }
        if !model.away.insert(thread::current().id()) {
            let source = io::Error::other("this thread is in another pod's network namespace already");
            return Err(NetnsError::Io { path: path.to_owned(), source });
        }
        let id = model.id_of(key);
        Ok(Box::new(FakeNet { kernel: self, key, id }))
    }

    fn at_home(&self, work: &mut dyn FnMut()) {
        let was_away = self.model().away.remove(&thread::current().id());
        work();
        if was_away {
            self.model().away.insert(thread::current().id());
        }
    }

    fn link_at(&self, nsid: Nsid, index: u32) -> Result<Option<Link>, NetError> {
        let mut model = self.model();
        model
            .record(Place::Kernel, KernelRequest::LinkAt(nsid, index))
            .map_err(|errno| refused(errno, "read a link"))?;
        Ok(model.by_nsid(nsid).and_then(|key| model.link(key, index)))
    }

    fn delete_at(&self, nsid: Nsid, index: u32) -> Result<(), NetError> {
        let mut model = self.model();
        model
            .record(Place::Kernel, KernelRequest::DeleteAt(nsid, index))
            .map_err(|errno| refused(errno, "delete a link"))?;
        match model.by_nsid(nsid) {
            Some(key) if model.link(key, index).is_some() => {
                model.carry_out(key, &Op::DeleteLink(index)).map_err(|errno| refused(errno, "delete a link"))
            }
            _ => Ok(()),
        }
    }

    fn nsids(&self) -> Result<Vec<Nsid>, NetError> {
        let mut model = self.model();
        model
            .record(Place::Kernel, KernelRequest::Nsids)
            .map_err(|errno| refused(errno, "list namespaces"))?;
        Ok(model.nsids())
    }

    fn knows(&self, kind: &str) -> Result<bool, NetError> {
        let mut model = self.model();
        let request = KernelRequest::Knows(kind.to_owned());
        model.record(Place::Kernel, request).map_err(|errno| refused(errno, "look for a kind of link"))?;
        Ok(!model.unknown_kinds.contains(kind))
    }

    fn renames_while_up(&self) -> bool {
        !self.no_rename_while_up
    }

    fn open_uplink(&self, index: u32, queues: u32, numa_node: Option<u32>) -> Result<Uplink, NetError> {
        self.call_device("of an uplink", KernelRequest::OpenUplink(index, queues, numa_node), |model| {
            if model.link(HOST, index).is_none() {
                return Err(Errno::ENODEV);
            }
            // Nobody looks into them: whoever does is tested with the real ones.
            let null = || {
                std::fs::File::open("/dev/null").map(std::os::fd::OwnedFd::from).map_err(|_| Errno::EMFILE)
            };
            let queue = |_| Ok::<_, Errno>(UplinkQueue { socket: null()?, memory: null()? });
            let queues: Result<Vec<_>, _> = (0..queues).map(queue).collect();
            Ok(Uplink { native: true, attachment: null()?, queues: queues? })
        })
    }

    fn bind_uplink(&self, index: u32, _: &Uplink, numa_node: Option<u32>) -> Result<(), NetError> {
        self.call_device("of an uplink", KernelRequest::BindUplink(index, numa_node), |_| Ok(()))
    }
}

impl PciKernel for FakeKernel {
    fn unbind(&self, address: &str) -> Result<(), NetError> {
        self.call_device(address, KernelRequest::Unbind(address.to_owned()), |model| model.unbind(address))
    }

    fn bind(&self, address: &str, driver: &str, fixed: Override) -> Result<(), NetError> {
        let request = KernelRequest::Bind(address.to_owned(), driver.to_owned(), fixed);
        self.call_device(address, request, |model| model.bind(address, driver, fixed))
    }

    fn fixed_driver(&self, address: &str) -> Result<Option<String>, NetError> {
        self.call_device(address, KernelRequest::FixedDriver(address.to_owned()), |model| {
            model.vfs.fixed_driver(address)
        })
    }

    fn reset(&self, address: &str) -> Result<(), NetError> {
        self.call_device(address, KernelRequest::Reset(address.to_owned()), |model| model.reset(address))
    }

    fn create_vfs(&self, address: &str, count: u32) -> Result<(), NetError> {
        self.call_device(address, KernelRequest::CreateVfs(address.to_owned(), count), |_| Ok(()))
    }

    fn iommu_group(&self, number: u32) -> Result<IommuGroup, NetError> {
        let node = format!("/dev/vfio/{number}");
        self.call_device(&node, KernelRequest::IommuGroup(number), |model| Ok(model.iommu_group(number)))
    }

    fn answers(&self, address: &str) -> Result<bool, NetError> {
        self.call_device(address, KernelRequest::Answers(address.to_owned()), |model| model.answers(address))
    }

    fn devlink(&self) -> Result<Vec<DevlinkDevice>, NetError> {
        self.call_device("devlink", KernelRequest::Devlink, |model| Ok(model.devlink.clone()))
    }

    fn answers_of(&self, addresses: &[String], groups: &[u32]) -> Answers {
        let mut all = Answers::default();
        for address in addresses {
            let answer = self.answers(address);
            let hangs = answer.as_ref().is_err_and(NetError::timed_out);
            all.devices.insert(address.clone(), answer);
            if hangs {
                return all;
            }
        }
        all.groups.extend(groups.iter().map(|number| (*number, self.iommu_group(*number))));
        all
    }

    fn stuck_driver_calls(&self) -> Vec<String> {
        self.model().stuck_driver_calls.clone()
    }
}
