//! Makes what was observed on two stages comparable: values that are new on every run are replaced by words that
//! say what they stand for.
//!
//! Volatile are: MAC addresses that nobody asked for, the link-local addresses made from them, interface indexes,
//! namespace numbers, remaining lifetimes, and the words that the kernel has at the moment for a veth pair whose other end
//! is down. All else stays as it is: a value that is hidden here is never compared.

use serde_json::{Map, Value};

/// What the volatile values of one test node stand for.
#[derive(Debug, Clone, Default)]
pub struct Normaliser {
    /// The texts to replace, each with its word, longest first.
    words: Vec<(String, String)>,
    /// The names of the node's interfaces by index.
    node_links: Vec<(u64, String)>,
}

impl Normaliser {
    /// Learns the node's links, which the pod's interfaces refer to by index.
    pub fn with_node(mut self, interfaces: &Map<String, Value>) -> Normaliser {
        for (name, interface) in interfaces {
            if let Some(index) = interface.get("ifindex").and_then(Value::as_u64) {
                self.node_links.push((index, name.clone()));
            }
        }
        self
    }

    /// Learns the pod's interfaces: the MAC of each is volatile unless it stands in `asked` (configuration,
    /// arguments, and the node's own links).
    pub fn with_pod(mut self, interfaces: &Map<String, Value>, asked: &str) -> Normaliser {
        let asked = asked.to_ascii_lowercase();
        for (name, interface) in interfaces {
            let Some(mac) = interface.get("address").and_then(Value::as_str) else { continue };
            if interface["link_type"] == "loopback" || asked.contains(mac) {
                continue;
            }
            if let Some(link_local) = link_local(mac) {
                self.words.push((link_local, format!("<link-local of {name}>")));
            }
            self.words.push((mac.to_owned(), format!("<random MAC of {name}>")));
        }
        self.words.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        self
    }

    /// Learns the MACs that a result names, as [`Normaliser::with_pod`] does: a later plugin may have changed them.
    pub fn with_result(mut self, result: &Value, asked: &str) -> Normaliser {
        let mut interfaces = Map::new();
        for interface in result["interfaces"].as_array().into_iter().flatten() {
            if let (Some(name), Some(mac)) = (interface["name"].as_str(), interface["mac"].as_str()) {
                let known = self.words.iter().any(|(text, _)| text == mac) || mac == "00:00:00:00:00:00";
                if !known {
                    interfaces.insert(format!("{name} at first"), serde_json::json!({"address": mac}));
                }
            }
        }
        self = self.with_pod(&interfaces, asked);
        self
    }

    /// Replaces everything volatile in `value`.
    pub fn apply(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.words_for(text)),
            Value::Array(list) => Value::Array(list.into_iter().map(|v| self.apply(v)).collect()),
            Value::Object(map) => {
                Value::Object(map.into_iter().filter_map(|(k, v)| self.entry(k, v)).collect())
            }
            other => other,
        }
    }

    fn entry(&self, key: String, value: Value) -> Option<(String, Value)> {
        match key.as_str() {
            "ifindex" => None,
            "link_index" => Some((key, self.link_name(&value))),
            "link_netnsid" => Some((key, Value::from("another namespace"))),
            "valid_life_time" | "preferred_life_time" => Some((key, lifetime(&value))),
            "operstate" if value == "LOWERLAYERDOWN" => Some((key, Value::from("DOWN"))),
            "flags" => Some((key, carried(value))),
            "expires" => Some((key, Value::from("limited"))),
            _ => Some((self.words_for(key), self.apply(value))),
        }
    }

    fn link_name(&self, index: &Value) -> Value {
        let known = self.node_links.iter().find(|(known, _)| Some(*known) == index.as_u64());
        Value::from(known.map_or("a link elsewhere", |(_, name)| name.as_str()))
    }

    fn words_for(&self, text: String) -> String {
        self.words.iter().fold(text, |text, (volatile, word)| {
            if text.contains(volatile.as_str()) { text.replace(volatile.as_str(), word) } else { text }
        })
    }
}

/// The flags without those that follow the operational state a moment later.
fn carried(mut flags: Value) -> Value {
    if let Some(list) = flags.as_array_mut() {
        list.retain(|flag| flag != "NO-CARRIER");
    }
    flags
}

fn lifetime(value: &Value) -> Value {
    let forever = value.as_u64() == Some(u64::from(u32::MAX));
    Value::from(if forever { "forever" } else { "limited" })
}

/// The link-local address that the kernel makes from a MAC (RFC 4291, appendix A).
pub fn link_local(mac: &str) -> Option<String> {
    let octets: Vec<u16> = mac.split(':').map(|o| u16::from_str_radix(o, 16).ok()).collect::<Option<_>>()?;
    let [a, b, c, d, e, f] = octets[..] else { return None };
    let address =
        std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, (a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f);
    Some(address.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(mac: &str) -> Map<String, Value> {
        let Value::Object(map) = json!({
            "lo": {"link_type": "loopback", "address": "00:00:00:00:00:00"},
            "eth0": {"link_type": "ether", "address": mac},
        }) else {
            return Map::new();
        };
        map
    }

    #[test]
    fn a_link_local_address_is_made_from_its_mac() {
        assert_eq!(link_local("02:00:5e:00:00:01").as_deref(), Some("fe80::5eff:fe00:1"));
        assert_eq!(link_local("aa:bb:cc:dd:ee:ff").as_deref(), Some("fe80::a8bb:ccff:fedd:eeff"));
        assert_eq!(link_local("no mac"), None);
        assert_eq!(link_local("aa:bb:cc"), None);
    }

    #[test]
    fn two_random_macs_become_the_same_words_in_values_and_keys() {
        let tree = |mac: &str| {
            let ll = link_local(mac).unwrap();
            Normaliser::default().with_pod(&pod(mac), "").apply(json!({
                "interfaces": [{"mac": mac}],
                format!("ipv6 dst {ll} dev eth0"): {"dst": format!("{ll}/128")},
            }))
        };
        assert_eq!(tree("aa:bb:cc:dd:ee:01"), tree("12:34:56:78:9a:bc"));
    }

    #[test]
    fn a_mac_that_was_asked_for_stays_in_any_case() {
        let normal =
            Normaliser::default().with_pod(&pod("aa:bb:cc:dd:ee:01"), r#"{"mac":"AA:BB:cc:dd:ee:01"}"#);
        assert_eq!(normal.apply(json!("aa:bb:cc:dd:ee:01")), json!("aa:bb:cc:dd:ee:01"));
    }

    #[test]
    fn indexes_vanish_and_the_parent_is_told_by_name() {
        let Value::Object(node) = json!({"eth0": {"ifindex": 7}}) else { panic!("an object") };
        let normal = Normaliser::default().with_node(&node);
        assert_eq!(
            normal.apply(json!({"ifindex": 3, "link_index": 7, "link_netnsid": 4, "mtu": 1500})),
            json!({"link_index": "eth0", "link_netnsid": "another namespace", "mtu": 1500})
        );
        assert_eq!(normal.apply(json!({"link_index": 9})), json!({"link_index": "a link elsewhere"}));
    }

    #[test]
    fn a_lost_carrier_reads_the_same_before_and_after_the_kernel_has_noticed() {
        let normal = Normaliser::default();
        assert_eq!(
            normal.apply(json!({"operstate": "LOWERLAYERDOWN", "flags": ["NO-CARRIER", "BROADCAST", "UP"]})),
            normal.apply(json!({"operstate": "DOWN", "flags": ["BROADCAST", "UP"]}))
        );
    }

    #[test]
    fn lifetimes_keep_only_whether_they_end() {
        let normal = Normaliser::default();
        assert_eq!(
            normal.apply(json!({"valid_life_time": 4_294_967_295_u32, "preferred_life_time": 1790})),
            json!({"valid_life_time": "forever", "preferred_life_time": "limited"})
        );
    }
}
