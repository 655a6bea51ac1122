//! The engine and the pools: whose a VF is, what an ADD takes from a pool, and that its pool hears of its return.

use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use fairlead_cni::args::Args;
use fairlead_cni::config::NetConf;
use fairlead_cni::wire::Request;
use fairlead_cni::{CniError, Code};
use fairlead_sriov::PciAddr;
use fairlead_sriov::pool::Refusal;

use super::Engine;
use crate::device_offers::announced_resources;
use crate::hotplug::Hotplug;
use crate::networks::Network;
use crate::networks::sriov::Sriov;
use crate::pools::{DrawError, Holders, Known, Look, Refused, SLOW};
use crate::store::Attachment;

/// Kubelet may take so long to tell what device plugins announce.
const ALLOCATABLE: Duration = Duration::from_millis(500);

impl Engine {
    /// The attachment that has a VF.
    fn attachment_with(&self, address: PciAddr) -> Option<String> {
        let holder = self.store.with_vf(address)?;
        Some(format!("{}/{}", holder.key.container, holder.key.ifname))
    }

    /// Calls with who has a VF: an attachment, or a pod that sriov-cni made.
    pub(super) fn with_holders<T>(&self, call: impl FnOnce(Holders<'_>) -> T) -> T {
        call(Holders {
            ours: &|address| self.attachment_with(address),
            inherited: &|| self.owners_by_sriov_cni(),
        })
    }

    /// Whether an ADD finds its VF ready, and as it wants it: it waits for nothing but the kernel then.
    pub(super) fn has_ready(&self, conf: &Arc<NetConf>, request: &Request) -> bool {
        let validate = || Args::parse(&request.args).and_then(|args| Network::validate(conf, &args));
        let network = self.validated.take(conf, &request.args).map_or_else(validate, Ok);
        let Ok(network) = network else { return false };
        let fits = |wanted: &Sriov, known: &Known| wanted.profile.plan(&known.settings).change.is_empty();
        let ready = network.vf().is_some_and(|wanted| {
            wanted.address().is_ok_and(|address| self.pools.has_ready(address, |known| fits(wanted, known)))
        });
        self.validated.keep(conf, &request.args, network);
        ready
    }

    /// Compares the pools with the machine, without waiting for what has to be done then.
    pub(super) fn look_at_pools(&self, how: Look) {
        self.with_holders(|holders| self.pools.look(how, holders));
    }

    /// Offers kubelet the pools that it gives out, as they are configured.
    pub(super) fn offer_to_kubelet(&self) {
        if let Err(error) = self.device_offers.offer(&self.pools) {
            tracing::error!(%error, "pools cannot be offered to kubelet; they are after the next start");
        }
    }

    /// Asks kubelet whether another device plugin announces a VF of ours too.
    pub(super) fn look_for_doubles(&self) {
        match self.pod_resources.allocatable(Instant::now() + ALLOCATABLE) {
            Ok(all) => self.pools.announced(&announced_resources(all)),
            Err(error) => tracing::debug!(%error, "what device plugins announce is not known"),
        }
    }

    /// Begins the keeper's thread, and those which hear of devices and of sriov-cni's files for it.
    pub(super) fn begin_pools(engine: &Arc<Engine>) -> io::Result<()> {
        let inherited = Engine::watch_inherited(engine).inspect_err(|error| {
            tracing::error!(%error, "what sriov-cni brings home by itself is seen within a minute only");
        });
        let engine = Arc::downgrade(engine);
        let told = Weak::clone(&engine);
        let hotplug = Hotplug::watch(move |news| {
            if let Some(engine) = told.upgrade() {
                engine.pools.heard(news);
            }
        })?;
        thread::Builder::new().name("pool-keeper".to_owned()).spawn(move || {
            keep(&engine);
            drop((hotplug, inherited));
        })?;
        Ok(())
    }

    /// The VF of an attachment that is over goes back to its pool.
    pub(super) fn back_to_its_pool(
        &self,
        attachment: &Attachment,
        forget: impl FnOnce() -> Result<(), CniError>,
    ) -> Result<(), CniError> {
        match attachment.vf() {
            Some(vf) => self.pools.take_back(vf.address, forget),
            None => forget(),
        }
    }
}

fn keep(engine: &Weak<Engine>) {
    let mut thorough = Instant::now() + SLOW;
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let Some(how) = strong.pools.next_look(thorough) else { return };
        strong.look_at_pools(how);
        if how == Look::Thorough {
            strong.look_for_doubles();
            thorough = Instant::now() + SLOW;
        }
    }
}

/// Why nothing was drawn from a pool.
pub(super) fn undrawn(error: &DrawError) -> CniError {
    let (code, remedy) = match error {
        DrawError::NoSuchPool(_) => (Code::InvalidConfig, "name it in `pools` of the daemon's configuration"),
        DrawError::Unread(_) => (
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

/// Why a pool does not give a VF. Code 11 for all: each can be had again without a change of the configuration, and
/// a runtime that tries again with the same VF is right to.
pub(super) fn refused(address: PciAddr, refused: &Refused) -> CniError {
    let remedy = match &refused.why {
        Refusal::NotYet(_) | Refusal::Lent => "it is waited for again with the next try",
        Refusal::Quarantined(_) => {
            "see `fairleadd pools`; when the cause is gone: fairleadd pools release, and its address"
        }
        Refusal::Foreign(_) => "take it from whoever uses it, or leave it out of the pool's selectors",
        Refusal::Gone => "make it again (sriov_numvfs), or give the pod another one",
    };
    CniError::new(Code::TryAgain, format!("VF {address} cannot be had: {refused}")).with(remedy)
}
