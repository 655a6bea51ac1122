//! What a tenant's definition may not have, key by key, and what it is told.

use std::collections::BTreeMap;

use fairlead_cni::args::Args;
use serde_json::{Map, Value, json};

use super::*;
use crate::engine::kinds::BUILT_IN;

fn tenant() -> Tenant {
    let labels = BTreeMap::from([("tier".to_owned(), "ran".to_owned())]);
    Tenant::new("radio-a", labels).unwrap()
}

fn settings(yaml: &str) -> PolicySettings {
    serde_saphyr::from_str(yaml).unwrap()
}

/// The reference policy of the documentation.
fn strict() -> PolicySettings {
    settings(
        r#"{execute: [tuning, whereabouts], rules: [{namespaces: ["radio-*"], types: [sriov, vhost-user, userspace, macvlan, ipvlan, vlan, host-device, tuning],
            masters: ["ens1f*"], pools: [radio], vlans: ["100-199"], ranges: ["10.9.0.0/16"], privileged: [trust]}]}"#,
    )
}

/// The keys of a port of OVS as userspace-cni has it; `rest` ends its side `host`.
fn userspace(rest: &str) -> String {
    format!(r#""host":{{"engine":"ovs-dpdk","iftype":"vhostuser","vhost":{{"mode":"client"}}{rest}"#)
}

fn read(text: &str) -> Result<Definition, DefinitionError> {
    Definition::read(&tenant(), text, None, &Map::new(), &Args::default())
}

fn judged(settings: &PolicySettings, text: &str) -> Result<(), DefinitionError> {
    Ok(read(text)?.judge(settings)?)
}

fn plugin(kind: &str, keys: &str) -> String {
    let comma = if keys.is_empty() { "" } else { "," };
    format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"{kind}"{comma}{keys}}}"#)
}

fn host_local(keys: &str) -> String {
    format!(r#""ipam":{{"type":"host-local","subnet":"10.9.1.0/24"{keys}}}"#)
}

#[track_caller]
fn refused(settings: &PolicySettings, text: &str, parts: &[&str]) {
    let told = match judged(settings, text) {
        Err(DefinitionError::Refused(refusal)) => refusal.to_string(),
        other => panic!("{text}: {other:?}"),
    };
    assert!(told.contains("radio-a"), "the namespace is not named: {told}");
    assert!(told.contains("; "), "no remedy: {told}");
    for part in parts {
        assert!(told.contains(part), "{text}: {told} lacks {part}");
    }
}

#[test]
fn every_built_in_type_is_read_as_one_and_no_other_is() {
    let keys = r#""master":"ens1f0","vlanId":100,"deviceID":"0000:21:10.0","device":"ens1f0""#;
    let keys = &format!("{keys},{}", userspace("}"));
    for kind in BUILT_IN {
        let definition = read(&plugin(kind, keys)).unwrap();
        assert_ne!(definition.interfaces()[0].link, Link::Executed, "{kind}");
    }
    assert_eq!(read(&plugin("bridge", keys)).unwrap().interfaces()[0].link, Link::Executed);
}

#[test]
fn what_reaches_the_hosts_files_or_memory_is_refused_whatever_the_policy_says() {
    let open = PolicySettings::default();
    let macvlan = |keys: &str| plugin("macvlan", keys);
    let sets: Vec<Value> = (0..17).map(|n| json!([{"subnet": format!("10.9.{n}.0/24")}])).collect();
    let many = macvlan(&format!(r#""ipam":{{"type":"host-local","ranges":{}}}"#, json!(sets)));
    let table = [
        (
            macvlan(&host_local(r#","dataDir":"/usr/bin""#)),
            &["\"ipam.dataDir\"", "/usr/bin", "policy.dataDirRoots"][..],
        ),
        (macvlan(&host_local(r#","dataDir":"/var/lib/cni/networks/../../x""#)), &["dataDir"]),
        (macvlan(&host_local(r#","DATADIR":"/usr/bin""#)), &["dataDir"]),
        (macvlan(&host_local(r#","resolvConf":"/etc/shadow""#)), &["\"ipam.resolvConf\"", "\"dns\""]),
        (many, &["\"ipam.ranges\"", "17", "16"]),
        (macvlan(r#""bcqueuelen":1001"#), &["\"bcqueuelen\"", "1001", "1000"]),
        (macvlan(r#""master":"ens1f0\u0000x""#), &["\"master\"", "no interface"]),
        (plugin("host-device", r#""device":"../x""#), &["\"device\""]),
        (
            plugin("host-device", r#""kernelpath":"/sys/devices/pci0000:00/x""#),
            &["\"kernelpath\"", "\"device\""],
        ),
        (plugin("vhost-user", r#""resourceName":"a\u0007b""#), &["\"resourceName\"", "no pool or resource"]),
        (plugin("vhost-user", r#""directory":"/run""#), &["\"directory\"", "/run", "\"volume\""]),
        (plugin("userspace", &userspace(r#"},"sharedDir":"/run""#)), &["\"sharedDir\"", "/run", "emptyDir"]),
        (plugin("whatever", r#""logFile":"/etc/cron.d/x""#), &["\"logFile\"", "executed"]),
        (plugin("whatever", r#""a":[{"b":"x/../../etc"}]"#), &["\"a[0].b\""]),
        (plugin("whatever", r#""a":"unix:/run/docker.sock""#), &["\"a\""]),
        (plugin("whatever", r#""/etc/x":1"#), &["/etc/x"]),
        (plugin("whatever", r#""flags":["--x=/etc/passwd"]"#), &["\"flags[0]\"", "/etc/passwd"]),
        (plugin("whatever", r#""a":"x:/etc/passwd""#), &["\"a\""]),
        (plugin("whatever", r#""a":"--log=../evil""#), &["\"a\""]),
        (plugin("whatever", r#""a":"x:../sock""#), &["\"a\""]),
        (plugin("whatever", r#""a":"-l../evil""#), &["\"a\""]),
        (plugin("whatever", r#""a":"--x=../..,y""#), &["\"a\""]),
        (plugin("whatever", r#""a":"'../..'""#), &["\"a\""]),
        (plugin("whatever", r#""a":"x -f /etc/passwd""#), &["\"a\""]),
        (plugin("whatever", r#""a":"tftp://etc/passwd""#), &["\"a\""]),
        (plugin("whatever", r#""a":"http:///etc/passwd""#), &["\"a\""]),
        (plugin("whatever", r#""a":"http://h/?f=/etc/passwd""#), &["\"a\""]),
        (plugin("whatever", r#""a":"fd00::/64,/etc/shadow""#), &["\"a\""]),
        (plugin("whatever", r#""a":"fd00::/64/etc""#), &["\"a\""]),
        (plugin("whatever", r#""a":"fd00::/48/64/x""#), &["\"a\""]),
        (plugin("whatever", r#""a":"http://h,x=/etc""#), &["\"a\""]),
        (plugin("whatever", r#""x=/etc/y":1"#), &["/etc/y"]),
        (
            plugin("whatever", r#""ipam":{"type":"host-local","subnet":"10.9.1.0/24","DATADIR":"x"}"#),
            &["\"ipam.dataDir\"", "other namespaces"],
        ),
        (macvlan(r#""ipam":{"type":"other","LogFile":"/x","logFile":"x"}"#), &["LogFile"]),
    ];
    for (text, parts) in table {
        refused(&open, &text, parts);
    }
    assert_eq!(judged(&open, &macvlan(&host_local(r#","dataDir":"/var/lib/cni/networks/""#))), Ok(()));
    for no_path in [
        r#""routes":[{"dst":"::/0"},{"dst":"10.0.0.0/8"},{"dst":"fd00::/64"}],"mode":"0x1f""#,
        r#""resource":"intel.com/radio","range":"fd00::10-fd00::20/64""#,
        // As OVN-Kubernetes writes them.
        r#""subnets":"10.100.0.0/16,fd00:100::/64""#,
        r#""subnets":"10.128.0.0/16/24, fd00:128::/48/64","joinSubnet":"100.65.0.0/16,fd99::/64""#,
        r#""endpoint":"https://etcd.example:2379/v3/keys""#,
        r#""endpoints":"https://a.example:2379,https://b.example:2379""#,
        // Executed in an empty directory, it finds nothing there.
        r#""logFile":"etc/cron.d/evil""#,
    ] {
        assert_eq!(judged(&open, &plugin("whatever", no_path)), Ok(()), "{no_path}");
    }
}

#[test]
fn no_program_makes_for_a_tenant_what_is_judged_where_fairlead_makes_it() {
    let open = PolicySettings::default();
    let listed = settings(
        "{execute: [host-device.fairlead-original, host-device, multus, flannel, bridge, whatever]}",
    );
    let ipam = |kind: &str| plugin("macvlan", &format!(r#""device":"eth0","ipam":{{"type":"{kind}"}}"#));
    let original = "host-device.fairlead-original";
    let delegates = format!(r#""delegates":[{{"type":"{original}","device":"eth0"}}]"#);
    for (text, key) in [
        (plugin(original, r#""device":"eth0""#), "\"type\""),
        (plugin(".host-device.fairlead-original.fairlead-keep", ""), "\"type\""),
        (ipam(original), "\"ipam.type\""),
        (plugin("bridge", &format!(r#""ipam":{{"type":"{original}"}}"#)), "\"ipam.type\""),
        (
            json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "dummy"}, {"type": original}]})
                .to_string(),
            "\"plugins[1].type\"",
        ),
        (plugin("multus", &delegates), "\"delegates[0].type\""),
        (plugin("whatever", r#""a":{"b":"host-device\u002efairlead-original"}"#), "\"a.b\""),
    ] {
        // Multus itself is refused first where it is not listed.
        if !text.contains("multus") {
            refused(&open, &text, &[key, "fairlead-original", "Fairlead serves the type itself"]);
        }
        refused(&listed, &text, &[key, "fairlead-original", "Fairlead serves the type itself"]);
    }
    for policy in [&open, &listed] {
        refused(policy, &ipam("host-device"), &["\"ipam.type\"", "\"host-device\"", "no IPAM"]);
        refused(policy, &plugin("bridge", r#""ipam":{"type":"host-device"}"#), &["\"ipam.type\"", "no IPAM"]);
    }
    for kind in ["multus", "multus-shim", "danm", "genie"] {
        let parts = [kind, "attaches other networks", "policy.execute"];
        refused(&open, &plugin(kind, ""), &[&parts[..], &["\"type\""]].concat());
        refused(&open, &ipam(kind), &[&parts[..], &["\"ipam.type\""]].concat());
    }
    let delegate = |key: &str, value: &str| format!(r#""{key}":{value}"#);
    let host_device = r#"{"type":"host-device","device":"eth0"}"#;
    for (keys, place) in [
        (delegate("delegate", host_device), "delegate.type"),
        (delegate("DeleGate", host_device), "DeleGate.type"),
        (delegate("delegates", &format!("[{host_device}]")), "delegates[0].type"),
        (
            delegate("delegates", &format!(r#"[{{"plugins":[{host_device}]}}]"#)),
            "delegates[0].plugins[0].type",
        ),
    ] {
        let text = plugin("flannel", &keys);
        refused(&open, &text, &[&*format!("\"{place}\""), "\"host-device\"", "policy.execute"]);
        assert_eq!(judged(&listed, &text), Ok(()), "the administrator has listed it");
    }
    assert_eq!(judged(&listed, &plugin("multus", "")), Ok(()));
    assert_eq!(judged(&open, &plugin("flannel", r#""delegate":{"hairpinMode":true}"#)), Ok(()));
}

#[test]
fn a_program_that_is_executed_is_told_of_the_very_paths_that_the_administrator_has_listed() {
    let paths = vec!["/tmp/whereabouts.log".into(), "/etc/cni/net.d/whereabouts.d".into()];
    let listed = PolicySettings { executed_paths: paths, ..PolicySettings::default() };
    let whereabouts = |log: &str, more: &str| {
        plugin(
            "macvlan",
            &format!(r#""master":"ens1f0","ipam":{{"type":"whereabouts","log_file":"{log}"{more}}}"#),
        )
    };
    let good = whereabouts("/tmp/whereabouts.log", r#","configuration_path":"/etc/cni/net.d/whereabouts.d""#);
    assert_eq!(judged(&listed, &good), Ok(()));
    let parts = ["\"ipam.log_file\"", "policy.executedPaths"];
    for other in ["/tmp", "/tmp/whereabouts.log.1", "/tmp//whereabouts.log", "x:/tmp/whereabouts.log"] {
        refused(&listed, &whereabouts(other, ""), &parts);
    }
    let key = whereabouts("/tmp/whereabouts.log", r#","/tmp/whereabouts.log":"x""#);
    refused(&listed, &key, &["\"ipam./tmp/whereabouts.log\""]);
    refused(&PolicySettings::default(), &good, &["executedPaths"]);
    // Those of host-local are opened by ourselves.
    refused(&listed, &plugin("macvlan", &host_local(r#","dataDir":"/tmp/whereabouts.log""#)), &["dataDir"]);
}

#[test]
fn what_only_the_runtime_gives_is_refused_by_name_wherever_it_stands() {
    let open = PolicySettings::default();
    for key in ["CNIDeviceInfoFile", "deviceID", "mac", "ips", "portMappings"] {
        let text = plugin("sriov", &format!(r#""runtimeConfig":{{"{key}":"x"}}"#));
        refused(&open, &text, &["\"runtimeConfig\"", "capabilities"]);
    }
    let table = [
        plugin("macvlan", "\"runtimeConfig\":null"),
        plugin("macvlan", "\"RUNTIMECONFIG\":{}"),
        plugin("macvlan", r#""\u0072untimeConfig":{}"#),
        plugin("macvlan", "\"prevRe\u{17f}ult\":{}"),
        plugin("macvlan", r#""cni.dev/valid-attachments":[]"#),
        plugin("macvlan", r#""cni.dev/attachments":[]"#),
        plugin("fairlead", r#""clusterNetwork":"x","runtimeConfig":{"portMappings":[{"hostPort":22}]}"#),
        plugin("fairlead", r#""runtimeConfig":{"deviceID":"0000:21:10.0"},"paths":[{"type":"sriov"}]"#),
        r#"{"cniVersion":"1.0.0","name":"n","runtimeConfig":{},"plugins":[{"type":"macvlan"}]}"#.to_owned(),
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"macvlan","runtimeConfig":{}}]}"#.to_owned(),
    ];
    for text in table {
        refused(&open, &text, &["which only the runtime gives"]);
    }
}

#[test]
fn the_runtimes_arguments_reach_only_a_plugin_that_declares_them() {
    let runtime = json!({"deviceID": "0000:21:10.0", "mac": "02:00:00:00:00:01"});
    let runtime = runtime.as_object().unwrap();
    let text = plugin("sriov", r#""capabilities":{"deviceID":true}"#);
    let definition = Definition::read(&tenant(), &text, None, runtime, &Args::default()).unwrap();
    let passed = &definition.plugins()[0].runtime;
    assert_eq!((passed.device_id.as_deref(), passed.mac.as_deref()), (Some("0000:21:10.0"), None));
    assert_eq!(definition.judge(&strict()), Ok(()), "whose device it is, the runtime answers for");
}

#[test]
fn what_the_runtime_gives_an_executed_plugin_is_not_judged_as_the_tenants_text() {
    let runtime = json!({"CNIDeviceInfoFile": "/var/run/k8s.cni.cncf.io/devinfo/cni/x", "cgroupPath": "/kubepods/pod1"});
    let text = plugin("whatever", r#""capabilities":{"CNIDeviceInfoFile":true,"cgroupPath":true}"#);
    let definition =
        Definition::read(&tenant(), &text, None, runtime.as_object().unwrap(), &Args::default()).unwrap();
    assert!(definition.plugins()[0].raw.contains("/kubepods/pod1"));
    assert_eq!(definition.judge(&PolicySettings::default()), Ok(()));
}

#[test]
fn a_definition_is_at_most_64_kib_and_16_plugins_or_paths() {
    let open = PolicySettings::default();
    let long = plugin("macvlan", &format!(r#""x":"{}""#, "x".repeat(65_536)));
    refused(&open, &long, &["65536", "shorten it"]);
    let plugins = vec![json!({"type": "macvlan"}); 17];
    let list = json!({"cniVersion": "1.0.0", "name": "n", "plugins": plugins}).to_string();
    refused(&open, &list, &["\"plugins\"", "17"]);
    let paths = vec![json!({"type": "macvlan"}); 17];
    refused(&open, &plugin("fairlead", &format!(r#""paths":{}"#, json!(paths))), &["\"paths\"", "17"]);
    refused(
        &open,
        &plugin("macvlan", "").replace("\"net\"", &format!("{:?}", "n".repeat(250))),
        &["\"name\""],
    );
}

#[test]
fn only_listed_programs_are_executed() {
    let strict = strict();
    for (text, key) in [
        (plugin("bridge", ""), "\"type\""),
        (plugin("macvlan", r#""master":"ens1f0","ipam":{"type":"dhcp"}"#), "\"ipam.type\""),
        (plugin("tuning", r#""ipam":{"type":"dhcp"}"#), "\"ipam.type\""),
        (plugin("fairlead", r#""paths":[{"type":"macvlan","master":"ens1f0"}],"ipam":{"type":"dhcp"}"#), "\"paths[0].ipam.type\""),
        (r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"macvlan","master":"ens1f0"},{"type":"sh"}]}"#.into(), "\"plugins[1].type\""),
    ] {
        refused(&strict, &text, &[key, "policy.execute", "tuning, whereabouts"]);
    }
    let none = settings("{execute: []}");
    refused(&none, &plugin("bridge", ""), &["policy.execute"]);
    assert_eq!(
        judged(&none, &plugin("macvlan", &host_local(""))),
        Ok(()),
        "host-local and macvlan are built in"
    );
    assert_eq!(judged(&strict, &plugin("tuning", "")), Ok(()));
}

#[test]
fn a_rule_decides_about_every_key_and_its_refusal_names_it() {
    let strict = strict();
    let by_rule = ["rule 1 (namespaces radio-*)"];
    let macvlan = |keys: &str| plugin("macvlan", keys);
    let table: [(String, &[&str]); 33] = [
        (plugin("loopback", ""), &["\"type\"", "\"loopback\"", "\"types\""]),
        (plugin("fairlead", r#""clusterNetwork":"cluster""#), &["\"type\"", "\"fairlead\""]),
        (macvlan(r#""master":"eth0""#), &["\"master\"", "\"eth0\"", "ens1f*"]),
        (macvlan(""), &["\"master\"", "none is named"]),
        (plugin("ipvlan", ""), &["\"master\"", "none is named"]),
        (macvlan(r#""master":["ens1f0","eth0"]"#), &["\"master\"", "\"eth0\""]),
        (macvlan(r#""master":"ens1f0","mode":"passthru""#), &["\"mode\"", "passthru", "[trust]"]),
        (plugin("vlan", r#""master":"eth0","vlanId":100"#), &["\"master\""]),
        (plugin("vlan", r#""master":"ens1f0","vlanId":200"#), &["\"vlanId\"", "200", "100-199"]),
        (plugin("vlan", r#""master":"ens1f0""#), &["\"vlanId\": 0"]),
        (plugin("host-device", r#""device":"eth0""#), &["\"device\"", "\"eth0\""]),
        (plugin("host-device", r#""hwaddr":"02:00:00:00:00:01""#), &["\"hwaddr\""]),
        (plugin("host-device", r#""pciBusID":"0000:21:00.0""#), &["\"pciBusID\""]),
        (plugin("sriov", r#""deviceID":"0000:21:10.0""#), &["\"deviceID\"", "\"pools\""]),
        (plugin("sriov", r#""pool":"gold""#), &["\"pool\"", "\"gold\"", "[radio]"]),
        (plugin("sriov", r#""resourceName":"intel.com/gold""#), &["\"resourceName\""]),
        (plugin("sriov", r#""pool":"radio","vlan":0"#), &["\"vlan\"", ": 0;"]),
        (plugin("sriov", r#""pool":"radio","spoofchk":"off""#), &["\"spoofchk\"", "spoofchkOff"]),
        (plugin("sriov", r#""pool":"radio","max_tx_rate":0"#), &["\"max_tx_rate\"", "rates"]),
        (plugin("vhost-user", r#""vlan":200"#), &["\"vlan\"", "200", "100-199"]),
        (plugin("vhost-user", r#""resourceName":"a.b/blue""#), &["\"resourceName\"", "a.b/blue", "[radio]"]),
        (plugin("vhost-user", r#""deviceID":"blue-00""#), &["\"deviceID\"", "blue-00", "[radio]"]),
        (plugin("vhost-user", r#""master":"eno1""#), &["\"master\"", "eno1"]),
        (plugin("vhost-user", r#""trunk":[150,99]"#), &["\"trunk\"", "99", "100-199"]),
        (plugin("vhost-user", r#""max_rx_rate":5"#), &["\"max_rx_rate\"", "rates"]),
        (plugin("vhost-user", r#""spoofchk":"off""#), &["\"spoofchk\"", "spoofchkOff"]),
        (plugin("vhost-user", r#""switch":"ovs-dpdk""#), &["\"bridge\"", "br0", "[ens1f*]"]),
        (plugin("vhost-user", r#""switch":"ovs-dpdk","bridge":"ens1f0""#), &["\"spoofchk\"", "spoofchkOff"]),
        (plugin("userspace", &userspace("}")), &["\"host.bridge.bridgeName\"", "br0", "[ens1f*]"]),
        (
            plugin("userspace", &userspace(r#","bridge":{"bridgeName":"ens1f0"}}"#)),
            &["\"host.bridge.vlanId\"", "every VLAN", "100-199"],
        ),
        (
            plugin("userspace", &userspace(r#","bridge":{"bridgeName":"ens1f0","vlanId":200}}"#)),
            &["\"host.bridge.vlanId\"", "200", "100-199"],
        ),
        (
            plugin("userspace", &userspace(r#","bridge":{"bridgeName":"ens1f0","vlanId":100}}"#)),
            &["\"spoofchk\"", "spoofchkOff"],
        ),
        (
            plugin(
                "fairlead",
                r#""paths":[{"type":"sriov","pool":"radio"},{"type":"macvlan","master":"eth0"}]"#,
            ),
            &["\"paths[1].master\""],
        ),
    ];
    for (text, parts) in table {
        refused(&strict, &text, &[parts, &by_rule].concat());
    }
    for good in [
        macvlan(&format!(r#""master":"ens1f0",{}"#, host_local(""))),
        macvlan(r#""master":"eth0","linkInContainer":true"#),
        macvlan(r#""master":["ens1f0","ens1f1"]"#),
        plugin("vlan", r#""master":"ens1f1","vlanId":199"#),
        plugin("sriov", r#""pool":"radio","vlan":100,"trust":"on""#),
        plugin("sriov", ""),
        plugin("vhost-user", r#""resourceName":"radio""#),
        plugin("host-device", ""),
        plugin("fairlead", r#""paths":[{"type":"vhost-user"},{"type":"sriov","pool":"radio"}]"#),
    ] {
        assert_eq!(judged(&strict, &good), Ok(()), "{good}");
    }
}

#[test]
fn addresses_are_of_the_rules_ranges_wherever_they_come_from() {
    let strict = strict();
    let with = |ipam: &str| plugin("macvlan", &format!(r#""master":"ens1f0","ipam":{ipam}"#));
    refused(
        &strict,
        &with(r#"{"type":"host-local","subnet":"10.8.0.0/24"}"#),
        &["\"ipam.ranges\"", "10.8.0.0/24", "10.9.0.0/16"],
    );
    refused(
        &strict,
        &with(r#"{"type":"host-local","subnet":"10.0.0.0/8","rangeStart":"10.9.0.1","rangeEnd":"10.9.0.9"}"#),
        &["10.0.0.0/8"],
    );
    refused(
        &strict,
        &with(r#"{"type":"static","addresses":[{"address":"10.9.0.1/24"},{"address":"10.9.0.1/8"}]}"#),
        &["\"ipam.addresses\"", "10.9.0.1/8"],
    );
    refused(&strict, &with(r#"{"type":"whereabouts"}"#), &["\"ipam.type\"", "\"ipamTypes\""]);
    let args = plugin(
        "macvlan",
        r#""master":"ens1f0","args":{"cni":{"ips":["10.8.0.1/24"]}},"ipam":{"type":"static"}"#,
    );
    refused(&strict, &args, &["10.8.0.1/24"]);
    let runtime = json!({"ips": ["10.8.0.1/24"]});
    let text = plugin("macvlan", r#""master":"ens1f0","capabilities":{"ips":true},"ipam":{"type":"static"}"#);
    let asked =
        Definition::read(&tenant(), &text, None, runtime.as_object().unwrap(), &Args::default()).unwrap();
    assert!(asked.judge(&strict).is_err(), "a pod asks for an address that its namespace may not have");
    // Whoever reads it: what these two give stands in their configuration.
    let executed = settings(
        r#"{rules: [{namespaces: ["*"], types: [bridge], ranges: ["10.9.0.0/16"], ipamTypes: [host-local, static]}]}"#,
    );
    let bridge = |ipam: &str| plugin("bridge", &format!(r#""ipam":{ipam}"#));
    refused(
        &executed,
        &bridge(r#"{"type":"host-local","subnet":"192.168.0.0/16"}"#),
        &["\"ipam.ranges\"", "192.168.0.0/16"],
    );
    refused(
        &executed,
        &bridge(r#"{"type":"static","addresses":[{"address":"192.168.0.1/16"}]}"#),
        &["\"ipam.addresses\"", "192.168.0.1/16"],
    );
    let by_args = Args::parse("IP=10.8.0.1/24").unwrap();
    let asked = bridge(r#"{"type":"static"}"#);
    let asked = Definition::read(&tenant(), &asked, None, &Map::new(), &by_args).unwrap();
    let told = asked.judge(&executed).unwrap_err().to_string();
    assert!(told.contains(r#""ips": "10.8.0.1/24""#) && told.contains("[10.9.0.0/16]"), "{told}");
    refused(&executed, &bridge(r#"{"type":"host-local","subnet":"10.9.0.0"}"#), &["\"ipam\""]);
    assert_eq!(judged(&executed, &bridge(r#"{"type":"host-local","subnet":"10.9.1.0/24"}"#)), Ok(()));
    let named =
        settings(r#"{rules: [{namespaces: ["*"], ranges: ["10.9.0.0/16"], ipamTypes: [whereabouts]}]}"#);
    assert_eq!(judged(&named, &with(r#"{"type":"whereabouts"}"#)), Ok(()));
    refused(
        &named,
        &with(r#"{"type":"static","addresses":[{"address":"10.9.0.1/24"}]}"#),
        &["\"ipamTypes\""],
    );
}

#[test]
fn an_address_that_is_asked_for_is_of_the_rules_ranges_whichever_program_reads_it_and_however_it_is_told() {
    let rules = settings(
        r#"{rules: [{namespaces: ["*"], types: [macvlan, bridge, tuning, fairlead], ranges: ["10.9.0.0/16"],
            ipamTypes: [host-local, static, whereabouts]}]}"#,
    );
    let judge = |text: &str, runtime: &Value, args: &str| {
        let (runtime, args) = (runtime.as_object().unwrap(), Args::parse(args).unwrap());
        Definition::read(&tenant(), text, None, runtime, &args).unwrap().judge(&rules)
    };
    for text in [
        plugin("bridge", r#""ipam":{"type":"static"}"#),
        plugin("bridge", &host_local("")),
        plugin("bridge", r#""ipam":{"type":"whereabouts"}"#),
        plugin("macvlan", r#""ipam":{"type":"whereabouts"}"#),
        plugin("tuning", ""),
        plugin("fairlead", r#""clusterNetwork":"storage""#),
    ] {
        let with = |key: &str| text.replacen('{', &format!("{{{key},"), 1);
        let in_each_way = |ip: &str| {
            let args_cni = with(&format!(r#""args":{{"cni":{{"ips":["{ip}"]}}}}"#));
            [
                judge(&text, &json!({}), &format!("IgnoreUnknown=1;IP={ip}")),
                judge(&with(r#""capabilities":{"ips":true}"#), &json!({ "ips": [ip] }), ""),
                judge(&args_cni, &json!({}), ""),
            ]
        };
        assert_eq!(in_each_way("10.9.0.7/24"), [Ok(()), Ok(()), Ok(())], "{text}");
        for ip in ["10.8.0.1/24", "10.8.0.1", "10.9.0.1/8", "fd00::1/64", "all"] {
            for answer in in_each_way(ip) {
                let told = answer.unwrap_err().to_string();
                assert!(told.contains(&format!("{ip:?}")) && told.contains("\"ranges\""), "{text}: {told}");
            }
        }
    }
    // The last of several counts as much as the first.
    let told = judge(&plugin("tuning", ""), &json!({}), "IP=10.9.0.7/24, 10.8.0.1/24").unwrap_err();
    assert!(told.to_string().contains("10.8.0.1/24"), "{told}");
}

#[test]
fn a_program_whose_configuration_is_its_own_must_be_listed_where_a_rule_limits_what_it_could_use() {
    for limit in ["masters: [x]", "pools: [x]", "vlans: [1]", "ranges: [10.0.0.0/8]", "ipamTypes: [static]"] {
        let limited = settings(&format!("{{rules: [{{namespaces: ['*'], {limit}}}]}}"));
        refused(&limited, &plugin("bridge", ""), &["\"type\"", "\"types\""]);
        refused(&limited, &plugin("fairlead", r#""clusterNetwork":"x""#), &["\"type\"", "\"types\""]);
    }
    let free = settings("{rules: [{namespaces: ['*']}]}");
    assert_eq!(judged(&free, &plugin("bridge", "")), Ok(()));
}

#[test]
fn the_first_rule_that_is_for_the_namespace_decides_and_with_none_a_definition_is_refused() {
    let text = plugin("macvlan", r#""master":"eth0""#);
    let ordered = settings(
        "{rules: [{namespaces: [other]}, {namespaces: [{labels: {tier: ran}}], masters: [x]}, {namespaces: ['*']}]}",
    );
    refused(&ordered, &text, &["rule 2 (namespaces tier=ran)"]);
    let others = settings("{rules: [{namespaces: [other]}, {namespaces: [{labels: {tier: ran, site: a}}]}]}");
    refused(&others, &text, &["none of the 2 rules", "policy.rules"]);
    assert_eq!(
        judged(&PolicySettings::default(), &text),
        Ok(()),
        "without rules what exists goes on working"
    );
}

#[test]
fn the_administrators_text_is_never_judged() {
    let text = plugin("macvlan", &format!(r#""bcqueuelen":5000,{}"#, host_local(r#","dataDir":"/run/x""#)));
    for interface in read(&text).unwrap().interfaces() {
        assert_eq!(decide(&strict(), &Source::Administrator, interface), Ok(()));
    }
}

#[test]
fn two_spellings_of_a_type_that_mean_two_plugins_are_refused() {
    // The list reads the exact key, the plugin the last one in any case.
    let text =
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"macvlan","typE":"sh"},{"tYPE":"macvlan"}]}"#;
    let told = read(text);
    assert!(!matches!(&told, Ok(d) if d.plugins().iter().any(|p| p.plugin_type == "sh")), "{told:?}");
}

#[test]
fn a_definition_without_a_name_has_that_of_its_object_and_one_without_a_text_means_the_administrators_network()
 {
    let named =
        |text: &str| Definition::read(&tenant(), text, Some("obj"), &Map::new(), &Args::default()).unwrap();
    assert_eq!(named(r#"{"cniVersion":"1.0.0","type":"macvlan"}"#).list().name, "obj");
    assert_eq!(named(&plugin("macvlan", "")).list().name, "net");
    assert_eq!(named(" ").interfaces()[0].link, Link::ClusterNetwork("obj".into()));
}

#[test]
fn a_list_without_plugins_is_refused_as_nothing_in_it_would_be_judged() {
    let empty = r#"{"cniVersion":"1.0.0","name":"n","Plugins":[{"type":"sh"}]}"#;
    let told = read(empty).unwrap_err();
    assert!(told.to_string().contains("the list has no plugins"), "{told}");
}

#[test]
fn networks_of_one_name_in_two_namespaces_never_share_the_directory_of_an_executed_host_local() {
    let text = r#"{"cniVersion":"1.0.0","name":"net","plugins":[
        {"type":"bridge","ipam":{"type":"host-local","subnet":"10.9.1.0/24"}},{"type":"tuning"}]}"#;
    for namespace in ["a", "b"] {
        let tenant = Tenant::new(namespace, BTreeMap::new()).unwrap();
        let read = Definition::read(&tenant, text, None, &Map::new(), &Args::default()).unwrap();
        read.judge(&PolicySettings::default()).unwrap();
        let list: Value = serde_json::from_str(&read.list().to_text()).unwrap();
        assert_eq!(list["plugins"][0]["ipam"]["dataDir"], format!("/var/lib/cni/networks/@{namespace}"));
        assert_eq!(list["plugins"][1].get("ipam"), None);
    }
    let twice = text.replace(r#""ipam":{"#, r#""IPAM":{"type":"host-local"},"ipam":{"#);
    let tenant = Tenant::new("a", BTreeMap::new()).unwrap();
    let told = Definition::read(&tenant, &twice, None, &Map::new(), &Args::default()).unwrap_err();
    assert!(told.to_string().contains("several spellings"), "{told}");
}
