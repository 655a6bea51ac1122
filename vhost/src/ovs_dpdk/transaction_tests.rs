use std::path::PathBuf;

use super::super::port_spec::{PortName, PortOwner, VhostSocket, Vlans};
use super::*;

fn spec(name: &str) -> PortSpec {
    PortSpec {
        name: PortName::new(name).unwrap(),
        bridge: "br0".to_owned(),
        makes_bridge: false,
        socket: VhostSocket::PodListens(PathBuf::from("/run/x.sock")),
        vlans: Vlans::Access(7),
        policing: None,
        mtu: None,
        mac: None,
        owner: PortOwner {
            namespace: "n".to_owned(),
            pod: "p".to_owned(),
            uid: "u".to_owned(),
            container: "c".to_owned(),
            ifname: "net1".to_owned(),
        },
    }
}

#[test]
fn an_add_asks_for_the_bridge_and_the_free_name_and_ends_with_a_new_configuration() {
    let mut transaction = Transaction::new("node-1");
    transaction.add(&spec("p0"));
    let (params, _) = transaction.finish();
    let ids = json!([
        "map",
        [
            ["fairlead", "node-1"],
            ["fairlead-namespace", "n"],
            ["fairlead-pod", "p"],
            ["fairlead-pod-uid", "u"],
            ["fairlead-container", "c"],
            ["fairlead-ifname", "net1"],
        ]
    ]);
    let named = json!([["name", "==", "p0"]]);
    assert_eq!(
        params,
        json!([
            "Open_vSwitch",
            { "op": "wait", "timeout": 0, "table": "Bridge", "where": [["name", "==", "br0"]],
              "columns": ["name"], "until": "==", "rows": [{ "name": "br0" }] },
            { "op": "wait", "timeout": 0, "table": "Port", "where": named,
              "columns": ["name"], "until": "==", "rows": [] },
            { "op": "wait", "timeout": 0, "table": "Interface", "where": named,
              "columns": ["name"], "until": "==", "rows": [] },
            { "op": "insert", "table": "Interface", "uuid-name": "interface0", "row": {
                "name": "p0", "type": "dpdkvhostuserclient", "external_ids": ids,
                "options": ["map", [["vhost-server-path", "/run/x.sock"]]] } },
            { "op": "insert", "table": "Port", "uuid-name": "port0", "row": {
                "name": "p0", "interfaces": ["named-uuid", "interface0"], "external_ids": ids,
                "vlan_mode": "access", "tag": 7 } },
            { "op": "mutate", "table": "Bridge", "where": [["name", "==", "br0"]],
              "mutations": [["ports", "insert", ["named-uuid", "port0"]]] },
            { "op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["next_cfg", "+=", 1]] },
            { "op": "select", "table": "Open_vSwitch", "where": [], "columns": ["next_cfg"] },
            { "op": "comment", "comment": "fairlead on node-1" },
        ])
    );
}

#[test]
fn several_ports_ask_for_a_bridge_once_and_have_names_of_their_own() {
    let mut transaction = Transaction::new("node-1");
    transaction.add(&spec("p0"));
    transaction.add(&spec("p1"));
    let text = transaction.finish().0.to_string();
    assert_eq!(text.matches("\"table\":\"Bridge\",\"timeout\":0").count(), 1);
    for name in ["interface0", "interface1", "port0", "port1"] {
        assert_eq!(text.matches(&format!("\"{name}\"")).count(), 2, "{name} is made once and used once");
    }
}

#[test]
fn a_removal_is_of_a_row_that_is_still_ours() {
    let mut transaction = Transaction::new("node-1");
    transaction.remove("1-2-3", "p0");
    let (params, _) = transaction.finish();
    assert_eq!(
        params[1]["where"],
        json!([
            ["_uuid", "==", ["uuid", "1-2-3"]],
            ["external_ids", "includes", ["map", [["fairlead", "node-1"]]]]
        ])
    );
    assert_eq!(params[1]["rows"], json!([{ "name": "p0" }]));
    assert_eq!(params[2]["mutations"], json!([["ports", "delete", ["uuid", "1-2-3"]]]));
}

#[test]
fn a_reply_tells_the_configuration_or_what_the_failed_operation_was_for() {
    let mut transaction = Transaction::new("node-1");
    transaction.remove("1-2-3", "p0");
    let (_, sent) = transaction.finish();
    let good = json!([{}, { "count": 1 }, { "count": 1 }, { "rows": [{ "next_cfg": 12 }] }, {}]);
    assert_eq!(sent.configuration(&good), Ok(12));
    let timed_out = json!([{ "error": "timed out", "details": "d" }, null, null, null, null]);
    assert_eq!(
        sent.configuration(&timed_out),
        Err(Rejected {
            purpose: Some(Purpose::Ours),
            error: "timed out".to_owned(),
            details: "d".to_owned()
        })
    );
    let at_commit = json!([{}, {}, {}, {}, {}, { "error": "constraint violation", "details": "d" }]);
    assert_eq!(sent.configuration(&at_commit).unwrap_err().purpose, None);
    for nonsense in [json!(null), json!([]), json!([{}, {}, {}, {}, {}]), json!({ "rows": 1 })] {
        assert!(sent.configuration(&nonsense).is_err(), "{nonsense}");
    }
}
