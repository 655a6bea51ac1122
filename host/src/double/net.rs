//! One namespace of the kernel in memory, as the thread that is in it sees it.

use std::io;
use std::thread::{self, sleep};

use nix::errno::Errno;

use super::model::{HOST, HOST_IN_A_POD, Model};
use super::{FakeKernel, KernelRequest, Place, refused};
use crate::Vf;
use crate::seam::{
    Address, AttachedProgram, Link, Net, NetError, NetdevSettings, NetnsId, Nsid, Op, OpError, Route,
    one_by_one,
};

/// A view of one of its namespaces.
#[derive(Debug)]
pub(super) struct FakeNet<'kernel> {
    pub(super) kernel: &'kernel FakeKernel,
    pub(super) key: u64,
    pub(super) id: NetnsId,
}

impl FakeNet<'_> {
    /// Waits as long as the operation takes the kernel, without the model's lock: it keeps nobody from the rest of the kernel.
    fn take_time(&self, op: &Op) {
        if matches!(op, Op::SetVfs { .. }) {
            sleep(self.kernel.model().vfs.resets.lasting.message);
        }
    }

    fn call<T>(
        &self,
        request: KernelRequest,
        answer: impl FnOnce(&mut Model) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut model = self.kernel.model();
        let place = if self.key == HOST { Place::Host } else { Place::Pod(self.key) };
        model.end_resets();
        model.end_falls();
        model.record(place, request)?;
        answer(&mut model)
    }
}

impl Drop for FakeNet<'_> {
    fn drop(&mut self) {
        if self.key != HOST {
            self.kernel.model().away.remove(&thread::current().id());
        }
    }
}

impl Net for FakeNet<'_> {
    fn id(&self) -> &NetnsId {
        &self.id
    }

    fn nsid(&mut self) -> Result<Option<Nsid>, NetError> {
        if self.key == HOST {
            return Ok(None);
        }
        let key = self.key;
        self.call(KernelRequest::Nsid, |model| Ok(model.assign_nsid(key)))
            .map_err(|errno| refused(errno, "number the namespace"))
    }

    fn nsid_of_host(&mut self) -> Result<Option<Nsid>, NetError> {
        let number = (self.key != HOST).then_some(HOST_IN_A_POD);
        self.call(KernelRequest::Nsid, |_| Ok(number))
            .map_err(|errno| refused(errno, "ask for the number of the host's namespace"))
    }

    fn batch(&mut self, ops: &[Op]) -> Result<(), NetError> {
        for (at, op) in ops.iter().enumerate() {
            let key = self.key;
            self.take_time(op);
            self.call(KernelRequest::Op(op.clone()), |model| model.carry_out(key, op)).map_err(|errno| {
                NetError::Op(OpError { at, what: format!("{op:?}"), errno, extack: None })
            })?;
        }
        Ok(())
    }

    fn batch_past_refusals(&mut self, ops: &[Op]) -> Result<Vec<OpError>, NetError> {
        one_by_one(self, ops)
    }

    fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, NetError> {
        let key = self.key;
        self.call(KernelRequest::LinkByName(name.to_owned()), |model| Ok(model.link_named(key, name)))
            .map_err(|errno| refused(errno, "look for a link"))
    }

    fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetError> {
        let key = self.key;
        self.call(KernelRequest::LinkByIndex(index), |model| Ok(model.link(key, index)))
            .map_err(|errno| refused(errno, "look for a link"))
    }

    fn links(&mut self) -> Result<Vec<Link>, NetError> {
        let key = self.key;
        self.call(KernelRequest::Links, |model| Ok(model.links(key)))
            .map_err(|errno| refused(errno, "list links"))
    }

    fn vfs(&mut self, pf: u32) -> Result<Vec<Vf>, NetError> {
        let host = self.key == HOST;
        sleep(self.kernel.model().vfs.resets.lasting.reading);
        self.call(KernelRequest::Vfs(pf), |model| Ok(if host { model.vfs(pf) } else { Vec::new() }))
            .map_err(|errno| refused(errno, "read VFs"))
    }

    fn addresses_at_most(&mut self, index: u32, most: usize) -> Result<Option<Vec<Address>>, NetError> {
        let key = self.key;
        self.call(KernelRequest::Addresses(index), |model| Ok(model.addresses(key, index)))
            .map(|all| Some(all).filter(|all| all.len() <= most))
            .map_err(|errno| refused(errno, "list addresses"))
    }

    fn routes(&mut self) -> Result<Vec<Route>, NetError> {
        let key = self.key;
        self.call(KernelRequest::Routes, |model| Ok(model.routes(key)))
            .map_err(|errno| refused(errno, "list routes"))
    }

    fn attached_programs(&mut self, index: u32) -> Result<Vec<AttachedProgram>, NetError> {
        let key = self.key;
        self.call(KernelRequest::AttachedPrograms(index), |model| {
            Ok(model.left_on(key, index)?.programs.clone())
        })
        .map_err(|errno| refused(errno, "read programs"))
    }

    fn detach_programs(&mut self, index: u32) -> Result<Vec<String>, NetError> {
        let key = self.key;
        self.call(KernelRequest::DetachPrograms(index), |model| {
            Ok(model.left_on(key, index)?.take_programs())
        })
        .map_err(|errno| refused(errno, "take programs off"))
    }

    fn netdev_settings(&mut self, index: u32) -> Result<NetdevSettings, NetError> {
        let key = self.key;
        self.call(KernelRequest::NetdevSettings(index), |model| {
            Ok(model.left_on(key, index)?.settings.clone())
        })
        .map_err(|errno| refused(errno, "read settings"))
    }

    fn restore_netdev_settings(
        &mut self,
        index: u32,
        before: &NetdevSettings,
    ) -> Result<Vec<String>, NetError> {
        let key = self.key;
        self.call(KernelRequest::RestoreNetdevSettings(index, before.clone()), |model| {
            Ok(model.left_on(key, index)?.restore(before))
        })
        .map_err(|errno| refused(errno, "restore settings"))
    }

    fn features_on(&mut self, index: u32, among: &[&str]) -> Result<Vec<String>, NetError> {
        let key = self.key;
        self.call(KernelRequest::FeaturesOn(index), |model| {
            let on = model.left_on(key, index)?.features.iter();
            Ok(on.filter(|name| among.contains(&name.as_str())).cloned().collect())
        })
        .map_err(|errno| refused(errno, "read features"))
    }

    fn switch_features(
        &mut self,
        index: u32,
        features: &[String],
        on: bool,
    ) -> Result<Vec<String>, NetError> {
        let key = self.key;
        self.call(KernelRequest::SwitchFeatures(index, features.to_vec(), on), |model| {
            model.left_on(key, index)?.switch(features, on);
            Ok(Vec::new())
        })
        .map_err(|errno| refused(errno, "switch features"))
    }

    fn sysctl(&mut self, key: &str) -> Result<String, NetError> {
        let place = self.key;
        self.call(KernelRequest::Sysctl(key.to_owned()), |model| model.sysctl(place, key))
            .map_err(|errno| NetError::Sysctl { key: key.to_owned(), source: errno.into() })
    }

    fn set_sysctl(&mut self, key: &str, value: &str) -> Result<(), NetError> {
        let place = self.key;
        self.call(KernelRequest::SetSysctl(key.to_owned(), value.to_owned()), |model| {
            model.set_sysctl(place, key, value)
        })
        .map_err(|errno| NetError::Sysctl { key: key.to_owned(), source: io::Error::from(errno) })
    }
}
