//! VFs in `RTM_SETLINK` and in the answer to `RTM_GETLINK` with `RTEXT_FILTER_VF`.

use super::attributes::{attributes, u16_at, u32_at};
use super::message::Message;
use crate::Mac;
use crate::vf_settings::{Vf, VfChange, VfLinkState, VfRate, VfVlan, VlanProto};

// `linux/if_link.h`, IFLA_VF_*.
const IFLA_VF_INFO: u16 = 1;
const IFLA_VF_MAC: u16 = 1;
const IFLA_VF_SPOOFCHK: u16 = 4;
const IFLA_VF_LINK_STATE: u16 = 5;
const IFLA_VF_RATE: u16 = 6;
const IFLA_VF_TRUST: u16 = 9;
const IFLA_VF_VLAN_LIST: u16 = 12;
const IFLA_VF_VLAN_INFO: u16 = 1;
/// Length of the address in `struct ifla_vf_mac`.
const MAX_ADDR_LEN: usize = 32;
const ETH_P_8021Q: u16 = 0x8100;
const ETH_P_8021AD: u16 = 0x88a8;

/// Writes `IFLA_VFINFO_LIST` with the settings of some VFs.
pub(in crate::real) fn write(message: &mut Message, changes: &[(u32, VfChange)]) {
    message.nest(libc::IFLA_VFINFO_LIST, |list| {
        for (vf, change) in changes {
            list.nest(IFLA_VF_INFO, |info| fill(info, *vf, change));
        }
    });
}

fn fill(info: &mut Message, vf: u32, change: &VfChange) {
    if let Some(mac) = change.mac {
        let mut address = [0; MAX_ADDR_LEN];
        address[..6].copy_from_slice(&mac.0);
        info.attribute(IFLA_VF_MAC, &[vf.to_ne_bytes().as_slice(), &address].concat());
    }
    if let Some(vlan) = change.vlan {
        let mut value = words(&[vf, u32::from(vlan.id), u32::from(vlan.qos)]);
        value.extend_from_slice(&ethertype(vlan.proto).to_be_bytes());
        value.extend_from_slice(&[0; 2]);
        // The older IFLA_VF_VLAN has no field for the kind of the tag.
        info.nest(IFLA_VF_VLAN_LIST, |list| list.attribute(IFLA_VF_VLAN_INFO, &value));
    }
    if let Some(rate) = change.rate {
        info.attribute(IFLA_VF_RATE, &words(&[vf, rate.min, rate.max]));
    }
    if let Some(on) = change.spoofchk {
        info.attribute(IFLA_VF_SPOOFCHK, &words(&[vf, u32::from(on)]));
    }
    if let Some(state) = change.link_state {
        info.attribute(IFLA_VF_LINK_STATE, &words(&[vf, link_state(state)]));
    }
    if let Some(on) = change.trust {
        info.attribute(IFLA_VF_TRUST, &words(&[vf, u32::from(on)]));
    }
}

fn words(all: &[u32]) -> Vec<u8> {
    all.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn ethertype(proto: VlanProto) -> u16 {
    match proto {
        VlanProto::Dot1q => ETH_P_8021Q,
        VlanProto::Dot1ad => ETH_P_8021AD,
    }
}

fn link_state(state: VfLinkState) -> u32 {
    match state {
        VfLinkState::Auto => 0,
        VfLinkState::Enable => 1,
        VfLinkState::Disable => 2,
    }
}

/// Reads the value of `IFLA_VFINFO_LIST`; a VF that cannot be read is left out.
pub(in crate::real) fn read(list: &[u8]) -> Vec<Vf> {
    attributes(list).filter(|(kind, _)| *kind == IFLA_VF_INFO).filter_map(|(_, info)| one(info)).collect()
}

fn one(info: &[u8]) -> Option<Vf> {
    let mut vf = Vf::default();
    let mut index = None;
    for (kind, value) in attributes(info) {
        match kind {
            IFLA_VF_MAC => {
                index = u32_at(value, 0);
                vf.mac = value.get(4..10).and_then(|bytes| bytes.try_into().ok()).map(Mac);
            }
            IFLA_VF_VLAN_LIST => {
                // The kernel keeps one VLAN for a VF, though it is in a list.
                let first = attributes(value).find(|(kind, _)| *kind == IFLA_VF_VLAN_INFO);
                vf.vlan = first.and_then(|(_, value)| vlan(value));
            }
            IFLA_VF_RATE => {
                let rate = u32_at(value, 4).zip(u32_at(value, 8));
                vf.rate = rate.map(|(min, max)| VfRate { min, max });
            }
            // A driver that does not know answers -1.
            IFLA_VF_SPOOFCHK => vf.spoofchk = u32_at(value, 4).and_then(switch),
            IFLA_VF_TRUST => vf.trust = u32_at(value, 4).and_then(switch),
            IFLA_VF_LINK_STATE => {
                vf.link_state = match u32_at(value, 4) {
                    Some(0) => Some(VfLinkState::Auto),
                    Some(1) => Some(VfLinkState::Enable),
                    Some(2) => Some(VfLinkState::Disable),
                    _ => None,
                }
            }
            _ => {}
        }
    }
    vf.index = index?;
    Some(vf)
}

fn switch(value: u32) -> Option<bool> {
    match value {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn vlan(value: &[u8]) -> Option<VfVlan> {
    let (id, qos) = (u16::try_from(u32_at(value, 4)?).ok()?, u8::try_from(u32_at(value, 8)?).ok()?);
    let proto = match u16_at(value, 12).map(u16::from_be) {
        Some(ETH_P_8021AD) => VlanProto::Dot1ad,
        _ => VlanProto::Dot1q,
    };
    Some(VfVlan { id, qos, proto })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> VfChange {
        VfChange {
            mac: Some(Mac([2, 0, 0, 0, 0, 9])),
            vlan: Some(VfVlan { id: 100, qos: 3, proto: VlanProto::Dot1ad }),
            rate: Some(VfRate { min: 10, max: 200 }),
            spoofchk: Some(true),
            trust: Some(false),
            link_state: Some(VfLinkState::Disable),
        }
    }

    #[test]
    fn what_is_written_for_a_vf_is_what_is_read_of_it() {
        let mut message = Message::new(0, 0, &[]);
        let numbers = || 0..400;
        write(&mut message, &numbers().map(|n| (n, all())).collect::<Vec<_>>());
        let bytes = message.with_sequence(1).to_vec();
        let list = attributes(&bytes[16..]).next().unwrap();
        assert_eq!(list.0, libc::IFLA_VFINFO_LIST);
        let wanted: Vec<_> = numbers().map(|index| Vf { index, ..Vf::default() }.after(&all())).collect();
        assert_eq!(read(list.1), wanted, "as many as go into one attribute");
    }

    #[test]
    fn the_kernels_structures_have_their_lengths() {
        let mut message = Message::new(0, 0, &[]);
        fill(&mut message, 6, &all());
        let bytes = message.with_sequence(1).to_vec();
        let lengths: Vec<_> = attributes(&bytes[16..]).map(|(kind, value)| (kind, value.len())).collect();
        assert_eq!(lengths, [(1, 36), (12, 20), (6, 12), (4, 8), (5, 8), (9, 8)]);
    }

    #[test]
    fn what_a_driver_does_not_know_is_told_as_unknown() {
        let mut message = Message::new(0, 0, &[]);
        let value = |word: u32| words(&[3, word]);
        message.attribute(IFLA_VF_MAC, &[&3_u32.to_ne_bytes()[..], &[0; 32]].concat());
        message.attribute(IFLA_VF_SPOOFCHK, &value(u32::MAX));
        message.attribute(IFLA_VF_LINK_STATE, &value(7));
        let bytes = message.with_sequence(1).to_vec();
        let vf = one(&bytes[16..]).unwrap();
        assert_eq!(vf, Vf { index: 3, mac: Some(Mac([0; 6])), ..Vf::default() });
    }
}
