//! Results against the recorded answers of libcni, and their reading and writing in every version.

use std::net::IpAddr;

use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::error::Code;
use crate::version::CniVersion;

/// Answers of libcni itself, recorded.
const LIBCNI: &str = include_str!("../../testdata/results.txt");

#[test]
fn every_conversion_prints_what_libcni_prints() {
    let mut lines = LIBCNI.lines().filter(|line| !line.starts_with('#'));
    let mut cases = 0;
    while let (Some(call), Some(want)) = (lines.next(), lines.next()) {
        let words: Vec<&str> = call.splitn(4, ' ').collect();
        let version = |text: &str| CniVersion::parse(text).unwrap();
        let parsed = CniResult::parse_text(words[3], version(words[1]));
        let got = parsed.and_then(|result| result.to_json(version(words[2])));
        match want.strip_prefix("ERR ") {
            Some(_) => assert!(got.is_err(), "{call}\n{got:?}"),
            None => assert_eq!(got.as_deref(), Ok(want), "{call}"),
        }
        cases += 1;
    }
    assert_eq!(cases, 40);
}

#[test]
fn a_result_without_a_version_is_read_in_the_configurations() {
    let old = json!({"ip4": {"ip": "10.0.0.2/24"}});
    assert_eq!(CniResult::parse(&old, CniVersion::V0_2_0).unwrap().ips.len(), 1);
    assert_eq!(CniResult::parse(&old, CniVersion::V1_0_0).unwrap().ips.len(), 0);
}

#[test]
fn an_interface_index_outside_the_list_is_none() {
    let with = |index: i64| json!({"interfaces": [{"name": "a"}], "ips": [{"address": "10.0.0.2/24", "interface": index}]});
    let read = |index| CniResult::parse(&with(index), CniVersion::V1_0_0).unwrap().ips[0].interface;
    assert_eq!([read(-1), read(0), read(1), read(i64::MAX)], [None, Some(0), None, None]);
    let ipam = json!({"ips": [{"address": "10.0.0.2/24", "interface": 0}]});
    assert_eq!(
        CniResult::parse(&ipam, CniVersion::V1_0_0).unwrap().ips[0].interface,
        None,
        "an IPAM's result"
    );
}

#[test]
fn a_result_of_a_version_to_come_is_refused_with_those_that_are_understood() {
    let error = CniResult::parse(&json!({"cniVersion": "9.0.0"}), CniVersion::LATEST).unwrap_err();
    assert_eq!(error.code, Code::IncompatibleVersion);
    assert_eq!(error.msg, "a result of CNI version \"9.0.0\" cannot be read");
    assert!(error.details.ends_with("0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"));
}

#[test]
fn a_route_without_a_destination_and_an_address_without_itself_are_named() {
    for (value, want) in [
        (json!({"routes": [{"gw": "10.0.0.1"}]}), "\"routes[0].dst\" is missing"),
        (json!({"ips": [{"gateway": "10.0.0.1"}]}), "\"ips[0].address\" is missing"),
        (json!({"ips": [7]}), "\"ips[0]\" is the number 7, expected an object"),
        (json!([]), "the JSON is a list, expected an object"),
    ] {
        let error = CniResult::parse(&value, CniVersion::V1_0_0).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (Code::Decode, want));
    }
}

#[test]
fn a_result_without_addresses_cannot_be_told_below_0_3_0() {
    let error = CniResult::default().to_json(CniVersion::V0_1_0).unwrap_err();
    assert_eq!(error.msg, "cannot convert the result to CNI version 0.1.0: no valid IP addresses");
    assert!(error.details.contains("0.3.0"));
}

prop_compose! {
    fn interface()(name in "[a-z]{0,8}", mac in "([0-9a-f]{2}:){0,2}", mtu in any::<u32>(), sandbox in ".{0,9}", pci_id in "[0-9]{0,3}")
        -> Interface
    {
        Interface { name, mac, mtu, sandbox, socket_path: String::new(), pci_id }
    }
}

fn net() -> impl Strategy<Value = IpNet> {
    // IPv6 addresses that are IPv4 in disguise do not survive, as in Go.
    prop_oneof![
        (any::<[u8; 4]>(), 0u8..=32).prop_map(|(ip, len)| IpNet::new(IpAddr::from(ip), len).unwrap()),
        (any::<u64>(), 0u8..=128).prop_map(|(low, len)| {
            IpNet::new(IpAddr::from((0x2001_0db8_u128 << 96 | u128::from(low)).to_be_bytes()), len).unwrap()
        }),
    ]
}

prop_compose! {
    fn route()(
        dst in net(),
        gw in proptest::option::of(net()),
        mtu in proptest::option::of(1u32..),
        priority in proptest::option::of(1u32..),
        table in proptest::option::of(any::<u32>()),
        scope in proptest::option::of(any::<u8>())
    ) -> RouteConfig {
        RouteConfig { dst, gw: gw.map(|net| net.addr()), mtu, advmss: None, priority, table, scope }
    }
}

prop_compose! {
    fn result()(
        interfaces in proptest::collection::vec(interface(), 1..4),
        ips in proptest::collection::vec((net(), proptest::option::of(0usize..4)), 0..4),
        routes in proptest::collection::vec(route(), 0..4),
        domain in ".{0,5}",
        search in proptest::collection::vec(".{0,5}", 0..3)
    ) -> CniResult {
        let index = |i: Option<usize>| i.map(|i| i % interfaces.len());
        let ips = ips.into_iter().map(|(address, i)| IpConfig { address, gateway: None, interface: index(i) }).collect();
        CniResult { ips, routes, dns: Dns { domain, search, ..Dns::default() }, interfaces }
    }
}

proptest! {
    #[test]
    fn what_is_written_from_1_0_0_on_reads_back_the_same(result in result()) {
        for version in [CniVersion::V1_0_0, CniVersion::V1_1_0] {
            let text = result.to_json(version).unwrap();
            prop_assert_eq!(&CniResult::parse_text(&text, CniVersion::V0_1_0).unwrap(), &result);
        }
    }

    #[test]
    fn what_is_written_in_any_version_reads_back_and_writes_the_same_again(result in result()) {
        for version in CniVersion::ALL {
            let Ok(text) = result.to_json(version) else { continue };
            let again = CniResult::parse_text(&text, CniVersion::LATEST).unwrap();
            prop_assert_eq!(again.to_json(version).unwrap(), text);
        }
    }

    #[test]
    fn reading_a_result_never_panics(text in ".{0,200}", key in "ips|ip4|dns|interfaces|routes", inner in "\\PC{0,40}") {
        for text in [text, format!("{{\"{key}\":[{{\"address\":{inner:?},\"ip\":{inner:?}}}]}}"), format!("{{\"{key}\":{inner}}}")] {
            for version in CniVersion::ALL {
                let _ = CniResult::parse_text(&text, version);
            }
            if let Ok(value) = serde_json::from_str::<Value>(&text) {
                let _ = CniResult::parse(&value, CniVersion::LATEST);
            }
        }
    }
}
