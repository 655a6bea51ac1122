//! Whether a port still is what its pod was given.

use std::path::Path;

use fairlead_cni::CniError;
use fairlead_host::socket_file;

use super::services::VhostUserServices;
use super::socket_dir::unusable;
use crate::engine::kinds::Checked;
use crate::store::VhostUserRecord;

/// CHECK: the port in the switch, and the socket in the pod's directory.
pub(crate) fn check(services: &VhostUserServices, record: &VhostUserRecord) -> Result<Checked, CniError> {
    if let Some(spec) = &record.ovs {
        return services.ovs.check(spec);
    }
    let name = &record.port.name;
    match services.switch.port(name)? {
        // The pod's process has not made its socket yet.
        None if record.pod_listens => return Ok(Checked::Whole),
        None => return Ok(Checked::Changed(format!("the switch has no port {name:?}"))),
        Some(port) if port.config != record.port => {
            return Ok(Checked::Changed(format!("the port {name:?} of the switch has other settings")));
        }
        Some(_) => {}
    }
    if let Some(lacks) = services.lacks_uplink(record)? {
        return Ok(Checked::Changed(lacks));
    }
    if record.pod_listens {
        return Ok(Checked::Whole);
    }
    let directory = Path::new(&record.directory);
    let there = services.open_of(record).and_then(|dir| socket_file::exists(dir, &record.socket));
    match there {
        Ok(true) => Ok(Checked::Whole),
        Ok(false) => Ok(Checked::Changed(format!("its socket {} is gone", record.host_path()))),
        Err(e) => Err(unusable(directory, &e)),
    }
}
