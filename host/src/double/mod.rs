//! A kernel in memory, for tests: it keeps the rules that the engine relies on, records every call, and fails at
//! the one it is told to.
//!
//! It models namespaces by path (a thread is in one pod's at a time), links, addresses, routes and sysctls. It does not
//! model packets, link-local addresses, or waiting.

mod functions;
mod model;
mod namespace;
mod resets;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, sleep};
use std::time::Duration;

use nix::errno::Errno;

use crate::Vf;
use crate::seam::{
    Address, IommuGroup, Kernel, Kind, Link, Net, NetError, NetnsError, NetnsId, Nsid, Op, OpError, Override,
    Route,
};
use model::{HOST, Model};
pub use resets::Resets;

/// Where a call went: to the daemon's own namespace, or to the one that was made with this cookie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The daemon's own.
    Host,
    /// The namespace with this cookie.
    Pod(u64),
    /// No one namespace.
    Kernel,
}

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// [`Kernel::pod`]
    Open(PathBuf),
    /// [`Net::nsid`]
    Nsid,
    /// One operation of a [`Net::batch`]
    Op(Op),
    /// [`Net::link_by_name`]
    LinkByName(String),
    /// [`Net::link_by_index`]
    LinkByIndex(u32),
    /// [`Net::links`]
    Links,
    /// [`Net::vfs`]
    Vfs(u32),
    /// [`Net::addresses`]
    Addresses(u32),
    /// [`Net::routes`]
    Routes,
    /// [`Net::sysctl`]
    Sysctl(String),
    /// [`Net::set_sysctl`]
    SetSysctl(String, String),
    /// [`Kernel::link_at`]
    LinkAt(Nsid, u32),
    /// [`Kernel::delete_at`]
    DeleteAt(Nsid, u32),
    /// [`Kernel::nsids`]
    Nsids,
    /// [`Kernel::unbind`]
    Unbind(String),
    /// [`Kernel::bind`], to which driver
    Bind(String, String, Override),
    /// [`Kernel::reset`]
    Reset(String),
    /// [`Kernel::make_functions`]; whoever tests it has them appear by [`FakeKernel::add_vf`].
    MakeFunctions(String, u32),
    /// [`Kernel::iommu_group`]
    IommuGroup(u32),
    /// [`Kernel::answers`]
    Answers(String),
    /// [`Kernel::knows`]
    Knows(String),
}

/// One recorded call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Where it went.
    pub place: Place,
    /// What was asked.
    pub asked: Asked,
}

/// All that can be seen of one namespace, in an order that does not depend on how it came about.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetnsSnapshot {
    /// Links by index.
    pub links: BTreeMap<u32, Link>,
    /// Addresses, as text in order.
    pub addresses: BTreeSet<String>,
    /// Routes that were added, as text in order.
    pub routes: BTreeSet<String>,
    /// Sysctls that were written.
    pub sysctls: BTreeMap<String, String>,
}

/// All living namespaces: for "the host is as before".
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// By place; numbers (nsid) are left out, because one that was assigned stays.
    pub namespaces: BTreeMap<Place, NetnsSnapshot>,
    /// Settings of virtual functions, by their physical function's index.
    pub vfs: BTreeMap<u32, Vec<Vf>>,
    /// Who drives each virtual function, and the driver that is fixed for it, by PCI address.
    pub drivers: BTreeMap<String, (Option<String>, Option<String>)>,
}

/// The kernel in memory.
#[derive(Debug, Default)]
pub struct FakeKernel {
    model: Mutex<Model>,
    no_rename_while_up: bool,
}

impl FakeKernel {
    /// A host namespace with `lo`, and nothing else.
    pub fn new() -> FakeKernel {
        FakeKernel::default()
    }

    /// A kernel before 6.2: a link that is up cannot be renamed.
    pub fn without_rename_while_up(mut self) -> FakeKernel {
        self.no_rename_while_up = true;
        self.model().no_rename_while_up = true;
        self
    }

    /// A kernel before 5.14: namespaces have no cookies.
    pub fn without_cookies(self) -> FakeKernel {
        self.model().no_cookies = true;
        self
    }

    /// A kernel that has no links of this kind.
    pub fn without_kind(self, kind: &str) -> FakeKernel {
        self.model().unknown_kinds.insert(kind.to_owned());
        self
    }

    /// From now on a new namespace gets the inode of the one that died last, as in the real kernel.
    pub fn reuse_inodes(&self) {
        self.model().reuse_inodes = true;
    }

    /// Makes a namespace with `lo` at `path`, in place of what was there.
    pub fn add_namespace(&self, path: impl Into<PathBuf>) -> NetnsId {
        self.model().add_namespace(path.into())
    }

    /// The namespace dies: its virtual links with it, its physical ones (kind "") fall back to the host.
    pub fn kill_namespace(&self, path: impl AsRef<Path>) {
        self.model().kill_namespace(path.as_ref());
    }

    /// A driver does not end what it was asked to do.
    pub fn hang(&self, what: &str) {
        self.model().hung.push(what.to_owned());
    }

    /// From now on physical links fall home so long after their namespace's death has been told.
    pub fn fall_home_after(&self, late: Duration) {
        self.model().fall = late;
    }

    /// The path is gone and the namespace lives on, as when a process holds it.
    pub fn unmount(&self, path: impl AsRef<Path>) {
        self.model().paths.remove(path.as_ref());
    }

    /// Puts a physical link, up, into the host's namespace: a parent. Answers its index.
    pub fn add_host_link(&self, name: &str) -> u32 {
        self.model().plug(HOST, name, Kind::Other { name: String::new() })
    }

    /// Puts a virtual function of the host's link `pf` into the host's namespace, with an interface called `name`, down.
    /// Answers its number.
    pub fn add_vf(&self, pf: u32, address: &str, name: &str) -> u32 {
        self.model().add_vf(pf, address, name)
    }

    /// The driver of a link's functions takes no link state, no 802.1ad and no guaranteed rate, as igb.
    pub fn refuse_what_igb_refuses(&self) {
        self.model().like_igb = true;
    }

    /// Every change of a function's driver is shown in this tree of sysfs too, which also tells its IOMMU group.
    pub fn show_in(&self, sysfs: &Path) {
        self.model().functions.show_in(sysfs);
    }

    /// Somebody else gives a function to `driver`, or takes it away from all.
    pub fn drive(&self, address: &str, driver: Option<&str>) -> Result<(), Errno> {
        self.model().drive(address, driver)
    }

    /// What opening an IOMMU group tells from now on; free before that.
    pub fn set_group(&self, number: u32, state: IommuGroup) {
        self.model().functions.groups.insert(number, state);
    }

    /// From now on a function's configuration space reads as ones, or (`false`) no more.
    pub fn set_dead(&self, address: &str, dead: bool) {
        self.model().functions.set_dead(address, dead);
    }

    /// From now on functions are reset after each change of their settings, and things take their time.
    pub fn reset_functions(&self, resets: Resets) {
        self.model().functions.resets.lasting = resets;
    }

    /// A function begins a reset that lasts so long.
    pub fn reset_function(&self, address: &str, lasting: Duration) {
        self.model().begin_reset(address, lasting);
    }

    /// Puts a link of any kind, up, into the namespace at `path`. `None` when there is none at the path.
    pub fn add_link(&self, path: impl AsRef<Path>, name: &str, kind: Kind) -> Option<u32> {
        let mut model = self.model();
        let key = *model.paths.get(path.as_ref())?;
        Some(model.plug(key, name, kind))
    }

    /// Call number `n` (as [`FakeKernel::calls`] counts, from 0) is refused with `errno` and does nothing.
    pub fn fail_at(&self, n: usize, errno: Errno) {
        self.model().failures.insert(n, errno);
    }

    /// Every call from number `n` on is refused with `errno`.
    pub fn fail_from(&self, n: usize, errno: Errno) {
        self.model().failing_from = Some((n, errno));
    }

    /// No call is refused by order any more.
    pub fn heal(&self) {
        let mut model = self.model();
        model.failures.clear();
        model.failing_from = None;
    }

    /// Every call so far, in order, refused ones included.
    pub fn calls(&self) -> Vec<Call> {
        self.model().calls.clone()
    }

    /// Begins counting at 0 again.
    pub fn forget_calls(&self) {
        self.model().calls.clear();
    }

    /// The state of all living namespaces.
    pub fn snapshot(&self) -> Snapshot {
        self.model().snapshot()
    }

    fn ask_device<T>(
        &self,
        device: &str,
        asked: Asked,
        answer: impl FnOnce(&mut Model) -> Result<T, Errno>,
    ) -> Result<T, NetError> {
        let mut model = self.model();
        let doing = format!("{asked:?}");
        model
            .record(Place::Kernel, asked)
            .and_then(|()| answer(&mut model))
            .map_err(|errno| NetError::Driver { device: device.to_owned(), doing, source: errno.into() })
    }

    /// What takes its time does so before it is done, and keeps nobody from the rest of the kernel.
    fn work(&self, op: &Op) {
        if matches!(op, Op::SetVfs { .. }) {
            sleep(self.model().functions.resets.lasting.message);
        }
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel for FakeKernel {
    fn host(&self) -> Result<Box<dyn Net + '_>, NetError> {
        let id = self.model().id_of(HOST);
        Ok(Box::new(FakeNet { kernel: self, key: HOST, id }))
    }

    fn pod(&self, path: &Path) -> Result<Box<dyn Net + '_>, NetnsError> {
        let mut model = self.model();
        let asked = Asked::Open(path.to_owned());
        model
            .record(Place::Kernel, asked)
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

    fn link_at(&self, nsid: Nsid, index: u32) -> Result<Option<Link>, NetError> {
        let mut model = self.model();
        model
            .record(Place::Kernel, Asked::LinkAt(nsid, index))
            .map_err(|errno| refused(errno, "read a link"))?;
        Ok(model.by_nsid(nsid).and_then(|key| model.link(key, index)))
    }

    fn delete_at(&self, nsid: Nsid, index: u32) -> Result<(), NetError> {
        let mut model = self.model();
        model
            .record(Place::Kernel, Asked::DeleteAt(nsid, index))
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
        model.record(Place::Kernel, Asked::Nsids).map_err(|errno| refused(errno, "list namespaces"))?;
        Ok(model.nsids())
    }

    fn knows(&self, kind: &str) -> Result<bool, NetError> {
        let mut model = self.model();
        let asked = Asked::Knows(kind.to_owned());
        model.record(Place::Kernel, asked).map_err(|errno| refused(errno, "look for a kind of link"))?;
        Ok(!model.unknown_kinds.contains(kind))
    }

    fn unbind(&self, address: &str) -> Result<(), NetError> {
        self.ask_device(address, Asked::Unbind(address.to_owned()), |model| model.unbind(address))
    }

    fn bind(&self, address: &str, driver: &str, fixed: Override) -> Result<(), NetError> {
        let asked = Asked::Bind(address.to_owned(), driver.to_owned(), fixed);
        self.ask_device(address, asked, |model| model.bind(address, driver, fixed))
    }

    fn reset(&self, address: &str) -> Result<(), NetError> {
        self.ask_device(address, Asked::Reset(address.to_owned()), |model| model.reset(address))
    }

    fn make_functions(&self, address: &str, count: u32) -> Result<(), NetError> {
        self.ask_device(address, Asked::MakeFunctions(address.to_owned(), count), |_| Ok(()))
    }

    fn iommu_group(&self, number: u32) -> Result<IommuGroup, NetError> {
        let node = format!("/dev/vfio/{number}");
        self.ask_device(&node, Asked::IommuGroup(number), |model| Ok(model.iommu_group(number)))
    }

    fn answers(&self, address: &str) -> Result<bool, NetError> {
        self.ask_device(address, Asked::Answers(address.to_owned()), |model| model.answers(address))
    }

    fn hung(&self) -> Vec<String> {
        self.model().hung.clone()
    }

    fn renames_while_up(&self) -> bool {
        !self.no_rename_while_up
    }
}

/// A view of one of its namespaces.
#[derive(Debug)]
struct FakeNet<'kernel> {
    kernel: &'kernel FakeKernel,
    key: u64,
    id: NetnsId,
}

impl FakeNet<'_> {
    fn ask<T>(&self, asked: Asked, answer: impl FnOnce(&mut Model) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut model = self.kernel.model();
        let place = if self.key == HOST { Place::Host } else { Place::Pod(self.key) };
        model.end_resets();
        model.end_falls();
        model.record(place, asked)?;
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
        self.ask(Asked::Nsid, |model| Ok(model.assign_nsid(key)))
            .map_err(|errno| refused(errno, "number the namespace"))
    }

    fn batch(&mut self, ops: &[Op]) -> Result<(), NetError> {
        for (at, op) in ops.iter().enumerate() {
            let key = self.key;
            self.kernel.work(op);
            self.ask(Asked::Op(op.clone()), |model| model.carry_out(key, op)).map_err(|errno| {
                NetError::Op(OpError { at, what: format!("{op:?}"), errno, extack: None })
            })?;
        }
        Ok(())
    }

    fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, NetError> {
        let key = self.key;
        self.ask(Asked::LinkByName(name.to_owned()), |model| Ok(model.link_named(key, name)))
            .map_err(|errno| refused(errno, "look for a link"))
    }

    fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetError> {
        let key = self.key;
        self.ask(Asked::LinkByIndex(index), |model| Ok(model.link(key, index)))
            .map_err(|errno| refused(errno, "look for a link"))
    }

    fn links(&mut self) -> Result<Vec<Link>, NetError> {
        let key = self.key;
        self.ask(Asked::Links, |model| Ok(model.links(key))).map_err(|errno| refused(errno, "list links"))
    }

    fn vfs(&mut self, pf: u32) -> Result<Vec<Vf>, NetError> {
        let host = self.key == HOST;
        sleep(self.kernel.model().functions.resets.lasting.reading);
        self.ask(Asked::Vfs(pf), |model| Ok(if host { model.vfs(pf) } else { Vec::new() }))
            .map_err(|errno| refused(errno, "read virtual functions"))
    }

    fn addresses(&mut self, index: u32) -> Result<Vec<Address>, NetError> {
        let key = self.key;
        self.ask(Asked::Addresses(index), |model| Ok(model.addresses(key, index)))
            .map_err(|errno| refused(errno, "list addresses"))
    }

    fn routes(&mut self) -> Result<Vec<Route>, NetError> {
        let key = self.key;
        self.ask(Asked::Routes, |model| Ok(model.routes(key))).map_err(|errno| refused(errno, "list routes"))
    }

    fn sysctl(&mut self, key: &str) -> Result<String, NetError> {
        let place = self.key;
        self.ask(Asked::Sysctl(key.to_owned()), |model| model.sysctl(place, key))
            .map_err(|errno| NetError::Sysctl { key: key.to_owned(), source: errno.into() })
    }

    fn set_sysctl(&mut self, key: &str, value: &str) -> Result<(), NetError> {
        let place = self.key;
        self.ask(Asked::SetSysctl(key.to_owned(), value.to_owned()), |model| {
            model.set_sysctl(place, key, value)
        })
        .map_err(|errno| NetError::Sysctl { key: key.to_owned(), source: io::Error::from(errno) })
    }
}

fn refused(errno: Errno, what: &str) -> NetError {
    NetError::Op(OpError { at: 0, what: what.to_owned(), errno, extack: None })
}
