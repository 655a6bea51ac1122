//! Is a port's configuration one that can be? Pure; says every time what would be right.

use super::messages::{Refusal, RefusalCode};
use crate::port::PortConfig;

const NAME_BYTES: usize = 64;
/// A namespace, a slash and a name of Kubernetes, twice over.
const NETWORK_BYTES: usize = 1_024;
const VLANS: std::ops::RangeInclusive<u16> = 1..=4_094;
const QUEUES: std::ops::RangeInclusive<u16> = 1..=8;
/// In bits per second. A mistake in the unit is likelier than a slower port.
const SLOWEST: u64 = 1_000;
const MTUS: std::ops::RangeInclusive<u16> = 68..=9_216;

/// Checks every field.
pub(super) fn check(config: &PortConfig) -> Result<(), Refusal> {
    let name = &config.name;
    let wrong = |what: String| Err(Refusal::new(RefusalCode::BadConfig, format!("port {name:?}: {what}")));
    if let Err(what) = text(name, NAME_BYTES) {
        return wrong(format!("its name {what}"));
    }
    if let Err(what) = check_network(&config.network) {
        return wrong(what);
    }
    if config.mac.is_multicast() || config.mac.is_zero() {
        return wrong(format!(
            "{} is no address of an interface; take a unicast one, such as 02:00:5e:10:00:01",
            config.mac
        ));
    }
    if let Some(vlan) = config.vlan.iter().chain(&config.trunk).find(|vlan| !VLANS.contains(vlan)) {
        return wrong(format!("{vlan} is no VLAN; take 1 to 4094"));
    }
    if !QUEUES.contains(&config.queues) {
        return wrong(format!("{} pairs of queues; take 1 to 8", config.queues));
    }
    if !MTUS.contains(&config.mtu) {
        return wrong(format!("an MTU of {} bytes; take 68 to 9216", config.mtu));
    }
    let rates = config.from_guest_bits.iter().chain(&config.to_guest_bits);
    if let Some(rate) = rates.into_iter().find(|rate| **rate < SLOWEST) {
        return wrong(format!("a rate of {rate} bits in a second; take at least {SLOWEST}, or leave it out"));
    }
    Ok(())
}

/// Checks the name of a network.
pub(super) fn check_network(network: &str) -> Result<(), String> {
    text(network, NETWORK_BYTES).map_err(|what| format!("the name of its network {network:?} {what}"))
}

fn text(text: &str, longest: usize) -> Result<(), String> {
    if text.is_empty() || text.len() > longest {
        return Err(format!("has {} bytes; take 1 to {longest}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err("has a control character; leave it out".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fairlead_host::Mac;

    use super::*;

    fn config() -> PortConfig {
        PortConfig {
            name: "pod-1".into(),
            network: "default/red".into(),
            mac: Mac([2, 0, 0, 0, 0, 1]),
            vlan: Some(4094),
            trunk: vec![1],
            spoof_check: true,
            isolated: false,
            queues: 8,
            mtu: 9_216,
            from_guest_bits: Some(1_000),
            to_guest_bits: None,
        }
    }

    fn reason(change: impl FnOnce(&mut PortConfig)) -> String {
        let mut config = config();
        change(&mut config);
        check(&config).unwrap_err().reason
    }

    #[test]
    fn what_can_not_be_is_named_with_what_could() {
        assert_eq!(check(&config()), Ok(()));
        assert_eq!(reason(|c| c.name.clear()), "port \"\": its name has 0 bytes; take 1 to 64");
        assert!(reason(|c| c.name = "x".repeat(65)).ends_with("its name has 65 bytes; take 1 to 64"));
        assert!(reason(|c| c.network = "a\nb".into()).contains("has a control character; leave it out"));
        assert!(
            reason(|c| c.mac = Mac([1, 0, 0, 0, 0, 1]))
                .contains("01:00:00:00:00:01 is no address of an interface")
        );
        assert!(reason(|c| c.mac = Mac([0; 6])).contains("take a unicast one"));
        assert_eq!(reason(|c| c.vlan = Some(0)), "port \"pod-1\": 0 is no VLAN; take 1 to 4094");
        assert!(reason(|c| c.trunk.push(4095)).contains("4095 is no VLAN"));
        assert!(reason(|c| c.queues = 9).contains("9 pairs of queues; take 1 to 8"));
        assert!(reason(|c| c.to_guest_bits = Some(999)).contains("a rate of 999 bits in a second"));
        assert!(reason(|c| c.mtu = 67).contains("an MTU of 67 bytes; take 68 to 9216"));
    }
}
