//! Attachments that a newer version has on record and this one cannot act on: nothing is done about them until that version is
//! back. A call about one is told so.

use fairlead_cni::{CniError, Code};

use super::Core;
use crate::engine::attachment_request::AttachmentRequest;
use crate::store::NewerAttachment;

impl Core {
    /// Code 11 where a newer version has this very attachment on record.
    pub(crate) fn must_not_be_newer(&self, request: &AttachmentRequest<'_>) -> Result<(), CniError> {
        // A plugin of a conflist has a record of its own beside the conflist's.
        match self.store.newer_about(request.key, !request.nested) {
            Some(newer) => Err(left_to_newer(&request.key.network, &newer)),
            None => Ok(()),
        }
    }

    /// What a newer version has on record of this network.
    pub(crate) fn newer_of_network(&self, request: &AttachmentRequest<'_>) -> Option<NewerAttachment> {
        let meant = |newer: &NewerAttachment| {
            let [_, network, ..] = newer.words();
            network.is_empty() || network == request.key.network
        };
        self.store.newer().into_iter().find(meant)
    }

    /// Code 11 where a newer version has anything on record: it may be of this network by a list that cannot be read.
    pub(crate) fn must_have_no_newer(&self, network: &str) -> Result<(), CniError> {
        self.store.newer().into_iter().next().map_or(Ok(()), |newer| Err(left_to_newer(network, &newer)))
    }
}

/// Code 11: a runtime tries a DEL again until the newer version is back.
pub(super) fn left_to_newer(network: &str, newer: &NewerAttachment) -> CniError {
    let msg = format!(
        "network {network:?}: the record of {} was {}; it is left as it is",
        newer.label(),
        newer.version
    );
    CniError::new(Code::TryAgain, msg).with(newer.remedy())
}
