//! A VF under vfio-pci that is set up for its pod's process.

use fairlead_cni::CniError;
use fairlead_host::{Mac, VfChange, failpoint};

use crate::engine::kinds::sriov::{Snapshot, Sriov, SriovServices};
use crate::engine::kinds::{Applied, Plan, Work};
use crate::store::{Attachment, LinkRecord, VfRecord};

/// A VF that is about to be set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// What it was.
    pub(crate) vf: VfRecord,
    /// Settings that differ from what is wanted.
    pub(crate) settings: VfChange,
    /// The MAC address that its PF has for it.
    pub(crate) mac: Option<Mac>,
}

/// Says what differs and is to be set. Pure.
pub(crate) fn plan(wanted: &Sriov, snapshot: &Snapshot) -> Plan {
    let (mut vf, settings) = snapshot.record(wanted);
    // Without a netdev nothing but the PF says which MAC address the process will find.
    let of_pf = snapshot.settings.as_ref().and_then(|now| now.mac).filter(|mac| !mac.is_zero());
    if !snapshot.restored_by_pool && vf.before.mac.is_none() {
        // The process may have the PF take another one, which the next pod's VF must not have.
        vf.pf_mac = of_pf;
    }
    let mac = wanted.profile.mac.or(of_pf);
    let change = Change { vf: vf.clone(), settings, mac };
    Plan { record: LinkRecord::Vfio(vf), work: Work::Vfio(change) }
}

/// Sets what differs; the pod has the VF already.
pub(crate) fn apply(
    sriov: &SriovServices,
    change: &Change,
    attachment: &Attachment,
) -> Result<Applied, CniError> {
    sriov.write_device_info(attachment)?;
    sriov.set_up(&change.vf, &change.settings)?;
    failpoint::pass("add.prepared");
    let pci_id = change.vf.address.to_string();
    Ok(Applied { mac: change.mac, mtu: change.vf.mtu.unwrap_or_default(), pci_id, ..Applied::default() })
}
