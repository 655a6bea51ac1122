//! What rtnetlink can change of a link beside its names, addresses and MTU, as data that can be on record. A link takes all of it along into
//! another namespace.

use serde::{Deserialize, Serialize};

use crate::Mac;

/// Settings of a link; of one that is read `None` is what the kernel does not tell, of one that is changed what stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LinkSettings {
    /// Those of [`LinkSettings::FLAGS`] that are set (`IFF_…`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flags: Option<u32>,
    /// Whether it waits for a supplicant before it counts as up (`IFLA_LINKMODE`: 0, or 1 for dormant).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u8>,
    /// Its group (`IFLA_GROUP`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The length of its queue in packets (`IFLA_TXQLEN`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_length: Option<u32>,
    /// Its broadcast address, where that has 6 bytes (`IFLA_BROADCAST`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broadcast: Option<Mac>,
    /// Whether somebody holds it without a carrier (`IFLA_PROTO_DOWN`: 0 or 1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proto_down: Option<u8>,
    /// The longest packet that it is given to segment, in bytes (`IFLA_GSO_MAX_SIZE`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gso_max_size: Option<u32>,
    /// The most segments of one (`IFLA_GSO_MAX_SEGS`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gso_max_segs: Option<u32>,
    /// The longest packet that received ones are merged into, in bytes (`IFLA_GRO_MAX_SIZE`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gro_max_size: Option<u32>,
    /// `IFLA_GSO_IPV4_MAX_SIZE`, which follows a `gso_max_size` that is set to 64 KiB or less (kernel ≥ 6.3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gso_ipv4_max_size: Option<u32>,
    /// `IFLA_GRO_IPV4_MAX_SIZE`, which follows `gro_max_size` likewise (kernel ≥ 6.3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gro_ipv4_max_size: Option<u32>,
}

impl LinkSettings {
    /// `IFF_PROMISC`, `IFF_ALLMULTI`: it hears what is not for it.
    pub const PROMISCUITY: u32 = 0x100 | 0x200;
    /// The flags that can be set, beside being up: DEBUG, NOTRAILERS, NOARP, PROMISC, ALLMULTI, MULTICAST, PORTSEL, AUTOMEDIA, DYNAMIC.
    pub const FLAGS: u32 = 0x4 | 0x20 | 0x80 | Self::PROMISCUITY | 0x1000 | 0x2000 | 0x4000 | 0x8000;

    /// Nothing but flags.
    pub fn of_flags(flags: u32) -> LinkSettings {
        LinkSettings { flags: Some(flags), ..LinkSettings::default() }
    }

    /// What of these is otherwise `now`, one setting at a time.
    pub fn differing(&self, now: &LinkSettings) -> Vec<LinkSettings> {
        macro_rules! singly {
            ($($field:ident)*) => {
                [$(LinkSettings {
                    $field: self.$field.filter(|wanted| now.$field != Some(*wanted)),
                    ..LinkSettings::default()
                }),*]
            };
        }
        let all = singly!(flags mode group queue_length broadcast proto_down gso_max_size gso_max_segs gro_max_size
            gso_ipv4_max_size gro_ipv4_max_size);
        all.into_iter().filter(|one| *one != LinkSettings::default()).collect()
    }

    /// These, but where `other` has one, that.
    pub fn overlaid(&self, other: &LinkSettings) -> LinkSettings {
        macro_rules! overlaid {
            ($($field:ident)*) => { LinkSettings { $($field: other.$field.or(self.$field)),* } };
        }
        overlaid!(flags mode group queue_length broadcast proto_down gso_max_size gso_max_segs gro_max_size
            gso_ipv4_max_size gro_ipv4_max_size)
    }

    /// For a person: `flags 0x1080, group 7`.
    pub fn describe(&self) -> String {
        let mut words = Vec::new();
        words.extend(self.flags.map(|flags| format!("flags {flags:#x}")));
        words.extend(self.mode.map(|mode| format!("mode {mode}")));
        words.extend(self.broadcast.map(|mac| format!("broadcast {mac}")));
        words.extend(self.proto_down.map(|down| format!("protodown {down}")));
        for (what, number) in [
            ("group", self.group),
            ("txqueuelen", self.queue_length),
            ("gso_max_size", self.gso_max_size),
            ("gso_max_segs", self.gso_max_segs),
            ("gro_max_size", self.gro_max_size),
            ("gso_ipv4_max_size", self.gso_ipv4_max_size),
            ("gro_ipv4_max_size", self.gro_ipv4_max_size),
        ] {
            words.extend(number.map(|number| format!("{what} {number}")));
        }
        words.join(", ")
    }
}
