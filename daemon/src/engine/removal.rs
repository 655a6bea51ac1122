//! Taking an attachment down: by DEL, as the undo of an ADD, after a restart, or when its namespace has died. One way
//! for all, from the record alone, and it may be begun again at any step.

use std::time::{Duration, Instant};

use fairlead_cni::CniError;
use fairlead_host::NetError;

use super::homecoming::Waits;
use super::link::{self, Reach};
use super::reaper::Errand;
use super::{Engine, errors, failpoint};
use crate::delegate;
use crate::networks::Network;
use crate::store::{Attachment, IpamRecord, LinkRecord, Phase};

/// The answer of a DEL has left by then. A homecoming that began at once would take the processor, and the kernel's lock for
/// links, from it.
const ANSWERED: Duration = Duration::from_millis(25);

/// Whether DEL may be answered before the link is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// When the interface is silent.
    WhenSilent,
    /// When nothing is left.
    WhenGone,
}

impl Engine {
    /// Takes an attachment down as far as its answer needs.
    pub(super) fn remove(&self, attachment: &Attachment, answer: Answer) -> Result<(), CniError> {
        self.store.enter(attachment.id, Phase::Removing).map_err(|e| errors::store(&e))?;
        failpoint::pass("del.removing");
        self.delegates_del(attachment)?;
        let told = |e: NetError| {
            errors::kernel(&attachment.key.network, &format!("removing {:?}", attachment.key.ifname), &e)
        };
        let reach = link::reach(self.kernel.as_ref(), &attachment.netns).map_err(told)?;
        let reach = match reach {
            Reach::Inside(mut pod) if answer == Answer::WhenSilent => {
                match link::find(attachment, pod.as_mut()).map_err(told)? {
                    Some(link) => {
                        self.quiet(attachment, link.index);
                        link::silence(pod.as_mut(), link.index, &attachment.parked_name()).map_err(told)?;
                        drop(pod);
                        failpoint::pass("del.silent");
                        return self.park(attachment);
                    }
                    None => Reach::Inside(pod),
                }
            }
            other => other,
        };
        if let LinkRecord::Made { index, .. } = &attachment.link {
            self.quiet(attachment, *index);
        }
        if let Some(Waits(why)) = self.take_down(attachment, reach)? {
            tracing::warn!(container = %attachment.key.container, network = %attachment.key.network,
                ifname = %attachment.key.ifname, error = %why, "a VF is home, and waits for the carrier of its NIC");
            self.reaper.again(attachment.id, &why);
        }
        Ok(())
    }

    /// The link goes for good, or home, and with it all that the attachment held. A VF that waits for a carrier stays on
    /// record as the reaper's, and is nobody else's for that long.
    fn take_down(&self, attachment: &Attachment, reach: Reach<'_>) -> Result<Option<Waits>, CniError> {
        let waits = if attachment.vf().is_some() {
            self.bring_vf_home(attachment, reach)?
        } else {
            link::take_down(self.kernel.as_ref(), attachment, reach).map_err(|e| {
                errors::kernel(&attachment.key.network, &format!("removing {:?}", attachment.key.ifname), &e)
            })?;
            None
        };
        failpoint::pass("del.unlinked");
        self.release(attachment)?;
        match &waits {
            Some(_) => {
                self.store.released(attachment).map_err(|e| errors::store(&e))?;
                self.records.forget(attachment.id);
            }
            None => self.forget(attachment)?,
        }
        Ok(waits)
    }

    /// The removal is on record and answered; the rest is the reaper's. A VF is wanted back soon; any other link is
    /// given time to die with its namespace, which costs nothing.
    fn park(&self, attachment: &Attachment) -> Result<(), CniError> {
        self.store.enter(attachment.id, Phase::Silenced).map_err(|e| errors::store(&e))?;
        failpoint::pass("del.silenced");
        let wait = if attachment.vf().is_some() { ANSWERED } else { self.policy().reap_after };
        self.reaper.expect(attachment.id, Instant::now() + wait);
        Ok(())
    }

    /// Gives back what the attachment held, once its link is gone.
    fn release(&self, attachment: &Attachment) -> Result<(), CniError> {
        if let IpamRecord::HostLocal { data_dir } = &attachment.ipam {
            let key = &attachment.key;
            let released = if attachment.addresses.is_empty() {
                self.host_local.release(data_dir, &key.network, &key.container, &key.ifname)
            } else {
                let ips: Vec<_> = attachment.addresses.iter().map(ipnet::IpNet::addr).collect();
                self.host_local.release_ips(data_dir, &key.network, &key.container, &key.ifname, &ips)
            };
            released.map_err(|e| harmless(&e.into()))?;
        }
        self.withdraw_device_info(attachment)?;
        failpoint::pass("del.released");
        Ok(())
    }

    /// Nothing is left of it.
    fn forget(&self, attachment: &Attachment) -> Result<(), CniError> {
        self.records.forget(attachment.id);
        self.reaper.done(attachment.id);
        let forget = || self.store.removed(attachment.id).map_err(|e| errors::store(&e));
        self.back_to_its_pool(attachment, forget)?;
        failpoint::pass("del.removed");
        Ok(())
    }

    /// Finishes a silenced attachment: deletes its link unless the namespace has taken it along, and frees what it held.
    /// Holds nothing of the namespace, but for as long as a VF takes to leave it.
    pub(super) fn reap(&self, id: u64) -> Result<(), CniError> {
        let Some(_turn) = self.reaper.turn(id) else { return Ok(()) };
        let Some(attachment) = self.store.get(id).filter(|a| a.phase == Phase::Silenced) else {
            return Ok(());
        };
        let told = |e: NetError| {
            errors::kernel(&attachment.key.network, &format!("removing {:?}", attachment.key.ifname), &e)
        };
        let reach = match attachment.netns.nsid {
            _ if attachment.vf().is_some() => {
                link::reach(self.kernel.as_ref(), &attachment.netns).map_err(told)?
            }
            Some(nsid) if self.kernel.nsids().map_err(told)?.contains(&nsid) => Reach::ByNumber(nsid),
            Some(_) => Reach::Dead,
            None => link::reach(self.kernel.as_ref(), &attachment.netns).map_err(told)?,
        };
        Waits::nothing(self.take_down(&attachment, reach)?)
    }

    /// The same by order of a caller, who may never come again: what fails is tried again without him.
    pub(super) fn remove_for(&self, attachment: &Attachment, answer: Answer) -> Result<(), CniError> {
        self.remove(attachment, answer).map_err(|e| {
            self.reaper.again(attachment.id, &e);
            harmless(&e)
        })
    }

    /// Undoes an ADD that failed with `error`. What cannot be undone now stays on record and is tried again.
    pub(super) fn undo(&self, attachment: &Attachment, error: &CniError) {
        tracing::info!(container = %attachment.key.container, network = %attachment.key.network, ifname = %attachment.key.ifname,
            error = %error, "ADD is undone");
        if let Err(e) = self.remove(attachment, Answer::WhenGone) {
            tracing::error!(container = %attachment.key.container, network = %attachment.key.network,
                ifname = %attachment.key.ifname, error = %e, "the undo of a failed ADD failed; it is tried again");
            self.reaper.again(attachment.id, &e);
        }
    }

    /// What the reaper does when the time of something has come.
    pub(super) fn attend(&self, errand: Errand) {
        match errand {
            Errand::Attachment(id) => self.finish(id),
            Errand::Inherited(address) => self.inherit_from_the_dead(address),
        }
    }

    fn finish(&self, id: u64) {
        let Some(attachment) = self.store.get(id) else { return self.reaper.done(id) };
        let done = match attachment.phase {
            Phase::Silenced => self.reap(id),
            Phase::Removing => self.try_remove(&attachment),
            Phase::Adding | Phase::Attached => return,
        };
        let Err(e) = done else { return };
        let failures = self.reaper.again(id, &e);
        // A process may keep a VF for hours: told ever more seldom.
        if failures.is_power_of_two() {
            tracing::warn!(container = %attachment.key.container, network = %attachment.key.network,
                ifname = %attachment.key.ifname, failures, error = %e, "a removal failed; it is tried again");
        }
    }

    /// Removes an attachment in the background, unless a call works on its container just now, or a process has its VF.
    fn try_remove(&self, attachment: &Attachment) -> Result<(), CniError> {
        let Some(_claim) = self.claims.try_take(&attachment.key.container) else {
            return Err(errors::too_late("another call of the same container"));
        };
        self.must_be_let_go(attachment)?;
        match self.store.get(attachment.id) {
            Some(now) if now.phase != Phase::Silenced => self.remove(&now, Answer::WhenGone),
            _ => Ok(()),
        }
    }

    /// When the DEL of this attachment may be answered.
    pub(super) fn answer_of(&self, attachment: &Attachment, network: Option<&Network>) -> Answer {
        let has_link = matches!(attachment.link, LinkRecord::Made { .. } | LinkRecord::Moved(_));
        let early = has_link
            && !attachment.addresses.is_empty()
            && !self.policy().del_waits
            && self.kernel.renames_while_up()
            && network.is_some_and(Network::silent_is_gone);
        if early { Answer::WhenSilent } else { Answer::WhenGone }
    }

    /// Ends what the announcer still does for this attachment's link: no socket of ours may outlive it.
    pub(super) fn quiet(&self, attachment: &Attachment, index: u32) {
        if let Some(announcer) = &self.announcer {
            announcer.cancel(index, &attachment.netns.id);
        }
    }
}

/// A DEL error without the words that containerd takes for success.
pub(super) fn harmless(error: &CniError) -> CniError {
    CniError {
        code: error.code,
        msg: delegate::harmless(&error.msg),
        details: delegate::harmless(&error.details),
    }
}

/// All that went wrong while one thing after the other was removed.
pub(super) fn all(errors: Vec<CniError>) -> Result<(), CniError> {
    let mut errors = errors.into_iter();
    let Some(first) = errors.next() else { return Ok(()) };
    let rest: Vec<String> = errors.map(|e| e.to_string()).collect();
    if rest.is_empty() {
        return Err(first);
    }
    Err(CniError::new(first.code, format!("{first}; {}", rest.join("; "))))
}
