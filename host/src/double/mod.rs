//! A kernel in memory, for tests: it keeps the rules that the engine relies on, records every call, and fails at the one that a
//! test names.
//!
//! It models namespaces by path (a thread is in one pod's at a time), links, addresses, routes and sysctls. It does not
//! model packets, link-local addresses, or waiting.

mod calls;
mod kernel;
mod left_on_link;
mod model;
mod namespace;
mod namespace_death;
mod net;
mod snapshot;
mod vf_resets;
mod vf_rules;
mod vfs;

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use parking_lot::{Mutex, MutexGuard};

use crate::devlink::DevlinkDevice;
use crate::seam::{AttachedProgram, IommuGroup, Kind, NetError, NetdevSettings, NetnsId, OpError};
pub use calls::{Call, KernelRequest, Place};
use model::{HOST, Model};
pub use snapshot::{NetnsSnapshot, Snapshot};
pub use vf_resets::Resets;

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

    /// From now on a call into a driver is stuck; `what` describes it.
    pub fn hang(&self, what: &str) {
        self.model().stuck_driver_calls.push(what.to_owned());
    }

    /// From now on physical links come home so long after their namespace's death was reported.
    pub fn fall_home_after(&self, late: Duration) {
        self.model().fall = late;
    }

    /// The path is gone and the namespace lives on, as when a process holds it.
    pub fn unmount(&self, path: impl AsRef<Path>) {
        self.model().paths.remove(path.as_ref());
    }

    /// When the next link of a pod is moved to the host, the pod is quicker: the link is in the namespace at `hideout`, and a veth of the
    /// pod's own at its index.
    pub fn swap_at_next_move(&self, hideout: impl Into<PathBuf>) {
        self.model().swap = Some(hideout.into());
    }

    /// Puts a physical link, up, into the host's namespace: a parent. Answers its index.
    pub fn add_host_link(&self, name: &str) -> u32 {
        self.model().plug(HOST, name, Kind::Other { name: String::new() })
    }

    /// The same, of the device at this PCI address, as kernels since 5.14 tell it.
    pub fn add_host_link_of(&self, device: &str, name: &str) -> u32 {
        let index = self.add_host_link(name);
        let mut model = self.model();
        let link = model.namespaces.get_mut(&HOST).and_then(|host| host.links.get_mut(&index));
        link.into_iter().for_each(|link| link.device = Some(device.to_owned()));
        index
    }

    /// Puts the host's end of a wire into the host's namespace, up; its other end is in a namespace that no path leads to.
    pub fn add_wire_end(&self, name: &str) -> u32 {
        self.model().plug_wire_end(name)
    }

    /// Makes a link a port of another one, as of a bridge, in the first namespace that has both; the host's is the first of all.
    pub fn enslave(&self, port: &str, master: &str) {
        self.model().enslave(port, master);
    }

    /// The cable of a link of the host's is out, or (`true`) in again. Without a carrier a PF takes no rates.
    pub fn set_carrier(&self, name: &str, carrier: bool) {
        self.model().set_carrier(name, carrier);
    }

    /// Puts a VF of the host's link `pf` into the host's namespace, with an interface called `name`, down.
    /// Answers its number.
    pub fn add_vf(&self, pf: u32, address: &str, name: &str) -> u32 {
        self.model().add_vf(pf, address, name)
    }

    /// The driver of a link's VFs takes no link state, no 802.1ad and no guaranteed rate, as igb.
    pub fn refuse_what_igb_refuses(&self) {
        self.model().like_igb = true;
    }

    /// Every change of a VF's driver is shown in this tree of sysfs too, from which its IOMMU group is read.
    pub fn show_in(&self, sysfs: &Path) {
        self.model().vfs.show_in(sysfs);
    }

    /// Somebody else binds a VF to `driver`, or unbinds it from its own.
    pub fn drive(&self, address: &str, driver: Option<&str>) -> Result<(), Errno> {
        self.model().drive(address, driver)
    }

    /// The kernel driver of a VF gives its interface up and keeps the VF, as iavf does whose PF does not answer, until it is bound again. The
    /// tree of sysfs shows that.
    pub fn give_interface_up(&self, address: &str) -> Result<(), Errno> {
        self.model().give_interface_up(address)
    }

    /// From now on the kernel driver of a VF makes no interface when it is bound, as iavf does whose PF does not answer; or (`false`) it
    /// does again. The tree of sysfs shows that.
    pub fn withhold_interface(&self, address: &str, withheld: bool) {
        if let Ok(device) = self.model().vfs.device(address) {
            device.without_interface = withheld;
        }
    }

    /// The state of an IOMMU group from now on; it is free before that.
    pub fn set_group(&self, number: u32, state: IommuGroup) {
        self.model().vfs.groups.insert(number, state);
    }

    /// From now on a VF's configuration space reads as ones, or (`false`) no more.
    pub fn set_dead(&self, address: &str, dead: bool) {
        self.model().vfs.set_dead(address, dead);
    }

    /// From now on VFs are reset after each change of their settings, and things take their time.
    pub fn reset_vfs(&self, resets: Resets) {
        self.model().vfs.resets.lasting = resets;
    }

    /// A VF begins a reset that lasts so long.
    pub fn reset_vf(&self, address: &str, lasting: Duration) {
        self.model().begin_reset(address, lasting);
    }

    /// What devlink reports from now on; nothing before that, as by a kernel that has no devlink.
    pub fn set_devlink(&self, devices: Vec<DevlinkDevice>) {
        self.model().devlink = devices;
    }

    /// From now on each change of a VF's settings is answered with EBUSY, while they can be read, as i40e does while it resets the
    /// VF; or (`false`) no more.
    pub fn keep_busy(&self, address: &str, busy: bool) {
        self.model().keep_busy(address, busy);
    }

    /// Puts a link of any kind, up, into the namespace at `path`. `None` when there is none at the path.
    pub fn add_link(&self, path: impl AsRef<Path>, name: &str, kind: Kind) -> Option<u32> {
        let mut model = self.model();
        let key = *model.paths.get(path.as_ref())?;
        Some(model.plug(key, name, kind))
    }

    /// Attaches a program to a link of the namespace at `path` (the host's is `/proc/1/ns/net`). One that is `kept` cannot be taken off.
    /// False when there is no such link.
    pub fn attach_program(
        &self,
        path: impl AsRef<Path>,
        name: &str,
        program: AttachedProgram,
        kept: bool,
    ) -> bool {
        let mut model = self.model();
        model.left_on_named(path.as_ref(), name).map(|left| left.attach(program, kept)).is_some()
    }

    /// Somebody on the host attaches this program to the interface of a VF whenever a driver is bound to it, for good; or nobody (`None`).
    pub fn attach_when_bound(&self, address: &str, program: Option<AttachedProgram>) {
        if let Ok(device) = self.model().vfs.device(address) {
            device.attached_when_bound = program;
        }
    }

    /// The kernel driver of a VF makes an RDMA device of it, now and whenever it is bound again, each time under another number. The tree
    /// of sysfs shows that and its nodes; without a kernel driver there is none.
    pub fn add_rdma(&self, address: &str) -> Result<(), Errno> {
        self.model().vfs.make_rdma(address)
    }

    /// The kernel driver of a VF makes no RDMA device of it any more, as without its module for RDMA. What the tree shows stays there.
    pub fn stop_rdma(&self, address: &str) -> Result<(), Errno> {
        self.model().vfs.device(address)?.rdma = None;
        Ok(())
    }

    /// Gives a link of the namespace at `path` other settings. Such as are `kept` cannot be restored. False when there is no such link.
    pub fn set_netdev_settings(
        &self,
        path: impl AsRef<Path>,
        name: &str,
        now: NetdevSettings,
        kept: bool,
    ) -> bool {
        let mut model = self.model();
        model.left_on_named(path.as_ref(), name).map(|left| left.set(now, kept)).is_some()
    }

    /// The same of a link of the host's.
    pub fn set_host_netdev_settings(&self, name: &str, now: NetdevSettings) -> bool {
        let mut model = self.model();
        let Some(index) = model.link_named(HOST, name).map(|link| link.index) else { return false };
        model.left_on(HOST, index).map(|left| left.set(now, false)).is_ok()
    }

    /// Has a link of the host's have these features on, by ethtool's names, besides those that are. False when there is no such link.
    pub fn switch_host_features_on(&self, name: &str, features: &[&str]) -> bool {
        let features: Vec<String> = features.iter().map(|feature| (*feature).to_owned()).collect();
        let mut model = self.model();
        let Some(index) = model.link_named(HOST, name).map(|link| link.index) else { return false };
        model.left_on(HOST, index).map(|left| left.switch(&features, true)).is_ok()
    }

    /// The features of a link of the host's that are on, by ethtool's names, in their order; none when there is no such link.
    pub fn host_features(&self, name: &str) -> Vec<String> {
        let mut model = self.model();
        let Some(index) = model.link_named(HOST, name).map(|link| link.index) else { return Vec::new() };
        model.left_on(HOST, index).map(|left| left.features.iter().cloned().collect()).unwrap_or_default()
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

    /// Forgets the calls so far: the next one is number 0.
    pub fn forget_calls(&self) {
        self.model().calls.clear();
    }

    /// The state of all living namespaces.
    pub fn snapshot(&self) -> Snapshot {
        self.model().snapshot()
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock()
    }
}

fn refused(errno: Errno, what: &str) -> NetError {
    NetError::Op(OpError { at: 0, what: what.to_owned(), errno, extack: None })
}
