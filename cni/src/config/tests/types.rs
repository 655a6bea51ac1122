//! Configurations of the other types, and what all types have in common.

use proptest::prelude::*;

use super::{conf, text};
use crate::args::Args;
use crate::config::host_device::Device;
use crate::config::*;
use crate::error::Code;
use crate::version::CniVersion;

#[test]
fn a_macvlan_configuration_is_read_with_every_field() {
    let conf = conf(
        "macvlan",
        r#""master":"eth0","mode":"vepa","mtu":1400,"mac":"02:00:00:00:00:01","linkInContainer":true,"bcqueuelen":2000,
           "ipam":{"type":"host-local"},"dns":{"nameservers":["10.0.0.1"]}"#,
    );
    let macvlan = Macvlan::parse(&conf).unwrap();
    assert_eq!(macvlan.masters, ["eth0"]);
    assert_eq!((macvlan.mode, macvlan.mode.as_str()), (macvlan::Mode::Vepa, "vepa"));
    assert_eq!((macvlan.mtu, macvlan.bcqueuelen, macvlan.link_in_container), (Some(1400), Some(2000), true));
    assert_eq!(conf.ipam_type.as_deref(), Some("host-local"));
    assert_eq!(conf.dns.nameservers, ["10.0.0.1"]);
    assert_eq!(
        (conf.version, conf.name.as_str(), conf.plugin_type.as_str()),
        (CniVersion::V1_1_0, "net", "macvlan")
    );
}

#[test]
fn a_macvlan_configuration_without_fields_has_the_references_defaults() {
    let conf = conf("macvlan", r#""ipam":{},"mode":"","mtu":0,"mac":"""#);
    let macvlan = Macvlan::parse(&conf).unwrap();
    assert_eq!((macvlan.masters, macvlan.mode, macvlan.mtu), (vec![], macvlan::Mode::Bridge, None));
    assert_eq!((macvlan.mac, macvlan.bcqueuelen, conf.ipam_type), (None, None, None));
}

#[test]
fn the_mac_of_the_runtime_comes_before_that_of_the_arguments_and_of_the_configuration() {
    let args = Args::parse("IgnoreUnknown=1;MAC=02:00:00:00:00:02;K8S_POD_NAME=x").unwrap();
    let none = Args::default();
    let with = conf("macvlan", r#""mac":"02:00:00:00:00:01","runtimeConfig":{"mac":"02:00:00:00:00:03"}"#);
    let without = conf("macvlan", r#""mac":"02:00:00:00:00:01""#);
    let mac = |conf: &NetConf, args| Macvlan::parse(conf).unwrap().mac(conf, args).unwrap().unwrap();
    assert_eq!(mac(&with, &args), "02:00:00:00:00:03");
    assert_eq!(mac(&without, &args), "02:00:00:00:00:02");
    assert_eq!(mac(&without, &none), "02:00:00:00:00:01");
    let unknown = Args::parse("IP=10.0.0.1").unwrap();
    let error = Macvlan::parse(&without).unwrap().mac(&without, &unknown).unwrap_err();
    assert_eq!(error.code, Code::BadEnvironment, "as the reference: macvlan knows only MAC");
}

#[test]
fn a_wrong_value_is_invalid_configuration_that_names_key_value_and_what_is_allowed() {
    for (keys, want) in [
        (r#""mode":"Bridge""#, r#""mode" is "Bridge", expected bridge, private, vepa or passthru"#),
        (r#""mtu":-1"#, r#""mtu" is -1, expected an integer from 0 to 2147483647"#),
        (r#""mtu":4294967296"#, r#""mtu" is 4294967296, expected an integer from 0 to 2147483647"#),
    ] {
        let error = Macvlan::parse(&conf("macvlan", keys)).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (Code::InvalidConfig, want));
    }
    let error = Ipvlan::parse(&conf("ipvlan", r#""mode":"bridge""#)).unwrap_err();
    assert_eq!(error.msg, r#""mode" is "bridge", expected l2, l3 or l3s"#);
}

#[test]
fn a_wrong_type_cannot_be_decoded_as_in_go() {
    for (keys, want) in [
        (r#""mtu":"1500""#, r#""mtu" is the string "1500", expected an integer"#),
        (r#""mtu":1500.0"#, r#""mtu" is the number 1500.0, expected an integer"#),
        (r#""mtu":1e3"#, r#""mtu" is the number 1000.0, expected an integer"#),
        (r#""master":5"#, r#""master" is the number 5, expected a string or a list of strings"#),
        (r#""master":["eth0",5]"#, r#""master[1]" is the number 5, expected a string"#),
        (r#""linkInContainer":"true""#, r#""linkInContainer" is the string "true", expected true or false"#),
        (
            r#""bcqueuelen":-1"#,
            r#""bcqueuelen" is the number -1, expected an integer of 32 bits without sign"#,
        ),
        (r#""mode":[]"#, r#""mode" is a list, expected a string"#),
    ] {
        let error = Macvlan::parse(&conf("macvlan", keys)).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (Code::Decode, want));
    }
}

#[test]
fn a_list_of_masters_is_of_the_hosts_and_not_endless() {
    let read = |keys: &str| Macvlan::parse(&conf("macvlan", keys));
    assert_eq!(read(r#""master":["a","","b"]"#).unwrap().masters, ["a", "b"]);
    let many = format!(r#""master":{:?}"#, vec!["a"; 17]);
    for (keys, want) in [
        (
            r#""master":["a","b"],"linkInContainer":true"#,
            r#""master" is a list, and "linkInContainer" wants one interface of the pod"#,
        ),
        (many.as_str(), r#""master" names 17 interfaces, at most 16 are looked for"#),
    ] {
        let error = read(keys).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (Code::InvalidConfig, want));
    }
}

#[test]
fn a_master_may_have_an_alternative_name_and_no_longer_one() {
    let long = |bytes: usize| format!(r#""master":"{}","vlanId":5"#, "m".repeat(bytes));
    let want = r#""master" is 128 bytes long, and no interface has a name of more than 127"#;
    assert_eq!(Macvlan::parse(&conf("macvlan", &long(128))).unwrap_err().msg, want);
    assert_eq!(Vlan::parse(&conf("vlan", &long(128))).unwrap_err().msg, want);
    assert_eq!(Macvlan::parse(&conf("macvlan", &long(127))).unwrap().masters, ["m".repeat(127)]);
    assert_eq!(Vlan::parse(&conf("vlan", &long(127))).unwrap().master.len(), 127);
}

#[test]
fn keys_in_any_case_null_and_unknown_keys_are_read_as_go_reads_them() {
    let conf = conf(
        "macvlan",
        r#""Master":"eth0","MTU":1400,"mtu":null,"LINKINCONTAINER":true,"foo":{"bar":1},"mac":null"#,
    );
    let macvlan = Macvlan::parse(&conf).unwrap();
    assert_eq!(
        (macvlan.masters.as_slice(), macvlan.mtu, macvlan.link_in_container),
        (["eth0".to_owned()].as_slice(), Some(1400), true)
    );
}

#[test]
fn ipvlan_takes_its_master_from_the_one_interface_of_the_chain() {
    let prev = |interfaces: &str| {
        conf(
            "ipvlan",
            &format!(
                r#""prevResult":{{"cniVersion":"1.0.0","interfaces":[{interfaces}],"ips":[{{"address":"10.0.0.2/24"}}]}}"#
            ),
        )
    };
    let one = prev(r#"{"name":"eth7"}"#);
    let ipvlan = Ipvlan::parse(&one).unwrap();
    assert_eq!(ipvlan.masters(&one).unwrap(), ["eth7"]);
    assert_eq!(ipvlan.chained_addresses(&one).unwrap().ips.len(), 1);
    let two = prev(r#"{"name":"a"},{"name":"b"}"#);
    let error = ipvlan.masters(&two).unwrap_err();
    assert_eq!(error.msg, "ipvlan has no \"master\", and \"prevResult\" has 2 interfaces");
    let none = conf("ipvlan", r#""mode":"l3s","ipam":{"type":"static"}"#);
    let ipvlan = Ipvlan::parse(&none).unwrap();
    assert_eq!(
        (ipvlan.mode.as_str(), ipvlan.masters(&none).unwrap(), ipvlan.chained_addresses(&none)),
        ("l3s", vec![], None)
    );
}

#[test]
fn a_vlan_needs_a_master_and_an_id_up_to_4094() {
    let vlan = Vlan::parse(&conf("vlan", r#""master":"eth0","vlanId":4094,"mtu":1496"#)).unwrap();
    assert_eq!((vlan.master.as_str(), vlan.vlan_id, vlan.mtu), ("eth0", 4094, Some(1496)));
    assert_eq!(Vlan::parse(&conf("vlan", r#""master":"eth0""#)).unwrap().vlan_id, 0);
    for (keys, want) in [
        (r#""vlanId":5"#, r#""master" is missing"#),
        (r#""master":"eth0","vlanId":4095"#, r#""vlanId" is 4095, expected an integer from 0 to 4094"#),
        (r#""master":"eth0","vlanId":-1"#, r#""vlanId" is -1, expected an integer from 0 to 4094"#),
    ] {
        let error = Vlan::parse(&conf("vlan", keys)).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (Code::InvalidConfig, want));
    }
}

#[test]
fn a_host_device_is_found_in_the_references_order() {
    let device = |keys: &str| HostDevice::parse(&conf("host-device", keys)).unwrap();
    let pci = Some("0000:21:10.1".to_owned());
    assert_eq!(device(r#""device":"eth1","hwaddr":"x""#).device, Device::Name("eth1".to_owned()));
    assert_eq!(
        device(r#""hwaddr":"02:00:00:00:00:01""#).device,
        Device::HwAddr("02:00:00:00:00:01".to_owned())
    );
    assert_eq!(
        device(r#""kernelpath":"/sys/devices/x""#).device,
        Device::KernelPath("/sys/devices/x".to_owned())
    );
    assert_eq!(device(r#""pciBusID":"0000:21:10.1""#).bus_id, pci);
    let both = device(r#""pciBusID":"0000:01:00.0","runtimeConfig":{"deviceID":"0000:21:10.1"}"#);
    assert_eq!((both.device, both.bus_id), (Device::BusId("0000:21:10.1".to_owned()), pci));
    let elsewhere = r#""kernelpath":"/sys/devices/../../etc""#;
    let outside = r#""kernelpath":"/sys/class/net/eth0""#;
    for keys in ["", r#""device":"""#, outside, elsewhere, r#""pciBusID":"../x""#] {
        assert_eq!(
            HostDevice::parse(&conf("host-device", keys)).unwrap_err().code,
            Code::InvalidConfig,
            "{keys}"
        );
    }
}

#[test]
fn a_host_device_is_not_the_loopback_interface() {
    let parse = |keys: &str| HostDevice::parse(&conf("host-device", keys));
    let error = parse(r#""device":"lo""#).unwrap_err();
    assert_eq!(error.code, Code::InvalidConfig);
    assert_eq!(error.msg, r#""device" is "lo", and the loopback interface cannot be lent to a pod"#);
    // Which driver the device has decides whether the name counts.
    parse(r#""device":"lo","pciBusID":"0000:21:10.1""#).unwrap();
    parse(r#""device":"lo1""#).unwrap();
}

#[test]
fn loopback_passes_the_previous_result_on() {
    assert_eq!(Loopback::parse(&conf("loopback", "")).unwrap().pass_on, None);
    let with = conf("loopback", r#""prevResult":{"interfaces":[{"name":"eth0"}]}"#);
    assert_eq!(Loopback::parse(&with).unwrap().pass_on.unwrap().interfaces[0].name, "eth0");
}

#[test]
fn a_configuration_without_name_or_type_or_of_another_version_is_refused_with_its_own_code() {
    for (text, code) in [
        ("", Code::Decode),
        ("[]", Code::Decode),
        ("null", Code::Decode),
        (r#"{"name":"a"} x"#, Code::Decode),
        (r#"{"name":"a","name":5}"#, Code::Decode),
        (r#"{"cniVersion":"1.0.0","type":"macvlan"}"#, Code::InvalidConfig),
        (r#"{"cniVersion":"9.9.9","type":"macvlan"}"#, Code::InvalidConfig),
        (r#"{"name":"a/b","cniVersion":"1.0.0","type":"macvlan"}"#, Code::InvalidConfig),
        (r#"{"name":"a","cniVersion":"1.0.0"}"#, Code::InvalidConfig),
        (r#"{"name":"a","cniVersion":"1.0.0","type":"../sh"}"#, Code::InvalidConfig),
        (
            r#"{"name":"a","cniVersion":"1.0.0","type":"macvlan","ipam":{"type":"/bin/sh"}}"#,
            Code::InvalidConfig,
        ),
        (r#"{"name":"a","cniVersion":"1.0.0","type":"macvlan","ipam":"dhcp"}"#, Code::Decode),
        (r#"{"name":"a","cniVersion":"1.0.0","type":"macvlan","prevResult":[]}"#, Code::Decode),
        (r#"{"name":"a","cniVersion":"1.2.0","type":"macvlan"}"#, Code::IncompatibleVersion),
        (r#"{"name":"a","cniVersion":1,"type":"macvlan"}"#, Code::Decode),
    ] {
        assert_eq!(NetConf::parse(text).unwrap_err().code, code, "{text}");
    }
    let error = NetConf::parse(r#"{"name":"a","cniVersion":"2","type":"x"}"#).unwrap_err();
    assert_eq!(error.details, "supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0");
    assert_eq!(NetConf::parse(r#"{"name":"a","type":"x"}"#).unwrap().version, CniVersion::V0_1_0);
}

#[test]
fn an_error_of_the_json_tells_line_and_column_and_a_hint() {
    let error = NetConf::parse("{\"name\":\"a\",\n  \"type\":}").unwrap_err();
    assert!(error.msg.ends_with("at line 2 column 10"), "{}", error.msg);
    assert!(NetConf::parse("{\"name\":").unwrap_err().details.contains("ends too early"));
    let deep = format!("{{\"name\":\"a\",\"x\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
    let error = NetConf::parse(&deep).unwrap_err();
    assert!(error.code == Code::Decode && error.msg.contains("recursion limit"), "{}", error.msg);
}

#[test]
fn a_configuration_over_the_limit_is_refused_unread() {
    let long = text("macvlan", &format!("\"x\":\"{}\"", "y".repeat(crate::wire::MAX_CONFIG)));
    assert!(NetConf::parse(&long).unwrap_err().msg.ends_with("more than 1048576"));
}

#[test]
fn a_removal_does_not_fail_for_a_previous_result_that_cannot_be_read() {
    let text = text("ipvlan", r#""prevResult":{"cniVersion":"7.0.0","ips":5}"#);
    assert_eq!(NetConf::parse(&text).unwrap_err().code, Code::IncompatibleVersion);
    assert_eq!(NetConf::parse_for_removal(&text).unwrap().prev_result, None);
}

#[test]
fn a_removal_does_not_fail_for_args_that_cannot_be_read() {
    for args in [r#"{"ips":"10.0.0.3"}"#, r#"{"ips":["10.0.0.3"],"numaNodes":"all"}"#] {
        let text = text("macvlan", &format!(r#""args":{{"cni":{args}}}"#));
        assert_eq!(NetConf::parse(&text).unwrap_err().code, Code::Decode, "{args}");
        let conf = NetConf::parse_for_removal(&text).unwrap();
        assert_eq!((conf.args_cni_ips, conf.args_cni_numa_nodes), (vec![], vec![]), "{args}");
    }
}

#[test]
fn the_attachments_of_a_gc_are_absent_or_none_or_listed() {
    let valid = |keys: &str| conf("macvlan", keys).valid_attachments;
    let one = vec![AttachmentRef { container_id: "c".to_owned(), ifname: "net1".to_owned() }];
    assert_eq!(valid(""), None);
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        assert_eq!(valid(&format!(r#""{key}":null"#)), Some(Vec::new()));
        assert_eq!(valid(&format!(r#""{key}":[]"#)), Some(Vec::new()));
        assert_eq!(valid(&format!(r#""{key}":[{{"containerID":"c","ifname":"net1"}}]"#)), Some(one.clone()));
    }
    let both =
        r#""cni.dev/attachments":[],"cni.dev/valid-attachments":[{"containerID":"c","ifname":"net1"}]"#;
    assert_eq!(valid(both), Some(one));
}

#[test]
fn what_the_runtime_passes_is_read_and_maps_of_the_users_keep_their_case() {
    let conf = conf(
        "macvlan",
        r#""runtimeConfig":{"mac":"02:00:00:00:00:01","ips":["10.0.0.1/24"],"deviceID":"d","CNIDeviceInfoFile":"/f",
             "portMappings":[{"hostPort":80}],"io.kubernetes.cri.pod-annotations":{"Example.com/Key":"V"}},
           "capabilities":{"portMappings":true},"args":{"Labels":{"App":"x"},"CNI":{"IPs":["10.0.0.3"],"numaNodes":[1,0]}}"#,
    );
    assert_eq!(conf.runtime.ips, ["10.0.0.1/24"]);
    assert_eq!(
        (conf.runtime.device_id.as_deref(), conf.runtime.device_info_file.as_deref()),
        (Some("d"), Some("/f"))
    );
    assert!(conf.runtime.port_mappings.as_ref().unwrap().is_array());
    assert_eq!(conf.args_cni_ips, ["10.0.0.3"]);
    assert_eq!(conf.args_cni_numa_nodes, [1, 0]);
    assert_eq!(conf.value["runtimeconfig"]["io.kubernetes.cri.pod-annotations"]["Example.com/Key"], "V");
    assert_eq!(conf.value["capabilities"]["portMappings"], true);
    assert_eq!(conf.value["args"]["Labels"]["App"], "x");
}

#[test]
fn our_own_type_is_a_network_by_name_or_a_list_of_paths() {
    let network = conf("fairlead", r#""clusterNetwork":"calico""#);
    assert_eq!(Fairlead::parse(&network).unwrap(), Fairlead::ClusterNetwork(ClusterNetwork::named("calico")));
    let paths = conf(
        "fairlead",
        r#""paths":[{"type":"sriov","pool":"radio","vlan":100,"driver":"vfio-pci"},{"type":"macvlan","master":"ens1f0"}],
           "numa":"preferred","ipam":{"type":"host-local","subnet":"10.0.0.0/24"},"runtimeConfig":{"mac":"02:00:00:00:00:01"}"#,
    );
    let Fairlead::Paths { paths, numa } = Fairlead::parse(&paths).unwrap() else { panic!("not paths") };
    assert_eq!(numa, Some(fairlead::Numa::Preferred));
    assert_eq!(paths.iter().map(|p| p.plugin_type.as_str()).collect::<Vec<_>>(), ["sriov", "macvlan"]);
    assert_eq!((paths[1].name.as_str(), paths[1].ipam_type.as_deref()), ("net", Some("host-local")));
    assert_eq!(paths[1].runtime.mac.as_deref(), Some("02:00:00:00:00:01"));
    assert_eq!(Macvlan::parse(&paths[1]).unwrap().masters, ["ens1f0"]);
    assert!(!paths[1].raw.contains("paths"));
}

#[test]
fn a_path_may_leave_its_device_to_the_call() {
    let paths = conf("fairlead", r#""paths":[{"type":"sriov"},{"type":"host-device"}]"#);
    assert!(matches!(Fairlead::parse(&paths), Ok(Fairlead::Paths { paths, .. }) if paths.len() == 2));
    let wrong = conf("fairlead", r#""paths":[{"type":"host-device","pciBusID":"../x"}]"#);
    assert!(Fairlead::parse(&wrong).unwrap_err().msg.contains("pciBusID"));
}

#[test]
fn our_own_type_refuses_an_unknown_key_by_name() {
    for (keys, want) in [
        ("", "a fairlead configuration needs either \"clusterNetwork\" or \"paths\""),
        (
            r#""clusterNetwork":"a","paths":[]"#,
            "a fairlead configuration needs either \"clusterNetwork\" or \"paths\"",
        ),
        (
            r#""clusterNetwork":"a","foo":1"#,
            "a fairlead configuration with \"clusterNetwork\" has an unknown key \"foo\"",
        ),
        (r#""clusterNetwork":"a/b""#, "the network's name \"a/b\" holds '/'"),
        (r#""paths":[]"#, "\"paths\" is empty"),
        (
            r#""paths":[{"type":"macvlan","Master":"a"}]"#,
            "\"paths[0]\": a path of type macvlan has an unknown key \"Master\"",
        ),
        (
            r#""paths":[{"type":"bridge"}]"#,
            "\"paths[0]\": its type is \"bridge\", expected one of macvlan, ipvlan, vlan, host-device, sriov, vhost-user",
        ),
        (r#""paths":[{"type":"vlan"}]"#, "\"paths[0]\": \"master\" is missing"),
        (
            r#""paths":[{"type":"macvlan"}],"numa":"some""#,
            "\"numa\" is \"some\", expected strict, preferred or any",
        ),
    ] {
        assert_eq!(Fairlead::parse(&conf("fairlead", keys)).unwrap_err().msg, want, "{keys}");
    }
}

proptest! {
    #[test]
    fn parsing_never_panics_on_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300), keys in "\\PC{0,60}") {
        let lossy = String::from_utf8_lossy(&bytes).into_owned();
        for text in [lossy, text("macvlan", &keys), text("fairlead", &keys)] {
            let _ = ConfList::parse(&text);
            if let Ok(conf) = NetConf::parse(&text) {
                let args = Args::default();
                let _ = (Macvlan::parse(&conf), Ipvlan::parse(&conf), Vlan::parse(&conf), HostDevice::parse(&conf));
                let _ = (HostLocal::parse(&conf, &args), StaticIpam::parse(&conf, &args), Fairlead::parse(&conf));
            }
        }
    }

    #[test]
    fn the_case_of_a_struct_key_never_matters(flips in proptest::collection::vec(any::<bool>(), 200)) {
        let flip = |word: &str| -> String {
            let both = |(c, up): (char, &bool)| if *up { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
            word.chars().zip(&flips).map(both).collect()
        };
        let keys = format!(
            r#""{}":"eth0","{}":1400,"{}":true,"{}":{{"{}":"host-local","{}":[[{{"{}":"10.0.0.0/24","{}":"10.0.0.9"}}]]}}"#,
            flip("master"), flip("mtu"), flip("linkInContainer"), flip("ipam"), flip("type"), flip("ranges"),
            flip("subnet"), flip("rangeStart"),
        );
        let conf = conf("macvlan", &keys);
        let macvlan = Macvlan::parse(&conf).unwrap();
        prop_assert_eq!((macvlan.masters, macvlan.mtu, macvlan.link_in_container), (vec!["eth0".to_owned()], Some(1400), true));
        let ipam = HostLocal::parse(&conf, &Args::default()).unwrap();
        prop_assert_eq!(ipam.ranges[0].0[0].start.to_string(), "10.0.0.9");
    }

    #[test]
    fn arguments_never_panic(text in "\\PC{0,80}", pairs in "([A-Z]{0,3}=[^;]{0,5};?){0,4}") {
        let _ = Args::parse(&text);
        let _ = Args::parse(&pairs).map(|args| args.only(&["MAC"]));
    }
}
