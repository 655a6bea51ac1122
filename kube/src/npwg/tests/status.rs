//! network-status, compared with the text that Multus' client library writes.

use fairlead_cni::{CniResult, CniVersion};
use serde_json::{Value, json};

use super::super::network_status::{Attached, network_status};

fn result(value: &Value) -> CniResult {
    CniResult::parse_text(&value.to_string(), CniVersion::LATEST).unwrap()
}

fn status(network: &str, is_default: bool, value: &Value) -> Value {
    let result = result(value);
    let attached = Attached { network, is_default, result: &result, device_info: None };
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
        Attached { network: "shop/radio", is_default: false, result: &radio, device_info: Some(&info) },
        Attached { network: "cbr0", is_default: true, result: &cluster, device_info: None },
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
