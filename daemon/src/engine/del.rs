//! DEL: what is on record is taken down; of what is not, only what the configuration implies and what is provably
//! nobody else's.

use fairlead_cni::{CniError, Code};
use fairlead_host::{NetnsError, Op};

use super::job::Job;
use super::removal::{self, harmless};
use super::{Engine, errors};
use crate::networks::Network;

impl Engine {
    pub(super) fn del(&self, job: &mut Job) -> Result<(), CniError> {
        self.del_of(job, &[Network::validate(&job.conf, &job.args).ok()])
    }

    /// The same for a configuration that may have become any of several networks; `None`: one that cannot be read.
    pub(super) fn del_of(&self, job: &mut Job, networks: &[Option<Network>]) -> Result<(), CniError> {
        let _claim = self.claim(job)?;
        if let Some(attachment) = self.store.find(&job.key).or_else(|| self.store.find_of_any_type(&job.key))
        {
            let network = networks.get(attachment.passed_over.len()).and_then(Option::as_ref);
            let answer = self.answer_of(&attachment, network);
            let done = self.remove_for(&attachment, answer);
            job.timing.end("remove");
            return done;
        }
        if self.store.silenced().iter().any(|a| a.key == job.key) {
            return Ok(());
        }
        let done = self.del_unrecorded(job, networks);
        job.timing.end("remove");
        done.map_err(|e| harmless(&e))
    }

    /// K10: nothing is on record; another plugin may have made it.
    fn del_unrecorded(&self, job: &Job, networks: &[Option<Network>]) -> Result<(), CniError> {
        // Its addresses are free when it has left the pod.
        self.del_inherited(job)?;
        let mut errors = Vec::new();
        errors.extend(self.ipam_del_unrecorded(job).err());
        for network in networks.iter().flatten() {
            errors.extend(self.unlink_unrecorded(job, network).err());
        }
        removal::all(errors)
    }

    /// Removes `CNI_IFNAME` from the pod's namespace if it is of the configuration's kind and no attachment holds it.
    fn unlink_unrecorded(&self, job: &Job, network: &Network) -> Result<(), CniError> {
        // From the directory that the daemon is in, a relative path would lead to somebody else.
        if !job.netns().is_absolute() {
            return Ok(());
        }
        let mut pod = match self.kernel.pod(job.netns()) {
            Ok(pod) => pod,
            Err(NetnsError::Missing { .. } | NetnsError::NotANetns { .. } | NetnsError::Host { .. }) => {
                return Ok(());
            }
            Err(e) => return Err(errors::netns(&e)),
        };
        let told = |e| errors::kernel(&job.key.network, &format!("removing {:?}", job.key.ifname), &e);
        let Some(link) = pod.link_by_name(&job.key.ifname).map_err(told)? else { return Ok(()) };
        let held =
            self.store.all().iter().any(|a| a.netns.id.same(pod.id()) && a.key.ifname == job.key.ifname);
        if held || !network.made(&link) {
            return Ok(());
        }
        match pod.batch(&[Op::DeleteLink(link.index)]) {
            Err(e) if e.errno() == Some(nix::errno::Errno::ENODEV) => Ok(()),
            other => other.map_err(told),
        }
    }

    /// Waits for the container; the runtime's own order makes that rare.
    pub(super) fn claim(&self, job: &Job) -> Result<Option<super::claims::Claim<'_>>, CniError> {
        if job.inner {
            return Ok(None);
        }
        match self.claims.take(&job.key.container, job.deadline) {
            Some(claim) => Ok(Some(claim)),
            None => Err(CniError::new(
                Code::TryAgain,
                format!("another call of container {} did not end in time", job.key.container),
            )),
        }
    }
}
