//! IPAM configurations: host-local against the recorded answers of the reference, and static.

use super::conf;
use crate::args::Args;
use crate::config::{HostLocal, NetConf, StaticIpam, host_local};
use crate::error::{CniError, Code};

/// Answers of the reference plugin's own code, recorded.
const REFERENCE: &str = include_str!("../../../testdata/host_local.txt");

#[test]
fn host_local_reads_every_form_as_the_reference_plugin_does() {
    let mut lines = REFERENCE.lines().filter(|line| !line.starts_with('#'));
    let mut cases = 0;
    while let (Some(call), Some(want)) = (lines.next(), lines.next()) {
        let words: Vec<&str> = call.splitn(3, ' ').collect();
        let args = if words[1] == "-" { "" } else { words[1] };
        // The reference's IPAM reads no type of the network.
        let text = words[2].replacen('{', "{\"type\":\"macvlan\",", 1);
        let got = read(&text, args);
        match want.strip_prefix("ERR ") {
            Some(_) => assert!(got.is_err(), "{call}\n{got:?}"),
            None => assert_eq!(told(&got.unwrap_or_else(|e| panic!("{call}\n{e}"))), want, "{call}"),
        }
        cases += 1;
    }
    assert_eq!(cases, 38);
}

fn read(text: &str, args: &str) -> Result<HostLocal, CniError> {
    HostLocal::parse(&NetConf::parse(text)?, &Args::parse(args)?)
}

/// In the words of the recording.
fn told(ipam: &HostLocal) -> String {
    let mut text = String::new();
    for set in &ipam.ranges {
        for range in &set.0 {
            text += &format!("{range}@{} ", range.gateway);
        }
        text += "; ";
    }
    let want: Vec<String> = ipam.requested.iter().map(ToString::to_string).collect();
    let dir = if ipam.data_dir == host_local::DEFAULT_DATA_DIR { "" } else { &ipam.data_dir };
    let (want, resolv) = (want.join(" "), ipam.resolv_conf.as_deref().unwrap_or_default());
    format!("{text}want=[{want}] dir={dir} resolv={resolv} routes={}", ipam.routes.len())
}

#[test]
fn a_range_that_ends_before_it_begins_is_refused_even_by_default() {
    let keys = r#""ipam":{"type":"host-local","subnet":"10.1.2.0/24","rangeStart":"10.1.2.255"}"#;
    let error = HostLocal::parse(&conf("macvlan", keys), &Args::default()).unwrap_err();
    assert_eq!(error.code, Code::InvalidConfig);
    assert!(error.msg.ends_with("rangeStart 10.1.2.255 comes after rangeEnd 10.1.2.254"), "{}", error.msg);
}

#[test]
fn a_wrong_range_is_named_with_its_place_and_value() {
    for (ipam, want) in [
        (
            r#""ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"x"}]]"#,
            r#""ipam.ranges[1][0].subnet" is "x", expected a subnet, as in 10.1.0.0/16"#,
        ),
        (r#""ranges":[[{}]]"#, r#""ipam.ranges[0][0].subnet" is missing"#),
        (r#""ranges":[{}]"#, r#""ipam.ranges[0]" is an object, expected a list"#),
        (r#""subnet":"10.1.2.0/24","gateway":"x""#, r#""ipam.gateway" is "x", expected an IP address"#),
        (
            r#""subnet":"10.1.2.0/24","routes":[{"dst":"x"}]"#,
            r#""ipam.routes[0].dst" is "x", expected an address with prefix length, as in 10.1.2.3/24"#,
        ),
    ] {
        let error = HostLocal::parse(&conf("macvlan", &format!(r#""ipam":{{{ipam}}}"#)), &Args::default())
            .unwrap_err();
        assert_eq!(error.msg, want);
    }
}

#[test]
fn an_address_is_found_in_its_range_and_gets_the_subnets_prefix_length() {
    let keys = r#""ipam":{"ranges":[[{"subnet":"10.1.2.0/29"},{"subnet":"10.9.0.0/16"}]]}"#;
    let ipam = HostLocal::parse(&conf("macvlan", keys), &Args::default()).unwrap();
    let set = &ipam.ranges[0];
    let ip = "10.9.0.7".parse().unwrap();
    assert!(set.contains(ip) && set.is_ipv4() && !set.contains("10.1.2.7".parse().unwrap()));
    assert_eq!(set.range_of(ip).unwrap().with_prefix(ip).unwrap().to_string(), "10.9.0.7/16");
}

fn addresses(keys: &str, args: &str) -> Result<Vec<String>, CniError> {
    let ipam = StaticIpam::parse(&conf("macvlan", keys), &Args::parse(args)?)?;
    let told = |a: &crate::config::static_ipam::StaticAddress| match a.gateway {
        Some(gateway) => format!("{} via {gateway}", a.address),
        None => a.address.to_string(),
    };
    Ok(ipam.addresses.iter().map(told).collect())
}

#[test]
fn static_addresses_come_from_the_configuration_and_the_arguments_are_added() {
    let keys = r#""ipam":{"type":"static","addresses":[{"address":"10.10.0.1/24","gateway":"10.10.0.254"},
        {"address":"3ffe:ffff:0:01ff::1/64","gateway":"3ffe:ffff:0::1"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"domain":"x"}}"#;
    let configured = ["10.10.0.1/24 via 10.10.0.254", "3ffe:ffff:0:1ff::1/64 via 3ffe:ffff::1"];
    assert_eq!(addresses(keys, "").unwrap(), configured);
    let added = addresses(keys, "IP=10.10.0.9/24, 10.20.0.1/16;GATEWAY=10.20.0.254,10.10.0.253").unwrap();
    assert_eq!(added[..2], configured, "GATEWAY is for the addresses of CNI_ARGS only, as in the reference");
    assert_eq!(added[2..], ["10.10.0.9/24 via 10.10.0.253", "10.20.0.1/16 via 10.20.0.254"]);
    let ipam = StaticIpam::parse(&conf("macvlan", keys), &Args::default()).unwrap();
    assert_eq!((ipam.routes.len(), ipam.dns.domain.as_str()), (1, "x"));
}

#[test]
fn static_addresses_of_args_replace_the_configurations_and_the_runtimes_replace_both() {
    let keys = r#""ipam":{"addresses":[{"address":"10.10.0.1/24"}]},"args":{"cni":{"ips":["10.10.0.2/24"]}}"#;
    assert_eq!(addresses(keys, "IP=10.10.0.9/24").unwrap(), ["10.10.0.2/24"]);
    let keys = format!(r#"{keys},"runtimeConfig":{{"ips":["10.10.0.3/24","2001:db8::3/64"]}}"#);
    assert_eq!(addresses(&keys, "").unwrap(), ["10.10.0.3/24", "2001:db8::3/64"]);
}

#[test]
fn static_addresses_need_a_prefix_length() {
    for (keys, args, code) in [
        (r#""ipam":{"addresses":[{"address":"10.10.0.1"}]}"#, "", Code::InvalidConfig),
        (r#""ipam":{"addresses":[{}]}"#, "", Code::InvalidConfig),
        (r#""ipam":{}"#, "IP=10.0.0.1", Code::BadEnvironment),
        (r#""ipam":{}"#, "GATEWAY=x", Code::BadEnvironment),
        (r#""ipam":{}"#, "MAC=x", Code::BadEnvironment),
        (r#""ipam":{},"runtimeConfig":{"ips":["10.0.0.1"]}"#, "", Code::InvalidConfig),
        ("", "", Code::InvalidConfig),
    ] {
        assert_eq!(addresses(keys, args).unwrap_err().code, code, "{keys} {args}");
    }
    let two = r#"{"cniVersion":"0.2.0","name":"n","type":"x","ipam":{"addresses":[{"address":"10.0.0.1/8"},{"address":"10.0.0.2/8"}]}}"#;
    let error = StaticIpam::parse(&NetConf::parse(two).unwrap(), &Args::default()).unwrap_err();
    assert_eq!(error.msg, "CNI version 0.2.0 does not support more than 1 address per family");
}

#[test]
fn a_static_address_that_an_interface_could_not_have_twice_is_refused() {
    let two = |one: &str, other: &str| {
        addresses(&format!(r#""ipam":{{"addresses":[{{"address":"{one}"}},{{"address":"{other}"}}]}}"#), "")
    };
    for (one, other) in [("10.10.0.1/24", "10.10.0.1/24"), ("fd00::1/64", "fd00::1/128")] {
        let error = two(one, other).unwrap_err();
        assert_eq!(error.code, Code::InvalidConfig);
        assert_eq!(error.msg, format!("static: the address {other} is there twice"));
    }
    assert_eq!(two("10.10.0.1/24", "10.10.0.1/16").unwrap().len(), 2);
    let configured = r#""ipam":{"addresses":[{"address":"10.10.0.1/24"}]}"#;
    assert!(addresses(configured, "IP=10.10.0.1/24").unwrap_err().msg.contains("there twice"));
}

#[test]
fn a_static_address_that_the_kernel_gives_no_interface_is_refused_wherever_it_comes_from() {
    for (keys, args) in [
        (r#""ipam":{"addresses":[{"address":"10.0.0.1/8"},{"address":"ff02::1/64"}]}"#, ""),
        (r#""ipam":{"addresses":[{"address":"::/64"}]}"#, ""),
        (r#""ipam":{},"args":{"cni":{"ips":["::1/128"]}}"#, ""),
        (r#""ipam":{},"runtimeConfig":{"ips":["ff05::7/128"]}"#, ""),
        (r#""ipam":{}"#, "IP=::1/128"),
    ] {
        let error = addresses(keys, args).unwrap_err();
        assert_eq!(error.code, Code::InvalidConfig, "{keys} {args}");
        assert!(error.msg.contains("which no interface of a pod's network can have"), "{error}");
    }
    // The kernel takes these, and so does the reference.
    for address in ["127.0.0.5/8", "224.0.0.1/4", "0.0.0.0/24", "::2/128", "fe80::1/64"] {
        let keys = format!(r#""ipam":{{"addresses":[{{"address":"{address}"}}]}}"#);
        assert_eq!(addresses(&keys, "").unwrap(), [address]);
    }
}

#[test]
fn an_ipv6_route_by_an_ipv4_gateway_is_refused_by_both() {
    let route = r#""routes":[{"dst":"0.0.0.0/0","gw":"fd00::1"},{"dst":"::/0","gw":"10.1.1.254"}]"#;
    let fixed = conf("macvlan", &format!(r#""ipam":{{"addresses":[{{"address":"10.1.1.5/24"}}],{route}}}"#));
    let local = conf("macvlan", &format!(r#""ipam":{{"subnet":"10.1.1.0/24",{route}}}"#));
    let told = [
        StaticIpam::parse(&fixed, &Args::default()).unwrap_err(),
        HostLocal::parse(&local, &Args::default()).unwrap_err(),
    ];
    for error in told {
        assert_eq!(error.code, Code::InvalidConfig);
        assert!(error.msg.starts_with("the route to ::/0 has the gateway 10.1.1.254, "), "{error}");
    }
}

#[test]
fn a_host_local_configuration_of_which_every_add_fails_is_told_in_the_references_words() {
    let alone = r#"{"subnet":"10.2.0.0/24","rangeStart":"10.2.0.1","rangeEnd":"10.2.0.1"}"#;
    let wide = r#"{"subnet":"10.3.0.0/24"}"#;
    let of = |ranges: &str, ips: &str| {
        let keys = format!(r#""ipam":{{"ranges":[{ranges}]}},"args":{{"cni":{{"ips":[{ips}]}}}}"#);
        HostLocal::parse(&conf("macvlan", &keys), &Args::default()).unwrap().must_be_possible()
    };
    for (ranges, ips, want) in [
        (format!("[{alone}]"), "", "no IP addresses available in range set: 10.2.0.1-10.2.0.1"),
        (format!("[{wide}],[{alone}]"), "", "failed to allocate for range 1: no IP addresses available"),
        (format!("[{alone}]"), r#""10.2.0.1""#, "requested ip 10.2.0.1 is subnet's gateway"),
        (format!("[{wide}]"), r#""10.3.0.1""#, "requested ip 10.3.0.1 is subnet's gateway"),
        (format!("[{wide}]"), r#""10.9.0.7""#, "failed to allocate all requested IPs: 10.9.0.7"),
        (format!("[{wide}]"), r#""10.3.0.7","10.3.0.8""#, "failed to allocate all requested IPs: 10.3.0.8"),
    ] {
        let error = of(&ranges, ips).unwrap_err();
        assert_eq!(error.code, Code::InvalidConfig, "{error}");
        assert!(error.msg.contains(want) && !error.details.is_empty(), "{want}: {error}");
    }
    // The reference gives an address for each of these.
    let named =
        r#"{"subnet":"10.2.0.0/24","rangeStart":"10.2.0.1","rangeEnd":"10.2.0.1","gateway":"10.2.0.9"}"#;
    for (ranges, ips) in [
        (format!("[{alone},{wide}]"), ""),
        (format!("[{named}]"), ""),
        (format!("[{wide}]"), r#""10.3.0.7","10.3.0.7/16""#),
    ] {
        of(&ranges, ips).unwrap_or_else(|error| panic!("{ranges} {ips}: {error}"));
    }
}

/// A configuration with these range sets; each range by its first and last address below 10.0.0.0/8.
fn sets(sets: &[Vec<(u32, u32)>]) -> Result<HostLocal, CniError> {
    let ip = |offset: u32| std::net::Ipv4Addr::from_bits((10 << 24) + offset);
    let range = |(start, end): &(u32, u32)| {
        format!(r#"{{"subnet":"10.0.0.0/8","rangeStart":"{}","rangeEnd":"{}"}}"#, ip(*start), ip(*end))
    };
    let set = |set: &Vec<_>| format!("[{}]", set.iter().map(range).collect::<Vec<_>>().join(","));
    let all = sets.iter().map(set).collect::<Vec<_>>().join(",");
    HostLocal::parse(
        &conf("macvlan", &format!(r#""ipam":{{"type":"host-local","ranges":[{all}]}}"#)),
        &Args::default(),
    )
}

#[test]
fn tens_of_thousands_of_ranges_are_compared_in_no_time_in_one_set_or_in_many() {
    let subnets: Vec<String> = (0u32..30_000)
        .map(|n| format!(r#"{{"subnet":"{}/30"}}"#, std::net::Ipv4Addr::from_bits((10 << 24) + 4 * n)))
        .collect();
    let read = |ranges: String| {
        HostLocal::parse(
            &conf("macvlan", &format!(r#""ipam":{{"type":"host-local","ranges":[{ranges}]}}"#)),
            &Args::default(),
        )
    };
    let begun = std::time::Instant::now();
    for between in [",", "],["] {
        let all = subnets.join(between);
        read(format!("[{all}]")).unwrap();
        let error = read(format!("[{all}{between}{}]", subnets[29_999])).unwrap_err();
        assert!(error.msg.contains("overlap"), "{error}");
        assert!(between == "," || error.msg.ends_with("range set 29999 overlaps with 30000"), "{error}");
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
}

proptest::proptest! {
    #[test]
    fn two_ranges_with_an_address_in_common_are_refused_and_no_others(
        ranges in proptest::collection::vec((1u32..60, 0u32..8), 1..8), split in 1usize..4
    ) {
        let ranges: Vec<(u32, u32)> = ranges.into_iter().map(|(start, length)| (start, start + length)).collect();
        let touch = |(i, one): (usize, &(u32, u32))| {
            ranges.iter().skip(i + 1).any(|other| one.0 <= other.1 && other.0 <= one.1)
        };
        let any = ranges.iter().enumerate().any(touch);
        let grouped: Vec<Vec<(u32, u32)>> = ranges.chunks(split).map(<[_]>::to_vec).collect();
        proptest::prop_assert_eq!(sets(&grouped).is_err(), any);
    }
}
