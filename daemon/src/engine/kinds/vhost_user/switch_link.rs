//! The daemon's connection to `fairlead-vswitch`.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use fairlead_cni::{CniError, Code};
use fairlead_host::Uplink;
use fairlead_vhost::control::messages::{RefusalCode, SocketSide};
use fairlead_vhost::control::{Client, ClientError, EventStream};
use fairlead_vhost::port::{MacEntry, PortView, UplinkConfig, UplinkView};
use parking_lot::Mutex;

use crate::store::VhostUserRecord;

/// So long the switch may take for an answer: it does nothing that waits for a guest.
const ANSWERS: Duration = Duration::from_secs(2);
/// So long it may take to give an interface back: a driver may start its card anew without the program (igb), which takes longer the
/// busier the machine is.
const GIVES_BACK: Duration = Duration::from_secs(10);

/// The connection. Calls take turns: each takes a fraction of a millisecond.
pub(super) struct SwitchLink {
    socket: PathBuf,
    client: Mutex<Client>,
}

impl SwitchLink {
    pub(super) fn new(socket: PathBuf) -> SwitchLink {
        SwitchLink { client: Mutex::new(Client::new(socket.clone(), ANSWERS)), socket }
    }

    /// Has the switch serve a port, in place of any that has its name.
    pub(super) fn add(
        &self,
        record: &VhostUserRecord,
        side: SocketSide,
        socket: &OwnedFd,
    ) -> Result<(), CniError> {
        let port = &record.port;
        let add = |client: &mut Client| {
            near(record.numa_node, |node| client.add_port_near(port.clone(), side, socket.as_fd(), node))
        };
        self.call(|client| match add(client) {
            // A daemon that was killed has left it, or one whose store was lost.
            Err(error) if refused(&error) == Some(RefusalCode::NameTaken) => {
                client.remove_port(&port.name)?;
                add(client)
            }
            done => done,
        })
    }

    /// Takes a port out of the switch. One that it does not have is success, and so is a switch that does not run: all of its ports
    /// have ended with it.
    pub(super) fn remove(&self, name: &str) -> Result<(), CniError> {
        self.call(|client| match client.remove_port(name) {
            Err(ClientError::Connect { .. }) => Ok(()),
            Err(error) if refused(&error) == Some(RefusalCode::UnknownPort) => Ok(()),
            done => done,
        })
    }

    /// Hands over a new connection to the process that made the socket of a port.
    pub(super) fn reconnect(&self, name: &str, stream: &OwnedFd) -> Result<(), CniError> {
        self.call(|client| client.reconnect(name, stream.as_fd()))
    }

    /// Has the switch serve an uplink of this NUMA node, whose sockets are to be bound then.
    pub(super) fn add_uplink(
        &self,
        config: &UplinkConfig,
        uplink: &Uplink,
        numa_node: Option<u32>,
    ) -> Result<(), CniError> {
        self.call(|client| near(numa_node, |node| client.add_uplink_near(config.clone(), uplink, node)))
    }

    /// Takes a network's uplink away. As for ports, none is success. Other calls wait meanwhile: the switch answers them when that is done.
    pub(super) fn remove_uplink(&self, network: &str) -> Result<(), CniError> {
        let _others = self.client.lock();
        let mut patient = Client::new(self.socket.clone(), GIVES_BACK);
        call_twice(&mut patient, |client| match client.remove_uplink(network) {
            Err(ClientError::Connect { .. }) => Ok(()),
            Err(error) if refused(&error) == Some(RefusalCode::UnknownPort) => Ok(()),
            done => done,
        })
    }

    /// The uplinks that the switch has.
    pub(super) fn uplinks(&self) -> Result<Vec<UplinkView>, CniError> {
        self.call(Client::uplinks)
    }

    /// The ports that the switch has.
    pub(super) fn ports(&self) -> Result<Vec<PortView>, CniError> {
        self.call(Client::ports)
    }

    /// The addresses that the switch knows.
    pub(super) fn addresses(&self) -> Result<Vec<MacEntry>, CniError> {
        self.call(Client::mac_table)
    }

    /// A port as the switch has it.
    pub(super) fn port(&self, name: &str) -> Result<Option<PortView>, CniError> {
        Ok(self.ports()?.into_iter().find(|port| port.config.name == name))
    }

    /// Removes all ports but these.
    pub(super) fn keep_only(&self, names: &[String]) -> Result<(), CniError> {
        let removed = self.call(|client| client.keep_only(names))?;
        if !removed.is_empty() {
            tracing::warn!(?removed, "ports of the switch that no attachment has are removed");
        }
        Ok(())
    }

    /// Why the switch cannot be told anything just now.
    pub(super) fn lacks(&self) -> Option<String> {
        self.call(|client| client.version().map(drop)).err().map(|e| e.msg)
    }

    /// A connection of its own on which the switch tells what happens, and whose end is the switch's.
    pub(super) fn events(&self) -> Result<EventStream, ClientError> {
        Client::new(self.socket.clone(), ANSWERS).events()
    }

    fn call<T>(&self, call: impl Fn(&mut Client) -> Result<T, ClientError>) -> Result<T, CniError> {
        call_twice(&mut self.client.lock(), call)
    }
}

fn call_twice<T>(
    client: &mut Client,
    call: impl Fn(&mut Client) -> Result<T, ClientError>,
) -> Result<T, CniError> {
    let done = match call(client) {
        // The switch was started again since the last call. Every request may be made twice.
        Err(ClientError::Closed { .. }) => call(client),
        done => done,
    };
    done.map_err(|error| told(&error))
}

/// Asks for a thread of this NUMA node; for any, where the switch is from before there were several.
fn near(
    numa_node: Option<u32>,
    mut ask: impl FnMut(Option<u32>) -> Result<(), ClientError>,
) -> Result<(), ClientError> {
    match ask(numa_node) {
        Err(error) if numa_node.is_some() && refused(&error) == Some(RefusalCode::NewerVersion) => ask(None),
        done => done,
    }
}

fn refused(error: &ClientError) -> Option<RefusalCode> {
    match error {
        ClientError::Refused { refusal, .. } => Some(refusal.code),
        _ => None,
    }
}

/// Code 11 for all that can be had again without a change of the configuration.
fn told(error: &ClientError) -> CniError {
    if refused(error) == Some(RefusalCode::BadConfig) {
        return CniError::new(Code::InvalidConfig, error.to_string());
    }
    let remedy = match error {
        ClientError::Connect { .. } => "start fairlead-vswitch, as docs/vhost-user.md says",
        _ => "see the log of fairlead-vswitch",
    };
    CniError::new(Code::TryAgain, error.to_string()).with(remedy)
}

#[cfg(test)]
mod tests {
    use fairlead_vhost::control::messages::Refusal;

    use super::*;

    #[test]
    fn a_switch_that_knows_of_no_nodes_is_asked_for_any_thread_and_every_other_refusal_stays() {
        let asked = |numa_node, code| {
            let mut asked = Vec::new();
            let done = near(numa_node, |node| {
                asked.push(node);
                let refusal = Refusal::new(code, "no");
                let is_taken = node.is_none() && code == RefusalCode::NewerVersion;
                if is_taken { Ok(()) } else { Err(ClientError::Refused { request: "add-port", refusal }) }
            });
            (done.is_ok(), asked)
        };
        assert_eq!(asked(Some(1), RefusalCode::NewerVersion), (true, vec![Some(1), None]));
        assert_eq!(asked(Some(1), RefusalCode::NameTaken), (false, vec![Some(1)]));
        assert_eq!(asked(None, RefusalCode::BadConfig), (false, vec![None]));
    }
}
