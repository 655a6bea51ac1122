//! What the device plugin's selectors select, by its documentation (`README.md`, "Device selectors", and
//! `docs/config-file/README.md`).

use std::sync::LazyLock;

use fairlead_sriov::{Scan, Selector, Selectors};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::machine::{Card, I40E, ICE, MLX5, Machine};

/// Two of ice (one of them bound to vfio-pci), two of i40e, and an InfiniBand card with one.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.physical(ICE, "0000:98:00.0", "ens7f0", 1);
    machine.vf(ICE, "0000:98:00.0", 0, "0000:98:01.0", 1);
    machine.interface("0000:98:01.0", "ens7f0v0", "1");
    machine.vf(Card { vf: ("1889", "vfio-pci"), ..ICE }, "0000:98:00.0", 1, "0000:98:01.1", 1);
    machine.physical(I40E, "0000:3b:00.0", "eno1", 0);
    machine.vf(I40E, "0000:3b:00.0", 0, "0000:3b:02.0", 0);
    machine.vf(I40E, "0000:3b:00.0", 3, "0000:3b:02.3", 0);
    machine.attribute("0000:3b:02.3", "acpi_index", "101");
    machine.physical(MLX5, "0000:5e:00.0", "ib0", 0);
    machine.interface("0000:5e:00.0", "ib0", "32");
    machine.vf(MLX5, "0000:5e:00.0", 0, "0000:5e:00.1", 0);
    machine.attribute("0000:5e:00.1", "infiniband/mlx5_1/ports/1/pkeys/0", "0x8abc");
    machine
}

/// The ends of the addresses that are selected.
fn selected(scan: &Scan, selectors: &Selectors) -> Vec<String> {
    let mut found = Vec::new();
    for physical in &scan.physical {
        let of = physical.vfs.iter().filter(|vf| selectors.matching(physical, vf).is_some());
        found.extend(of.map(|vf| vf.vf.address.to_string()[5..].to_owned()));
    }
    found
}

#[test]
fn every_selector_selects_what_the_device_plugin_does() {
    let scan = machine().inventory().scan(&[]).unwrap();
    let all = "3b:02.0 3b:02.3 5e:00.1 98:01.0 98:01.1";
    let table = [
        (json!({}), all),
        (json!([{}]), all),
        (json!({"vendors": [], "pfNames": [], "isRdma": false, "vdpaType": "", "ddpProfiles": []}), all),
        (json!({"vendors": ["8086"]}), "3b:02.0 3b:02.3 98:01.0 98:01.1"),
        (json!({"vendors": ["15B3", "1022"]}), "5e:00.1"),
        (json!({"devices": ["154c", "1018"]}), "3b:02.0 3b:02.3 5e:00.1"),
        (json!({"vendors": ["15b3"], "devices": ["154c"]}), ""),
        (json!({"drivers": ["vfio-pci"]}), "98:01.1"),
        (json!({"drivers": ["iavf", "i40evf"]}), "3b:02.0 3b:02.3 98:01.0"),
        (json!({"pciAddresses": ["0000:98:01.1", "0000:3B:02.0", "0000:01:00.0"]}), "3b:02.0 98:01.1"),
        (json!({"acpiIndexes": ["101"]}), "3b:02.3"),
        (json!({"pfNames": ["eno1", "ib0"]}), "3b:02.0 3b:02.3 5e:00.1"),
        (json!({"pfNames": ["ENO1#0-2"]}), "3b:02.0"),
        (json!({"pfNames": ["eno1#1-2,3", "ens7f0#1"]}), "3b:02.3 98:01.1"),
        (json!({"pfNames": ["eno1#0", "eno1#3"]}), "3b:02.0"),
        (json!({"rootDevices": ["0000:98:00.0#0", "0000:3b:00.0"]}), "3b:02.0 3b:02.3 98:01.0"),
        (json!({"linkTypes": ["ether"]}), "3b:02.0 3b:02.3 98:01.0 98:01.1"),
        (json!({"linkTypes": ["infiniband"]}), "5e:00.1"),
        (json!({"pKeys": ["0x1", "0x8ABC"]}), "5e:00.1"),
        (json!({"isRdma": true}), "5e:00.1"),
        (json!({"isRdma": true, "vendors": ["8086"]}), ""),
        (json!([{"drivers": ["vfio-pci"]}, {"pfNames": ["eno1#3"]}]), "3b:02.3 98:01.1"),
    ];
    for (written, wanted) in table {
        let selectors: Selectors = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(selected(&scan, &selectors).join(" "), wanted, "{written}");
        let again: Selectors = serde_json::from_str(&serde_json::to_string(&selectors).unwrap()).unwrap();
        assert_eq!(again, selectors, "{written}");
    }
}

#[test]
fn the_first_selector_that_matches_says_what_goes_with_a_vf() {
    let scan = machine().inventory().scan(&[]).unwrap();
    let written =
        json!([{"drivers": ["vfio-pci"], "needVhostNet": true}, {"vendors": ["8086"]}, {"isRdma": true}]);
    let selectors: Selectors = serde_json::from_value(written).unwrap();
    let told = |card: usize, vf: usize| {
        let physical = &scan.physical[card];
        let selector: &Selector = selectors.matching(physical, &physical.vfs[vf]).unwrap();
        (selector.need_vhost_net, selector.is_rdma)
    };
    assert_eq!([told(2, 1), told(2, 0), told(1, 0)], [(true, false), (false, false), (false, true)]);
}

#[test]
fn what_is_no_selector_or_is_not_served_is_refused_by_name() {
    let table = [
        (json!({"vendors": ["intel"]}), r#""intel" is no number of up to four hexadecimal digits"#),
        (json!({"vendors": ["8086x", ""]}), r#""8086x" is no number"#),
        (json!({"pciAddresses": ["98:01.1"]}), r#""98:01.1" is no PCI address"#),
        (json!({"acpiIndexes": ["one"]}), r#""one" is no ACPI index"#),
        (json!({"pfNames": ["eth0#"]}), r##""eth0#": what is behind # is no list of VFs, as in #0-3,7"##),
        (json!({"pfNames": ["eth0#3-1"]}), "is no list of VFs"),
        (json!({"pfNames": ["eth0#1-2-3"]}), "is no list of VFs"),
        (json!({"pfNames": ["#1"]}), "names no PF"),
        (json!({"rootDevices": ["eth0"]}), r#""eth0" is no PCI address"#),
        (json!({"linkTypes": ["ethernet"]}), "expected `ether` or `infiniband`"),
        (json!({"ddpProfiles": ["GTPv1-C/U IPv4/IPv6 payload"]}), "ddpProfiles is not served yet"),
        (json!({"vdpaType": "vhost"}), "vdpaType is not served yet"),
        (json!({"auxTypes": ["sf"]}), "unknown field `auxTypes`"),
        (json!({"vendor": ["8086"]}), "unknown field `vendor`"),
        (json!({"isRdma": "true"}), "expected a boolean"),
        (json!([]), "a list of selectors without one"),
        (json!("8086"), "a selector or a list of selectors"),
    ];
    for (written, reason) in table {
        let told = serde_json::from_value::<Selectors>(written.clone()).unwrap_err().to_string();
        assert!(told.contains(reason), "{written}: {told}");
    }
}

#[test]
fn numbers_that_yaml_takes_for_numbers_are_read_as_they_are_written() {
    let scan = machine().inventory().scan(&[]).unwrap();
    let selectors: Selectors =
        serde_saphyr::from_str("vendors: [8086]\ndevices: [154c, 1889, 10e6]\nacpiIndexes: [101]\n").unwrap();
    assert_eq!(selected(&scan, &selectors), ["3b:02.3"]);
    let told =
        serde_saphyr::from_str::<Selectors>("- vendors: ['8086']\n- vendors: [x]\n").unwrap_err().to_string();
    assert!(told.contains("line 2") && told.contains("\"x\" is no number"), "{told}");
}

/// Words of the device plugin.
const WORDS: &[&str] = &[
    "resourceList",
    "resourceName",
    "resourcePrefix",
    "deviceType",
    "selectors",
    "additionalInfo",
    "vendors",
    "drivers",
    "pciAddresses",
    "pfNames",
    "rootDevices",
    "linkTypes",
    "pKeys",
    "isRdma",
    "vdpaType",
    "ISRDMA",
    "netDevice",
    "8086",
    "eth0#1-3",
    "0000:3b:00.0#1",
    "ether",
    "#",
    "-",
    "*",
];

/// Any JSON, with those words in it more often than by chance.
pub(crate) fn json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![4 => prop::sample::select(WORDS).prop_map(str::to_owned), 1 => ".{0,12}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(text.clone(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_read_as_selectors_without_a_panic(value in json()) {
        let _ = serde_json::from_value::<Selectors>(value);
    }

    #[test]
    fn a_share_has_what_its_ranges_say(from in 0_u32..8, length in 0_u32..8, single in 0_u32..8) {
        static SCAN: LazyLock<Scan> = LazyLock::new(|| machine().inventory().scan(&[]).unwrap());
        let written = json!({"rootDevices": [format!("0000:3b:00.0#{from}-{},{single}", from + length)]});
        let selectors: Selectors = serde_json::from_value(written).unwrap();
        let wanted = [0_u32, 3].into_iter().filter(|n| (from..=from + length).contains(n) || *n == single);
        let wanted: Vec<_> = wanted.map(|n| format!("3b:02.{n}")).collect();
        prop_assert_eq!(selected(&SCAN, &selectors), wanted);
    }
}
