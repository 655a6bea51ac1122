//! The names of a pod's interfaces (M6).

use super::super::{DEFAULT_NETWORK, InterfaceNames, LEGACY_NETWORKS};
use super::{asked, networks};

const ETH0: InterfaceNames<'static> = InterfaceNames { default: "eth0", added: 0 };

#[test]
fn m6_an_interface_has_the_name_that_was_asked_for_else_one_by_position() {
    let requested = networks("a,b@radio0,c").unwrap();
    assert_eq!(ETH0.of(&requested).unwrap(), ["net1", "radio0", "net3"]);
    // Networks that every pod has come first, as Multus counts them.
    let names = InterfaceNames { default: "eth0", added: 2 };
    assert_eq!(names.of(&requested).unwrap(), ["net3", "radio0", "net5"]);
    let legacy = asked(&[(LEGACY_NETWORKS, "a,b,c")]).unwrap();
    assert_eq!(ETH0.of(&legacy).unwrap(), ["net1", "net2"]);
}

#[test]
fn m6_an_interface_that_another_network_has_is_refused() {
    let refused =
        |text: &str, names: InterfaceNames<'_>| names.of(&networks(text).unwrap()).unwrap_err().to_string();
    assert_eq!(
        refused("a@radio0,b@radio0", ETH0),
        "annotation k8s.v1.cni.cncf.io/networks, entry 2 (shop/b): the interface \"radio0\" is that of entry 1 (shop/a) \
         already; ask for another name"
    );
    let error = refused("a@eth0", ETH0);
    assert!(
        error.contains("entry 1 (shop/a): the interface \"eth0\" is that of the default network already"),
        "{error}"
    );
    let error = refused("a@net2,b", ETH0);
    assert!(
        error.contains(
            "entry 2 (shop/b): by its position its interface is \"net2\", which is that of entry 1"
        ),
        "{error}"
    );
    let error = refused("a@net1", InterfaceNames { default: "eth0", added: 1 });
    assert!(error.contains("\"net1\" is that of a network that every pod has already"), "{error}");
    let error = refused("a", InterfaceNames { default: "net1", added: 0 });
    assert!(error.contains("\"net1\", which is that of the default network"), "{error}");
}

#[test]
fn m6_no_pod_renames_the_interface_of_its_default_network() {
    let of = |text: &str| ETH0.of(&asked(&[(DEFAULT_NETWORK, text)]).unwrap());
    assert_eq!(of("calico@eth0").unwrap(), Vec::<String>::new());
    assert_eq!(
        of("calico@net1").unwrap_err().to_string(),
        "annotation v1.multus-cni.io/default-network, entry 1 (kube-system/calico): it asks for the interface \"net1\", \
         and the runtime calls that of the default network eth0; ask for no name for the default network"
    );
}
