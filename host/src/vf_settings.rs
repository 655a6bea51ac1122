//! Virtual functions as the driver of their physical function holds them: the administrator's settings, which the
//! function's own user cannot change.

use serde::{Deserialize, Serialize};

use crate::Mac;

/// Ethertype of the tag of a port VLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum VlanProto {
    /// 802.1Q
    #[default]
    #[serde(rename = "802.1q")]
    Dot1q,
    /// 802.1ad
    #[serde(rename = "802.1ad")]
    Dot1ad,
}

/// The VLAN that a function is on without knowing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct VfVlan {
    /// 0 (none) to 4094.
    pub id: u16,
    /// Priority, 0–7.
    pub qos: u8,
    /// Its tag.
    pub proto: VlanProto,
}

/// Transmit rate in Mbit/s; 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct VfRate {
    /// Guaranteed.
    pub min: u32,
    /// Allowed.
    pub max: u32,
}

/// What the function's link does (`IFLA_VF_LINK_STATE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VfLinkState {
    /// It follows the physical function's.
    Auto,
    /// Always up.
    Enable,
    /// Always down.
    Disable,
}

/// A function's settings as they are. `None`: the driver does not tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Vf {
    /// Its number under its physical function.
    pub index: u32,
    /// The MAC address given by the administrator; some drivers tell here what the function has taken itself.
    pub mac: Option<Mac>,
    /// Port VLAN.
    pub vlan: Option<VfVlan>,
    /// Rates.
    pub rate: Option<VfRate>,
    /// Frames with another source address are dropped.
    pub spoofchk: Option<bool>,
    /// The function may change its address and be promiscuous.
    pub trust: Option<bool>,
    /// Link.
    pub link_state: Option<VfLinkState>,
}

/// Settings to be changed, in one message; `None` leaves one as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VfChange {
    /// MAC address; all zeroes take the administrator's away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// Port VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VfVlan>,
    /// Rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<VfRate>,
    /// Spoof check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spoofchk: Option<bool>,
    /// Trust.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<bool>,
    /// Link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_state: Option<VfLinkState>,
}

impl VfChange {
    /// Nothing is to be changed.
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
