//! An attachment that the operator gives up, because its removal cannot succeed: what may be left of it is said, and its record
//! goes. Nothing of it is executed or taken down.

use std::fs;
use std::time::{Duration, Instant};

use fairlead_cni::config::ConfList;
use fairlead_cni::{CniError, Code};
use fairlead_host::{failpoint, files};
use serde_json::{Value, json};

use super::Core;
use crate::call::NamedAttachment;
use crate::engine::errors;
use crate::engine::recorded_netns::{self, Reach};
use crate::store::{Attachment, IpamRecord, LinkRecord, NewerAttachment, Phase};

/// How long a call of the same container is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Keeps a VF from everybody; answers whether a pool has it.
pub(crate) type QuarantineVf<'q> = &'q dyn Fn(fairlead_sriov::PciAddr) -> bool;

impl NamedAttachment {
    fn means(&self, [container, network, ifname]: [&str; 3]) -> bool {
        self.container == container
            && self.ifname == ifname
            && self.network.as_ref().is_none_or(|named| named == network)
    }

    fn means_key(&self, attachment: &Attachment) -> bool {
        let key = &attachment.key;
        self.means([&key.container, &key.network, &key.ifname])
    }

    fn means_newer(&self, newer: &NewerAttachment) -> bool {
        let [container, network, ifname, _] = newer.words();
        self.means([container, network, ifname])
    }
}

impl Core {
    /// What may be left of the attachments that are named; and, with `carry_out`, forgets them.
    pub(crate) fn forget_named(
        &self,
        named: &NamedAttachment,
        carry_out: bool,
        quarantine: QuarantineVf<'_>,
    ) -> Result<Value, CniError> {
        let newer: Vec<_> = self.store.newer().into_iter().filter(|n| named.means_newer(n)).collect();
        let (ours, others): (Vec<_>, Vec<_>) = self
            .store
            .all()
            .into_iter()
            .filter(|attachment| named.means_key(attachment))
            .partition(|attachment| self.failing(attachment).is_some());
        if let (true, true, Some(other)) = (ours.is_empty(), newer.is_empty(), others.first()) {
            return Err(not_failing(other));
        }
        must_be_one(named, &ours.iter().map(|a| a.key.network.as_str()).collect::<Vec<_>>(), &newer)?;
        let mut rows = Vec::new();
        for attachment in &ours {
            rows.push(match carry_out {
                true => self.give_up(attachment.id, &attachment.key.container, quarantine)?,
                false => self.row(attachment),
            });
        }
        for attachment in &newer {
            if carry_out {
                self.give_up_newer(attachment)?;
            }
            let [container, network, ifname, _] = attachment.words();
            let left = "all that the newer version made for it, which this one cannot read; its addresses stay taken";
            rows.push(
                json!({ "container": container, "network": network, "ifname": ifname, "left": [left] }),
            );
        }
        Ok(rows.into())
    }

    fn row(&self, attachment: &Attachment) -> Value {
        let key = &attachment.key;
        let left = self.left_behind(attachment);
        json!({ "container": key.container, "network": key.network, "ifname": key.ifname, "left": left })
    }

    /// Forgets an attachment. Its record goes last: whatever ends the daemon before that, the order can be given again.
    fn give_up(&self, id: u64, container: &str, quarantine: QuarantineVf<'_>) -> Result<Value, CniError> {
        // An attempt that hangs for good would have the lock for good, and no call of the container could succeed any more.
        let lock = self.containers.take(container, Instant::now() + PATIENCE);
        let _lock = lock.unwrap_or_else(|| self.containers.seize(container));
        let _turn = self.removals.turn(id);
        // Read again under the lock: its removal may have succeeded meanwhile.
        let Some(attachment) = self.store.get(id) else { return Ok(Value::Null) };
        if self.failing(&attachment).is_none() {
            return Err(not_failing(&attachment));
        }
        let row = self.row(&attachment);
        if let Some(address) = attachment.pci_device() {
            // Nobody has restored it: no pod may get it as the last one left it.
            quarantine(address);
        }
        // What fails is left behind too: it may be the very reason why the removal cannot succeed.
        if self.link_is_gone(&attachment)
            && let Err(error) = self.release_in_time(&attachment)
        {
            tracing::warn!(container, error = %error, "addresses of an attachment that is given up stay taken");
        }
        if let Err(error) = self.kinds.release(&attachment) {
            tracing::warn!(container, error = %error, "the device information of an attachment that is given up stays");
        }
        failpoint::pass("forget.released");
        self.forget(&attachment)?;
        tracing::warn!(container = %attachment.key.container, network = %attachment.key.network,
            ifname = %attachment.key.ifname, left = %row["left"], "an attachment was given up by the operator's order");
        Ok(row)
    }

    /// Gives the addresses back, unless their directory hangs.
    fn release_in_time(&self, attachment: &Attachment) -> Result<(), CniError> {
        let done = self.ipam.release_within(PATIENCE, attachment);
        let hangs = || errors::internal("the directory of addresses does not answer");
        done.map_err(|error| errors::internal(error.to_string()))?.unwrap_or_else(|| Err(hangs()))
    }

    fn give_up_newer(&self, newer: &NewerAttachment) -> Result<(), CniError> {
        let Some(id) = newer.id else {
            return Err(errors::internal(
                "a record of a newer version has no number; only that version can remove it",
            ));
        };
        if let Some(file) = &newer.file {
            let what = || format!("the record {} cannot be removed", file.display());
            let remedy = "make the directory writable";
            files::gone(fs::remove_file(file))
                .map_err(|e| errors::file(what(), &e, Code::TryAgain, remedy))?;
        }
        self.store.removed(id).map_err(|e| errors::store(&e))?;
        let [container, network, ifname, _] = newer.words();
        tracing::warn!(
            container,
            network,
            ifname,
            "an attachment of a newer version was given up by the operator's order"
        );
        Ok(())
    }

    /// Whether the link that had the attachment's addresses is provably gone.
    fn link_is_gone(&self, attachment: &Attachment) -> bool {
        match (&attachment.link, recorded_netns::reach(self.kernel(), &attachment.netns)) {
            // Of an earlier boot, or nothing was ever made: nobody has an interface.
            (LinkRecord::None, _) => true,
            // A process may drive its VF, whatever has become of the namespace.
            (LinkRecord::Vfio(_) | LinkRecord::VhostUser(_), _) => false,
            (_, Ok(Reach::Dead)) => true,
            // The index is of our choice. A device that was lent may be there under any name.
            (LinkRecord::Made { index, .. }, Ok(Reach::Inside(mut pod))) => {
                matches!(pod.link_by_index(*index), Ok(None))
                    && self.renumbered(attachment, pod.as_mut()).is_ok_and(|links| links.is_empty())
            }
            _ => false,
        }
    }

    /// What may be left of an attachment that nobody takes down, for a person.
    fn left_behind(&self, attachment: &Attachment) -> Vec<String> {
        let mut left = Vec::new();
        let place = &attachment.netns.path;
        let gone = self.link_is_gone(attachment);
        match &attachment.link {
            LinkRecord::Made { index, kind, .. } if !gone => {
                left.push(format!(
                    "a {} interface with index {index} in the namespace of {place}",
                    kind.name()
                ));
            }
            LinkRecord::Moved(netdev) if netdev.vf.is_none() => {
                let name = &netdev.was.name;
                left.push(format!(
                    "the host's interface {name}, in the namespace of {place} or home, not as it was"
                ));
            }
            LinkRecord::Conflist { conflist, .. } => {
                let list = ConfList::parse(conflist);
                let plugins = list.map(|list| list.plugin_types().collect::<Vec<_>>().join(", "));
                let plugins = plugins.unwrap_or_else(|_| "its plugins".to_owned());
                left.push(format!("what {plugins} made or hold: interfaces, leases, port mappings"));
            }
            _ => {}
        }
        if let Some(port) = attachment.vhost_user() {
            let (name, socket) = (&port.port.name, port.host_path());
            left.push(format!(
                "port {name} of the switch, until the daemon next finds it, and its socket {socket}"
            ));
        }
        if let Some(vf) = attachment.vf() {
            left.push(format!(
                "VF {} with the pod's settings; in a pool it is quarantined until `fairleadd pools release {}`",
                vf.address, vf.address
            ));
        }
        match &attachment.ipam {
            IpamRecord::Delegate { plugin } => left.push(format!("the leases that {plugin} gave")),
            IpamRecord::HostLocal { .. } if !gone => {
                let all: Vec<_> = attachment.addresses.iter().map(ToString::to_string).collect();
                let which = if all.is_empty() { "its addresses".to_owned() } else { all.join(", ") };
                left.push(format!(
                    "{which}: stay taken, because the link may still answer for them. `fairleadd gc --orphans` frees them and looks at no link: give that order when the link is gone"
                ));
            }
            _ => {}
        }
        left
    }
}

/// One network at a time: what is given up is not undone by anybody.
fn must_be_one(named: &NamedAttachment, ours: &[&str], newer: &[NewerAttachment]) -> Result<(), CniError> {
    let mut networks: Vec<&str> = ours.to_vec();
    networks.extend(newer.iter().map(|newer| newer.words()[1]));
    networks.sort_unstable();
    networks.dedup();
    let NamedAttachment { container, ifname, .. } = named;
    match networks.as_slice() {
        [_] => Ok(()),
        [] => {
            let msg = format!("nothing is on record of interface {ifname:?} of container {container}");
            Err(CniError::new(Code::UnknownContainer, msg).with("`fairleadd attachments` lists what is"))
        }
        several => {
            let msg =
                format!("interface {ifname:?} of container {container} is in {}", several.join(" and "));
            Err(CniError::new(Code::BadEnvironment, msg).with("name one of them with --network"))
        }
    }
}

/// What lives, or is being added, is removed by a DEL; only what that cannot remove is given up.
fn not_failing(attachment: &Attachment) -> CniError {
    let key = &attachment.key;
    let (state, remedy) = match attachment.phase {
        Phase::Removing | Phase::Silenced => (
            "being removed",
            "it ends by itself, fails within its time limit, or can be given up after a minute",
        ),
        Phase::Adding | Phase::Attached => ("attached", "remove the pod (crictl rmp), or send its DEL"),
    };
    let msg = format!(
        "interface {:?} of container {} is {state}, and no removal of it has failed",
        key.ifname, key.container
    );
    CniError::new(Code::BadEnvironment, msg).with(remedy)
}
