//! The order in which host-local gives out the addresses of a range set.
//!
//! The order is the reference plugin's: round and round from the address given out last, through all ranges of
//! a set, so that an address just released is not the next one given out.

use std::net::IpAddr;

use fairlead_cni::config::host_local::{Range, RangeSet};

/// Every address of a set that may be given out, once, in the order of the reference plugin: from the one after
/// `last`, or from the first where `last` is of another set.
pub(super) fn candidates(set: &RangeSet, last: Option<IpAddr>) -> Candidates<'_> {
    let last = last.map(|ip| ip.to_canonical());
    let at = last.and_then(|ip| set.0.iter().position(|range| range.contains(ip)));
    // An address outside the ranges counts as none: the configuration was changed since it was given out.
    Candidates { ranges: &set.0, at: at.unwrap_or(0), current: at.and(last), first: None }
}

/// How many addresses of a set may be given out.
pub(super) fn size(set: &RangeSet) -> u128 {
    let one = |range: &Range| {
        let all = number(range.end).saturating_sub(number(range.start)).saturating_add(1);
        all - u128::from(range.contains(range.gateway))
    };
    set.0.iter().map(one).fold(0, u128::saturating_add)
}

/// One round through a range set.
#[derive(Debug)]
pub(super) struct Candidates<'a> {
    ranges: &'a [Range],
    at: usize,
    current: Option<IpAddr>,
    first: Option<IpAddr>,
}

impl<'a> Candidates<'a> {
    /// The next address, gateways included; `None` when the round is complete.
    fn step(&mut self) -> Option<(&'a Range, IpAddr)> {
        let range = self.ranges.get(self.at)?;
        let (range, next) = match self.current {
            None => (range, range.start),
            Some(ip) if ip == range.end => {
                self.at = (self.at + 1) % self.ranges.len();
                let range = self.ranges.get(self.at)?;
                (range, range.start)
            }
            Some(ip) => (range, successor(ip)?),
        };
        self.current = Some(next);
        match self.first {
            None => self.first = Some(next),
            // Once round: every address was offered.
            Some(first) if first == next => return None,
            Some(_) => {}
        }
        Some((range, next))
    }
}

impl<'a> Iterator for Candidates<'a> {
    type Item = (&'a Range, IpAddr);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (range, ip) = self.step()?;
            if ip != range.gateway {
                return Some((range, ip));
            }
        }
    }
}

/// An address as a number.
fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// The next address; `None` after the last one of its family.
fn successor(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_add(1).map(|bits| std::net::Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(ip) => ip.to_bits().checked_add(1).map(|bits| std::net::Ipv6Addr::from_bits(bits).into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ipnet::IpNet;
    use proptest::prelude::*;

    use super::*;

    fn range(subnet: &str, start: &str, end: &str, gateway: &str) -> Range {
        Range {
            subnet: subnet.parse().unwrap(),
            start: start.parse().unwrap(),
            end: end.parse().unwrap(),
            gateway: gateway.parse().unwrap(),
        }
    }

    fn texts(set: &RangeSet, last: Option<&str>) -> Vec<String> {
        candidates(set, last.map(|ip| ip.parse().unwrap())).map(|(_, ip)| ip.to_string()).collect()
    }

    #[test]
    fn the_gateway_is_passed_over_wherever_it_lies() {
        let set = RangeSet(vec![range("10.0.0.0/29", "10.0.0.1", "10.0.0.4", "10.0.0.1")]);
        assert_eq!(texts(&set, None), ["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
        assert_eq!(texts(&set, Some("10.0.0.3")), ["10.0.0.4", "10.0.0.2", "10.0.0.3"]);
        assert_eq!(texts(&set, Some("10.0.0.4")), ["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
        let only = RangeSet(vec![range("10.0.0.0/29", "10.0.0.1", "10.0.0.1", "10.0.0.1")]);
        assert!(texts(&only, None).is_empty());
        assert_eq!(size(&only), 0);
    }

    #[test]
    fn a_cursor_of_another_set_starts_the_round_at_the_first_address() {
        let set = RangeSet(vec![range("10.0.0.0/29", "10.0.0.3", "10.0.0.4", "10.0.0.1")]);
        assert_eq!(texts(&set, Some("10.0.0.9")), ["10.0.0.3", "10.0.0.4"]);
        assert_eq!(texts(&set, Some("fd00::1")), ["10.0.0.3", "10.0.0.4"]);
        assert_eq!(texts(&set, Some("::ffff:10.0.0.3")), ["10.0.0.4", "10.0.0.3"]);
    }

    #[test]
    fn the_last_address_of_ipv6_ends_its_range() {
        let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let set =
            RangeSet(vec![range("ffff::/16", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", last, "ffff::1")]);
        assert_eq!(texts(&set, Some(last)).len(), 2);
        assert_eq!(size(&set), 2);
    }

    /// Disjoint ranges of 10.0.0.0/16, each in a /24 of its own, with a gateway anywhere in it.
    fn sets() -> impl Strategy<Value = RangeSet> {
        let one = (1u8..=20, 0u8..=10, 0u8..=40);
        prop::collection::vec(one, 1..4).prop_map(|ranges| {
            RangeSet(
                (0u8..)
                    .zip(ranges)
                    .map(|(third, (start, length, gateway))| Range {
                        subnet: IpNet::new(Ipv4Addr::new(10, 0, third, 0).into(), 24).unwrap(),
                        start: Ipv4Addr::new(10, 0, third, start).into(),
                        end: Ipv4Addr::new(10, 0, third, start + length).into(),
                        gateway: Ipv4Addr::new(10, 0, third, gateway).into(),
                    })
                    .collect(),
            )
        })
    }

    /// The reference's iterator (plugins v1.9.1, `RangeIter.Next`), word for word: what ours must equal.
    struct Reference<'a> {
        set: &'a [Range],
        index: usize,
        cur: Option<IpAddr>,
        start: Option<IpAddr>,
    }

    impl Reference<'_> {
        fn new(set: &[Range], last: Option<IpAddr>) -> Reference<'_> {
            match last.and_then(|ip| set.iter().position(|r| r.contains(ip))) {
                Some(index) => Reference { set, index, cur: last, start: None },
                None => Reference { set, index: 0, cur: None, start: Some(set[0].start) },
            }
        }

        fn next(&mut self) -> Option<IpAddr> {
            let mut r = &self.set[self.index];
            let Some(cur) = self.cur else {
                self.cur = Some(r.start);
                self.start = self.cur;
                return if r.start == r.gateway { self.next() } else { self.cur };
            };
            if cur == r.end {
                self.index = (self.index + 1) % self.set.len();
                r = &self.set[self.index];
                self.cur = Some(r.start);
            } else {
                self.cur = successor(cur);
            }
            if self.start.is_none() {
                self.start = self.cur;
            } else if self.cur == self.start {
                return None;
            }
            if self.cur == Some(r.gateway) { self.next() } else { self.cur }
        }
    }

    proptest! {
        #[test]
        fn a_round_is_the_references_round(set in sets(), third in 0u8..4, fourth in 0u8..40) {
            for last in [None, Some(IpAddr::from([10, 0, third, fourth]))] {
                let mut reference = Reference::new(&set.0, last);
                let expected: Vec<IpAddr> = std::iter::from_fn(|| reference.next()).collect();
                let ours: Vec<IpAddr> = candidates(&set, last).map(|(_, ip)| ip).collect();
                prop_assert_eq!(ours, expected);
            }
        }

        #[test]
        fn a_round_gives_every_address_once_and_no_gateway(set in sets(), third in 0u8..4, fourth in 0u8..40) {
            let mut ours: Vec<IpAddr> = candidates(&set, Some([10, 0, third, fourth].into())).map(|(_, ip)| ip).collect();
            prop_assert_eq!(ours.len() as u128, size(&set));
            ours.sort();
            ours.dedup();
            prop_assert_eq!(ours.len() as u128, size(&set));
            prop_assert!(ours.iter().all(|ip| set.range_of(*ip).is_some_and(|range| range.gateway != *ip)));
        }
    }
}
