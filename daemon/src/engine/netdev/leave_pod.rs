//! A netdev of the host leaves its pod, whatever the pod has made of it.
//!
//! The kernel moves what is at an index when it is asked. So a netdev comes under a name that says nothing, down, and is known again
//! in the host's namespace before anything is done with it.

use fairlead_host::{Kernel, Link, Net, NetError, Op, SetLink, failpoint};
use fairlead_sriov::vf_netdev;
use nix::errno::Errno;

/// How often it is tried against a pod that goes on giving the netdev alternative names. A try takes 0.2 ms, and a pod that races with
/// each of them loses about every second one.
const TRIES: usize = 64;

/// A netdev on its way to the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaving<'a> {
    /// A name that nobody else has, and no pod can guess.
    pub(crate) parked: &'a str,
    /// The index that it had on the host, which it gets again where that is free.
    pub(crate) index: u32,
}

impl Leaving<'_> {
    /// Moves `link` of the pod to the host, down and under the parked name. What has come in its place is turned away.
    ///
    /// An alternative name that is taken on the host keeps it in the pod (EEXIST). Then all of them go; those from before are given back at
    /// home.
    pub(crate) fn leave(
        &self,
        kernel: &dyn Kernel,
        pod: &mut dyn Net,
        link: &Link,
        is_own: impl Fn(&Link) -> bool,
    ) -> Result<(), NetError> {
        // A killed attempt may have left something under this name, which would keep the netdev away.
        self.turn_away_others(kernel, &is_own)?;
        let down = SetLink { index: link.index, up: Some(false), ..SetLink::default() };
        pod.batch(&[Op::SetLink(down)])?;
        let left = self.move_out(pod, link.index);
        // Also after a refusal: the kernel moves first and renames then, so what it refuses to rename has come.
        self.turn_away_others(kernel, &is_own)?;
        left
    }

    fn move_out(&self, pod: &mut dyn Net, index: u32) -> Result<(), NetError> {
        let mut as_index = Some(self.index);
        let mut tries = 1;
        loop {
            let name = self.parked.to_owned();
            failpoint::pass("del.leaving");
            let refused = match pod.batch(&[Op::MoveToHost { index, as_index, name }]) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            match refused.errno() {
                Some(Errno::EBUSY) if as_index.is_some() => as_index = None,
                // It has come under the name that it had, because the parked one is an alternative name of its own.
                Some(Errno::EEXIST) if pod.link_by_index(index)?.is_none() => return Ok(()),
                Some(Errno::EEXIST) if tries < TRIES && take_alt_names_off(pod, index)? > 0 => tries += 1,
                _ => return Err(refused),
            }
        }
    }

    /// Deletes what has come to the host under the parked name in place of the netdev: between the look and the move the pod may have put
    /// a link of its own at the index. It is down, and has no address. What a driver has made is another one that was lent, and is
    /// left to its own record.
    pub(crate) fn turn_away_others(
        &self,
        kernel: &dyn Kernel,
        is_own: impl Fn(&Link) -> bool,
    ) -> Result<(), NetError> {
        let mut host = kernel.host()?;
        match host.link_by_name(self.parked)? {
            // Also by an alternative name: under that one it may have come.
            Some(link) if !is_own(&link) && !link.kind.name().is_empty() => {
                tracing::error!(
                    name = self.parked,
                    kind = link.kind.name(),
                    "a pod has put a link of its own in the place of one that was lent to it: it is deleted"
                );
                host.batch(&[Op::DeleteLink(link.index)])
            }
            _ => Ok(()),
        }
    }
}

/// Deletes the alternative names of a link; answers how many there were.
fn take_alt_names_off(pod: &mut dyn Net, index: u32) -> Result<usize, NetError> {
    let Some(link) = pod.link_by_index(index)? else { return Ok(0) };
    let ops: Vec<Op> = vf_netdev::without_alt_names(&link).collect();
    pod.batch_past_gone(&ops)?;
    Ok(ops.len())
}
