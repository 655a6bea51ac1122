//! Definitions of tenants, by their own door and through the whole of ADD.

use std::collections::BTreeMap;

use fairlead_cni::Code;
use fairlead_host::double::{Call, KernelRequest, Place};
use serde_json::{Map, Value, json};

use super::*;
use crate::engine::{DefinitionCall, Sandbox};
use crate::policy::Tenant;

const HOST_LOCAL: &str = r#""ipam":{"type":"host-local","subnet":"10.1.0.0/24"}"#;

impl Rig {
    fn add_definition(
        &self,
        namespace: &str,
        ifname: &str,
        text: &str,
        runtime: &Value,
    ) -> Result<String, CniError> {
        self.add_definition_with("", namespace, ifname, text, runtime)
    }

    /// The same with arguments of the runtime.
    pub(super) fn add_definition_with(
        &self,
        args: &str,
        namespace: &str,
        ifname: &str,
        text: &str,
        runtime: &Value,
    ) -> Result<String, CniError> {
        let tenant = Tenant::new(namespace, BTreeMap::new()).unwrap();
        let path = format!("/opt/cni/bin:{}", self.dir.path().join("bin").display());
        let none = Map::new();
        let now = Instant::now();
        self.engine().add_definition(&DefinitionCall {
            tenant: &tenant,
            text,
            object: Some("object"),
            runtime: runtime.as_object().unwrap_or(&none),
            sandbox: Sandbox {
                container: "c1",
                netns: POD,
                netns_inode: None,
                callers_netns: None,
                callers_cookie: None,
                args,
                path: &path,
                env: &[],
                spooled: None,
                issued: None,
            },
            ifname,
            waiting: Waiting {
                arrived: now,
                deadline: now + Duration::from_secs(5),
                gone: CallerGone::default(),
            },
        })
    }

    fn with_policy(yaml: &str) -> Rig {
        let mut rig = Rig::new();
        let policy = serde_saphyr::from_str(yaml).unwrap();
        rig.call_settings.policy = Some(Arc::new(policy));
        rig.restart();
        rig
    }

    fn directories(&self) -> Vec<String> {
        let networks = self.dir.path().join("root/var/lib/cni/networks");
        let mut names: Vec<String> = std::fs::read_dir(networks)
            .map(|found| found.map(|e| e.unwrap().file_name().into_string().unwrap()).collect())
            .unwrap_or_default();
        names.sort();
        names
    }
}

fn macvlan_with(keys: &str) -> String {
    format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth0",{keys}}}"#)
}

#[test]
fn networks_of_one_name_in_two_namespaces_and_the_administrators_have_three_directories() {
    let rig = Rig::new();
    let before = rig.state();
    let text = macvlan_with(HOST_LOCAL);
    rig.add_definition("a", "net2", &text, &Value::Null).unwrap();
    rig.add_definition("b", "net3", &text, &Value::Null).unwrap();
    rig.add(&text).unwrap();
    assert_eq!(rig.directories(), ["net", "net@a", "net@b"]);
    // Each begins with the first address: none sees what another has taken.
    assert_eq!(rig.allocations(), ["10.1.0.2", "10.1.0.2", "10.1.0.2"]);
    for ifname in ["net1", "net2", "net3"] {
        let request = Request { ifname: ifname.into(), ..rig.request(Command::Del, "c1", &text) };
        rig.call(request).unwrap();
    }
    rig.reap();
    assert_eq!(rig.state(), before);
}

#[test]
fn a_tenants_attachment_is_removed_from_its_record_after_a_restart() {
    let mut rig = Rig::new();
    let before = rig.state();
    let text = macvlan_with(HOST_LOCAL);
    rig.add_definition("a", "net1", &text, &Value::Null).unwrap();
    rig.restart();
    assert_eq!(rig.engine().core.store.all()[0].namespace.as_deref(), Some("a"));
    rig.del(&text).unwrap();
    rig.reap();
    assert_eq!(rig.state(), before);
}

#[test]
fn a_gc_of_the_administrators_network_spares_a_tenants_of_the_same_name() {
    let rig = Rig::new();
    let text = macvlan_with(HOST_LOCAL).replace("\"1.0.0\"", "\"1.1.0\"");
    rig.add_definition("a", "net1", &text, &Value::Null).unwrap();
    let gc = text.replace(r#""type""#, r#""cni.dev/valid-attachments":[],"type""#);
    let mut request = rig.request(Command::Gc, "", &gc);
    request.ifname = String::new();
    rig.call(request).unwrap();
    assert_eq!(rig.engine().core.store.all().len(), 1);
    assert_eq!(rig.allocations(), ["10.1.0.2"]);
}

#[test]
fn our_own_type_cannot_stand_in_a_tenants_list_of_several_and_nothing_is_left() {
    let rig = Rig::new();
    let before = rig.state();
    let text = r#"{"cniVersion":"1.0.0","name":"net","plugins":[
        {"type":"macvlan","master":"eth0","ipam":{}},{"type":"fairlead","paths":[{"type":"macvlan","master":"eth0"}],"ipam":{}}]}"#;
    let refused = rig.add_definition("a", "net1", text, &json!({})).unwrap_err();
    assert_eq!(refused.code, Code::InvalidConfig);
    assert!(refused.msg.contains("cannot stand in a list"), "{refused}");
    assert_eq!(rig.state(), before);
}

#[test]
fn a_tenants_list_runs_whole_in_its_own_directory_and_leaves_nothing() {
    let mut rig = Rig::new();
    let before = rig.state();
    let list = format!(
        r#"{{"cniVersion":"1.0.0","name":"net","plugins":[{{"type":"macvlan","master":"eth0",{HOST_LOCAL}}},{{"type":"loopback"}}]}}"#
    );
    rig.add_definition("a", "net1", &list, &Value::Null).unwrap();
    assert_eq!(rig.directories(), ["net@a"]);
    rig.restart();
    let on_record =
        rig.engine().core.store.all().iter().find(|a| a.key.plugin == "fairlead").cloned().unwrap();
    rig.del(&on_record.config).unwrap();
    rig.reap();
    assert_eq!(rig.state(), before);
}

#[test]
fn what_the_policy_refuses_changes_nothing_and_a_changed_policy_is_in_force_at_once() {
    let rig = Rig::with_policy("{rules: [{namespaces: [a], masters: [eth1]}]}");
    let before = rig.state();
    let text = macvlan_with(HOST_LOCAL);
    let told = rig.add_definition("a", "net1", &text, &Value::Null).unwrap_err();
    assert_eq!(told.code.number(), 7);
    assert!(
        told.msg.contains("\"master\": \"eth0\"") && told.msg.contains("rule 1 (namespaces a)"),
        "{told}"
    );
    assert_eq!(rig.state(), before);
    assert!(rig.directories().is_empty(), "no directory was made for it");
    let policy = serde_saphyr::from_str("{rules: [{namespaces: [a], masters: [eth0]}]}").unwrap();
    rig.engine().configure(&Settings { policy, ..Settings::default() });
    rig.add_definition("a", "net1", &text, &Value::Null).unwrap();
    // The administrator's own are not judged.
    assert!(rig.call(Request { ifname: "net9".into(), ..rig.request(Command::Add, "c2", &text) }).is_ok());
}

#[test]
fn while_the_configuration_is_refused_from_the_start_on_no_definition_of_a_tenant_is_taken() {
    let rig = Rig::new();
    rig.engine().configure(&Settings { unread: true, ..Settings::default() });
    let told = rig.add_definition("a", "net1", &macvlan_with(HOST_LOCAL), &Value::Null).unwrap_err();
    assert!(told.msg.contains("the policy is not known"), "{told}");
    assert!(rig.add(&macvlan_with(HOST_LOCAL)).is_ok(), "the administrator's networks go on");
}

#[test]
fn no_host_file_is_written_for_device_information_that_a_definition_names() {
    let rig = Rig::new();
    let before = rig.state();
    let text = format!(
        r#"{{"cniVersion":"1.0.0","name":"net","type":"sriov","deviceID":"{VF}",
            "runtimeConfig":{{"CNIDeviceInfoFile":"/var/run/devinfo/evil"}},"ipam":{{}}}}"#
    );
    let told = rig.add_definition("a", "net1", &text, &Value::Null).unwrap_err();
    assert!(told.msg.contains("\"runtimeConfig\", which only the runtime gives"), "{told}");
    assert_eq!(rig.state(), before);
    // The same by the runtime, for a plugin that declares it.
    let text = r#"{"cniVersion":"1.0.0","name":"net","type":"sriov",
        "capabilities":{"deviceID":true,"CNIDeviceInfoFile":true},"ipam":{}}"#;
    let runtime =
        json!({"deviceID": VF, "CNIDeviceInfoFile": "/var/run/k8s.cni.cncf.io/devinfo/cni/of-c1.json"});
    rig.add_definition("a", "net1", text, &runtime).unwrap();
    assert_eq!(rig.state().told, ["of-c1.json"]);
}

#[test]
fn a_device_with_addresses_is_lent_by_the_administrator_and_by_no_tenant() {
    let rig = Rig::new();
    let mut host = fairlead_host::NetKernel::host(&*rig.kernel).unwrap();
    let index = host.link_by_name("dev0").unwrap().unwrap().index;
    let address = fairlead_host::Address {
        index,
        net: "192.0.2.9/24".parse().unwrap(),
        broadcast: None,
        flags: fairlead_host::AddressFlags::default(),
    };
    host.batch(&[fairlead_host::Op::AddAddress(address)]).unwrap();
    drop(host);
    let text = r#"{"cniVersion":"1.0.0","name":"net","type":"host-device","device":"dev0","ipam":{}}"#;
    let refused = rig.add_definition("a", "net1", text, &Value::Null).unwrap_err();
    assert!(refused.msg.contains("192.0.2.9/24") && refused.code.number() == 7, "{refused}");
    rig.add(text).unwrap();
}

/// A definition of this type on a master.
fn on_master(kind: &str, master: &str, keys: &str) -> String {
    format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"{kind}","master":{master}{keys},{HOST_LOCAL}}}"#)
}

#[test]
fn no_tenants_link_stands_on_the_hosts_end_of_a_pods_wire_nor_on_what_stands_on_that() {
    for (kind, keys) in [("macvlan", ""), ("ipvlan", ""), ("vlan", r#","vlanId":7"#)] {
        for (master, names) in
            [(r#""cali1""#, "\"cali1\": it leads"), (r#""cali1.5""#, "\"cali1.5\": \"cali1\" below it leads")]
        {
            let rig = Rig::new();
            rig.kernel.add_wire_end("cali1");
            rig.vlan_on("cali1.5", "cali1");
            let before = rig.state();
            let text = on_master(kind, master, keys);
            let told = rig.add_definition("a", "net1", &text, &Value::Null).unwrap_err();
            assert_eq!((told.code, rig.state()), (Code::InvalidConfig, before), "{told}");
            let why = format!("master {names} into another network namespace");
            assert!(told.msg.contains(&why) && told.details.contains("policy.lendable"), "{told}");
            rig.add(&text).unwrap();
        }
    }
}

#[test]
fn of_several_masters_the_one_that_is_taken_is_no_pods_either() {
    let rig = nearest_master::rig();
    rig.kernel.add_wire_end("cali1");
    let text = on_master("macvlan", r#"["cali1","nowhere0"]"#, "");
    let told = rig.add_definition("a", "net1", &text, &Value::Null).unwrap_err();
    assert!(told.code == Code::InvalidConfig && told.msg.contains("master \"cali1\""), "{told}");
}

#[test]
fn a_master_that_leads_away_is_a_tenants_where_it_is_the_nodes_uplink_or_the_configuration_names_it() {
    let text = on_master("macvlan", r#""wire0""#, "");
    let rig = Rig::new();
    rig.kernel.add_wire_end("wire0");
    rig.route_with_metric("wire0", "0.0.0.0/0", 77, None);
    rig.add_definition("a", "net1", &text, &Value::Null).unwrap_err();
    rig.route_with_metric("wire0", "0.0.0.0/0", 254, None);
    rig.add_definition("a", "net1", &text, &Value::Null).unwrap();
    let rig = Rig::new();
    rig.kernel.add_wire_end("wire0");
    rig.engine().configure(&pools::settings("policy: {lendable: [wire0]}"));
    rig.add_definition("a", "net1", &text, &Value::Null).unwrap();
}

#[test]
fn a_master_of_a_tenants_definition_that_stands_on_nothing_is_looked_up_once_and_no_more() {
    let rig = Rig::new();
    rig.kernel.forget_calls();
    rig.add_definition("a", "net1", &macvlan_with(HOST_LOCAL), &Value::Null).unwrap();
    let is_look = |request: &KernelRequest| {
        use KernelRequest::{LinkByIndex, LinkByName, Links, Routes};
        matches!(request, LinkByName(_) | LinkByIndex(_) | Links | Routes)
    };
    let in_host = |call: &Call| call.place == Place::Host && is_look(&call.request);
    let looks: Vec<_> = rig.kernel.calls().into_iter().filter(in_host).collect();
    assert_eq!(looks.len(), 1, "{looks:?}");
}

/// An ipvlan on a master, as the network `net` of the administrator has it.
fn ipvlan(master: &str, mode: &str) -> String {
    on_master("ipvlan", &format!("{master:?}"), &format!(r#","mode":"{mode}""#))
}

#[test]
fn an_ipvlan_that_would_change_the_mode_of_anothers_is_refused_until_that_one_is_gone() {
    let rig = Rig::new();
    let (l2, l3) = (ipvlan("eth0", "l2"), ipvlan("eth0", "l3"));
    rig.add(&l2).unwrap();
    let before = rig.state();
    let told = rig.add_definition("b", "net2", &l3, &Value::Null).unwrap_err();
    assert_eq!((told.code, rig.state()), (Code::InvalidConfig, before.clone()), "{told}");
    let why = r#"mode L2 is that of interface "net1" of container c1 of network "net""#;
    assert!(told.msg.contains(why) && told.details.contains("another `master`"), "{told}");
    // The administrator's too, and by any of the pod's networks.
    let other = Request { ifname: "net3".into(), ..rig.request(Command::Add, "c3", &l3) };
    assert_eq!(rig.call(other.clone()).unwrap_err().code, Code::InvalidConfig);
    assert_eq!(rig.state(), before);
    // The same mode, and another master.
    rig.add_definition("b", "net4", &l2, &Value::Null).unwrap();
    rig.add_definition("b", "net5", &ipvlan("dev0", "l3"), &Value::Null).unwrap();
    for (ifname, text) in [("net4", &l2), ("net1", &l2)] {
        rig.call(Request { ifname: ifname.into(), ..rig.request(Command::Del, "c1", text) }).unwrap();
    }
    // They are answered as gone: it does not matter that their links are still there.
    rig.call(other).unwrap();
}

#[test]
fn of_two_ipvlans_of_different_modes_that_come_at_the_same_time_not_both_are_made() {
    for _ in 0..20 {
        let rig = Rig::new();
        rig.kernel.add_namespace("/run/netns/other");
        let ask = |container: &str, netns: &str, mode: &str| {
            let request = rig.request(Command::Add, container, &ipvlan("eth0", mode));
            rig.call(Request { netns: netns.to_owned(), ..request })
        };
        let made = std::thread::scope(|scope| {
            let other = scope.spawn(|| ask("c2", "/run/netns/other", "l3").is_ok());
            let one = ask("c1", POD, "l2").is_ok();
            usize::from(one) + usize::from(other.join().unwrap())
        });
        assert!(made <= 1);
        assert_eq!(rig.engine().core.store.all().len(), made);
    }
}

/// Tells in the file `told` where it works, then writes where its configuration says.
const WRITER: &str = r#"config=$(cat)
told=$(printf %s "$config" | sed 's/.*"told":"\([^"]*\)".*/\1/')
file=$(printf %s "$config" | sed 's/.*"logFile":"\([^"]*\)".*/\1/')
echo "$CNI_COMMAND $(pwd -P) $(stat -c %a .) $(ls -A)" >> "${0%/*}/$told"
echo evil > here; echo evil > "$file"
echo '{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.5/24"}]}'"#;

#[test]
fn what_a_tenants_definition_names_by_a_relative_path_is_none_of_the_hosts() {
    let rig = Rig::on_this_host();
    let before = rig.state();
    let bin = rig.dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    crate::delegate::script::write(&bin.join("writer"), WRITER);
    let host_file = rig.dir.path().join("evil");
    let relative = host_file.strip_prefix("/").unwrap().display();
    let (own, ipam) = (
        format!(
            r#"{{"cniVersion":"1.0.0","name":"own","type":"writer","told":"own","logFile":"{relative}"}}"#
        ),
        macvlan_with(&format!(r#""told":"ipam","ipam":{{"type":"writer","logFile":"{relative}"}}"#)),
    );
    for (text, ifname, told) in [(own, "net1", "own"), (ipam, "net2", "ipam")] {
        rig.add_definition("a", ifname, &text, &Value::Null).unwrap();
        let on_record = rig.engine().core.store.all()[0].clone();
        let request = Request { ifname: ifname.into(), ..rig.request(Command::Del, "c1", &on_record.config) };
        rig.call(request).unwrap();
        rig.reap();
        let told = std::fs::read_to_string(bin.join(told)).unwrap();
        let places: Vec<_> = told.lines().map(|line| line.split(' ').collect::<Vec<_>>()).collect();
        for (place, command) in places.iter().zip(["ADD", "DEL"]) {
            let [told, at, mode, there] = place[..] else { panic!("{place:?}") };
            assert_eq!((told, mode, there), (command, "700", ""), "an empty directory of root's");
            assert!(at.starts_with(rig.dir.path().join("run").to_str().unwrap()), "{at}");
            assert!(!Path::new(at).exists(), "it goes with the plugin");
        }
        assert_eq!(places.len(), 2, "{places:?}");
    }
    assert!(!host_file.exists());
    assert_eq!(rig.state(), before);
}

#[test]
fn a_plugin_of_the_administrators_works_in_the_hosts_root_as_ever() {
    let rig = Rig::on_this_host();
    let bin = rig.dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    crate::delegate::script::write(&bin.join("writer"), "pwd -P >&2; exit 1");
    let text = macvlan_with(r#""ipam":{"type":"writer"}"#);
    let path = bin.display().to_string();
    let refused = rig.call(Request { path, ..rig.request(Command::Add, "c1", &text) }).unwrap_err();
    assert!(refused.msg.ends_with("its standard error: /"), "{refused}");
}
