//! The pools as the VF kinds use them: whose a VF is, what an ADD finds ready, what kubelet is offered, and why a VF is not
//! to be had.

use fairlead_cni::{CniError, Code};
use fairlead_sriov::PciAddr;
use fairlead_sriov::pools::state::Refusal;
use fairlead_sriov::pools::{DrawError, ReadyVf, Refused, SriovCniOwners, VfOwners};

use super::config::Sriov;
use super::services::SriovServices;
use crate::port_pools::PortPools;

impl SriovServices {
    /// Calls with who has a VF: an attachment of ours, or a pod that sriov-cni made (`leftovers`).
    pub(crate) fn with_owners<T>(
        &self,
        leftovers: &dyn Fn() -> SriovCniOwners,
        call: impl FnOnce(VfOwners<'_>) -> T,
    ) -> T {
        let ours = |address: PciAddr| self.store.vf_holder_in_words(address);
        call(VfOwners { ours: &ours, sriov_cni: leftovers })
    }

    /// Whether an ADD finds its VF ready, and as it wants it: it waits for nothing but the kernel then.
    pub(crate) fn has_ready(&self, wanted: &Sriov) -> bool {
        let fits = |known: &ReadyVf| wanted.profile.plan(&known.settings).change.is_empty();
        wanted.address().is_ok_and(|address| self.pools.has_ready(address, fits))
    }

    /// Offers kubelet the pools of VFs and ports that it allocates from, as they are configured. Before the first look it is offered nothing: an
    /// empty list would take away what its pods were promised.
    pub(crate) fn offer_to_kubelet(&self, ports: &PortPools) {
        if self.pools.is_looked_at() {
            self.device_offers.offer(&self.pools, ports);
        }
    }
}

/// Why nothing was drawn from a pool.
pub(super) fn undrawn(error: &DrawError) -> CniError {
    let (code, remedy) = match error {
        DrawError::NoSuchPool(_) => (Code::InvalidConfig, "name it in `pools` of the daemon's configuration"),
        DrawError::ConfigurationUnread(_) => (
            Code::TryAgain,
            "correct the daemon's configuration, or the device plugin's; `fairleadd doctor` tells what is wrong with it",
        ),
        DrawError::NotDrawnFrom(_) => {
            (Code::InvalidConfig, "have the pod ask for the pool's resource, or have its deviceID passed")
        }
        DrawError::Empty { .. } => (
            Code::TryAgain,
            "it is waited for again with the next try; `fairleadd pools` tells who has its VFs",
        ),
    };
    CniError::new(code, error.to_string()).with(remedy)
}

/// Why a pool does not give a VF. Code 11 where it can be had again without a change of pod or configuration: a runtime that tries
/// again with the same VF is right to.
pub(super) fn refused(address: PciAddr, refused: &Refused) -> CniError {
    let code = match &refused.why {
        Refusal::OtherNodes { .. } => Code::InvalidConfig,
        _ => Code::TryAgain,
    };
    let remedy = match &refused.why {
        Refusal::NotYet(_) | Refusal::Lent => "it is waited for again with the next try",
        Refusal::Quarantined(_) => {
            "see `fairleadd pools`; when the cause is gone: fairleadd pools release, and its address"
        }
        Refusal::Drained => "when pods are to have it again: fairleadd pools fill, and its address",
        Refusal::Foreign(_) => "take it from whoever uses it, or leave it out of the pool's selectors",
        Refusal::Gone => "make it again (sriov_numvfs), or give the pod another one",
        Refusal::OtherNodes { .. } => "delete the pod: kubelet asks for the nodes of a new one",
    };
    CniError::new(code, format!("VF {address} cannot be had: {refused}")).with(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vf_with_other_rdma_nodes_than_kubelet_was_told_is_no_case_to_try_again() {
        let why = |why| Refused { pool: "radio".to_owned(), why };
        let address = "0000:21:10.0".parse().unwrap();
        let other = Refusal::OtherNodes { told: "uverbs4".to_owned(), now: "uverbs5".to_owned() };
        let error = refused(address, &why(other));
        assert_eq!(error.code, Code::InvalidConfig);
        assert!(error.details.contains("delete the pod"), "{error}");
        assert_eq!(refused(address, &why(Refusal::Lent)).code, Code::TryAgain);
    }
}
