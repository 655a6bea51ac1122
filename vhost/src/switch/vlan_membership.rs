//! Which VLANs a port is in, and what happens to a frame's tag on its way there.
//!
//! A frame is in one VLAN of its network. The rules cover three kinds of port: one without a VLAN, an access port, and a trunk (whose
//! frames without a tag are in its `vlan`, if it has one). A guest can't get out of its VLANs with a second tag: where the first tag would
//! be taken out, a frame with two is not delivered.

use super::TagChange;
use super::frame_head::Tags;
use super::port_rules::PortRules;

/// A VLAN of a network: 1 to 4094, or 0 for frames without one.
pub(super) type Vlan = u16;

/// Frames that are in no VLAN.
const NO_VLAN: Vlan = 0;
/// 4095 is reserved (802.1Q-2022, table 9-2).
const LAST_VLAN: Vlan = 4094;

/// The VLANs of one port.
#[derive(Debug, Clone)]
pub(super) struct VlanMembership {
    /// Where frames without a tag are; absent for a trunk that sends none.
    untagged: Option<Vlan>,
    /// A bit for each VLAN whose frames carry tags here; absent for a port that is no trunk.
    tagged: Option<Box<[u64; 64]>>,
    /// It has no address of its own in any of them.
    is_uplink: bool,
}

impl VlanMembership {
    /// What the rules say. Numbers that are no VLAN are left out.
    pub(super) fn new(rules: &PortRules) -> VlanMembership {
        if rules.is_uplink {
            // All VLANs of the wire; a tag of VLAN 0 tells a priority, and the frame is in no VLAN.
            let mut bits = Box::new([u64::MAX; 64]);
            bits[63] &= u64::MAX >> 1;
            return VlanMembership { untagged: Some(NO_VLAN), tagged: Some(bits), is_uplink: true };
        }
        let mut listed = rules.trunk.iter().filter(|vlan| is_vlan(**vlan)).peekable();
        let tagged = listed.peek().is_some().then(|| {
            let mut bits = Box::new([0; 64]);
            listed.for_each(|vlan| bits[usize::from(vlan / 64)] |= 1 << (vlan % 64));
            bits
        });
        let untagged = match rules.vlan {
            Some(vlan) => is_vlan(vlan).then_some(vlan),
            None => tagged.is_none().then_some(NO_VLAN),
        };
        VlanMembership { untagged, tagged, is_uplink: false }
    }

    /// The VLAN of a frame that the port's guest sent. `None`: the port has it not.
    #[inline]
    pub(super) fn of_sent(&self, tags: Tags) -> Option<Vlan> {
        match tags {
            Tags::None => self.untagged,
            Tags::One(vlan) | Tags::Two(vlan) => self.has_tagged(vlan).then_some(vlan),
            Tags::Foreign => None,
        }
    }

    /// What happens to the tag of a frame in `vlan` on its way to this port. `None`: it does not get there.
    #[inline(always)]
    pub(super) fn change_for(&self, vlan: Vlan, tags: Tags) -> Option<TagChange> {
        if self.untagged == Some(vlan) {
            return match tags {
                Tags::None => Some(TagChange::None),
                Tags::One(_) => Some(TagChange::Pop),
                Tags::Two(_) | Tags::Foreign => None,
            };
        }
        let change = || if tags == Tags::None { TagChange::Push(vlan) } else { TagChange::None };
        self.has_tagged(vlan).then(change)
    }

    /// Every VLAN in which the port has an address of its own.
    pub(super) fn all(&self) -> impl Iterator<Item = Vlan> + '_ {
        let tagged = (1..=LAST_VLAN).filter(|vlan| self.has_tagged(*vlan) && self.untagged != Some(*vlan));
        self.untagged.into_iter().chain(tagged).filter(|_| !self.is_uplink)
    }

    /// Whether the port has an address of its own in `vlan`.
    #[inline]
    pub(super) fn has_own_in(&self, vlan: Vlan) -> bool {
        !self.is_uplink && (self.untagged == Some(vlan) || self.has_tagged(vlan))
    }

    /// Whether both ports have addresses of their own in one VLAN.
    pub(super) fn meets(&self, other: &VlanMembership) -> bool {
        self.all().any(|vlan| other.has_own_in(vlan))
    }

    /// The VLAN of frames without a tag, if it has one.
    pub(super) fn of_untagged(&self) -> Option<Vlan> {
        self.untagged.filter(|vlan| *vlan != NO_VLAN)
    }

    #[inline]
    fn has_tagged(&self, vlan: Vlan) -> bool {
        let Some(bits) = &self.tagged else { return false };
        bits.get(usize::from(vlan / 64)).is_some_and(|word| word >> (vlan % 64) & 1 == 1)
    }
}

fn is_vlan(vlan: Vlan) -> bool {
    (1..=LAST_VLAN).contains(&vlan)
}

#[cfg(test)]
mod tests {
    use fairlead_host::Mac;

    use super::*;

    fn port(vlan: Option<u16>, trunk: &[u16]) -> VlanMembership {
        VlanMembership::new(&PortRules {
            network: "n".into(),
            is_uplink: false,
            mac: Mac([2, 0, 0, 0, 0, 1]),
            vlan,
            trunk: trunk.to_vec(),
            spoof_check: false,
            isolated: false,
            mtu: 1500,
            from_guest_bits: None,
            to_guest_bits: None,
        })
    }

    #[test]
    fn each_kind_of_port_sends_into_its_own_vlans_only() {
        let tags = [Tags::None, Tags::One(0), Tags::One(5), Tags::One(6), Tags::Two(5), Tags::Foreign];
        let sent = |port: VlanMembership| tags.map(|tags| port.of_sent(tags));
        assert_eq!(sent(port(None, &[])), [Some(0), None, None, None, None, None]);
        assert_eq!(sent(port(Some(5), &[])), [Some(5), None, None, None, None, None]);
        assert_eq!(sent(port(None, &[5])), [None, None, Some(5), None, Some(5), None]);
        assert_eq!(sent(port(Some(6), &[5])), [Some(6), None, Some(5), None, Some(5), None]);
        assert_eq!(sent(port(Some(4095), &[0, 4095])), [None; 6], "what is no VLAN is nothing");
    }

    #[test]
    fn a_tag_is_pushed_to_a_trunk_and_popped_for_an_access_port() {
        let (access, trunk, native) = (port(Some(5), &[]), port(None, &[5, 6]), port(Some(5), &[6]));
        assert_eq!(access.change_for(5, Tags::None), Some(TagChange::None));
        assert_eq!(access.change_for(5, Tags::One(5)), Some(TagChange::Pop));
        assert_eq!(access.change_for(6, Tags::One(6)), None);
        assert_eq!(trunk.change_for(5, Tags::None), Some(TagChange::Push(5)));
        assert_eq!(trunk.change_for(6, Tags::One(6)), Some(TagChange::None));
        assert_eq!(trunk.change_for(7, Tags::None), None);
        assert_eq!(native.change_for(5, Tags::One(5)), Some(TagChange::Pop));
        assert_eq!(port(None, &[]).change_for(5, Tags::None), None);
        assert_eq!(trunk.change_for(0, Tags::None), None, "a port without VLAN reaches no trunk");
    }

    #[test]
    fn an_uplink_carries_the_tags_of_all_vlans_and_no_tag_of_none() {
        let rules = crate::port::UplinkConfig {
            network: "n".into(),
            interface: "eth1".into(),
            index: 7,
            mtu: 1500,
            native: true,
        };
        let uplink = VlanMembership::new(&PortRules::from(&rules));
        let tags = [Tags::None, Tags::One(0), Tags::One(4094), Tags::One(4095), Tags::Two(5), Tags::Foreign];
        let sent = tags.map(|tags| uplink.of_sent(tags));
        assert_eq!(sent, [Some(0), Some(0), Some(4094), None, Some(5), None]);
        assert_eq!(uplink.change_for(0, Tags::None), Some(TagChange::None));
        assert_eq!(uplink.change_for(5, Tags::None), Some(TagChange::Push(5)));
        assert_eq!(uplink.change_for(5, Tags::Two(5)), Some(TagChange::None));
        assert_eq!(uplink.all().count(), 0, "it has no address of its own");
        assert!(!uplink.has_own_in(0) && !uplink.has_own_in(5));
    }

    #[test]
    fn a_second_tag_never_comes_first() {
        assert_eq!(port(Some(5), &[]).change_for(5, Tags::Two(5)), None);
        assert_eq!(port(Some(5), &[6]).change_for(5, Tags::Two(5)), None);
        assert_eq!(port(None, &[5]).change_for(5, Tags::Two(5)), Some(TagChange::None));
    }

    #[test]
    fn ports_meet_where_one_vlan_is_of_both() {
        let meet = |one: VlanMembership, other: VlanMembership| (one.meets(&other), other.meets(&one));
        for (one, other) in [
            (port(None, &[]), port(None, &[])),
            (port(Some(5), &[]), port(Some(5), &[])),
            (port(Some(5), &[]), port(None, &[4, 5])),
            (port(None, &[5, 6]), port(None, &[6, 7])),
        ] {
            assert_eq!(meet(one, other), (true, true));
        }
        for (one, other) in [
            (port(None, &[]), port(Some(5), &[])),
            (port(Some(5), &[]), port(Some(6), &[])),
            (port(None, &[]), port(None, &[5])),
            (port(None, &[5, 6]), port(None, &[7])),
        ] {
            assert_eq!(meet(one, other), (false, false));
        }
    }

    #[test]
    fn all_vlans_of_a_port_are_named_once() {
        assert_eq!(port(Some(5), &[6, 5, 4094]).all().collect::<Vec<_>>(), [5, 6, 4094]);
        assert_eq!(port(None, &[]).all().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_port_has_its_address_in_all_of_its_vlans_and_in_no_other() {
        for port in [port(None, &[]), port(Some(5), &[]), port(Some(5), &[6, 4094]), port(None, &[1, 64])] {
            let all: Vec<_> = port.all().collect();
            assert!((0..=u16::MAX).all(|vlan| port.has_own_in(vlan) == all.contains(&vlan)), "{port:?}");
        }
    }
}
