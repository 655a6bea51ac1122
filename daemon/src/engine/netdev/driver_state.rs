//! What a netdev takes along from one namespace to the next: programs (XDP, TCX), what ethtool sets of it, and the link's own settings.
//! A pod can change them all.
//!
//! The kernel itself drops queueing disciplines, addresses and group memberships when a netdev moves.

use fairlead_host::{AttachedProgram, Link, LinkSettings, Net, NetError, Op, SetLink};

use crate::store::{DriverState, MovedNetdev};

/// What a netdev of the host has before it is moved to a pod.
pub(crate) fn read(host: &mut dyn Net, link: &Link) -> Result<DriverState, NetError> {
    let settings = host.netdev_settings(link.index)?;
    let attached = host.attached_programs(link.index)?;
    Ok(DriverState { link: Some(link.settings), ..DriverState::of(settings, attached) })
}

/// Takes off what its pod has left on a netdev, and restores what it has changed; answers, in words, what could not be undone. Where it
/// is not known what was there before, nothing is done: it may be the host's own.
#[must_use = "a VF with anything left on it is nobody's"]
pub(crate) fn restore(host: &mut dyn Net, index: u32, netdev: &MovedNetdev) -> Result<Vec<String>, NetError> {
    let Some(was) = &netdev.driver_state else { return Ok(Vec::new()) };
    let mut left = Vec::new();
    // A program of the host's own went along and may have come back: it stays, unless one of the pod's is beside it.
    if host.attached_programs(index)?.iter().any(|program| !was.had(program)) {
        let refusals = host.detach_programs(index)?;
        let now = host.attached_programs(index)?;
        left.extend(now.iter().filter(|now| !was.had(now)).map(|program| in_words(program, &refusals)));
    }
    tell_lost(host, index, netdev, was)?;
    left.extend(host.restore_netdev_settings(index, &was.settings)?);
    if let Some(link) = &was.link {
        left.extend(restore_link(host, index, link)?);
    }
    for what in &left {
        tracing::error!(
            netdev = netdev.was.name,
            left = what,
            "a pod has left something on a netdev that was lent to it"
        );
    }
    Ok(left)
}

/// A program that is still there, with why it is.
fn in_words(program: &AttachedProgram, refusals: &[String]) -> String {
    let program = program.to_string();
    refusals.iter().find(|refusal| refusal.starts_with(&program)).cloned().unwrap_or(program)
}

/// A program of the host's that the pod has taken off cannot be attached again: its file is the host's. It is told, and nothing of the
/// pod's is left by it.
fn tell_lost(
    host: &mut dyn Net,
    index: u32,
    netdev: &MovedNetdev,
    was: &DriverState,
) -> Result<(), NetError> {
    if was.programs.is_empty() {
        return Ok(());
    }
    let now = host.attached_programs(index)?;
    for id in was.programs.iter().filter(|id| !now.iter().any(|program| program.id == **id)) {
        tracing::error!(
            netdev = netdev.was.name,
            program = id,
            "a program, which was the host's own, is not attached any more to a netdev that was lent to a pod"
        );
    }
    Ok(())
}

/// One setting at a time, so that one that is refused keeps no other from being restored.
fn restore_link(host: &mut dyn Net, index: u32, was: &LinkSettings) -> Result<Vec<String>, NetError> {
    let differing = |host: &mut dyn Net| {
        let now = host.link_by_index(index)?;
        Ok::<_, NetError>(now.map(|now| was.differing(&now.settings)).unwrap_or_default())
    };
    let mut refusals = Vec::new();
    // Twice: some settings follow others.
    for _ in 0..2 {
        for settings in differing(host)? {
            match host.batch(&[Op::SetLink(SetLink { index, settings, ..SetLink::default() })]) {
                Err(error) if error.errno().is_some() => refusals.push(error.to_string()),
                done => done?,
            }
        }
    }
    match differing(host)?.as_slice() {
        [] => Ok(Vec::new()),
        left => {
            refusals.dedup();
            refusals.extend(left.iter().map(|one| format!("it had {}", one.describe())));
            Ok(refusals)
        }
    }
}
