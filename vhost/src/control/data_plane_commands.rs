//! The data plane as the one who carries out commands: its errors as refusals.

use std::error::Error;
use std::os::fd::OwnedFd;

use super::messages::{Refusal, RefusalCode};
use super::port_commands::PortCommands;
use crate::dataplane::{DataPlane, PortError, Socket};
use crate::port::{MacEntry, PortConfig, PortView};

impl PortCommands for DataPlane {
    fn add_port(&self, config: PortConfig, socket: Socket) -> Result<(), Refusal> {
        DataPlane::add_port(self, config, socket).map_err(|error| refusal(&error))
    }

    fn remove_port(&self, name: &str) -> Result<(), Refusal> {
        DataPlane::remove_port(self, name).map_err(|error| refusal(&error))
    }

    fn reconnect(&self, name: &str, socket: OwnedFd) -> Result<(), Refusal> {
        DataPlane::reconnect(self, name, socket).map_err(|error| refusal(&error))
    }

    fn ports(&self) -> Vec<PortView> {
        DataPlane::ports(self)
    }

    fn mac_table(&self) -> Vec<MacEntry> {
        DataPlane::mac_table(self)
    }
}

fn refusal(error: &PortError) -> Refusal {
    let code = match error {
        PortError::NameTaken(_) => RefusalCode::NameTaken,
        PortError::NoSuchPort(_) => RefusalCode::UnknownPort,
        PortError::Config { .. } => RefusalCode::BadConfig,
        PortError::Socket(_) | PortError::Listens(_) => RefusalCode::BadSocket,
        PortError::TooMany(_) | PortError::NoAnswer => RefusalCode::Failed,
    };
    let mut reason = error.to_string();
    let mut source = error.source();
    while let Some(deeper) = source {
        reason = format!("{reason}: {deeper}");
        source = deeper.source();
    }
    Refusal::new(code, reason)
}
