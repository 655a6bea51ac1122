//! Lists of plugins, and the configuration that each plugin of a list gets.

use serde_json::{Map, Value, json};

use crate::config::{AttachmentRef, ConfList};
use crate::error::Code;
use crate::result::{CniResult, Interface};
use crate::version::CniVersion;

/// The example of the specification, shortened.
const LIST: &str = r#"{
  "cniVersion": "1.1.0", "cniVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0", "2.0.0"], "name": "dbnet",
  "plugins": [
    {"type": "bridge", "bridge": "cni0", "keyA": ["some more", "plugin specific"], "ipam": {"type": "host-local"}},
    {"type": "tuning", "capabilities": {"mac": true, "ips": false}, "sysctl": {"net.core.somaxconn": "500"}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}"#;

fn runtime() -> Map<String, Value> {
    let Value::Object(map) = json!({
        "mac": "00:11:22:33:44:66", "ips": ["10.0.0.1"], "portMappings": [{"hostPort": 8080, "containerPort": 80}]
    }) else {
        panic!("an object")
    };
    map
}

#[test]
fn each_plugin_of_the_specifications_example_gets_what_libcni_would_give_it() {
    let list = ConfList::parse(LIST).unwrap();
    assert_eq!(list.plugin_types().collect::<Vec<_>>(), ["bridge", "tuning", "portmap"]);
    assert_eq!((list.version, list.name.as_str(), list.len()), (CniVersion::V1_1_0, "dbnet", 3));
    let first: Value = serde_json::from_str(&list.plugin_config(0, None, &runtime()).unwrap()).unwrap();
    assert_eq!(
        first,
        json!({"cniVersion": "1.1.0", "name": "dbnet", "type": "bridge", "bridge": "cni0",
               "keyA": ["some more", "plugin specific"], "ipam": {"type": "host-local"}})
    );
    let prev = CniResult {
        interfaces: vec![Interface { name: "eth0".to_owned(), mtu: 1500, ..Interface::default() }],
        ..CniResult::default()
    };
    let second: Value =
        serde_json::from_str(&list.plugin_config(1, Some(&prev), &runtime()).unwrap()).unwrap();
    assert_eq!(second["runtimeConfig"], json!({"mac": "00:11:22:33:44:66"}));
    assert_eq!(
        second["prevResult"],
        json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "mtu": 1500}]})
    );
    assert_eq!(second["sysctl"], json!({"net.core.somaxconn": "500"}));
    let third = list.plugin_conf(2, Some(&prev), &runtime()).unwrap();
    assert_eq!(third.runtime.port_mappings.unwrap()[0]["hostport"], 8080);
    assert_eq!(third.prev_result, Some(prev));
    assert!(list.declares(2, "portMappings") && !list.declares(1, "ips") && !list.declares(9, "mac"));
    assert_eq!(list.plugin_config(3, None, &Map::new()).unwrap_err().code, Code::Internal);
}

#[test]
fn a_plugin_without_capabilities_gets_no_runtime_configuration() {
    let list = ConfList::parse(
        r#"{"cniVersion":"0.4.0","name":"n","plugins":[{"type":"x","Capabilities":{"mac":null}}]}"#,
    );
    let text = list.unwrap().plugin_config(0, None, &runtime()).unwrap();
    assert_eq!(text, r#"{"Capabilities":{"mac":null},"cniVersion":"0.4.0","name":"n","type":"x"}"#);
}

#[test]
fn the_previous_result_goes_out_in_the_lists_version() {
    let list = ConfList::parse(r#"{"cniVersion":"0.4.0","name":"n","plugins":[{"type":"x"}]}"#).unwrap();
    let prev = CniResult::parse(&json!({"ips": [{"address": "10.0.0.2/24"}]}), CniVersion::V1_0_0).unwrap();
    let value: Value =
        serde_json::from_str(&list.plugin_config(0, Some(&prev), &Map::new()).unwrap()).unwrap();
    let want = json!({"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.0.0.2/24"}], "dns": {}});
    assert_eq!(value["prevResult"], want);
}

#[test]
fn a_gc_sends_the_attachments_under_the_key_of_today_and_the_old_one() {
    let list = ConfList::parse(LIST).unwrap();
    let valid = [AttachmentRef { container_id: "c".to_owned(), ifname: "eth0".to_owned() }];
    let value: Value = serde_json::from_str(&list.gc_config(1, &valid).unwrap()).unwrap();
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        assert_eq!(value[key], json!([{"containerID": "c", "ifname": "eth0"}]));
    }
    assert_eq!(value.get("runtimeConfig"), None);
}

#[test]
fn one_plugins_configuration_becomes_a_list_of_one() {
    let list =
        ConfList::parse(r#"{"cniVersion":"0.3.1","name":"n","type":"macvlan","capabilities":{"mac":true}}"#)
            .unwrap();
    assert_eq!((list.len(), list.load_only_inlined_plugins), (1, true));
    let value: Value = serde_json::from_str(&list.plugin_config(0, None, &runtime()).unwrap()).unwrap();
    assert_eq!(value["runtimeConfig"], json!({"mac": "00:11:22:33:44:66"}));
}

#[test]
fn plugins_of_a_directory_are_added_to_a_list_that_may_be_empty() {
    let mut list = ConfList::parse(r#"{"cniVersion":"1.1.0","name":"n"}"#).unwrap();
    assert!(list.is_empty() && !list.load_only_inlined_plugins);
    list.push_plugin(r#"{"type":"macvlan"}"#).unwrap();
    assert_eq!(list.plugin_types().next(), Some("macvlan"));
    assert_eq!(list.push_plugin(r#"{"name":"x"}"#).unwrap_err().code, Code::InvalidConfig);
}

#[test]
fn truth_values_may_be_words_and_the_newest_version_that_is_spoken_is_taken() {
    let list = ConfList::parse(
        r#"{"cniVersion":"0.4.0","cniVersions":["0.3.1","1.0.0","9.0.0"],"name":"n","disableCheck":"True","disableGC":true,"plugins":[{"type":"x"}]}"#,
    );
    let list = list.unwrap();
    assert_eq!((list.version, list.disable_check, list.disable_gc), (CniVersion::V1_0_0, true, true));
}

#[test]
fn the_version_of_a_runtime_that_reads_no_list_of_versions_is_known_beside_the_newest() {
    for (keys, newest, plain) in [
        (r#""cniVersion":"0.4.0","cniVersions":["0.3.1","1.1.0"]"#, CniVersion::V1_1_0, CniVersion::V0_4_0),
        (r#""cniVersion":"1.0.0","cniVersions":["0.3.1"]"#, CniVersion::V1_0_0, CniVersion::V1_0_0),
        (r#""cniVersion":"1.0.0""#, CniVersion::V1_0_0, CniVersion::V1_0_0),
        (r#""cniVersions":["1.0.0"]"#, CniVersion::V1_0_0, CniVersion::V0_1_0),
        (r#""cniVersion":"2.0.0","cniVersions":["1.0.0"]"#, CniVersion::V1_0_0, CniVersion::V1_0_0),
    ] {
        let list = ConfList::parse(&format!(r#"{{{keys},"name":"n","plugins":[{{"type":"x"}}]}}"#)).unwrap();
        assert_eq!((list.version, list.plain_version), (newest, plain), "{keys}");
    }
}

#[test]
fn a_list_that_libcni_would_not_load_is_refused() {
    for (text, code) in [
        (r#"{"cniVersion":"1.0.0","plugins":[{"type":"x"}]}"#, Code::InvalidConfig),
        (r#"{"cniVersion":"1.0.0","name":5,"plugins":[{"type":"x"}]}"#, Code::Decode),
        (r#"{"cniVersion":"1.0.0","name":"a/b","plugins":[{"type":"x"}]}"#, Code::InvalidConfig),
        (r#"{"cniVersion":"1.0.0","name":"n","plugins":[]}"#, Code::InvalidConfig),
        (r#"{"cniVersion":"1.0.0","name":"n","plugins":{}}"#, Code::Decode),
        (r#"{"cniVersion":"1.0.0","name":"n","plugins":[5]}"#, Code::Decode),
        (r#"{"cniVersion":"1.0.0","name":"n","plugins":[{}]}"#, Code::InvalidConfig),
        (r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a/b"}]}"#, Code::InvalidConfig),
        (r#"{"cniVersion":"1.0.0","name":"n","loadOnlyInlinedPlugins":true}"#, Code::InvalidConfig),
        (r#"{"cniVersion":"1.0.0","name":"n","disableCheck":1,"plugins":[{"type":"x"}]}"#, Code::Decode),
        (
            r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"x","capabilities":{"a":1}}]}"#,
            Code::Decode,
        ),
        (r#"{"cniVersion":"3.0.0","name":"n","plugins":[{"type":"x"}]}"#, Code::IncompatibleVersion),
        (r#"{"cniVersion":1,"name":"n","plugins":[{"type":"x"}]}"#, Code::Decode),
        ("5", Code::Decode),
        ("{", Code::Decode),
    ] {
        assert_eq!(ConfList::parse(text).unwrap_err().code, code, "{text}");
    }
}
