//! A network without `master`: the new interface stands on that of the default route.

use fairlead_host::{NetKernel, Op, Parent, Route};

use super::*;

const NO_MASTER: &str = r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","ipam":{}}"#;

impl Rig {
    /// One more route of the host to everywhere.
    fn leads_everywhere(&self, name: &str, dst: &str, table: u32, priority: u32) {
        let index = self.kernel.host().unwrap().link_by_name(name).unwrap().unwrap().index;
        self.in_host(Op::AddRoute(Route {
            dst: dst.parse().unwrap(),
            gateway: None,
            index,
            source: None,
            table: Some(table),
            scope: None,
            priority: Some(priority),
            mtu: None,
            advmss: None,
            protocol: None,
        }));
    }

    /// The host's interface that the last one made stands on.
    fn stands_on(&self) -> String {
        let made = self.ops().into_iter().rev().find_map(|op| match op {
            Op::CreateLink(new) => Some(new.parent),
            _ => None,
        });
        let Some(Parent::Host(index)) = made else { panic!("{made:?}") };
        self.kernel.host().unwrap().link_by_index(index).unwrap().unwrap().name
    }
}

#[test]
fn without_a_master_the_interface_of_the_main_tables_default_route_with_the_lowest_metric_is_taken() {
    let rig = Rig::new();
    // Another program, as a VPN's, has a table of its own.
    rig.leads_everywhere("eth0", "0.0.0.0/0", 77, 0);
    let told = rig.add(NO_MASTER).unwrap_err();
    assert!(told.msg.contains("the host has no default route"), "{told}");
    rig.leads_everywhere(VFIO_LINK, "::/0", 254, 1);
    rig.add(NO_MASTER).unwrap();
    assert_eq!(rig.stands_on(), VFIO_LINK);
    rig.del(NO_MASTER).unwrap();
    // The uplink that the node likes less came first.
    rig.leads_everywhere("dev0", "0.0.0.0/0", 254, 200);
    rig.leads_everywhere(PF, "0.0.0.0/0", 254, 100);
    rig.add(NO_MASTER).unwrap();
    assert_eq!(rig.stands_on(), PF);
}
