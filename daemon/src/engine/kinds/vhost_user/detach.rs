//! A port whose pod is over: the switch lets go of the pod's memory, and the socket goes.

use std::io;
use std::path::Path;

use fairlead_cni::CniError;
use fairlead_host::{failpoint, socket_file};

use super::services::VhostUserServices;
use super::socket_dir::unusable;
use crate::store::{Attachment, VhostUserRecord};

/// Takes port and socket away. From the record alone; it may be begun again at any step.
pub(crate) fn undo(
    services: &VhostUserServices,
    attachment: &Attachment,
    record: &VhostUserRecord,
) -> Result<(), CniError> {
    let _turn = services.turn.lock();
    services.switch.remove(&record.port.name)?;
    failpoint::pass("del.home");
    services.remove_socket(attachment, record)
}

impl VhostUserServices {
    /// Removes the socket, unless the same pod's next sandbox has one of that name already.
    fn remove_socket(&self, attachment: &Attachment, record: &VhostUserRecord) -> Result<(), CniError> {
        if record.pod_listens || self.is_also_anothers(attachment, record) {
            return Ok(());
        }
        let directory = Path::new(&record.directory);
        let removed = self.open(directory).and_then(|dir| socket_file::remove(dir, &record.socket));
        match removed {
            // Kubelet has removed the pod's volumes.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
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
        let has = |other: &Attachment| {
            other.vhost_user().is_some_and(|r| r.directory == record.directory && r.socket == record.socket)
        };
        self.store.all().iter().any(|other| other.id != attachment.id && has(other))
    }
}
