//! How much text the networks of one pod may bring. Tenants write it, and all of it goes on record for as long as the pod lives: in the
//! journal, which lies in the node's memory (/run), and in the daemon's own.

use fairlead_cni::{CniError, Code};
use fairlead_kube::Definition;
use fairlead_kube::npwg::{NetworkSelection, ObjectKind};

use super::attach_others::in_words_of_the_pod;
use super::definitions::{FoundDefinition, text_of};
use super::{AskedNetwork, PodNetworks};
use crate::call::Waiting;
use crate::engine::Engine;
use crate::engine::attachment_request::Sandbox;

/// The most text of one pod's networks, in bytes: what its annotations say of them, and the definitions, each as often as the pod asks for
/// it. A definition has 4 KiB at most where nobody pads it, and a pod eight of them: this is eight times as much. Without it 64
/// definitions of 64 KiB take 9 MB of /run for one pod.
const MOST_TEXT: usize = 256 << 10;

impl Engine {
    /// The definitions of what a pod has beside its default network, in the pod's order, before anything of the pod is made. The pod is not
    /// told of an error yet. `of_default`: how much text the definition of a default network has that the pod has chosen, in bytes.
    ///
    /// # Errors
    /// Why a definition cannot be had; code 7 where the pod's networks bring too much text.
    pub(in crate::engine) fn definitions_of_others(
        &self,
        of: &PodNetworks,
        of_default: usize,
        (sandbox, waiting): (Sandbox<'_>, &Waiting),
    ) -> Result<Vec<FoundDefinition>, CniError> {
        let mut text = of_default;
        let found = of.others.iter().map(|AskedNetwork { selection, interface }| {
            let found = self.definition(&of.pod, selection, (sandbox, waiting)).and_then(|found| {
                text += length_of(&found.0, selection)?;
                Ok(found)
            });
            found.map_err(|error| in_words_of_the_pod(&of.pod, (&selection.reference(), interface), error))
        });
        let found: Result<Vec<FoundDefinition>, CniError> = found.collect();
        found.and_then(|found| of.must_be_short(text).map(|()| found))
    }
}

impl PodNetworks {
    /// `definitions`: how much text they have together, in bytes.
    fn must_be_short(&self, definitions: usize) -> Result<(), CniError> {
        let (pod, annotations) = (&self.pod, self.annotations);
        let bytes = annotations + definitions;
        if bytes <= MOST_TEXT {
            return Ok(());
        }
        let msg = format!(
            "pod {pod}: its networks are configured by {bytes} bytes of text (annotations {annotations}, definitions with cni-args {definitions}), \
             more than the {MOST_TEXT} that a pod may have"
        );
        Err(CniError::new(Code::InvalidConfig, msg).with(
            "ask for fewer networks, or shorten their definitions: all of it is in the node's memory while the pod lives",
        ))
    }
}

/// The length in bytes of a definition as its plugins are told it. What every pod gets is the administrator's.
fn length_of(definition: &Definition, selection: &NetworkSelection) -> Result<usize, CniError> {
    match selection.object {
        ObjectKind::OfEveryPod => Ok(0),
        _ if selection.cni_args.is_empty() => Ok(definition.config.as_ref().map_or(0, |text| text.len())),
        ObjectKind::NetworkAttachmentDefinition | ObjectKind::Network => {
            text_of(definition, selection, None).map(|text| text.len())
        }
    }
}
