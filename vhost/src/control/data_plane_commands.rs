//! The data plane as the one who carries out commands: its errors as refusals.

use std::os::fd::OwnedFd;

use fairlead_host::Uplink;

use super::messages::{Refusal, RefusalCode};
use super::port_commands::PortCommands;
use crate::capture::{CaptureKey, CaptureRequest};
use crate::dataplane::{DataPlane, PortError, Socket, UplinkError};
use crate::error_chain::sentence;
use crate::port::{MacEntry, PortConfig, PortView, UplinkConfig, UplinkView};

impl PortCommands for DataPlane {
    fn add_port(&self, config: PortConfig, socket: Socket, numa_node: Option<u32>) -> Result<(), Refusal> {
        DataPlane::add_port(self, config, socket, numa_node).map_err(|error| refusal(&error))
    }

    fn remove_port(&self, name: &str) -> Result<(), Refusal> {
        DataPlane::remove_port(self, name).map_err(|error| refusal(&error))
    }

    fn reconnect(&self, name: &str, socket: OwnedFd) -> Result<(), Refusal> {
        DataPlane::reconnect(self, name, socket).map_err(|error| refusal(&error))
    }

    fn can_listen_anew(&self, name: &str) -> Result<(), Refusal> {
        DataPlane::can_listen_anew(self, name).map_err(|error| refusal(&error))
    }

    fn new_listener(&self, name: &str, socket: OwnedFd) -> Result<(), Refusal> {
        DataPlane::new_listener(self, name, socket).map_err(|error| refusal(&error))
    }

    fn add_uplink(
        &self,
        config: UplinkConfig,
        uplink: Uplink,
        numa_node: Option<u32>,
    ) -> Result<(), Refusal> {
        DataPlane::add_uplink(self, config, uplink, numa_node).map_err(|error| uplink_refusal(&error))
    }

    fn remove_uplink(&self, network: &str) -> Result<(), Refusal> {
        DataPlane::remove_uplink(self, network).map_err(|error| uplink_refusal(&error))
    }

    fn uplinks(&self) -> Vec<UplinkView> {
        DataPlane::uplinks(self)
    }

    fn capture(&self, name: &str, request: CaptureRequest) -> Result<CaptureKey, Refusal> {
        DataPlane::capture(self, name, request).map_err(|error| refusal(&error))
    }

    fn end_capture(&self, name: &str, key: CaptureKey) {
        DataPlane::end_capture(self, name, key);
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
        PortError::Captured(_) => RefusalCode::Captured,
        PortError::Capture(_) => RefusalCode::BadSocket,
        PortError::Config { .. } => RefusalCode::BadConfig,
        PortError::Socket(_) | PortError::Listens(_) | PortError::Connects(_) => RefusalCode::BadSocket,
        PortError::TooMany(_) | PortError::TooManyFiles | PortError::Closes(_) | PortError::NoAnswer => {
            RefusalCode::Failed
        }
    };
    Refusal::new(code, sentence(error))
}

fn uplink_refusal(error: &UplinkError) -> Refusal {
    let code = match error {
        UplinkError::Taken { .. } => RefusalCode::NameTaken,
        UplinkError::NoSuchUplink(_) => RefusalCode::UnknownPort,
        UplinkError::Queue(_) => RefusalCode::BadSocket,
        UplinkError::TooMany(_) | UplinkError::NoAnswer => RefusalCode::Failed,
    };
    Refusal::new(code, sentence(error))
}
