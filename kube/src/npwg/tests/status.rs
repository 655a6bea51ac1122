//! network-status, compared with the text that Multus' client library writes.

use fairlead_cni::{CniResult, CniVersion};
use serde_json::{Value, json};

use super::super::network_status::{Attached, network_status};
use super::super::{MAX_NETWORKS, TakenPath};

fn result(value: &Value) -> CniResult {
    CniResult::parse_text(&value.to_string(), CniVersion::LATEST).unwrap()
}

/// A network beside the default one, of which nothing but its result is known.
fn attached<'a>(network: &'a str, result: &'a CniResult) -> Attached<'a> {
    Attached { network, is_default: false, result, device_info: None, path: None }
}

fn status(network: &str, is_default: bool, value: &Value) -> Value {
    let result = result(value);
    let attached = Attached { is_default, ..attached(network, &result) };
    serde_json::from_str(&network_status(&[attached])).unwrap()
}

/// The text of `json.MarshalIndent(status, "", "    ")` for each, with commas and brackets, as `SetNetworkStatus` joins them.
#[test]
fn the_text_is_that_of_the_reference_library_with_the_default_network_first() {
    let cluster = result(&json!({"cniVersion":"1.1.0",
        "interfaces":[{"name":"cni0","mac":"0a:00:00:00:00:01"},{"name":"veth1","mac":"0a:00:00:00:00:02"},
            {"name":"eth0","mac":"0a:00:00:00:00:03","mtu":1450,"sandbox":"/run/netns/x"}],
        "ips":[{"address":"10.244.0.5/24","gateway":"10.244.0.1","interface":2}],
        "routes":[{"dst":"10.244.0.0/16"},{"dst":"0.0.0.0/0","gw":"10.244.0.1"}],"dns":{}}));
    let radio = result(&json!({"cniVersion":"1.1.0",
        "interfaces":[{"name":"net1","mac":"02:00:00:00:00:07","sandbox":"/run/netns/x"}],
        "ips":[{"address":"192.168.1.7/24"},{"address":"2001:db8::7/64","interface":0}],
        "dns":{"nameservers":["192.168.1.1"],"domain":"radio.example","search":["example"],"options":["ndots:1"]}}));
    let info = json!({"version":"1.1.0","type":"pci","own":{"b":1,"a":2},
        "pci":{"pf-pci-address":"0000:03:00.0","pci-address":"0000:03:00.2","rdma-device":"mlx5_2"}});
    let text = network_status(&[
        Attached { device_info: Some(&info), ..attached("shop/radio", &radio) },
        Attached { is_default: true, ..attached("cbr0", &cluster) },
    ]);
    let expected = r#"[{
    "name": "cbr0",
    "interface": "eth0",
    "ips": [
        "10.244.0.5"
    ],
    "mac": "0a:00:00:00:00:03",
    "mtu": 1450,
    "default": true,
    "dns": {},
    "gateway": [
        "10.244.0.1"
    ]
},{
    "name": "shop/radio",
    "interface": "net1",
    "ips": [
        "192.168.1.7",
        "2001:db8::7"
    ],
    "mac": "02:00:00:00:00:07",
    "dns": {
        "nameservers": [
            "192.168.1.1"
        ],
        "domain": "radio.example",
        "search": [
            "example"
        ],
        "options": [
            "ndots:1"
        ]
    },
    "device-info": {
        "type": "pci",
        "version": "1.1.0",
        "pci": {
            "pci-address": "0000:03:00.2",
            "rdma-device": "mlx5_2",
            "pf-pci-address": "0000:03:00.0"
        },
        "own": {
            "a": 2,
            "b": 1
        }
    }
}]"#;
    assert_eq!(text, expected);
}

#[test]
fn each_interface_in_the_pod_has_an_entry_with_its_own_addresses_and_one_is_the_default() {
    let two = json!({"cniVersion":"1.1.0",
        "interfaces":[{"name":"a","sandbox":"/n"},{"name":"host"},{"name":"b","sandbox":"/n"}],
        "ips":[{"address":"10.0.0.1/24","interface":0},{"address":"10.0.1.1/24","gateway":"10.0.1.254","interface":2},
            {"address":"10.0.2.1/24"}]});
    assert_eq!(
        status("net", true, &two),
        json!([{"name":"net","interface":"a","ips":["10.0.0.1"],"dns":{}},
            {"name":"net","interface":"b","ips":["10.0.1.1","10.0.2.1"],"default":true,"dns":{}}])
    );
    let none = status("shop/net", false, &two);
    assert_eq!(none.as_array().unwrap().iter().filter(|entry| entry.get("default").is_some()).count(), 0);
    // No gateway anywhere, and one on an interface of the node: the first one in the pod is the default.
    for gateway in [json!(null), json!("10.0.9.254")] {
        let mut without = two.clone();
        without["ips"] = json!([{"address":"10.0.9.1/24","interface":1}]);
        if !gateway.is_null() {
            without["ips"][0]["gateway"] = gateway;
        }
        assert_eq!(status("net", true, &without)[0]["default"], json!(true));
    }
}

#[test]
fn a_result_without_an_interface_in_the_pod_has_an_entry_all_the_same() {
    assert_eq!(
        status("net", true, &json!({"cniVersion":"1.1.0"})),
        json!([{"name":"net","default":true,"dns":{}}])
    );
    let old = json!({"cniVersion":"1.1.0","interfaces":[{"name":"host"}],"ips":[{"address":"10.0.0.1/24"}]});
    assert_eq!(status("net", false, &old), json!([{"name":"net","ips":["10.0.0.1"],"dns":{}}]));
    assert_eq!(network_status(&[]), "[]");
}

#[test]
fn a_gateway_is_that_of_a_default_route_even_of_one_without_a_next_hop() {
    let value = json!({"cniVersion":"1.1.0","interfaces":[{"name":"a","sandbox":"/n"}],
        "ips":[{"address":"10.0.0.5/24","gateway":"10.0.0.1"},{"address":"2001:db8::5/64","gateway":"2001:db8::1"}],
        "routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"fe80::1"},{"dst":"0.0.0.0/1","gw":"10.0.0.9"}]});
    assert_eq!(status("shop/a", false, &value)[0]["gateway"], json!(["10.0.0.1", "fe80::1"]));
}

#[test]
fn x19_the_path_and_why_the_earlier_ones_were_passed_over_stand_behind_the_keys_of_the_npwg() {
    let radio = result(&json!({"cniVersion":"1.1.0","interfaces":[{"name":"net1","sandbox":"/n"}]}));
    let of_path =
        |path: Option<&TakenPath>| network_status(&[Attached { path, ..attached("shop/radio", &radio) }]);
    let fallback = TakenPath::new("macvlan", &[("sriov", "sriov names no device"), ("vhost-user", "none")]);
    let first = TakenPath::new("sriov", &[]);
    let expected = r#"[{
    "name": "shop/radio",
    "interface": "net1",
    "dns": {},
    "fairlead": {
        "path": "macvlan",
        "passedOver": [
            {
                "type": "sriov",
                "why": "sriov names no device"
            },
            {
                "type": "vhost-user",
                "why": "none"
            }
        ]
    }
}]"#;
    assert_eq!(of_path(Some(&fallback)), expected);
    let told: Value = serde_json::from_str(&of_path(Some(&first))).unwrap();
    assert_eq!(told[0]["fairlead"], json!({"path": "sriov"}));
    assert!(!of_path(None).contains("fairlead"));
}

#[test]
fn what_is_told_of_paths_is_bounded_for_a_pod_with_as_many_networks_as_it_may_have() {
    let radio = result(&json!({"cniVersion":"1.1.0","interfaces":[{"name":"net1","sandbox":"/n"}]}));
    let long = "ü".repeat(5_000);
    let path = TakenPath::new("macvlan", &[("vhost-user", long.as_str()); 40]);
    let one = Attached { path: Some(&path), ..attached("shop/radio", &radio) };
    let text = network_status(&[one; MAX_NETWORKS]);
    assert!(text.len() < 192 * 1024, "{} bytes", text.len());
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told[0]["fairlead"]["passedOver"].as_array().map(Vec::len), Some(15));

    let path = TakenPath::new("macvlan", &[("sriov", long.as_str())]);
    let told = serde_json::to_value(&path).unwrap();
    let why = told["passedOver"][0]["why"].as_str().unwrap();
    assert!(why.len() <= 256 && why.starts_with("üü") && why.ends_with("ü…"), "{why}");
    assert!(path.to_string().len() < 400, "{path}");
}
