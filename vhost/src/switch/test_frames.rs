//! Ports and frames for the tests of this module.

use fairlead_host::Mac;

use super::{Coarse, Decision, LearntAddress, PortIndex, PortRules, Switch, TableSlice};

/// A unicast address.
pub(super) fn address(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

/// A port of network `red` with this address, no VLAN and no check.
pub(super) fn rules(last: u8) -> PortRules {
    PortRules {
        network: "red".into(),
        is_uplink: false,
        mac: address(last),
        vlan: None,
        trunk: Vec::new(),
        spoof_check: false,
        isolated: false,
        mtu: 1_500,
        from_guest_bits: None,
        to_guest_bits: None,
    }
}

/// A frame of 64 bytes; `tags` are the VLANs of its 802.1Q tags, outermost first.
pub(super) fn frame(to: Mac, from: Mac, tags: &[u16]) -> Vec<u8> {
    let tags = tags.iter().flat_map(|vlan| [0x81, 0, vlan.to_be_bytes()[0], vlan.to_be_bytes()[1]]);
    let mut frame: Vec<u8> = to.0.into_iter().chain(from.0).chain(tags).chain([0x08, 0]).collect();
    frame.resize(64, 0);
    frame
}

/// Everything that a frame reaches.
pub(super) fn receivers(
    switch: &Switch,
    from: PortIndex,
    decision: Decision,
) -> Vec<(PortIndex, super::TagChange)> {
    match decision {
        Decision::To(port, change) => vec![(port, change)],
        Decision::Flood(frame) => {
            switch.flood_to(from, &frame).filter_map(|(port, change)| Some((port, change.ok()?))).collect()
        }
        Decision::Drop(_) | Decision::Withheld(..) => Vec::new(),
    }
}

/// Every address that a switch knows.
pub(super) fn table_of(switch: &Switch, now: Coarse) -> Vec<LearntAddress> {
    (0..3).flat_map(|at| switch.mac_table(TableSlice { at, of: 3 }, now)).collect()
}

/// So many milliseconds since the start.
pub(super) fn at(ms: u64) -> Coarse {
    Coarse(ms)
}
