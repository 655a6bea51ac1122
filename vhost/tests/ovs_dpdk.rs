//! The driver of OVS-DPDK against a real one (Debian's), with DPDK's testpmd as the pods.
//!
//! Each test has an OVS of its own. They take turns: an OVS and two testpmd keep two cores busy.

#[path = "ovs/real_ovs.rs"]
mod real_ovs;

use std::sync::Mutex;

use fairlead_vhost::ovs_dpdk::{PortName, PortOwner, PortSpec, Removal, VhostSocket, Vlans};
use real_ovs::RealOvs;

static TURN: Mutex<()> = Mutex::new(());

fn take_turn() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn spec(ovs: &RealOvs, name: &str) -> PortSpec {
    PortSpec {
        name: PortName::new(name).unwrap(),
        bridge: "br0".to_owned(),
        socket: VhostSocket::PodListens(ovs.path(&format!("{name}.sock"))),
        vlans: Vlans::Untagged,
        policing: None,
        mtu: None,
        mac: None,
        owner: PortOwner {
            namespace: "default".to_owned(),
            pod: format!("pod-{name}"),
            uid: "6d1c6b3e".to_owned(),
            container: format!("container-{name}"),
            ifname: "net1".to_owned(),
        },
    }
}

#[test]
fn a_port_is_added_found_again_and_removed() {
    let _turn = take_turn();
    let ovs = RealOvs::start();
    let driver = ovs.driver();
    let spec = spec(&ovs, "p0");
    let added = driver.add_port(spec.clone()).unwrap();
    assert!(added.created && added.ofport > 0);
    assert_eq!(ovs.vsctl(&["get", "Interface", "p0", "type"]), "dpdkvhostuserclient");
    assert_eq!(ovs.vsctl(&["get", "Interface", "p0", "ofport"]), added.ofport.to_string());
    assert_eq!(ovs.vsctl(&["get", "Port", "p0", "external_ids:fairlead-pod"]), "pod-p0");
    assert!(!driver.add_port(spec.clone()).unwrap().created);
    let ports = driver.ports().unwrap();
    assert_eq!((ports.len(), ports[0].spec.as_ref(), ports[0].connected), (1, Some(&spec), false));
    assert_eq!(driver.remove_port(&spec.name).unwrap(), Removal::Gone);
    assert_eq!(driver.remove_port(&spec.name).unwrap(), Removal::Absent);
    assert_eq!(ovs.vsctl(&["list-ports", "br0"]), "");
}
