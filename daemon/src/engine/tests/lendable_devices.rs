//! What of the host is lent to a pod and what never is, however a configuration names it.

use std::fs;

use fairlead_cni::Code;
use fairlead_host::{Address, Kind, NetKernel, NewLink, Op, Parent, Route};
use fairlead_kubelet::fake_kubelet::{FakeKubelet, device, pod};
use serde_json::json;

use super::pools::{POOL, SECOND, kept, settings};
use super::vhost_user::switch;
use super::*;

const PHYSICAL: &str = "0000:21:00.0";
const RADIO: &str = "intel.com/radio";

fn host_device(how: &str) -> String {
    format!(r#"{{"cniVersion":"1.1.0","name":"net","type":"host-device",{how},"ipam":{{}}}}"#)
}

fn passthru(master: &str) -> String {
    format!(
        r#"{{"cniVersion":"1.1.0","name":"net","type":"macvlan","mode":"passthru","master":"{master}","ipam":{{}}}}"#
    )
}

/// Both ways to take a device of the host over.
fn takers(name: &str) -> [String; 2] {
    [host_device(&format!(r#""device":"{name}""#)), passthru(name)]
}

impl Rig {
    fn index(&self, name: &str) -> u32 {
        self.kernel.host().unwrap().link_by_name(name).unwrap().unwrap().index
    }

    fn route_by(&self, name: &str, dst: &str, table: u32) {
        self.route_with_metric(name, dst, table, None);
    }

    /// A route of the host by one of its interfaces; of two in a table the lower metric counts.
    pub(super) fn route_with_metric(&self, name: &str, dst: &str, table: u32, metric: Option<u32>) {
        let index = self.index(name);
        self.in_host(Op::AddRoute(Route {
            dst: dst.parse().unwrap(),
            gateway: None,
            index,
            source: None,
            table: Some(table),
            scope: None,
            priority: metric,
            mtu: None,
            advmss: None,
            protocol: None,
        }));
    }

    pub(super) fn vlan_on(&self, name: &str, parent: &str) {
        let parent = Parent::Same(self.index(parent));
        self.in_host(Op::CreateLink(NewLink {
            name: name.to_owned(),
            index: None,
            kind: Kind::Vlan { id: 5 },
            parent,
            mac: None,
            mtu: None,
            up: true,
        }));
    }

    /// Nothing of it is lent, and nothing is changed by the refusal; answers why.
    fn refuses(&self, config: &str, code: Code) -> String {
        let before = self.state();
        let refused = self.add(config).unwrap_err();
        assert_eq!((refused.code, self.state()), (code, before), "{refused}");
        refused.msg
    }

    fn lends(&self, config: &str) {
        self.add(config).unwrap();
        self.del(config).unwrap();
        self.reap();
    }
}

#[test]
fn what_carries_the_default_route_is_not_lent_in_any_table_or_family_nor_what_it_stands_on() {
    for (dst, table) in [("0.0.0.0/0", 254), ("::/0", 254), ("0.0.0.0/0", 253), ("0.0.0.0/0", 77)] {
        let rig = Rig::new();
        rig.route_by("dev0", dst, table);
        for config in takers("dev0") {
            let why = rig.refuses(&config, Code::InvalidConfig);
            assert!(why.ends_with("is not lent: it carries the node's default route"), "{why}");
        }
        rig.vlan_on("eth0.5", "eth0");
        rig.route_by("eth0.5", dst, table - 1);
        for config in takers("eth0") {
            let why = rig.refuses(&config, Code::InvalidConfig);
            assert!(why.ends_with(r#"default route, through "eth0.5" above it"#), "{why}");
        }
    }
}

#[test]
fn a_port_of_a_bridge_is_not_lent_and_a_plain_device_is_as_ever() {
    let rig = Rig::new();
    rig.kernel.add_host_link("br0");
    takers("dev0").iter().for_each(|config| rig.lends(config));
    rig.kernel.enslave("dev0", "br0");
    for config in takers("dev0") {
        let why = rig.refuses(&config, Code::InvalidConfig);
        assert!(why.contains(r#""br0""#), "{why}");
    }
}

#[test]
fn a_device_with_an_address_is_lent_for_the_administrators_network() {
    let rig = Rig::new();
    rig.use_it("dev0");
    takers("dev0").iter().for_each(|config| rig.lends(config));
}

#[test]
fn the_nodes_configuration_allows_what_the_node_uses_by_name_and_at_once() {
    let rig = Rig::new();
    rig.route_by("dev0", "0.0.0.0/0", 254);
    let [config, passthru] = takers("dev0");
    rig.refuses(&config, Code::InvalidConfig);
    rig.engine().configure(&settings("policy: {lendable: [dev]}"));
    rig.refuses(&config, Code::InvalidConfig);
    rig.engine().configure(&settings("policy: {lendable: [dev0]}"));
    rig.lends(&passthru);
    rig.lends(&config);
}

#[test]
fn a_vf_of_no_pool_that_the_node_lives_on_is_lent_by_sriov_only_where_the_configuration_names_it() {
    let config = pools::config(VF, r#","ipam":{}"#);
    type Use = (fn(&Rig), &'static str);
    let uses: [Use; 3] = [
        (|rig: &Rig| rig.route_by("vf0", "0.0.0.0/0", 254), "it carries the node's default route"),
        (
            |rig: &Rig| {
                rig.vlan_on("vf0.5", "vf0");
                rig.route_by("vf0.5", "::/0", 77);
            },
            r#"it carries the node's default route, through "vf0.5" above it"#,
        ),
        (
            |rig: &Rig| {
                rig.kernel.add_host_link("br0");
                rig.kernel.enslave("vf0", "br0");
            },
            "it is a port of ",
        ),
    ];
    for (uses_it, why) in uses {
        let rig = Rig::new();
        // That it is up says nothing.
        rig.set_up("vf0", true);
        rig.lends(&config);
        uses_it(&rig);
        let told = rig.refuses(&config, Code::InvalidConfig);
        assert!(told.contains(&format!(r#"device "vf0" of the host is not lent: {why}"#)), "{told}");
        rig.engine().configure(&settings("policy: {lendable: [vf0]}"));
        rig.add(&config).unwrap();
    }
}

#[test]
fn a_vf_with_an_address_of_the_nodes_is_lent_by_sriov_to_the_administrator_and_to_no_tenant() {
    let text =
        r#"{"cniVersion":"1.0.0","name":"net","type":"sriov","capabilities":{"deviceID":true},"ipam":{}}"#;
    let add = |rig: &Rig| rig.add_definition_with("", "a", "net1", text, &json!({"deviceID": VF}));
    let rig = Rig::new();
    rig.set_up("vf0", true);
    let address = rig.use_it("vf0");
    let before = rig.state();
    let refused = add(&rig).unwrap_err();
    assert_eq!((refused.code, rig.state()), (Code::InvalidConfig, before), "{refused}");
    let why = r#"device "vf0" of the host is not lent: it has the address 192.0.2.7/24"#;
    assert!(refused.msg.contains(why), "{refused}");
    rig.lends(&pools::config(VF, r#","ipam":{}"#));
    // One that the kernel gives whatever is up is nobody's.
    let (index, net) = (rig.index("vf0"), "fe80::7/64".parse().unwrap());
    rig.in_host(Op::AddAddress(Address { index, net, ..address }));
    add(&rig).unwrap();
}

#[test]
fn a_vf_with_an_address_of_the_nodes_that_kubelet_gave_to_the_pod_is_lent_by_a_tenants_definition_too() {
    let (rig, _kubelet) = with_another_plugin();
    rig.set_up("vf0", true);
    rig.use_it("vf0");
    let text =
        r#"{"cniVersion":"1.0.0","name":"net","type":"sriov","capabilities":{"deviceID":true},"ipam":{}}"#;
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME=du-0";
    rig.add_definition_with(args, "ran", "net1", text, &json!({"deviceID": VF})).unwrap();
}

#[test]
fn a_vf_that_is_the_uplink_of_a_switch_is_not_lent_by_sriov_either() {
    let rig = Rig::with_sockets();
    let (_server, _ports) = switch(&rig);
    rig.set_up("vf0", true);
    rig.of(Command::Add, "c9", &uplinks::config(r#","master":"vf0""#)).unwrap();
    let why = rig.refuses(&pools::config(VF, r#","ipam":{}"#), Code::InvalidConfig);
    assert!(why.contains(r#"interface "vf0" is the uplink of vhost-user network "blue""#), "{why}");
}

#[test]
fn a_vf_of_a_pool_comes_by_its_pool_only_in_whatever_way_it_is_named() {
    let rig = kept(POOL);
    let net = rig.dir.path().join("sys/devices/pci0/net/vf0");
    fs::create_dir_all(net).unwrap();
    let mac = rig.kernel.host().unwrap().link_by_name("vf0").unwrap().unwrap().mac.unwrap();
    let ways = [
        host_device(r#""device":"vf0""#),
        host_device(&format!(r#""hwaddr":"{mac}""#)),
        host_device(&format!(r#""pciBusID":"{VF}""#)),
        host_device(r#""kernelpath":"/sys/devices/pci0""#),
        host_device(&format!(r#""runtimeConfig":{{"deviceID":"{VF}"}}"#)),
        passthru("vf0"),
    ];
    // No name of a device in the policy takes it from its pool.
    rig.engine()
        .configure(&Settings { policy: settings("policy: {lendable: [vf0]}").policy, ..settings(POOL) });
    for config in ways {
        let why = rig.refuses(&config, Code::InvalidConfig);
        assert!(why.ends_with(&format!(r#"it is VF {VF} of pool "radio""#)), "{why}");
    }
    assert_eq!(rig.states(), ["ready", "ready"]);
}

/// A rig whose VFs are ready in a pool of kubelet's, which has given each to a pod.
fn with_pool_of_kubelet(more: &str) -> (Rig, FakeKubelet) {
    let rig = kept(&POOL.replace("}}]", &format!("}}{more}}}]")));
    let kubelet = kubelet_of(&rig);
    (rig, kubelet)
}

#[test]
fn host_device_has_a_vf_of_a_pool_that_kubelet_gave_to_its_pod_and_the_pool_has_it_back() {
    let config = host_device(&format!(r#""runtimeConfig":{{"deviceID":"{VF}"}}"#));
    for dies in [false, true] {
        let (mut rig, _kubelet) = with_pool_of_kubelet(&format!(", resourceName: {RADIO}"));
        let at_home = |rig: &Rig| rig.kernel.host().unwrap().link_by_name("vf0").unwrap().unwrap();
        let (link, before) = (at_home(&rig), rig.state());
        let of_other = rig.call(of_pod(&rig, "du-1", &config)).unwrap_err();
        assert_eq!((of_other.code, rig.state()), (Code::InvalidConfig, before), "{of_other}");
        assert!(of_other.msg.ends_with("and it has not given it to pod ran/du-1"), "{of_other}");
        assert_eq!(rig.states(), ["ready", "ready"]);

        let answer = rig.call(of_pod(&rig, "du-0", &config)).unwrap();
        assert!(!answer.contains("pciID"), "it answers as the reference plugin: {answer}");
        let lent = rig.kernel.pod(POD.as_ref()).unwrap().link_by_name("net1").unwrap().unwrap();
        assert_eq!(
            (lent.alias.as_deref(), lent.mac, lent.mtu, lent.up),
            (Some("vf0"), link.mac, link.mtu, true)
        );
        assert_eq!(rig.states(), ["lent", "ready"]);
        assert_eq!(rig.members()[0]["attachment"], "net1 of container c1");
        let with = format!(r#"{},"prevResult":{answer}}}"#, config.strip_suffix('}').unwrap());
        rig.call(Request { command: Command::Check, ..of_pod(&rig, "du-0", &with) }).unwrap();

        if dies {
            rig.kernel.kill_namespace(POD);
            rig.kernel.add_namespace(POD);
            rig.restart();
        }
        rig.call(Request { command: Command::Del, ..of_pod(&rig, "du-0", &config) }).unwrap();
        rig.reap();
        rig.keep();
        assert_eq!(rig.states(), ["ready", "ready"]);
        let now = at_home(&rig);
        assert_eq!((now.alias, now.mac, now.mtu), (link.alias, link.mac, link.mtu));
        rig.call(of_pod(&rig, "du-0", &config)).unwrap();
    }
}

#[test]
fn host_device_has_no_vf_of_a_pool_of_which_kubelet_gives_nothing() {
    let (rig, kubelet) = with_pool_of_kubelet("");
    kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-0", &[("app", &[])])];
    let config = host_device(&format!(r#""runtimeConfig":{{"deviceID":"{VF}"}}"#));
    let refused = rig.call(of_pod(&rig, "du-0", &config)).unwrap_err();
    assert_eq!(refused.code, Code::InvalidConfig, "{refused}");
    assert!(refused.msg.ends_with(&format!(r#"it is VF {VF} of pool "radio""#)), "{refused}");
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn a_path_of_host_device_waits_for_the_vf_that_its_pool_prepares() {
    let (rig, _kubelet) = with_pool_of_kubelet(&format!(", resourceName: {RADIO}"));
    let config = host_device(&format!(r#""runtimeConfig":{{"deviceID":"{VF}"}}"#));
    rig.call(of_pod(&rig, "du-0", &config)).unwrap();
    rig.call(Request { command: Command::Del, ..of_pod(&rig, "du-0", &config) }).unwrap();
    rig.reap();
    assert_eq!(rig.states(), ["preparing", "ready"]);
    // As it is in the middle of it.
    rig.kernel.drive(VF, None).unwrap();
    let paths = format!(
        r#"{{"cniVersion":"1.1.0","name":"lab-net","type":"fairlead","ipam":{{}},
            "runtimeConfig":{{"deviceID":"{VF}"}},"paths":[{{"type":"host-device"}},{{"type":"macvlan","master":"eth0"}}]}}"#
    );
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| rig.call(of_pod(&rig, "du-0", &paths)));
        std::thread::sleep(Duration::from_millis(20));
        rig.kernel.drive(VF, Some("igbvf")).unwrap();
        rig.engine().core.kinds.sriov.pools.work_here();
        waits.join().unwrap().unwrap();
    });
    assert_eq!(rig.states(), ["lent", "ready"]);
}

#[test]
fn a_device_on_which_another_pods_interface_stands_is_lent_to_nobody_before_that_ones_del() {
    let made = |kind: &str, keys: &str, master: &str| {
        format!(
            r#"{{"cniVersion":"1.1.0","name":"made","type":"{kind}","master":"{master}"{keys},
                "ipam":{{"type":"static","addresses":[{{"address":"10.9.0.5/24"}}]}}}}"#
        )
    };
    let [lent, passthru] = takers("dev0");
    for (kind, keys) in [("macvlan", ""), ("ipvlan", ""), ("vlan", r#","vlanId":7"#)] {
        for master in ["dev0", "dev0.5"] {
            let rig = Rig::new();
            rig.vlan_on("dev0.5", "dev0");
            let standing = made(kind, keys, master);
            let of_other =
                Request { ifname: "net9".to_owned(), ..rig.request(Command::Add, "c9", &standing) };
            rig.call(of_other.clone()).unwrap();
            // That the node can do without the device says nothing of pods.
            for allowed in ["logLevel: info", "policy: {lendable: [dev0]}"] {
                rig.engine().configure(&settings(allowed));
                for config in [&lent, &passthru] {
                    let why = rig.refuses(config, Code::InvalidConfig);
                    let told = r#"device "dev0" of the host is not lent: these stand on it: interface "net9" of container c9"#;
                    assert!(why.ends_with(told), "{why}");
                }
                let before = rig.state();
                let refused = rig.add_definition_with("", "a", "net1", &lent, &json!({})).unwrap_err();
                assert_eq!((refused.code, rig.state()), (Code::InvalidConfig, before), "{refused}");
                assert!(refused.msg.contains("these stand on it"), "{refused}");
            }
            rig.call(Request { command: Command::Del, ..of_other }).unwrap();
            rig.reap();
            [&lent, &passthru].into_iter().for_each(|config| rig.lends(config));
        }
    }
    // What stands on a VF of no pool counts the same.
    let rig = Rig::new();
    let of_other =
        Request { ifname: "net9".to_owned(), ..rig.request(Command::Add, "c9", &made("macvlan", "", "vf0")) };
    rig.set_up("vf0", true);
    rig.call(of_other).unwrap();
    let why = rig.refuses(&pools::config(VF, r#","ipam":{}"#), Code::InvalidConfig);
    assert!(why.ends_with(r#"these stand on it: interface "net9" of container c9"#), "{why}");
    // What the pod has itself does not.
    let rig = Rig::new();
    let own = Request {
        ifname: "net8".to_owned(),
        ..rig.request(Command::Add, "c1", &made("macvlan", "", "dev0"))
    };
    rig.call(own).unwrap();
    rig.add(&lent).unwrap();
}

#[test]
fn a_vf_of_a_pool_is_not_lent_while_the_configuration_with_the_pool_cannot_be_read() {
    let mut rig = kept(POOL);
    rig.settings = Settings { unread: true, ..Settings::default() };
    rig.restart();
    for config in takers("vf0") {
        let why = rig.refuses(&config, Code::InvalidConfig);
        assert!(why.ends_with(&format!(r#"it is VF {VF} of pool "radio""#)), "{why}");
    }
}

/// The double tells the device of VFs alone: the PF's is read from sysfs, as on old kernels.
fn show_pf(rig: &Rig) {
    let class = rig.dir.path().join("sys/class/net").join(PF);
    fs::create_dir_all(&class).unwrap();
    std::os::unix::fs::symlink(format!("../../../bus/pci/devices/{PHYSICAL}"), class.join("device")).unwrap();
}

#[test]
fn a_pf_is_not_lent_while_pods_or_pools_have_vfs_of_it() {
    let rig = Rig::new();
    show_pf(&rig);
    let vf = pools::config(VF, r#","ipam":{}"#);
    let of_other = Request { ifname: "net9".to_owned(), ..rig.request(Command::Add, "c9", &vf) };
    rig.call(of_other.clone()).unwrap();
    for config in takers(PF) {
        let why = rig.refuses(&config, Code::InvalidConfig);
        assert!(why.contains(&format!(r#"its VF {VF} is interface "net9" of container c9"#)), "{why}");
    }
    rig.call(Request { command: Command::Del, ..of_other }).unwrap();
    rig.reap();
    takers(PF).iter().for_each(|config| rig.lends(config));
}

#[test]
fn a_vf_that_comes_home_from_another_pod_is_not_lent_before_it_is_free() {
    let rig = Rig::new();
    let by_name = host_device(r#""device":"vf0""#);
    let vf = pools::config(VF, r#","ipam":{}"#);
    let of_other = Request { ifname: "net9".to_owned(), ..rig.request(Command::Add, "c9", &vf) };
    rig.call(of_other).unwrap();
    // Somebody has brought its netdev home while the attachment lives.
    rig.kernel.kill_namespace(POD);
    rig.kernel.add_namespace(POD);
    rig.rename("net9", "vf0");
    let request = rig.request(Command::Add, "c1", &by_name);
    let refused = rig.serve(request, Instant::now(), Duration::from_millis(50)).outcome.unwrap_err();
    assert_eq!(refused.code, Code::TryAgain, "{refused}");
    assert!(refused.msg.contains(&format!("VF {VF} cannot be had")), "{refused}");
}

/// A kubelet that has given each of the two VFs to a pod.
fn kubelet_of(rig: &Rig) -> FakeKubelet {
    let kubelet = FakeKubelet::running(&rig.root);
    kubelet.answers.lock().unwrap().pods = vec![
        pod("ran", "du-0", &[("app", &[(RADIO, VF, 0)])]),
        pod("ran", "du-1", &[("app", &[(RADIO, SECOND, 0)])]),
    ];
    kubelet
}

/// A rig with two VFs of no pool, and a kubelet whose device plugin, another's, has both.
fn with_another_plugin() -> (Rig, FakeKubelet) {
    let rig = pools::with("logLevel: info");
    let kubelet = kubelet_of(&rig);
    kubelet.answers.lock().unwrap().allocatable = vec![device(RADIO, VF, 0), device(RADIO, SECOND, 0)];
    (rig, kubelet)
}

fn of_pod(rig: &Rig, pod: &str, config: &str) -> Request {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ran;K8S_POD_NAME={pod}");
    Request { args, ..rig.request(Command::Add, "c1", config) }
}

/// The configurations that take the first VF.
fn ways_to_vf() -> [String; 4] {
    [
        pools::config(VF, r#","ipam":{}"#),
        host_device(&format!(r#""runtimeConfig":{{"deviceID":"{VF}"}}"#)),
        host_device(r#""device":"vf0""#),
        passthru("vf0"),
    ]
}

/// The device plugin goes away, of which the daemon has heard; a new one never heard of it.
fn lose_plugin(rig: &Rig, kubelet: &FakeKubelet, is_new: bool) {
    let sriov = &rig.engine().core.kinds.sriov;
    if !is_new {
        sriov.look_for_doubles();
    }
    kubelet.answers.lock().unwrap().allocatable.clear();
    if !is_new {
        sriov.look_for_doubles();
    }
}

#[test]
fn a_device_that_kubelet_gave_to_a_pod_is_lent_to_no_other_while_its_plugin_is_away_by_a_new_daemon_neither()
{
    for config in ways_to_vf() {
        for is_new in [false, true] {
            let (rig, kubelet) = with_another_plugin();
            lose_plugin(&rig, &kubelet, is_new);
            let before = rig.state();
            let refused = rig.call(of_pod(&rig, "du-1", &config)).unwrap_err();
            assert_eq!((refused.code, rig.state()), (Code::InvalidConfig, before), "{refused}");
            assert!(refused.msg.ends_with("and it has not given it to pod ran/du-1"), "{refused}");
            rig.call(of_pod(&rig, "du-0", &config)).unwrap();
        }
    }
}

#[test]
fn a_device_that_no_pod_has_stays_its_plugins_while_that_is_away() {
    let (rig, kubelet) = with_another_plugin();
    kubelet.answers.lock().unwrap().pods = vec![pod("ran", "du-1", &[("app", &[])])];
    lose_plugin(&rig, &kubelet, false);
    for config in ways_to_vf() {
        let refused = rig.call(of_pod(&rig, "du-1", &config)).unwrap_err();
        assert_eq!(refused.code, Code::InvalidConfig, "{refused}");
        assert!(refused.msg.ends_with("and it has not given it to pod ran/du-1"), "{refused}");
    }
}

#[test]
fn kubelet_lists_its_pods_once_for_many_adds_of_a_device_that_is_announced() {
    let (rig, kubelet) = with_another_plugin();
    for _ in 0..3 {
        rig.call(of_pod(&rig, "du-1", &pools::config(VF, r#","ipam":{}"#))).unwrap_err();
    }
    assert_eq!(kubelet.answers.lock().unwrap().lists, 1);
}

#[test]
fn a_device_that_kubelet_gave_to_another_pod_is_not_lent_by_sriov_or_host_device_whoevers_plugin_serves_it() {
    for config in ways_to_vf() {
        let (rig, _kubelet) = with_another_plugin();
        let before = rig.state();
        let refused = rig.call(of_pod(&rig, "du-1", &config)).unwrap_err();
        assert_eq!((refused.code, rig.state()), (Code::InvalidConfig, before), "{refused}");
        let why = format!(
            r#"device {VF} is of resource "{RADIO}", which kubelet allocates, and it has not given it to pod ran/du-1"#
        );
        assert!(refused.msg.ends_with(&why), "{refused}");
        let nameless = rig.add(&config).unwrap_err();
        assert!(nameless.msg.ends_with("and the call names no pod"), "{nameless}");
        rig.call(of_pod(&rig, "du-0", &config)).unwrap();
    }
}

#[test]
fn kubelet_that_does_not_answer_is_tried_again_only_where_a_device_plugin_is_known_to_serve_the_device() {
    let (rig, mut kubelet) = with_another_plugin();
    let config = pools::config(VF, r#","ipam":{}"#);
    rig.call(of_pod(&rig, "du-1", &config)).unwrap_err();
    kubelet.stop();
    let call =
        |pod: &str| rig.serve(of_pod(&rig, pod, &config), Instant::now(), Duration::from_millis(300)).outcome;
    let unknown = call("du-0").unwrap_err();
    assert_eq!(unknown.code, Code::TryAgain, "{unknown}");
    let (rig, mut kubelet) = with_another_plugin();
    kubelet.stop();
    rig.call(of_pod(&rig, "du-1", &config)).unwrap();
}

#[test]
fn a_vf_of_another_allocators_pool_is_lent_to_nobody_while_kubelet_has_not_said_who_serves_it() {
    let rig = kept(&format!(
        "pools: [{{name: radio, selectors: {{pciAddresses: ['{VF}']}}, allocator: external}}]"
    ));
    let mut kubelet = FakeKubelet::running(&rig.root);
    kubelet.stop();
    let config = |vf: &str| pools::config(vf, r#","ipam":{}"#);
    let is_unknown = || {
        let before = rig.state();
        let request = of_pod(&rig, "du-0", &config(VF));
        let unknown = rig.serve(request, Instant::now(), Duration::from_secs(5)).outcome.unwrap_err();
        assert_eq!((unknown.code, rig.state()), (Code::TryAgain, before), "{unknown}");
        let told = format!("whether a device plugin serves VF {VF} is not known");
        assert!(unknown.msg.contains(&told), "{unknown}");
        unknown
    };
    is_unknown();
    // What counts as an answer for a VF of no pool is none for this one.
    rig.lends(&config(SECOND));
    is_unknown();
    kubelet.start();
    // Nor is an answer that has no VF of the pool: its device plugin is away.
    let unknown = is_unknown();
    let why = r#"pool "radio" is another allocator's, and no device plugin announces a VF of it to kubelet"#;
    assert!(unknown.msg.ends_with(why), "{unknown}");
    assert!(unknown.details.contains("start that device plugin"), "{unknown}");
    {
        let mut answers = kubelet.answers.lock().unwrap();
        answers.allocatable = vec![device(RADIO, VF, 0)];
        answers.pods = vec![pod("ran", "du-0", &[("app", &[(RADIO, VF, 0)])])];
    }
    rig.call(of_pod(&rig, "du-0", &config(VF))).unwrap();
}

#[test]
fn a_pf_is_not_lent_while_another_device_plugin_serves_vfs_of_it_unless_the_nodes_configuration_names_it() {
    let (rig, _kubelet) = with_another_plugin();
    show_pf(&rig);
    for config in takers(PF) {
        let why = rig.refuses(&config, Code::InvalidConfig);
        let told = format!(r#"its VF {VF} is of resource "{RADIO}", which kubelet allocates"#);
        assert!(why.ends_with(&told), "{why}");
    }
    rig.engine().configure(&settings(&format!("policy: {{lendable: [{PF}]}}")));
    takers(PF).iter().for_each(|config| rig.lends(config));
}

#[test]
fn a_pf_is_not_lent_while_the_plugin_that_serves_vfs_of_it_is_away_by_a_new_daemon_neither() {
    for is_new in [false, true] {
        let (rig, kubelet) = with_another_plugin();
        show_pf(&rig);
        lose_plugin(&rig, &kubelet, is_new);
        for config in takers(PF) {
            let why = rig.refuses(&config, Code::InvalidConfig);
            let told = format!(r#"its VF {VF} is of resource "{RADIO}", which kubelet allocates"#);
            assert!(why.ends_with(&told), "{why}");
        }
    }
}

#[test]
fn a_pf_with_vfs_is_not_lent_while_kubelet_does_not_say_who_serves_them() {
    let (rig, mut kubelet) = with_another_plugin();
    show_pf(&rig);
    let before = rig.state();
    kubelet.stop();
    for config in takers(PF) {
        let call = || rig.serve(of_pod(&rig, "du-0", &config), Instant::now(), Duration::from_millis(300));
        for _ in 0..2 {
            let unknown = call().outcome.unwrap_err();
            assert_eq!((unknown.code, rig.state()), (Code::TryAgain, before.clone()), "{unknown}");
            assert!(
                unknown.msg.contains(&format!("whether a device plugin serves VFs of {PHYSICAL}")),
                "{unknown}"
            );
        }
    }
}

#[test]
fn a_pci_device_that_is_on_record_of_any_kind_is_had_by_nobody_else_by_any_kind() {
    let ways = [pools::config(VF, r#","ipam":{}"#), host_device(r#""device":"vf0""#), passthru("vf0")];
    for holder in &ways {
        for taker in &ways {
            let rig = Rig::new();
            let of_other = Request { ifname: "net9".to_owned(), ..rig.request(Command::Add, "c9", holder) };
            rig.call(of_other.clone()).unwrap();
            let before = rig.state();
            let refused = rig.add(taker).unwrap_err();
            assert_eq!(rig.state(), before, "{holder} {taker} {refused}");
            let by_name = !taker.contains("deviceID") && !holder.contains("passthru");
            match by_name {
                // Its netdev is in the pod.
                true => assert_eq!(refused.code, Code::InvalidConfig, "{refused}"),
                false => {
                    let told = format!(r#"VF {VF} cannot be had: it is interface "net9" of container c9"#);
                    assert!(refused.msg.contains(&told), "{holder} {taker} {refused}");
                }
            }
            rig.call(Request { command: Command::Del, ..of_other }).unwrap();
            rig.reap();
            rig.add(taker).unwrap();
        }
    }
}
