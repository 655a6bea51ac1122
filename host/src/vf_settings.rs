//! Settings of VFs as the driver of their PF holds them: the administrator's, which whoever uses the VF cannot change.

use serde::{Deserialize, Serialize};

use crate::Mac;

/// Which kind of tag a port VLAN has (its ethertype).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum VlanProto {
    /// The usual tag (802.1Q, ethertype 0x8100).
    #[default]
    #[serde(rename = "802.1q")]
    Dot1q,
    /// The outer tag of providers (802.1ad, ethertype 0x88a8).
    #[serde(rename = "802.1ad")]
    Dot1ad,
}

/// The VLAN that a VF is on without knowing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct VfVlan {
    /// The VLAN's id, 0 (none) to 4094.
    pub id: u16,
    /// The priority of its frames, 0–7.
    pub qos: u8,
    /// The tag that its frames get.
    pub proto: VlanProto,
}

/// Transmit rate in Mbit/s; 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct VfRate {
    /// The rate that the VF is guaranteed.
    pub min: u32,
    /// The rate that the VF may not exceed.
    pub max: u32,
}

/// What a VF's link does (`IFLA_VF_LINK_STATE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VfLinkState {
    /// It follows the PF's link.
    Auto,
    /// It is up, whatever the PF's link is.
    Enable,
    /// It is down, whatever the PF's link is.
    Disable,
}

/// The settings of a VF as they are. `None`: the driver does not report the setting.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Vf {
    /// The VF's number under its PF.
    pub index: u32,
    /// The MAC address that the administrator has set; some drivers report here what the VF has taken itself.
    pub mac: Option<Mac>,
    /// The VLAN that it is on.
    pub vlan: Option<VfVlan>,
    /// Its transmit rates.
    pub rate: Option<VfRate>,
    /// Frames with another source address are dropped.
    pub spoofchk: Option<bool>,
    /// The VF may change its address and be promiscuous.
    pub trust: Option<bool>,
    /// What its link does.
    pub link_state: Option<VfLinkState>,
}

/// Settings to be changed, in one message; `None` leaves one as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VfChange {
    /// MAC address; all zeroes take the administrator's away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// The VLAN that it shall be on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VfVlan>,
    /// The transmit rates that it shall have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<VfRate>,
    /// Whether frames with another source address shall be dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoofchk: Option<bool>,
    /// Whether it may change its address and be promiscuous.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<bool>,
    /// What its link shall do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_state: Option<VfLinkState>,
}

impl VfChange {
    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        *self == VfChange::default()
    }

    /// The same, one setting at a time, in the order in which the kernel carries them out.
    pub fn singly(&self) -> impl Iterator<Item = VfChange> {
        let none = VfChange::default;
        let all = [
            VfChange { mac: self.mac, ..none() },
            VfChange { vlan: self.vlan, ..none() },
            VfChange { rate: self.rate, ..none() },
            VfChange { spoofchk: self.spoofchk, ..none() },
            VfChange { link_state: self.link_state, ..none() },
            VfChange { trust: self.trust, ..none() },
        ];
        all.into_iter().filter(|one| !one.is_empty())
    }

    /// For a person: `vlan 100, spoofchk on`.
    pub fn describe(&self) -> String {
        let switch = |on: bool| if on { "on" } else { "off" };
        let mut words = Vec::new();
        words.extend(self.mac.map(|mac| format!("mac {mac}")));
        words.extend(self.vlan.map(|vlan| {
            let qos = if vlan.qos > 0 { format!(" qos {}", vlan.qos) } else { String::new() };
            let proto = if vlan.proto == VlanProto::Dot1ad { " proto 802.1ad" } else { "" };
            format!("vlan {}{qos}{proto}", vlan.id)
        }));
        words.extend(self.rate.map(|rate| format!("min_tx_rate {} max_tx_rate {}", rate.min, rate.max)));
        words.extend(self.spoofchk.map(|on| format!("spoofchk {}", switch(on))));
        words.extend(self.link_state.map(|state| format!("link_state {state:?}").to_lowercase()));
        words.extend(self.trust.map(|on| format!("trust {}", switch(on))));
        words.join(", ")
    }
}

impl Vf {
    /// The settings after a change that was taken whole.
    pub fn after(&self, change: &VfChange) -> Vf {
        Vf {
            index: self.index,
            mac: change.mac.or(self.mac),
            vlan: change.vlan.or(self.vlan),
            rate: change.rate.or(self.rate),
            spoofchk: change.spoofchk.or(self.spoofchk),
            trust: change.trust.or(self.trust),
            link_state: change.link_state.or(self.link_state),
        }
    }
}
