//! The settings that a VF is to have, as a value, and the difference to those that it has. Pure.

use fairlead_host::{Mac, Vf, VfChange, VfLinkState, VfRate, VfVlan};

/// The wanted settings of a VF; `None` leaves one as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VfProfile {
    /// The MAC address that the PF has for it.
    pub mac: Option<Mac>,
    /// The port VLAN; id 0 takes it away.
    pub vlan: Option<VfVlan>,
    /// Whether frames from another address than its own are dropped.
    pub spoofchk: Option<bool>,
    /// Whether it may change its address and be promiscuous.
    pub trust: Option<bool>,
    /// Whether its link follows the PF's, or is always up or down.
    pub link_state: Option<VfLinkState>,
    /// The guaranteed rate in Mbit/s, 0 for none.
    pub min_rate: Option<u32>,
    /// The largest rate in Mbit/s, 0 for no limit.
    pub max_rate: Option<u32>,
}

/// What has to be changed, and what takes it back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The settings that differ.
    pub change: VfChange,
    /// The same settings as they are now, as far as the driver reports them.
    pub undo: VfChange,
}

impl VfProfile {
    /// Whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        *self == VfProfile::default()
    }

    /// The difference to a VF's present settings.
    pub fn plan(&self, present: &Vf) -> Plan {
        let mut plan = Plan::default();
        (plan.change.mac, plan.undo.mac) = differs(self.mac, present.mac);
        (plan.change.vlan, plan.undo.vlan) = differs(self.vlan, present.vlan);
        (plan.change.rate, plan.undo.rate) = differs(self.rate(present), present.rate);
        (plan.change.spoofchk, plan.undo.spoofchk) = differs(self.spoofchk, present.spoofchk);
        (plan.change.trust, plan.undo.trust) = differs(self.trust, present.trust);
        (plan.change.link_state, plan.undo.link_state) = differs(self.link_state, present.link_state);
        plan
    }

    /// The kernel takes both rates at once: the one that is not wanted stays.
    fn rate(&self, present: &Vf) -> Option<VfRate> {
        let now = present.rate.unwrap_or_default();
        (self.min_rate.is_some() || self.max_rate.is_some())
            .then(|| VfRate { min: self.min_rate.unwrap_or(now.min), max: self.max_rate.unwrap_or(now.max) })
    }
}

/// Settings to come back to: each is wanted as it is there.
impl From<&VfChange> for VfProfile {
    fn from(change: &VfChange) -> VfProfile {
        VfProfile {
            mac: change.mac,
            vlan: change.vlan,
            spoofchk: change.spoofchk,
            trust: change.trust,
            link_state: change.link_state,
            min_rate: change.rate.map(|rate| rate.min),
            max_rate: change.rate.map(|rate| rate.max),
        }
    }
}

fn differs<T: Copy + PartialEq>(wanted: Option<T>, present: Option<T>) -> (Option<T>, Option<T>) {
    // A setting that the driver does not report is set all the same; there is nothing to come back to.
    if wanted.is_none() || wanted == present { (None, None) } else { (wanted, present) }
}

#[cfg(test)]
mod tests {
    use fairlead_host::VlanProto;
    use proptest::option::of;
    use proptest::prelude::*;

    use super::*;

    fn mac() -> impl Strategy<Value = Mac> {
        (0_u8..4).prop_map(|last| Mac([if last == 0 { 0 } else { 2 }, 0, 0, 0, 0, last]))
    }

    fn vlan() -> impl Strategy<Value = VfVlan> {
        let proto = prop_oneof![Just(VlanProto::Dot1q), Just(VlanProto::Dot1ad)];
        (0_u16..3, 0_u8..2, proto).prop_map(|(id, qos, proto)| VfVlan { id, qos, proto })
    }

    fn state() -> impl Strategy<Value = VfLinkState> {
        prop_oneof![Just(VfLinkState::Auto), Just(VfLinkState::Enable), Just(VfLinkState::Disable)]
    }

    fn rate() -> impl Strategy<Value = VfRate> {
        (0_u32..3, 0_u32..3).prop_map(|(min, max)| VfRate { min, max })
    }

    prop_compose! {
        fn profile()(
            mac in of(mac()), vlan in of(vlan()), spoofchk in of(any::<bool>()), trust in of(any::<bool>()),
            link_state in of(state()), min_rate in of(0_u32..3), max_rate in of(0_u32..3),
        ) -> VfProfile {
            VfProfile { mac, vlan, spoofchk, trust, link_state, min_rate, max_rate }
        }
    }

    prop_compose! {
        fn told()(
            mac in mac(), vlan in vlan(), rate in rate(), spoofchk: bool, trust: bool, link_state in state(),
        ) -> Vf {
            Vf {
                index: 3, mac: Some(mac), vlan: Some(vlan), rate: Some(rate), spoofchk: Some(spoofchk),
                trust: Some(trust), link_state: Some(link_state),
            }
        }
    }

    prop_compose! {
        fn half_told()(
            mac in of(mac()), vlan in of(vlan()), rate in of(rate()), spoofchk: Option<bool>, trust: Option<bool>,
            link_state in of(state()),
        ) -> Vf {
            Vf { index: 3, mac, vlan, rate, spoofchk, trust, link_state }
        }
    }

    proptest! {
        #[test]
        fn after_its_change_nothing_is_left_to_be_changed(wanted in profile(), present in half_told()) {
            let plan = wanted.plan(&present);
            prop_assert_eq!(wanted.plan(&present.after(&plan.change)), Plan::default());
        }

        #[test]
        fn the_undo_of_a_change_brings_back_what_was(wanted in profile(), present in told()) {
            let Plan { change, undo } = wanted.plan(&present);
            let changed = present.after(&change);
            prop_assert_eq!(&changed.after(&undo), &present);
            // By difference too, which is how it is done: also when only a part of the change was carried out.
            for upto in 0..=change.singly().count() {
                let part = change.singly().take(upto).fold(present.clone(), |vf, one| vf.after(&one));
                let back = VfProfile::from(&undo).plan(&part).change;
                prop_assert_eq!(&part.after(&back), &present);
            }
        }

        #[test]
        fn only_what_differs_is_changed_and_only_what_is_changed_is_undone(wanted in profile(), present in told()) {
            let Plan { change, undo } = wanted.plan(&present);
            prop_assert_eq!(change.singly().count(), undo.singly().count());
            for one in change.singly() {
                prop_assert_ne!(&present.after(&one), &present);
            }
        }
    }

    #[test]
    fn a_rate_that_is_not_wanted_stays_as_it_is() {
        let present = Vf { rate: Some(VfRate { min: 5, max: 50 }), ..Vf::default() };
        let wanted = VfProfile { max_rate: Some(80), ..VfProfile::default() };
        assert_eq!(wanted.plan(&present).change.rate, Some(VfRate { min: 5, max: 80 }));
    }

    #[test]
    fn a_vlan_of_0_takes_the_vlan_away_and_is_no_change_where_there_is_none() {
        let wanted = VfProfile { vlan: Some(VfVlan::default()), ..VfProfile::default() };
        let on = Vf { vlan: Some(VfVlan { id: 100, ..VfVlan::default() }), ..Vf::default() };
        assert_eq!(wanted.plan(&on).change.vlan, Some(VfVlan::default()));
        let off = Vf { vlan: Some(VfVlan::default()), ..Vf::default() };
        assert!(wanted.plan(&off).change.is_empty());
    }
}
