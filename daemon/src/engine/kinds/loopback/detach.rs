//! `lo` goes down again where the pod lives on.

use fairlead_host::{NetError, Op, SetLink};

use crate::engine::recorded_netns::Reach;

/// Sets `lo` down, as the reference plugin does.
pub(crate) fn undo(reach: Reach<'_>) -> Result<(), NetError> {
    // A dead namespace has taken its `lo` along, and one without a path cannot be entered.
    let Reach::Inside(mut pod) = reach else { return Ok(()) };
    match pod.link_by_name("lo")? {
        Some(lo) => {
            pod.batch(&[Op::SetLink(SetLink { index: lo.index, up: Some(false), ..SetLink::default() })])
        }
        None => Ok(()),
    }
}
