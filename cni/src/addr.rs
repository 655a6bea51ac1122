//! Addresses as Go's `net` package reads them, because existing configurations were written for it.
//!
//! Invariant: an IPv4 address in IPv6 form (`::ffff:10.0.0.1`) becomes IPv4, as Go prints it. Zones (`fe80::1%eth0`) are refused,
//! as Go refuses them.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

/// Reads an address without prefix length (`net.ParseIP`).
pub fn ip(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// Reads an address with prefix length, and keeps its host bits (`types.ParseCIDR`).
pub fn cidr(text: &str) -> Option<IpNet> {
    let (ip, bits) = split(text)?;
    match ip {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => {
            IpNet::new(ip.to_canonical(), bits.saturating_sub(96)).ok()
        }
        ip => IpNet::new(ip, bits).ok(),
    }
}

/// Reads an address with or without prefix length, and drops the length (`ip.ParseIP` of the reference plugins).
pub fn ip_or_cidr(text: &str) -> Option<IpAddr> {
    if text.contains('/') { cidr(text).map(|net| net.addr()) } else { ip(text) }
}

/// Whether this is `::ffff:a.b.c.d/n`, whose mask Go keeps in 16 bytes and host-local therefore refuses as a subnet.
pub(crate) fn is_mapped_cidr(text: &str) -> bool {
    let address = text.split('/').next().unwrap_or_default();
    address.parse::<Ipv6Addr>().is_ok_and(|v6| v6.to_ipv4_mapped().is_some())
}

fn split(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/')?;
    let ip: IpAddr = address.parse().ok()?;
    if bits.is_empty() || !bits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let bits: u8 = bits.parse().ok()?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    (bits <= most).then_some((ip, bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_in_ipv6_form_becomes_ipv4_as_go_prints_it() {
        assert_eq!(ip("::ffff:10.0.0.1"), "10.0.0.1".parse().ok());
        assert_eq!(cidr("::ffff:10.0.0.1/120"), "10.0.0.1/24".parse().ok());
        assert!(is_mapped_cidr("::ffff:10.0.0.0/120"));
        assert!(!is_mapped_cidr("10.0.0.0/24"));
    }

    #[test]
    fn a_prefix_length_may_have_leading_zeros_but_no_sign_and_no_excess() {
        assert_eq!(cidr("10.0.0.1/024"), "10.0.0.1/24".parse().ok());
        for bad in [
            "10.0.0.1",
            "10.0.0.1/",
            "10.0.0.1/33",
            "10.0.0.1/+8",
            "10.0.0.1/2 ",
            "::1/129",
            "/8",
            "10.0.1/8",
            "",
        ] {
            assert_eq!(cidr(bad), None, "{bad}");
        }
    }

    #[test]
    fn leading_zeros_and_zones_in_an_address_are_refused() {
        for bad in ["010.0.0.1", "fe80::1%eth0", "10.0.0.1 ", ""] {
            assert_eq!(ip(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_requested_address_may_carry_a_prefix_length() {
        assert_eq!(ip_or_cidr("10.1.2.3/24"), ip("10.1.2.3"));
        assert_eq!(ip_or_cidr("10.1.2.3"), ip("10.1.2.3"));
        assert_eq!(ip_or_cidr("10.1.2.3/"), None);
    }
}
