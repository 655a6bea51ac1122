//! The node's own address on a tenant's master: no pod is given it, from wherever it comes.

use fairlead_cni::Code;
use fairlead_host::double::{Call, KernelRequest, Place};
use fairlead_host::{Address, AddressFlags, Op};
use serde_json::{Value, json};

use super::*;
use crate::delegate::script;

/// The address that [`Rig::use_it`] gives the node.
const NODES: &str = "192.0.2.7/24";
const STATIC: &str = r#""ipam":{"type":"static","addresses":[{"address":"192.0.2.7/24"}]}"#;

impl Rig {
    /// An ADD to a tenant's definition of this text.
    fn add_tenants(&self, ifname: &str, text: &str) -> Result<String, CniError> {
        self.add_definition_with("", "a", ifname, text, &Value::Null)
    }

    /// How often the kernel was asked for addresses in the host.
    fn asked_for_addresses(&self) -> usize {
        let asks =
            |call: &&Call| call.place == Place::Host && matches!(call.request, KernelRequest::Addresses(_));
        self.kernel.calls().iter().filter(asks).count()
    }
}

fn definition(keys: &str) -> String {
    format!(r#"{{"cniVersion":"1.0.0","name":"net",{keys}}}"#)
}

fn on_eth0(kind: &str, keys: &str) -> String {
    definition(&format!(r#""type":"{kind}","master":"eth0",{keys}"#))
}

fn is_refused(told: &CniError) -> bool {
    let why = r#"address 192.0.2.7 is the node's own, on its interface "eth0""#;
    told.code == Code::InvalidConfig && told.msg.contains(why) && told.details.contains("another address")
}

#[test]
fn no_tenants_link_is_given_an_address_that_the_node_has_on_its_master() {
    for (kind, keys) in [("macvlan", ""), ("ipvlan", ""), ("vlan", r#""vlanId":7,"#)] {
        let rig = Rig::new();
        rig.use_it("eth0");
        let before = rig.state();
        let text = on_eth0(kind, &format!("{keys}{STATIC}"));
        let told = rig.add_tenants("net1", &text).unwrap_err();
        assert!(is_refused(&told), "{kind}: {told}");
        rig.reap();
        assert_eq!(rig.state(), before, "{kind}");
        rig.add(&text).unwrap_or_else(|e| panic!("the administrator's {kind}: {e}"));
    }
}

#[test]
fn the_nodes_address_of_ipv6_is_no_tenants_either() {
    let rig = Rig::new();
    let Address { index, .. } = rig.use_it("eth0");
    let net = "2001:db8::7/64".parse().unwrap();
    rig.in_host(Op::AddAddress(Address { index, net, broadcast: None, flags: AddressFlags::default() }));
    let text = on_eth0("macvlan", &STATIC.replace(NODES, "2001:db8::7/64"));
    let told = rig.add_tenants("net1", &text).unwrap_err();
    assert!(told.code == Code::InvalidConfig && told.msg.contains("2001:db8::7 is the node's own"), "{told}");
}

#[test]
fn an_address_that_the_node_has_on_another_interface_is_a_tenants_to_use() {
    let rig = Rig::new();
    rig.vlan_on("eth0.5", "eth0");
    rig.use_it("eth0");
    let text = definition(&format!(r#""type":"macvlan","master":"eth0.5",{STATIC}"#));
    rig.add_tenants("net1", &text).unwrap();
}

#[test]
fn host_local_passes_over_the_nodes_address_for_a_tenant_alone() {
    let range = |end: &str| {
        let ends = format!(r#""rangeStart":"192.0.2.7","rangeEnd":"192.0.2.{end}""#);
        let ipam = format!(r#""ipam":{{"type":"host-local","subnet":"192.0.2.0/24",{ends}}}"#);
        on_eth0("macvlan", &format!(r#""capabilities":{{"ips":true}},{ipam}"#))
    };
    let rig = Rig::new();
    rig.use_it("eth0");
    let before = rig.state();
    let told = rig.add_tenants("net1", &range("7")).unwrap_err();
    assert!(told.code == Code::TryAgain && told.msg.contains("(1 of 1 in use)"), "{told}");
    let asks = json!({"ips": ["192.0.2.7/24"]});
    let told = rig.add_definition_with("", "a", "net1", &range("9"), &asks).unwrap_err();
    assert!(is_refused(&told), "{told}");
    rig.reap();
    assert_eq!(rig.state(), before);
    rig.add_tenants("net1", &range("9")).unwrap();
    assert_eq!(rig.allocations(), ["192.0.2.8"]);
    let administrators = Request { ifname: "net2".into(), ..rig.request(Command::Add, "c2", &range("9")) };
    rig.call(administrators).unwrap();
    assert_eq!(rig.allocations(), ["192.0.2.7", "192.0.2.8"]);
}

#[test]
fn what_an_executed_ipam_answers_is_undone_where_it_is_the_nodes() {
    let rig = Rig::on_this_host();
    let bin = rig.dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let gives = r#"cat >/dev/null
echo "$CNI_COMMAND" >> "${0%/*}/calls"
echo '{"cniVersion":"1.0.0","ips":[{"address":"192.0.2.7/24"}]}'"#;
    script::write(&bin.join("lease"), gives);
    rig.use_it("eth0");
    let before = rig.state();
    let told = rig.add_tenants("net1", &on_eth0("ipvlan", r#""ipam":{"type":"lease"}"#)).unwrap_err();
    assert!(is_refused(&told), "{told}");
    rig.reap();
    assert_eq!(rig.state(), before);
    let calls = std::fs::read_to_string(bin.join("calls")).unwrap();
    assert!(calls.ends_with("ADD\nDEL\n"), "it was given back: {calls}");
}

#[test]
fn a_link_on_the_pods_own_link_is_given_no_address_of_the_node_either() {
    let rig = Rig::new();
    rig.use_it("eth0");
    // Nothing of the host is below it: there is nothing to look at.
    rig.add_tenants("net1", &definition(&format!(r#""type":"dummy",{STATIC}"#))).unwrap();
    rig.add_tenants("net2", &on_eth0("macvlan", r#""ipam":{}"#)).unwrap();
    for kind in ["macvlan", "ipvlan"] {
        let keys = format!(r#""type":"{kind}","master":"net2","linkInContainer":true,{STATIC}"#);
        let told = rig.add_tenants("net3", &definition(&keys)).unwrap_err();
        assert!(is_refused(&told), "{kind}: {told}");
    }
}

#[test]
fn the_kernel_is_asked_once_for_a_tenants_addresses_and_never_for_the_administrators() {
    let rig = Rig::new();
    rig.kernel.forget_calls();
    rig.add(&on_eth0("macvlan", STATIC)).unwrap();
    rig.add_tenants("net2", &on_eth0("macvlan", r#""ipam":{}"#)).unwrap();
    assert_eq!(rig.asked_for_addresses(), 0, "nor for a link that is given none");
    rig.add_tenants("net3", &on_eth0("macvlan", &STATIC.replace(NODES, "192.0.2.8/24"))).unwrap();
    assert_eq!(rig.asked_for_addresses(), 1);
}
