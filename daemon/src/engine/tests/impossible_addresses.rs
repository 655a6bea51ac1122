//! Addresses and routes that no interface can have: whoever gives them is told so in words, and it is no fault of the daemon's.

use fairlead_cni::Code;
use fairlead_host::{NetError, Op, OpError};
use nix::errno::Errno;

use super::*;
use crate::delegate::script;
use crate::engine::errors;
use crate::engine::netdev::NotConfigured;

const NEAR: &str = r#"{"address":"10.1.1.5/24","gateway":"10.1.1.1"}"#;
const TWICE: &str = r#"{"dst":"10.9.0.0/16"},{"dst":"10.9.0.0/16","gw":"10.1.1.1"}"#;
const FAR: &str = r#"{"dst":"10.9.0.0/16","gw":"10.2.0.1"}"#;

fn macvlan_of(more: &str, ipam: &str) -> String {
    format!(r#"{{"cniVersion":"1.1.0","name":"net","type":"macvlan","master":"eth0",{more}"ipam":{ipam}}}"#)
}

fn fixed(addresses: &str, routes: &str) -> String {
    format!(r#"{{"type":"static","addresses":[{addresses}],"routes":[{routes}]}}"#)
}

#[test]
fn x14_an_address_or_route_that_no_interface_can_have_is_the_configurations_mistake_and_nothing_is_made() {
    let alone = r#""subnet":"10.2.0.0/24","rangeStart":"10.2.0.1","rangeEnd":"10.2.0.1""#;
    let local = |keys: &str| format!(r#"{{"type":"host-local",{keys}}}"#);
    let asks = r#""args":{"cni":{"ips":["10.9.9.9"]}},"#;
    for (more, ipam, says) in [
        ("", fixed(r#"{"address":"::1/128"}"#, ""), "::1/128 is the loopback address"),
        ("", fixed(r#"{"address":"::/64"}"#, ""), "::/64 is the unspecified address"),
        ("", fixed(r#"{"address":"ff02::1/64"}"#, ""), "ff02::1/64 is a multicast address"),
        ("", fixed(NEAR, r#"{"dst":"::/0","gw":"10.1.1.254"}"#), "no route of IPv6 goes by one of IPv4"),
        ("", fixed(NEAR, TWICE), "the route to 10.9.0.0/16 by gateway 10.1.1.1 is there twice"),
        ("", fixed(NEAR, FAR), "the gateway 10.2.0.1, which is on none"),
        (r#""mtu":1000,"#, fixed(r#"{"address":"fd00::5/64"}"#, ""), "an interface with an MTU of 1000"),
        ("", local(r#""subnet":"ff02::/64""#), "is a multicast address"),
        (
            "",
            local(r#""subnet":"10.1.1.0/24","gateway":"10.2.0.1","routes":[{"dst":"0.0.0.0/0"}]"#),
            "on none of",
        ),
        ("", local(alone), "which is the gateway alone"),
        (asks, local(r#""subnet":"10.1.1.0/24""#), "failed to allocate all requested IPs: 10.9.9.9"),
    ] {
        let rig = Rig::new();
        let before = rig.state();
        let config = macvlan_of(more, &ipam);
        let error = rig.add(&config).unwrap_err();
        assert_eq!(error.code, Code::InvalidConfig, "{config}: {error}");
        assert!(error.msg.contains(says) && !error.details.is_empty(), "{config}: {error}");
        assert!(!rig.ops().iter().any(|op| matches!(op, Op::CreateLink(_))), "{config}: a link was made");
        rig.reap();
        assert_eq!(rig.state(), before, "{config}");
    }
}

#[test]
fn x14_what_an_executed_ipam_answers_and_no_interface_can_have_is_that_plugins_fault() {
    for (ips, routes, says) in [
        (r#"{"address":"ff02::1/64"}"#, "", "ff02::1/64 is a multicast address"),
        (NEAR, r#"{"dst":"::/0","gw":"10.1.1.254"}"#, "no route of IPv6 goes by one of IPv4"),
        (NEAR, TWICE, "is there twice"),
        (NEAR, FAR, "the gateway 10.2.0.1, which is on none"),
    ] {
        let rig = Rig::on_this_host();
        let plugins = tempfile::tempdir().unwrap();
        let answer = format!(r#"{{"cniVersion":"1.0.0","ips":[{ips}],"routes":[{routes}]}}"#);
        let body = format!("cat >/dev/null\n[ $CNI_COMMAND = DEL ] || echo '{answer}'");
        script::write(&plugins.path().join("lease"), &body);
        let config = macvlan_of("", r#"{"type":"lease"}"#);
        let path = plugins.path().display().to_string();
        let before = rig.state();
        let error = rig.call(Request { path, ..rig.request(Command::Add, "c1", &config) }).unwrap_err();
        assert_eq!(error.code, Code::PluginFailed, "{answer}: {error}");
        for part in [r#"plugin "lease", ADD: its answer cannot be carried out: "#, says] {
            assert!(error.msg.contains(part), "{answer}: {error}");
        }
        assert!(error.details.contains("correct its part of the network's configuration: "), "{error}");
        rig.reap();
        assert_eq!(rig.state(), before, "{answer}");
    }
}

#[test]
fn a_process_in_user_space_gets_routes_that_the_kernel_would_refuse() {
    let rig = Rig::new();
    let of = |vf: &str| {
        let ipam = fixed(NEAR, &format!("{TWICE},{FAR}"));
        format!(r#"{{"cniVersion":"1.1.0","name":"net","type":"sriov","deviceID":"{vf}","ipam":{ipam}}}"#)
    };
    let answer = rig.add(&of(VFIO)).unwrap();
    assert!(answer.contains("10.2.0.1"), "{answer}");
    let moved = Request { ifname: "net2".to_owned(), ..rig.request(Command::Add, "c2", &of(VF)) };
    let error = rig.call(moved).unwrap_err();
    assert!(error.code == Code::InvalidConfig && error.msg.contains("is there twice"), "{error}");
}

#[test]
fn k19_nothing_that_the_kernel_refuses_of_a_configuration_counts_as_a_fault_of_the_daemon() {
    let refused = |errno| {
        let what = "add address ::1/128 to link 7".to_owned();
        NetError::Op(OpError { at: 0, what, errno, extack: None })
    };
    let told = |error: &NetError| errors::kernel("net", "setting up \"net1\"", error);
    for errno in [
        Errno::EADDRNOTAVAIL,
        Errno::ERANGE,
        Errno::EAFNOSUPPORT,
        Errno::EOPNOTSUPP,
        Errno::EINVAL,
        Errno::EEXIST,
        Errno::ENETUNREACH,
        Errno::EHOSTUNREACH,
    ] {
        let error = told(&refused(errno));
        assert!(error.code == Code::InvalidConfig && !error.details.is_empty(), "{errno}: {error}");
    }
    // Without IPv6, or with an MTU too small for it, an interface has none of its settings.
    let key = "net/ipv6/conf/net1/keep_addr_on_down".to_owned();
    let error = told(&NetError::Sysctl { key, source: Errno::ENOENT.into() });
    assert!(error.code == Code::InvalidConfig && error.details.contains("1280"), "{error}");
    assert_eq!(told(&refused(Errno::ENETDOWN)).code, Code::TryAgain);
    let address = "fd00::5/64".parse().unwrap();
    for error in [NotConfigured::InUse { address }, NotConfigured::Unsettled] {
        let error = errors::configuring("net", "net1", &error);
        assert!(error.code == Code::TryAgain && !error.details.is_empty(), "{error}");
        assert!(error.msg.starts_with("network \"net\": setting up \"net1\": "), "{error}");
    }
    assert_eq!(told(&refused(Errno::EIO)).code, Code::Internal, "what nobody expects still counts");
}
