//! Whether a port still is what its pod was given.

use std::io;
use std::path::Path;

use fairlead_cni::CniError;
use fairlead_host::socket_file;

use super::services::VhostUserServices;
use super::socket_dir::unusable;
use crate::engine::kinds::Checked;
use crate::store::{Attachment, VhostUserRecord};

/// CHECK: the port in the switch, and the socket in the pod's directory.
pub(crate) fn check(
    services: &VhostUserServices,
    attachment: &Attachment,
    record: &VhostUserRecord,
) -> Result<Checked, CniError> {
    if let Some(next) = services.successor(attachment, record) {
        return Ok(Checked::Changed(format!("its socket {} is that of {next} by now", record.host_path())));
    }
    if let Some(spec) = &record.ovs {
        return services.ovs.check(spec);
    }
    let name = &record.port.name;
    match services.switch.port(name)? {
        // The pod's process has not made its socket yet, or something else in its place.
        None if record.pod_listens => {}
        None => return Ok(Checked::Changed(format!("the switch has no port {name:?}"))),
        Some(port) if port.config != record.port => {
            return Ok(Checked::Changed(format!("the port {name:?} of the switch has other settings")));
        }
        Some(_) => {}
    }
    if let Some(lacks) = services.lacks_uplink(record)? {
        return Ok(Checked::Changed(lacks));
    }
    match services.has_socket(record) {
        // A process that has its connection may have removed what it made.
        Ok(is_there) if is_there || record.pod_listens => Ok(Checked::Whole),
        Ok(_) => Ok(Checked::Changed(format!("its socket {} is gone", record.host_path()))),
        Err(e) => {
            let told = unusable(Path::new(&record.directory), &e);
            if socket_file::is_no_socket(&e) { Ok(Checked::Changed(told.msg)) } else { Err(told) }
        }
    }
}

impl VhostUserServices {
    /// Whether the socket has its name; something else that has it is an error.
    pub(super) fn has_socket(&self, record: &VhostUserRecord) -> io::Result<bool> {
        socket_file::exists(self.open_of(record)?, &record.socket)
    }

    /// Why the switch does not have the port of a pod, as far as that can be seen.
    pub(super) fn why_missing(&self, record: &VhostUserRecord) -> String {
        let socket = record.host_path();
        match self.has_socket(record) {
            Err(e) => unusable(Path::new(&record.directory), &e).msg,
            Ok(false) if record.pod_listens => format!("the pod has not made its socket {socket} yet"),
            Ok(true) if record.pod_listens => format!("nobody listens on the pod's socket {socket}"),
            Ok(_) => "the daemon makes it again; its log says why it can't".to_owned(),
        }
    }
}
