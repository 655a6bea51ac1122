//! A netdev of the host on its way back: everything as it was, from the pod or from where its namespace's death has left it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use fairlead_host::{Kernel, Link, Net, NetError, Op, SetLink};
use fairlead_sriov::vf_netdev::APPEARS;

use crate::engine::netdev::POLL;
use crate::engine::recorded_netns::Reach;
use crate::store::MovedNetdev;

/// The netdev in the pod: by the alias that it was given, else by the MAC address and one of its two names.
pub(crate) fn find(netdev: &MovedNetdev, ifname: &str, pod: &mut dyn Net) -> Result<Option<Link>, NetError> {
    let links = pod.links()?;
    let was = &netdev.was;
    let by_alias = links.iter().find(|l| l.alias.as_deref() == Some(was.name.as_str()) && !l.loopback);
    let by_mac =
        || links.iter().find(|l| l.mac == was.mac && (l.name == ifname || l.name == was.name) && !l.loopback);
    Ok(by_alias.or_else(by_mac).cloned())
}

/// Moves the netdev back to the host and restores it.
pub(crate) fn undo(
    kernel: &dyn Kernel,
    netdev: &MovedNetdev,
    ifname: &str,
    reach: Reach<'_>,
) -> Result<(), NetError> {
    match reach {
        Reach::Inside(mut pod) => {
            if let Some(link) = find(netdev, ifname, pod.as_mut())? {
                return move_back(kernel, pod.as_mut(), &link, netdev);
            }
            // It is not in the pod: its move has failed, or an earlier attempt has moved it back.
            drop(pod);
            restore_at_home(kernel, netdev, ifname, Duration::ZERO)
        }
        Reach::Dead => restore_at_home(kernel, netdev, ifname, APPEARS),
        // Nothing says that its namespace has died, so it is not waited for.
        Reach::Unknown | Reach::ByNumber(_) => restore_at_home(kernel, netdev, ifname, Duration::ZERO),
    }
}

/// Restores name, MTU, MAC address, alias and whether it was up.
fn move_back(
    kernel: &dyn Kernel,
    pod: &mut dyn Net,
    link: &Link,
    netdev: &MovedNetdev,
) -> Result<(), NetError> {
    let (index, was) = (link.index, &netdev.was);
    // Down first: some drivers change the MAC address only then, and kernels before 6.2 the name.
    let mut ops = vec![Op::SetLink(SetLink { index, up: Some(false), ..SetLink::default() })];
    let restored = SetLink {
        index,
        mtu: (link.mtu != was.mtu).then_some(was.mtu),
        mac: was.mac.filter(|mac| link.mac != Some(*mac)),
        alias: Some(was.alias.clone()),
        ..SetLink::default()
    };
    ops.push(Op::SetLink(restored));
    ops.push(Op::MoveToHost { index, name: was.name.clone() });
    pod.batch(&ops)?;
    bring_up(kernel, netdev)
}

fn bring_up(kernel: &dyn Kernel, netdev: &MovedNetdev) -> Result<(), NetError> {
    if !netdev.was.up {
        return Ok(());
    }
    let mut host = kernel.host()?;
    let Some(link) = host.link_by_name(&netdev.was.name)? else { return Ok(()) };
    host.batch(&[Op::SetLink(SetLink { index: link.index, up: Some(true), ..SetLink::default() })])
}

/// Restores a netdev that the death of its namespace, or a failed move, has left in the host's. Out of a dead namespace it falls
/// a little after the kernel has reported the death: so long (`falls`) it is waited for.
fn restore_at_home(
    kernel: &dyn Kernel,
    netdev: &MovedNetdev,
    ifname: &str,
    falls: Duration,
) -> Result<(), NetError> {
    let mut host = kernel.host()?;
    let until = Instant::now() + falls;
    let link = loop {
        match find(netdev, ifname, host.as_mut())? {
            None if Instant::now() < until => sleep(POLL),
            found => break found,
        }
    };
    let Some(link) = link else { return Ok(()) };
    let mut ops = Vec::new();
    if let Some(mac) = netdev.was.mac.filter(|mac| link.mac != Some(*mac)) {
        ops.push(Op::SetLink(SetLink { index: link.index, mac: Some(mac), ..SetLink::default() }));
    }
    ops.extend(netdev.was.look().restored(&link));
    host.batch(&ops)
}
