//! A network without `master`: the new interface stands on that of the default route.

use super::nearest_master::stands_on;
use super::*;

const NO_MASTER: &str = r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","ipam":{}}"#;

#[test]
fn without_a_master_the_interface_of_the_main_tables_default_route_with_the_lowest_metric_is_taken() {
    let rig = Rig::new();
    // Another program, as a VPN's, has a table of its own.
    rig.route_with_metric("eth0", "0.0.0.0/0", 77, Some(0));
    let told = rig.add(NO_MASTER).unwrap_err();
    assert!(told.msg.contains("the host has no default route"), "{told}");
    rig.route_with_metric(VFIO_LINK, "::/0", 254, Some(1));
    rig.add(NO_MASTER).unwrap();
    assert_eq!(stands_on(&rig), VFIO_LINK);
    rig.del(NO_MASTER).unwrap();
    // The uplink that the node likes less came first.
    rig.route_with_metric("dev0", "0.0.0.0/0", 254, Some(200));
    rig.route_with_metric(PF, "0.0.0.0/0", 254, Some(100));
    rig.add(NO_MASTER).unwrap();
    assert_eq!(stands_on(&rig), PF);
}
