//! The network half of the seam: namespaces, and what can be read and changed in one.
//!
//! A [`Net`] is a view of one namespace that lives for one call and stays on the thread that opened it; dropping it gives back
//! every file descriptor and socket of that namespace, which would otherwise keep the namespace and its links alive.

use std::path::Path;
use std::slice;

use super::addressing::{Address, Route};
use super::error::{NetError, NetnsError, OpError};
use super::link::{Link, ParentLink};
use super::link_programs::AttachedProgram;
use super::net_change::Op;
use super::netdev_settings::NetdevSettings;
use super::netns_id::{NetnsId, Nsid};
use super::uplink::Uplink;
use crate::vf_settings::Vf;

/// More addresses than these of one interface are nobody's who wants to use them.
const MOST_ADDRESSES: usize = 65_536;

/// A view of one network namespace. Not `Send`: it may have put its thread into that namespace.
pub trait Net {
    /// The identity of the namespace.
    fn id(&self) -> &NetnsId;

    /// Closes the descriptors of this view when the answer of its thread's call has left ([`AnswerFirst`](crate::after_answer::AnswerFirst)).
    /// The thread leaves the namespace when this is dropped, as ever. For the end of a call that has succeeded: until its answer has
    /// left, the namespace cannot die.
    fn close_when_answered(&mut self) {}

    /// The number by which the daemon's namespace knows this one; it is assigned if there is none yet.
    /// `None` for the daemon's own.
    fn nsid(&mut self) -> Result<Option<Nsid>, NetError>;

    /// The number by which this namespace knows the daemon's own; `None` when it has none, and in the daemon's own.
    fn nsid_of_host(&mut self) -> Result<Option<Nsid>, NetError>;

    /// Carries out `ops` in order, in as few `send` calls as can be, and stops at the first that is refused:
    /// those before it stay done, those after it are not done.
    fn batch(&mut self, ops: &[Op]) -> Result<(), NetError>;

    /// The same, going on behind each operation that takes away what is gone already: that is success.
    fn batch_past_gone(&mut self, ops: &[Op]) -> Result<(), NetError> {
        let mut done = 0;
        while let Some(rest) = ops.get(done..).filter(|rest| !rest.is_empty()) {
            match self.batch(rest) {
                Ok(()) => return Ok(()),
                Err(NetError::Op(error))
                    if rest.get(error.at).is_some_and(|op| op.wants_gone(error.errno)) =>
                {
                    done += error.at + 1;
                }
                Err(NetError::Op(error)) => {
                    return Err(NetError::Op(OpError { at: done + error.at, ..error }));
                }
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }

    /// Carries all of `ops` out in order, past those that are refused, and answers these with their positions. What only changes the
    /// namespace itself goes in one `send`: the kernel goes on behind a message that it refuses.
    fn batch_past_refusals(&mut self, ops: &[Op]) -> Result<Vec<OpError>, NetError>;

    /// A link by name or alternative name; `None` when there is none.
    fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, NetError>;

    /// What a link is to be made on, by name or alternative name; `None` when there is none.
    fn parent_by_name(&mut self, name: &str) -> Result<Option<ParentLink>, NetError> {
        Ok(self.link_by_name(name)?.map(ParentLink::from))
    }

    /// A link by index; `None` when there is none.
    fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetError>;

    /// All links of the namespace.
    fn links(&mut self) -> Result<Vec<Link>, NetError>;

    /// The link among all that `is` the wanted one. Unlike a whole list this needs no moment in which no link comes or goes: a pod can see to
    /// it that there is none.
    fn find_link(&mut self, is: &dyn Fn(&Link) -> bool) -> Result<Option<Link>, NetError> {
        Ok(self.links()?.into_iter().find(is))
    }

    /// The settings of all VFs of the link `pf`; none when it has none or is gone. This is slow: the driver is queried for each
    /// VF, and 64 of them cost 157–866 ms.
    fn vfs(&mut self, pf: u32) -> Result<Vec<Vf>, NetError>;

    /// Addresses of one interface, both families, link-local ones included; an error when there are more than 65,536.
    fn addresses(&mut self, index: u32) -> Result<Vec<Address>, NetError> {
        self.addresses_at_most(index, MOST_ADDRESSES)?
            .ok_or_else(|| NetError::Answer(format!("link {index} has more than {MOST_ADDRESSES} addresses")))
    }

    /// The same, but `None` when there are more than `most`: no more than those are kept in memory, though the kernel lists them all.
    fn addresses_at_most(&mut self, index: u32, most: usize) -> Result<Option<Vec<Address>>, NetError>;

    /// All routes of all tables but the local one, both families.
    fn routes(&mut self) -> Result<Vec<Route>, NetError>;

    /// The programs that are attached to a link and go where it goes (XDP and TCX).
    fn attached_programs(&mut self, index: u32) -> Result<Vec<AttachedProgram>, NetError>;

    /// Takes all of them off; answers, in words, those that are still there. Whoever may enter the namespace can attach them again.
    fn detach_programs(&mut self, index: u32) -> Result<Vec<String>, NetError>;

    /// What ethtool has set of a netdev.
    fn netdev_settings(&mut self, index: u32) -> Result<NetdevSettings, NetError>;

    /// Makes that what it was `before`; answers, in words, what could not be. After [`Net::detach_programs`]: with a program of XDP the
    /// kernel switches features off.
    fn restore_netdev_settings(
        &mut self,
        index: u32,
        before: &NetdevSettings,
    ) -> Result<Vec<String>, NetError>;

    /// Those of these features of a netdev that are wanted and can be switched off, by ethtool's names (`rx-gro`).
    fn features_on(&mut self, index: u32, among: &[&str]) -> Result<Vec<String>, NetError>;

    /// Switches features of a netdev on or off, by their names, as far as it has them; answers, in words, what could not be.
    fn switch_features(&mut self, index: u32, features: &[String], on: bool)
    -> Result<Vec<String>, NetError>;

    /// Reads a sysctl of this namespace: `net/ipv4/conf/eth0/arp_notify`, without `/proc/sys/`.
    fn sysctl(&mut self, key: &str) -> Result<String, NetError>;

    /// Writes a sysctl of this namespace.
    fn set_sysctl(&mut self, key: &str, value: &str) -> Result<(), NetError>;
}

/// [`Net::batch_past_refusals`] with a batch for each operation.
pub(crate) fn one_by_one(net: &mut dyn Net, ops: &[Op]) -> Result<Vec<OpError>, NetError> {
    let mut refused = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        match net.batch(slice::from_ref(op)) {
            Ok(()) => {}
            Err(NetError::Op(error)) => refused.push(OpError { at, ..error }),
            Err(other) => return Err(other),
        }
    }
    Ok(refused)
}

/// The kernel's network namespaces: opening one, and what can be done to a link whose namespace is known by number alone.
pub trait NetKernel: Send + Sync {
    /// The daemon's own namespace.
    fn host(&self) -> Result<Box<dyn Net + '_>, NetError>;

    /// The namespace at `path`, opened for one call; the thread is in it until the view is dropped, and if it
    /// cannot come back the process ends (a thread in a stranger's namespace must not serve the next call).
    /// Refuses the daemon's own namespace and anything that is no network namespace.
    fn pod(&self, path: &Path) -> Result<Box<dyn Net + '_>, NetnsError>;

    /// Does `work` in the daemon's own namespace, also while the thread is in a pod's. A socket or a thread that is made in a namespace keeps
    /// it alive, with every interface in it, for as long as it lives.
    fn at_home(&self, work: &mut dyn FnMut());

    /// A link of a namespace that is known by number alone, without holding anything of it (`IFLA_TARGET_NETNSID`);
    /// `None` when the namespace or the link is gone.
    fn link_at(&self, nsid: Nsid, index: u32) -> Result<Option<Link>, NetError>;

    /// Deletes a link of a namespace that is known by number alone. A link or namespace that is gone is success.
    fn delete_at(&self, nsid: Nsid, index: u32) -> Result<(), NetError>;

    /// The numbers of all namespaces that the daemon's own one knows.
    fn nsids(&self) -> Result<Vec<Nsid>, NetError>;

    /// True when the kernel has links of this kind (`IFLA_INFO_KIND`), built in or by a module that it loads
    /// now. The attempt leaves no trace in any namespace.
    fn knows(&self, kind: &str) -> Result<bool, NetError>;

    /// True when a link that is up can be renamed (kernel ≥ 6.2).
    fn renames_while_up(&self) -> bool;

    /// Takes the frames of a link of the daemon's own namespace away from the kernel's protocols, for sockets of so many receive queues. They
    /// are given back when all descriptors of the answer are closed, or the link is gone. Their memory and their rings are on this NUMA
    /// node, where it has any left. EBUSY: a program of XDP is there already.
    fn open_uplink(&self, index: u32, queues: u32, numa_node: Option<u32>) -> Result<Uplink, NetError>;

    /// Binds the sockets, whose rings are mapped now: frames come and go from here on. What the kernel keeps for them is on this NUMA node.
    fn bind_uplink(&self, index: u32, uplink: &Uplink, numa_node: Option<u32>) -> Result<(), NetError>;
}
