//! A port whose pod is over: the switch lets go of the pod's memory, and the socket goes.

use std::path::Path;

use fairlead_cni::CniError;
use fairlead_host::{failpoint, socket_file};

use super::conflicts::has_socket_of;
use super::services::VhostUserServices;
use super::socket_dir::{is_gone, unusable};
use crate::store::{Attachment, VhostUserRecord};

/// Takes port and socket away. From the record alone; it may be begun again at any step.
pub(crate) fn undo(
    services: &VhostUserServices,
    attachment: &Attachment,
    record: &VhostUserRecord,
) -> Result<(), CniError> {
    if let Some(spec) = &record.ovs {
        services.ovs.remove(spec)?;
    }
    let _turn = services.turn.lock();
    if record.ovs.is_none() {
        services.switch.remove(&record.port.name)?;
    }
    services.release_uplink(attachment, record)?;
    failpoint::pass("del.home");
    match &record.pool_port {
        Some(port) => services
            .pools
            .give_back(port, attachment.id)
            .map_err(|e| unusable(Path::new(&record.directory), &e)),
        None => {
            services.remove_socket(attachment, record)?;
            services.remove_own_directory(attachment, record)
        }
    }
}

impl VhostUserServices {
    /// Removes the socket, unless the same pod's next sandbox has one of that name already.
    fn remove_socket(&self, attachment: &Attachment, record: &VhostUserRecord) -> Result<(), CniError> {
        // The pod's own goes with its volume. In a directory that is removed with the port nothing may be left.
        if record.pod_listens && record.own_directory_in.is_none() {
            return self.remove_configuration_data(attachment, record);
        }
        self.remove_configuration_data(attachment, record)?;
        let directory = Path::new(&record.directory);
        let removed = self.open_of(record).and_then(|dir| {
            // Left by a daemon that was killed before the socket had its name.
            if let Some(draft) = &record.draft {
                socket_file::remove(&dir, draft)?;
            }
            match self.is_also_anothers(attachment, record) {
                true => Ok(true),
                false => socket_file::remove(&dir, &record.socket),
            }
        });
        match removed {
            // Kubelet has removed the pod's volumes, or there never was such a directory.
            Err(e) if is_gone(&e) => Ok(()),
            Err(e) => Err(unusable(directory, &e)),
            Ok(true) => Ok(()),
            Ok(false) => {
                tracing::warn!(container = %attachment.key.container, directory = %record.directory, name = %record.socket,
                    "what the pod has put in its socket's place stays");
                Ok(())
            }
        }
    }

    fn is_also_anothers(&self, attachment: &Attachment, record: &VhostUserRecord) -> bool {
        let has = |other: &Attachment| other.vhost_user().is_some_and(|theirs| has_socket_of(record, theirs));
        self.store.all().iter().any(|other| other.id != attachment.id && has(other))
    }
}
