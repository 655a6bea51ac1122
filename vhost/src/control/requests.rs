//! From a message to its answers: read, check, carry out. One connection's requests, one after the other.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::time::Instant;

use serde::Deserialize;
use tracing::{info, warn};

use super::answer_pages::{message, pages};
use super::messages::{
    Answer, PROTOCOL, ProgramVersion, Refusal, RefusalCode, Request, RequestMessage, SocketSide,
};
use super::port_commands::PortCommands;
use super::{port_config_check, port_socket, uplink_check};
use crate::capture::{CaptureKey, CaptureRequest};
use crate::dataplane::Socket;
use crate::log_limit::{Admitted, LogLimit};

/// The most names that a connection may send before the last of them.
const NAMES: usize = 16_384;

/// The part of a request that every version has.
#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

/// What one connection's requests have in common.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The names of a `keep-only` that came so far.
    names: HashSet<String>,
    /// A pod may have its port get a new socket, or be made anew, all the time.
    log_limit: LogLimit,
}

/// What a request comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// These messages answer it.
    Answered(Vec<Vec<u8>>),
    /// It asked for events.
    Subscribed,
    /// It asked for this port's frames.
    Captures(Capture),
}

/// A capture that ends with its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Capture {
    pub(super) port: String,
    pub(super) key: CaptureKey,
}

impl Requests {
    /// Answers a message. Whatever it is, there is an answer.
    pub(super) fn answer(
        &mut self,
        bytes: &[u8],
        descriptors: Vec<OwnedFd>,
        commands: &dyn PortCommands,
    ) -> Outcome {
        let outcome = read(bytes).and_then(|request| self.carry_out(request, descriptors, commands));
        outcome.unwrap_or_else(|refusal| {
            if let Some(Admitted { left_out }) = self.log_limit.admit("", Instant::now()) {
                warn!(code = ?refusal.code, reason = refusal.reason, left_out, "a request is refused");
            }
            Outcome::Answered(vec![message(Answer::Refused(refusal))])
        })
    }

    fn carry_out(
        &mut self,
        request: Request,
        descriptors: Vec<OwnedFd>,
        commands: &dyn PortCommands,
    ) -> Result<Outcome, Refusal> {
        let takes = matches!(
            request,
            Request::AddPort { .. }
                | Request::Reconnect { .. }
                | Request::NewListener { .. }
                | Request::AddUplink { .. }
                | Request::Capture { .. }
        );
        if !takes {
            port_socket::none(&descriptors)?;
        }
        Ok(Outcome::Answered(match request {
            Request::AddPort { config, socket, numa_node } => {
                port_config_check::check(&config)?;
                let socket = port_socket::take(descriptors, socket)?;
                let (port, network) = (config.name.clone(), config.network.clone());
                commands.add_port(config, socket, numa_node)?;
                if let Some(Admitted { left_out }) = self.log_limit.admit(&port, Instant::now()) {
                    info!(port, network, left_out, "a port is added");
                }
                vec![message(Answer::Done)]
            }
            Request::RemovePort { name } => {
                commands.remove_port(&name)?;
                if let Some(Admitted { left_out }) = self.log_limit.admit(&name, Instant::now()) {
                    info!(port = name, left_out, "a port is removed");
                }
                vec![message(Answer::Done)]
            }
            Request::Reconnect { name } => {
                let Socket::Connecting(socket) = port_socket::take(descriptors, SocketSide::Connected)?
                else {
                    return Err(Refusal::new(RefusalCode::BadSocket, "the socket is not connected"));
                };
                commands.reconnect(&name, socket)?;
                vec![message(Answer::Done)]
            }
            Request::CanListenAnew { name } => {
                commands.can_listen_anew(&name)?;
                vec![message(Answer::Done)]
            }
            Request::NewListener { name } => {
                let Socket::Listening(socket) = port_socket::take(descriptors, SocketSide::Listening)? else {
                    return Err(Refusal::new(RefusalCode::BadSocket, "the socket does not listen"));
                };
                commands.new_listener(&name, socket)?;
                if let Some(Admitted { left_out }) = self.log_limit.admit(&name, Instant::now()) {
                    info!(port = name, left_out, "a port has a new socket");
                }
                vec![message(Answer::Done)]
            }
            Request::AddUplink { config, numa_node } => {
                let uplink = uplink_check::take(&config, descriptors)?;
                let (interface, network) = (config.interface.clone(), config.network.clone());
                commands.add_uplink(config, uplink, numa_node)?;
                info!(interface, network, "an uplink is added");
                vec![message(Answer::Done)]
            }
            Request::RemoveUplink { network } => {
                commands.remove_uplink(&network)?;
                info!(network, "an uplink is removed");
                vec![message(Answer::Done)]
            }
            Request::Uplinks => pages(commands.uplinks(), |uplinks, more| Answer::Uplinks { uplinks, more }),
            Request::KeepOnly { names, more } => self.keep_only(names, more, commands)?,
            Request::Ports => pages(commands.ports(), |ports, more| Answer::Ports { ports, more }),
            Request::MacTable => {
                pages(commands.mac_table(), |entries, more| Answer::MacTable { entries, more })
            }
            Request::Version => vec![message(Answer::Version(version()))],
            Request::Capture { name, options } => {
                let memory = port_socket::only(descriptors)?;
                let key = commands.capture(&name, CaptureRequest { options, memory })?;
                info!(port = name, "frames of a port are captured");
                return Ok(Outcome::Captures(Capture { port: name, key }));
            }
            Request::Events => return Ok(Outcome::Subscribed),
        }))
    }

    fn keep_only(
        &mut self,
        names: Vec<String>,
        more: bool,
        commands: &dyn PortCommands,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        self.names.extend(names);
        if self.names.len() > NAMES {
            self.names = HashSet::new();
            let reason = format!("more than {NAMES} names of ports to keep; there are never so many ports");
            return Err(Refusal::new(RefusalCode::Malformed, reason));
        }
        if more {
            return Ok(vec![message(Answer::Done)]);
        }
        let kept = std::mem::take(&mut self.names);
        let mut removed = Vec::new();
        for port in commands.ports() {
            let name = port.config.name;
            if !kept.contains(&name) {
                commands.remove_port(&name)?;
                removed.push(name);
            }
        }
        info!(kept = kept.len(), removed = removed.len(), "ports that nobody owns are removed");
        Ok(pages(removed, |names, more| Answer::Removed { names, more }))
    }
}

fn read(bytes: &[u8]) -> Result<Request, Refusal> {
    let malformed = |error: serde_json::Error| {
        let reason = format!("the message is no request of version {PROTOCOL}: {error}");
        Refusal::new(RefusalCode::Malformed, reason)
    };
    // A newer request may have fields that are unknown here: its number is looked at first.
    let AnyVersion { version } = serde_json::from_slice(bytes).map_err(malformed)?;
    if version > PROTOCOL {
        let reason = format!(
            "the request is of version {version}, and fairlead-vswitch {} understands versions up to {PROTOCOL}; \
             upgrade fairlead-vswitch first",
            env!("CARGO_PKG_VERSION")
        );
        return Err(Refusal::new(RefusalCode::NewerVersion, reason));
    }
    let message: RequestMessage = serde_json::from_slice(bytes).map_err(malformed)?;
    Ok(message.request)
}

fn version() -> ProgramVersion {
    ProgramVersion {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL,
        pid: std::process::id(),
    }
}
