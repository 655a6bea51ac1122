//! `macvlan`: an interface of its own MAC address on an interface of the host.

use fairlead_cni::CniError;
use fairlead_cni::args::Args;
use fairlead_cni::config::{self, NetConf};
use fairlead_host::{Kind, Link, Mac, MacvlanMode, NewLink};

use super::link_inputs::{Facts, ParentRef, on_parent};
use crate::engine::kinds::wanted_mac;

/// A validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Macvlan {
    masters: Vec<String>,
    in_container: bool,
    mode: MacvlanMode,
    mtu: Option<u32>,
    /// The MAC address that is asked for.
    pub(super) mac: Option<Mac>,
    bc_queue_len: Option<u32>,
}

impl Macvlan {
    /// Reads the configuration; `runtimeConfig.mac` goes before `CNI_ARGS` `MAC`, that before `mac`.
    pub(super) fn validate(conf: &NetConf, args: &Args) -> Result<Macvlan, CniError> {
        let read = config::macvlan::Macvlan::parse(conf)?;
        let mac = read.mac(conf, args)?;
        Ok(Macvlan {
            masters: read.masters,
            in_container: read.link_in_container,
            mode: mode(read.mode),
            mtu: read.mtu,
            mac: mac.as_deref().map(wanted_mac).transpose()?,
            bc_queue_len: read.bcqueuelen,
        })
    }

    /// The link that it stands on.
    pub(super) fn parent(&self) -> ParentRef {
        ParentRef { names: self.masters.clone(), in_container: self.in_container }
    }

    /// One `RTM_NEWLINK`, and the MAC address that the link has in the end.
    pub(super) fn link(&self, facts: &Facts<'_>) -> Result<(NewLink, Option<Mac>), CniError> {
        let kind = Kind::Macvlan { mode: self.mode, bc_queue_len: self.bc_queue_len };
        let (new, parent) = on_parent(facts, self.in_container, self.mtu, kind)?;
        if self.takes_parent_over() {
            // The kernel gives it the parent's MAC address, whichever it is asked for.
            return Ok((new, parent.mac));
        }
        let mac = Some(self.mac.unwrap_or(facts.mac));
        Ok((NewLink { mac, ..new }, mac))
    }

    /// Whether the parent can have only this one.
    pub(super) fn takes_parent_over(&self) -> bool {
        self.mode == MacvlanMode::Passthru
    }

    /// Whether the link has the kind and mode that were asked for.
    pub(super) fn check(&self, link: &Link) -> Result<(), String> {
        match link.kind {
            Kind::Macvlan { mode, .. } if mode == self.mode => Ok(()),
            Kind::Macvlan { mode, .. } => {
                Err(format!("{:?} is in mode {mode:?} instead of {:?}", link.name, self.mode))
            }
            _ => Err(format!("{:?} is no macvlan but {:?}", link.name, link.kind.name())),
        }
    }
}

fn mode(mode: config::macvlan::Mode) -> MacvlanMode {
    match mode {
        config::macvlan::Mode::Bridge => MacvlanMode::Bridge,
        config::macvlan::Mode::Private => MacvlanMode::Private,
        config::macvlan::Mode::Vepa => MacvlanMode::Vepa,
        config::macvlan::Mode::Passthru => MacvlanMode::Passthru,
    }
}
