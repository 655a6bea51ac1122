//! What Go's `encoding/json` takes and existing networks therefore contain: keys in any case, null, unknown keys,
//! duplicates, big numbers.

use crate::case::Case;

pub(super) fn rows() -> Vec<Case> {
    let ok = [
        (
            "keys in capitals",
            r#"{"CNIVERSION":"1.0.0","NAME":"net","TYPE":"macvlan","MASTER":"eth1","MODE":"private","IPAM":{"TYPE":"host-local","SUBNET":"10.1.2.0/24","RANGESTART":"10.1.2.9"}}"#,
        ),
        (
            "keys in camel case of one's own",
            r#"{"cniversion":"1.0.0","Name":"net","Type":"macvlan","Master":"eth1","Mtu":1300,"Ipam":{"type":"host-local","Ranges":[[{"Subnet":"10.1.2.0/24","rangestart":"10.1.2.9"}]],"Routes":[{"DST":"0.0.0.0/0","GW":"10.1.2.7"}]}}"#,
        ),
        (
            "null is absent",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","mode":null,"mtu":null,"mac":null,"linkInContainer":null,"dns":null,"runtimeConfig":null,"args":null,"ipam":{"type":"host-local","subnet":"10.1.2.0/24","rangeStart":null,"routes":null,"ranges":null,"resolvConf":null}}"#,
        ),
        ("ipam null", r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","ipam":null}"#),
        (
            "unknown keys",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","comment":{"by":["me"]},"isGateway":true,"ipam":{"type":"host-local","subnet":"10.1.2.0/24","note":1}}"#,
        ),
        (
            "the last duplicate wins",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"nowhere0","master":"eth1","mode":"private","mode":"vepa","ipam":{"type":"host-local","subnet":"10.1.2.0/24"}}"#,
        ),
        (
            "the last duplicate wins across cases",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","mtu":1300,"MTU":1310,"ipam":{"type":"host-local","subnet":"10.1.2.0/24"}}"#,
        ),
        (
            "a null duplicate changes nothing",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","mtu":1300,"mtu":null,"ipam":{"type":"host-local","subnet":"10.1.2.0/24"}}"#,
        ),
        (
            "duplicate objects are merged",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","ipam":{"type":"host-local","subnet":"10.1.2.0/24"},"ipam":{"rangeStart":"10.1.2.50"},"dns":{"domain":"a.org"},"dns":{"nameservers":["192.0.2.1"]}}"#,
        ),
        (
            "white space and escapes",
            "\n\t{ \"cniVersion\" : \"1.0.0\",\r\n \"n\\u0061me\":\"n\\u0065t\", \"type\":\"macvlan\",\"master\":\"eth\\u0031\",\"ipam\":{\"type\":\"host-local\",\"subnet\":\"10.1.2.0\\/24\"}}\n\n",
        ),
        (
            "an unpaired surrogate in an unknown key",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","note":"\ud800","ipam":{"type":"host-local","subnet":"10.1.2.0/24"}}"#,
        ),
        (
            "an unknown number beyond every range",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","note":1e999,"ipam":{"type":"host-local","subnet":"10.1.2.0/24"}}"#,
        ),
    ];
    let bad = [
        ("not closed", r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1""#),
        (
            "text behind the object",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","ipam":{}} more"#,
        ),
        (
            "a comma too many",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","ipam":{},}"#,
        ),
        (
            "mtu as text",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","mtu":"1300","ipam":{}}"#,
        ),
        (
            "mtu with a fraction",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","mtu":1300.5,"ipam":{}}"#,
        ),
        (
            "mtu as 1.3e3",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","mtu":1.3e3,"ipam":{}}"#,
        ),
        (
            "linkInContainer as text",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth1","linkInContainer":"true","ipam":{}}"#,
        ),
        (
            // A list of names is ours alone: the nearest one is taken (X9).
            "master as a list of numbers",
            r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":[7],"ipam":{}}"#,
        ),
    ];
    let mut rows: Vec<Case> =
        ok.into_iter().map(|(title, text)| Case::text(format!("JSON: {title}"), "macvlan", text)).collect();
    rows.extend(
        bad.into_iter().map(|(title, text)| Case::text(format!("JSON: {title}"), "macvlan", text).fails()),
    );
    rows
}
