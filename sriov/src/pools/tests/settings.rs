//! What a pool's configuration may say, and what it may not.

use super::*;

fn pools_of(text: &str) -> Result<Vec<PoolSettings>, String> {
    let file = serde_saphyr::from_str::<ConfigurationFile>(&format!("pools: [{{{text}}}]\n"));
    file.map(|file| file.pools).map_err(|e| e.to_string())
}

#[test]
fn k25_a_pool_is_read_with_all_it_can_say() {
    let radio = "name: radio, selectors: [{vendors: ['8086'], pfNames: ['ens1f0#0-3']}], driver: kernel, min: 2, max: 7, \
                 batch: 4, numvfs: 7, allocator: fairlead, spread: spread, profile: {vlan: 7, \
                 vlanQoS: 3, vlanProto: 802.1ad, spoofchk: off, trust: true, linkState: auto, minTxRate: 1, maxTxRate: 9, \
                 mtu: 9000}";
    let read = &pools_of(radio).unwrap()[0];
    let wanted = read.profile.settings();
    assert_eq!((wanted.vlan.unwrap().id, wanted.vlan.unwrap().qos, read.profile.mtu()), (7, 3, Some(9000)));
    assert_eq!((wanted.spoofchk, wanted.trust, wanted.max_rate), (Some(false), Some(true), Some(9)));
    assert!(read.is_drawn_from());
    let again = serde_saphyr::to_string(read).unwrap();
    assert_eq!(serde_saphyr::from_str::<PoolSettings>(&again).unwrap(), *read, "{again}");
    let announced = &pools_of(
        "name: a, selectors: {}, driver: vfio-pci, resourceName: intel.com/a, allowNoIommu: true, withdrawOnLinkDown: true",
    )
    .unwrap()[0];
    assert_eq!((announced.is_drawn_from(), announced.at_rest()), (false, AtRest::VfioPci));
    let external = &pools_of("name: a, selectors: {}, allocator: external").unwrap()[0];
    assert_eq!((external.is_drawn_from(), external.at_rest()), (false, AtRest::Unchanged));
}

#[test]
fn k25_a_pool_that_cannot_be_is_refused_with_the_reason() {
    let table = [
        ("name: radio", "selectors"),
        ("name: '', selectors: {}", "no name of a pool"),
        ("name: a, selectors: {}, colour: red", "colour"),
        ("name: a, selectors: {vdpaType: vhost}", "vdpaType is not served yet"),
        ("name: a, selectors: {}, driver: igb_uio", "igb_uio"),
        ("name: a, selectors: {}, min: 3, max: 2", "min 3 is more than max 2"),
        ("name: a, selectors: {}, max: 0", "leaves nothing"),
        ("name: a, selectors: {}, resourceName: x/a, min: 1", "all are kept ready"),
        ("name: a, selectors: {}, profile: {vlanQoS: 1}", "need a vlan"),
        (
            "name: a, selectors: {}, allocator: external, driver: kernel",
            "driver has no effect: another allocator",
        ),
        ("name: a, selectors: {}, allocator: external, batch: 2", "batch has no effect"),
        ("name: a, selectors: {}, allocator: external, spread: packed", "spread has no effect"),
        ("name: a, selectors: {}, withdrawOnLinkDown: true", "give the pool a resourceName"),
        (
            "name: a, selectors: {}, allocator: external, resourceName: x/a, withdrawOnLinkDown: true",
            "withdrawOnLinkDown has no effect",
        ),
        ("name: a, selectors: {}, allowNoIommu: true", "add driver: vfio-pci"),
        ("name: a, selectors: {vendors: ['8086']}, numvfs: 4", "add pfNames or rootDevices"),
        ("name: a, selectors: {}, resourceName: radio", "\"radio\" is no name that kubelet takes"),
        ("name: a, selectors: {}, resourceName: intel.com/", "is no name that kubelet takes"),
        ("name: a, selectors: {}, resourceName: Intel.com/radio", "is no name that kubelet takes"),
        ("name: a, selectors: {}, resourceName: intel..com/radio", "is no name that kubelet takes"),
        ("name: a, selectors: {}, resourceName: requests.intel.com/radio", "is no name that kubelet takes"),
        ("name: a, selectors: {}, resourceName: node.kubernetes.io/radio", "is no name that kubelet takes"),
        ("name: a, selectors: {}, resourceName: intel.com/ra dio", "is no name that kubelet takes"),
        ("name: a, selectors: {}, resourceName: intel.com/radio/1", "is no name that kubelet takes"),
        ("name: a, selectors: {}, resourceName: intel.com/-radio", "is no name that kubelet takes"),
        ("name: a, selectors: {}, profile: {vlan: 4095}", "4095 is not between"),
        ("name: a, selectors: {}, profile: {trust: maybe}", "neither on nor off"),
        ("name: a, selectors: {}, driver: vfio-pci, profile: {mtu: 9000}", "an interface's"),
        ("name: a, selectors: {}}, {name: a, selectors: {}", "two pools \"a\""),
    ];
    for (text, part) in table {
        let refused = pools_of(text).unwrap_err();
        assert!(refused.contains(part), "{text}: {refused}");
    }
}
