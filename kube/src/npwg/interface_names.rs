//! The names of a pod's interfaces: those that were asked for, else by position.

use std::collections::BTreeMap;

use fairlead_cni::names;

use super::entry::Fault;
use super::selection::{DEFAULT_NETWORK, Entry, NETWORKS, NetworkSelection, RequestError, Requested};

/// What the names of a pod's interfaces depend on, beside its own words.
#[derive(Debug, Clone, Copy)]
pub struct InterfaceNames<'a> {
    /// `CNI_IFNAME`: the interface of the default network. The runtime looks for it, so no pod can rename it.
    pub default: &'a str,
    /// How many networks the administrator adds to every pod (Multus' `defaultNetworks`). They come right after the default one, as
    /// `net1` and so on.
    pub added: usize,
}

impl InterfaceNames<'_> {
    /// The interface of each of [`Requested::networks`], in their order: the one that was asked for, else `net<n>`, where n is the
    /// position among all of the pod's networks, from 0 for the default one. That is how Multus counts (`getIfname`), so a name
    /// does not depend on what others ask for. A name by position that somebody asked for is therefore refused, and not passed
    /// over; Multus fails too, when it comes to the second of the two.
    ///
    /// # Errors
    /// Two networks would have one name, or one the default network's.
    pub fn of(&self, requested: &Requested) -> Result<Vec<String>, RequestError> {
        self.default_keeps_its_name(requested)?;
        let mut taken: BTreeMap<String, String> = BTreeMap::new();
        taken.insert(self.default.to_owned(), "the default network".to_owned());
        taken.extend(
            self.of_added().into_iter().map(|name| (name, "a network that every pod has".to_owned())),
        );
        let mut named = Vec::with_capacity(requested.networks.len());
        for (at, network) in requested.networks.iter().enumerate() {
            let name = self.name(at, network);
            let owner = format!("entry {} ({})", at + 1, network.reference());
            if let Some(other) = taken.insert(name.clone(), owner) {
                return Err(collision(at, network, &name, &other));
            }
            named.push(name);
        }
        Ok(named)
    }

    /// The interfaces of the networks that the administrator adds.
    pub fn of_added(&self) -> Vec<String> {
        (1..=self.added).map(by_position).collect()
    }

    fn name(&self, at: usize, network: &NetworkSelection) -> String {
        network.interface.clone().unwrap_or_else(|| by_position(self.added + at + 1))
    }

    fn default_keeps_its_name(&self, requested: &Requested) -> Result<(), RequestError> {
        let Some(network) = &requested.default_network else { return Ok(()) };
        match &network.interface {
            Some(name) if name != self.default => {
                let reason = format!(
                    "it asks for the interface {}, and the runtime calls that of the default network {}",
                    names::shown(name),
                    self.default
                );
                let entry = Entry { position: 1, network: network.reference() };
                let fault = Fault::new(reason, "ask for no name for the default network");
                Err(RequestError::of(DEFAULT_NETWORK, Some(entry), fault))
            }
            _ => Ok(()),
        }
    }
}

fn by_position(position: usize) -> String {
    format!("net{position}")
}

fn collision(at: usize, network: &NetworkSelection, name: &str, other: &str) -> RequestError {
    let (shown, entry) = (names::shown(name), Entry { position: at + 1, network: network.reference() });
    let fault = match network.interface {
        Some(_) => {
            Fault::new(format!("the interface {shown} is that of {other} already"), "ask for another name")
        }
        None => Fault::new(
            format!("by its position its interface is {shown}, which is that of {other} already"),
            "ask for a name here too, or for none of the form net<n> elsewhere",
        ),
    };
    RequestError::of(NETWORKS, Some(entry), fault)
}
