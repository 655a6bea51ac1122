//! How a member is to be while nobody has it: its driver, its settings, its interface's looks, as its pool wants them and as it
//! was before. Pure.

use fairlead_host::Vf;

use super::pool_definition::{AtRest, PoolSettings};
use super::provision_error::ProvisionError;
use super::records::{OriginalState, Record};
use super::state::Member;
use crate::vf_netdev::{Appearance, Look};
use crate::{Unserved, VFIO_PCI, VfDevice, VfProfile};

/// How a member is to be while nobody owns it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DesiredState {
    pub(super) at_rest: AtRest,
    profile: VfProfile,
    mtu: Option<u32>,
    pub(super) allow_no_iommu: bool,
    /// Its pool stands for a resource of the device plugin's file, which has none of our keys.
    pub(super) of_plugins_file: bool,
    /// It is to have the RDMA device that it had, if it had one.
    pub(super) keeps_rdma: bool,
    /// Another device plugin allocates it, at any moment.
    allocated_by_others: bool,
    /// Kubelet is told its RDMA nodes when it allocates it, and gives them to its pod's containers for as long as the pod lives.
    kubelet_keeps_nodes: bool,
    /// It was ready once, and nothing has put that in doubt since.
    verified: bool,
    /// It is to be given back, and no pod's before that.
    pub(super) leaves: bool,
    /// What is on its interface is nobody's: a pod that is gone has left it there.
    pub(super) left: bool,
}

/// What is known of a member that is ready, so that nobody has to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyVf {
    /// The VF as sysfs shows it.
    pub vf: VfDevice,
    /// The driver that has it.
    pub driver: String,
    /// Its settings as its PF reports them.
    pub settings: Vf,
}

impl DesiredState {
    /// What a pool wants of its members.
    pub(super) fn of(pool: &PoolSettings) -> DesiredState {
        DesiredState {
            at_rest: pool.at_rest(),
            profile: pool.profile.settings(),
            mtu: pool.profile.mtu(),
            allow_no_iommu: pool.allow_no_iommu,
            of_plugins_file: pool.resource.is_some(),
            keeps_rdma: pool.selectors.want_rdma(),
            allocated_by_others: !pool.is_only_ours(),
            kubelet_keeps_nodes: pool.tells_rdma_nodes(),
            verified: false,
            leaves: false,
            left: false,
        }
    }

    /// The same of a VF that is to be given back as it was, whatever its pool wants.
    pub(super) fn to_be_given_back(left: bool) -> DesiredState {
        DesiredState { leaves: true, left, ..DesiredState::default() }
    }

    /// The same of a VF that no pool wants any more.
    pub(super) fn of_none(record: &Record) -> DesiredState {
        let is_bound_by_others = record.original.as_ref().is_some_and(|original| original.bound_by_others);
        let at_rest = if is_bound_by_others { AtRest::Unchanged } else { AtRest::default() };
        DesiredState { at_rest, ..DesiredState::default() }
    }

    /// The same of one member.
    pub(super) fn for_one(&self, member: &Member) -> DesiredState {
        DesiredState { leaves: member.is_leaving(), ..self.after_a_pod(member.is_left_behind()) }
    }

    /// The same for work on one member.
    pub(super) fn for_work_on(&self, member: &Member) -> DesiredState {
        DesiredState { verified: member.is_verified(), ..self.after_a_pod(member.is_left_behind()) }
    }

    /// The same of one that a pod which is gone may have `left` as it liked.
    pub(super) fn after_a_pod(&self, left: bool) -> DesiredState {
        DesiredState { left, ..self.clone() }
    }

    /// Whether something that is not served stands in its way. An RDMA device does only where its pod is to have that, too: it is gone
    /// under vfio-pci, and in nobody's way when a VF is given back.
    pub(super) fn is_hindered_by(&self, unserved: &Unserved) -> bool {
        match unserved {
            Unserved::Vdpa { .. } => true,
            Unserved::ExclusiveRdma { .. } => {
                self.keeps_rdma && !self.leaves && self.at_rest != AtRest::VfioPci
            }
        }
    }

    /// Whether its driver is somebody else's affair: the allocator's, or the administrator's.
    pub(super) fn is_bound_by_others(&self) -> bool {
        self.at_rest == AtRest::Unchanged
    }

    /// Refuses a member that whoever binds it is giving from `driver` to another.
    pub(super) fn unless_promised(&self, driver: &str, to: Option<&str>) -> Result<(), ProvisionError> {
        match to.filter(|to| self.is_bound_by_others() && *to != driver) {
            Some(to) => Err(ProvisionError::Taken(format!(
                "it is being given from {driver} to {to} (driver_override), by somebody else: its pool has it when that is done"
            ))),
            None => Ok(()),
        }
    }

    /// Whether a member stays bound while it is worked on: bound anew, a VF has no RDMA nodes for a moment, and may have another VF's
    /// numbers after that. Another device plugin hands a pod the nodes that sysfs names when kubelet asks, and knows nothing of our work.
    /// Of ours kubelet asks when a pod is admitted, and gives what it was told to the containers of each further sandbox of that. One that
    /// is in doubt is bound anew all the same. `is_new`: nothing was done to it in this boot, so that we have told nobody its nodes.
    pub(super) fn stays_bound(
        &self,
        vf: &VfDevice,
        record: &Record,
        original: &OriginalState,
        is_new: bool,
    ) -> bool {
        let has_rdma = original.rdma.as_ref().is_some_and(|devices| !devices.is_empty());
        let are_nodes_known = self.allocated_by_others || (self.kubelet_keeps_nodes && !is_new);
        let is_in_doubt = self.left || record.unclean.is_some() || !(self.verified || is_new);
        let is_bound = vf.driver.as_ref() == Some(&original.driver);
        are_nodes_known && has_rdma && is_bound && !is_in_doubt
    }

    /// The driver of a member at rest.
    pub(super) fn driver<'w>(&self, original: &'w OriginalState) -> &'w str {
        match self.at_rest {
            AtRest::VfioPci => VFIO_PCI,
            AtRest::Kernel | AtRest::Unchanged => &original.driver,
        }
    }

    /// All settings of a member at rest: as they were, but for what the pool wants and its lasting MAC address.
    pub(super) fn settings(&self, record: &Record, original: &OriginalState) -> VfProfile {
        let before = VfProfile::from(&original.settings);
        let wanted = &self.profile;
        VfProfile {
            mac: Some(record.mac),
            vlan: wanted.vlan.or(before.vlan),
            spoofchk: wanted.spoofchk.or(before.spoofchk),
            trust: wanted.trust.or(before.trust),
            link_state: wanted.link_state.or(before.link_state),
            min_rate: wanted.min_rate.or(before.min_rate),
            max_rate: wanted.max_rate.or(before.max_rate),
        }
    }

    /// Takes over what whoever binds a member has set while it was ready, as far as its pool says nothing of that: the MTU and the state
    /// of the link. Not its MAC address, nor what keeps tenants apart (VLAN, spoof check, trust). Nor its rates: igb takes these away by
    /// itself when the speed of the PF's link changes.
    pub(super) fn take_over(&self, original: &mut OriginalState, mtu: Option<u32>, settings: &Vf) {
        if let (None, Some(mtu), Some(interface)) = (self.mtu, mtu, &mut original.interface) {
            interface.mtu = mtu;
        }
        if self.profile.link_state.is_none() {
            original.settings.link_state = settings.link_state.or(original.settings.link_state);
        }
    }

    /// How the interface of a member at rest is to look: as before, but down, and with the MTU that the pool wants. Its alternative names
    /// are udev's affair: it gives them some time after each binding and renaming, by the MAC address too (systemd 257).
    pub(super) fn look(&self, original: &Appearance) -> Look {
        let look = original.look();
        Look { mtu: self.mtu.unwrap_or(look.mtu), up: Some(false), alt_names: None, ..look }
    }
}
