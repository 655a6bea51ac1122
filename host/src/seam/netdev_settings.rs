//! What ethtool can change of a netdev and the netdev keeps when it moves to another namespace, as data that can be on record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Settings of a netdev. They hold until the next boot: another kernel may number features otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetdevSettings {
    /// Which features are wanted (`ETHTOOL_A_FEATURES_WANTED`): the bytes of the kernel's bit set, in hexadecimal. `None` where the kernel
    /// has no netlink for ethtool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<String>,
    /// How many channels (pairs of queues) it uses. `None` where its driver cannot tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<Channels>,
    /// The sizes of its rings. `None`, here and below, where its driver cannot tell or has none.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "in_pairs")]
    pub rings: Option<Numbers>,
    /// When it interrupts.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "in_pairs")]
    pub coalescing: Option<Numbers>,
    /// Its flow control.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "in_pairs")]
    pub pause: Option<Numbers>,
    /// How it spreads what it receives over queues: hash function, table and key, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_hash: Option<String>,
}

/// Numbers of one sort of settings, by ethtool's number of the attribute (`ETHTOOL_A_RINGS_RX`).
pub type Numbers = BTreeMap<u16, u32>;

/// As pairs: within a tagged enum, where a record has them, serde reads no number back that is the key of an object.
mod in_pairs {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Numbers;

    pub(super) fn serialize<S: Serializer>(numbers: &Option<Numbers>, to: S) -> Result<S::Ok, S::Error> {
        numbers.as_ref().map(|numbers| numbers.iter().collect::<Vec<_>>()).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Numbers>, D::Error> {
        let pairs = Option::<Vec<(u16, u32)>>::deserialize(from)?;
        Ok(pairs.map(|pairs| pairs.into_iter().collect()))
    }
}

/// Numbers of channels; `None` where a netdev has none of that sort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Channels {
    /// For receiving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx: Option<u32>,
    /// For sending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx: Option<u32>,
    /// For anything else (link interrupts).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<u32>,
    /// For both ways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub combined: Option<u32>,
}
