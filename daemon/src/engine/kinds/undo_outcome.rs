//! What the undo of an attachment's link has come to: all of it is done, or what is left, and why.

use fairlead_cni::CniError;

/// What a restored VF cannot have back before its NIC has a carrier, as a sentence for a person.
#[derive(Debug)]
pub(crate) struct AwaitsCarrier(pub(crate) CniError);

impl AwaitsCarrier {
    /// For whom nothing may wait: it is an error then.
    pub(crate) fn refuse(waits: Option<AwaitsCarrier>) -> Result<(), CniError> {
        waits.map_or(Ok(()), |AwaitsCarrier(why)| Err(why))
    }
}

/// What the undo of a link has come to.
#[derive(Debug)]
pub(crate) enum Undone {
    /// Nothing of it is left to be done.
    Whole,
    /// All that is left waits for a carrier.
    AwaitsCarrier(CniError),
    /// All else is given back, but on the VF is something of its pod's: the VF is nobody's before it is clean.
    Quarantined {
        /// What is left on it, in words.
        left: String,
        /// The same as a sentence, with the remedy.
        why: CniError,
    },
    /// The link cannot be had yet: a pod that lives may have hidden it, in a namespace that cannot be looked into, or a process drives its
    /// VF. All that the attachment holds stays held until the link is found, its namespace has ended, or the process lets go.
    Away(CniError),
}

impl From<Option<AwaitsCarrier>> for Undone {
    fn from(waits: Option<AwaitsCarrier>) -> Undone {
        waits.map_or(Undone::Whole, |AwaitsCarrier(why)| Undone::AwaitsCarrier(why))
    }
}
