//! What plugins are told of a pod's request.

use fairlead_cni::config::ConfList;
use serde_json::{Map, Value, json};

use super::super::runtime_config::{
    CniArgsError, Device, cni_args_pairs, cni_args_pairs_of, device_info_file, of_default_network,
    of_network, undeclared, with_cni_args,
};
use super::super::{LEGACY_NETWORKS, NetworkSelection};
use super::{asked, networks};

fn selection(text: &str) -> NetworkSelection {
    networks(text).unwrap().networks.remove(0)
}

fn full() -> NetworkSelection {
    selection(
        r#"[{"name":"a","ips":["10.2.2.42/24"],"mac":"02:23:45:67:89:01","infiniband-guid":"24:8a:07:03:00:8d:ae:2f",
            "portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}],"bandwidth":{"ingressRate":2048}}]"#,
    )
}

#[test]
fn m14_plugins_get_a_pods_request_under_the_names_of_cnis_conventions() {
    let device = Device { id: "0000:03:00.2", info_file: "/var/run/k8s.cni.cncf.io/devinfo/cni/a" };
    assert_eq!(
        json!(of_network(&full(), Some(device))),
        json!({"ips":["10.2.2.42/24"],"mac":"02:23:45:67:89:01","infinibandGUID":"24:8a:07:03:00:8d:ae:2f",
            "portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}],
            "bandwidth":{"ingressRate":2048,"ingressBurst":0,"egressRate":0,"egressBurst":0},
            "deviceID":"0000:03:00.2","CNIDeviceInfoFile":"/var/run/k8s.cni.cncf.io/devinfo/cni/a"})
    );
    assert_eq!(of_network(&selection("a"), None), Map::new());
    let pairs = [("MAC", "02:23:45:67:89:01".to_owned()), ("IP", "10.2.2.42/24".to_owned())];
    assert_eq!(cni_args_pairs(&full()), pairs);
    assert_eq!(
        device_info_file("shop/a", "c1", "net1"),
        "/var/run/k8s.cni.cncf.io/devinfo/cni/shop-a-c1_net1"
    );
    let long = device_info_file(&format!("shop/{}", "n".repeat(253)), &"c".repeat(64), "net1");
    let name = long.rsplit('/').next().unwrap();
    assert!(name.len() == 240 && name.ends_with("c_net1"), "a file can have this name: {name}");
}

#[test]
fn m14_addresses_go_by_cni_args_unless_who_has_an_ipam_takes_them_as_a_capability() {
    let both =
        selection(r#"[{"name":"a","ips":["10.2.2.42/24","2001:db8::42/64"],"mac":"02:23:45:67:89:01"}]"#);
    let keys = |capabilities: &str| {
        let plugins = format!(
            r#"[{{"type":"macvlan","ipam":{{"type":"host-local"}},"capabilities":{capabilities}}},
                {{"type":"tuning","capabilities":{{"ips":true}}}}]"#
        );
        let list = ConfList::parse(&format!(r#"{{"name":"n","cniVersion":"1.0.0","plugins":{plugins}}}"#));
        let pairs = cni_args_pairs_of(&both, &list.unwrap());
        pairs.into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    assert_eq!(keys(r#"{"ips":true}"#), ["MAC"], "host-local takes one address by CNI_ARGS");
    for none in [r#"{"ips":false}"#, r#"{"mac":true}"#, "{}"] {
        assert_eq!(keys(none), ["MAC", "IP"], "as with Multus: {none}");
    }
}

#[test]
fn m12_host_ports_of_the_runtime_stay_with_the_default_network() {
    let of_runtime = json!({"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}],"dns":{"searches":["x"]}});
    let of_runtime: Map<String, Value> = of_runtime.as_object().cloned().unwrap();
    let default = of_default_network(of_runtime.clone(), None, None);
    assert_eq!(default, of_runtime);
    // A default network of the pod's own keeps them too, where the pod asks for none.
    let requested = asked(&[(LEGACY_NETWORKS, "a,b")]).unwrap();
    assert_eq!(of_default_network(of_runtime.clone(), requested.default_network.as_ref(), None), of_runtime);
    assert_eq!(of_network(&requested.networks[0], None), Map::new());
    let own = of_default_network(of_runtime, Some(&full()), None);
    assert_eq!((own["portMappings"][0]["hostPort"].as_u64(), own.contains_key("dns")), (Some(8080), true));
}

#[test]
fn m14_what_no_plugin_of_the_network_would_do_is_told() {
    let list = |capabilities: &str| {
        let text = format!(
            r#"{{"name":"n","cniVersion":"1.0.0","plugins":[{{"type":"macvlan","capabilities":{{"mac":true}}}},
                {{"type":"portmap","capabilities":{capabilities}}}]}}"#
        );
        ConfList::parse(&text).unwrap()
    };
    let rest = r#"{"portMappings":true,"bandwidth":true,"infinibandGUID":true}"#;
    assert_eq!(undeclared(&full(), &list(rest)), ["ips"]);
    assert_eq!(
        undeclared(&full(), &list(r#"{"ips":false}"#)),
        ["bandwidth", "infinibandGUID", "ips", "portMappings"]
    );
    assert_eq!(undeclared(&selection("a"), &list("{}")), Vec::<String>::new());
}

#[test]
fn m14_cni_args_go_to_every_plugin_before_what_its_configuration_has() {
    let args = selection(r#"[{"name":"a","cni-args":{"vlan":5,"Deep":{"A":null}}}]"#).cni_args;
    let with =
        |config: &str| with_cni_args(config, &args).map(|text| serde_json::from_str::<Value>(&text).unwrap());
    assert_eq!(
        with(r#"{"type":"x","args":{"cni":{"vlan":1,"keep":2},"other":3}}"#).unwrap(),
        json!({"type":"x","args":{"cni":{"vlan":5,"keep":2,"Deep":{"A":null}},"other":3}})
    );
    assert_eq!(
        with(r#"{"name":"n","plugins":[{"type":"x"},{"type":"y","args":null}]}"#).unwrap(),
        json!({"name":"n","plugins":[{"type":"x","args":{"cni":{"vlan":5,"Deep":{"A":null}}}},
            {"type":"y","args":{"cni":{"vlan":5,"Deep":{"A":null}}}}]})
    );
    assert_eq!(with(r#"{"args":{"cni":7}}"#).unwrap_err(), CniArgsError::NoObject("args.cni"));
    assert_eq!(with(r#"{"args":"A=B"}"#).unwrap_err(), CniArgsError::NoObject("args"));
    assert_eq!(with(r#"{"plugins":[7]}"#).unwrap_err(), CniArgsError::NoObject("plugins"));
    assert!(matches!(with("[]").unwrap_err(), CniArgsError::Unreadable(_)));
    assert_eq!(with_cni_args("{ }", &Map::new()).unwrap(), "{ }");
}
