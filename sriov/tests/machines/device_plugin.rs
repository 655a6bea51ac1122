//! The device plugin's own configuration files; the first is the example of its `README.md`.

use fairlead_sriov::{DevicePluginConfig, DevicePluginConfigError, ResourcePrefix};
use proptest::prelude::*;
use serde_json::json;

use crate::machine::at;
use crate::selectors::json;

const EXAMPLE: &str = r#"{
    "resourceList": [
        {"resourceName": "intel_sriov_netdevice",
         "selectors": [{"vendors": ["8086"], "devices": ["154c", "10ed", "1889"], "drivers": ["i40evf", "ixgbevf", "iavf"]}]},
        {"resourceName": "intel_sriov_dpdk", "resourcePrefix": "intel.com",
         "selectors": [{"vendors": ["8086"], "devices": ["154c", "10ed", "1889"], "drivers": ["vfio-pci"],
                        "pfNames": ["enp0s0f0","enp2s2f1"], "needVhostNet": true}]},
        {"resourceName": "mlnx_sriov_rdma", "resourcePrefix": "mellanox.com",
         "selectors": [{"vendors": ["15b3"], "devices": ["1018"], "drivers": ["mlx5_ib"], "isRdma": true}]},
        {"resourceName": "infiniband_rdma_netdevs", "selectors": [{"linkTypes": ["infiniband"], "isRdma": true}]},
        {"resourceName": "ct6dx_vdpa_vhost",
         "selectors": [{"vendors": ["15b3"], "devices": ["101e"], "drivers": ["mlx5_core"], "vdpaType": "vhost"}]},
        {"resourceName": "intel_fpga", "deviceType": "accelerator",
         "selectors": [{"vendors": ["8086"], "devices": ["0d90"]}]},
        {"resourceName": "bf2_sf", "resourcePrefix": "nvidia.com", "deviceType": "auxNetDevice",
         "selectors": [{"vendors": ["15b3"], "devices": ["a2d6"], "pfNames": ["p0#1-5"], "auxTypes": ["sf"]}]},
        {"resourceName": "intel_sriov_netdevice_additional_env",
         "selectors": [{"vendors": ["8086"], "devices": ["154c", "10ed", "1889"], "drivers": ["i40evf", "ixgbevf", "iavf"]}],
         "additionalInfo": {"*": {"token": "3e49019f"}}},
        {"resourceName": "brcm_sriov_bnxt", "resourcePrefix": "broadcom.com",
         "selectors": [{"vendors": ["14e4"], "devices": ["1750"], "drivers": ["bnxt_en"]}]},
        {"resourceName": "old_selectors_syntax_example",
         "selectors": {"vendors": ["8086"], "devices": ["154c", "10ed", "1889"], "drivers": ["i40evf", "ixgbevf", "iavf"]}}
    ]
}"#;

/// A file of a plugin that was started without `--resource-prefix`.
fn read(text: &str) -> Result<DevicePluginConfig, DevicePluginConfigError> {
    DevicePluginConfig::read(text, &ResourcePrefix::default())
}

#[test]
fn the_example_of_its_documentation_is_read_as_it_is_and_what_is_not_served_is_refused_by_name() {
    let config = read(EXAMPLE).unwrap();
    let names: Vec<_> = config.resources.iter().map(|resource| resource.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "intel.com/intel_sriov_netdevice",
            "intel.com/intel_sriov_dpdk",
            "mellanox.com/mlnx_sriov_rdma",
            "intel.com/intel_sriov_netdevice_additional_env",
            "broadcom.com/brcm_sriov_bnxt",
            "intel.com/old_selectors_syntax_example",
        ]
    );
    assert_eq!(
        config.resources[0].selectors, config.resources[5].selectors,
        "a list, and a single one without"
    );
    let refused: Vec<_> = config.refused.iter().map(ToString::to_string).collect();
    assert_eq!(refused.len(), 4, "{refused:?}");
    assert_eq!(
        refused[0],
        r#"resource "infiniband_rdma_netdevs": linkTypes: [infiniband] selects VFs of InfiniBand, which are not served yet; take it out"#
    );
    assert!(
        refused[1].starts_with(r#"resource "ct6dx_vdpa_vhost": the selector vdpaType is not served yet"#)
    );
    assert_eq!(
        refused[2],
        r#"resource "intel_fpga": deviceType accelerator is not served yet, only netDevice"#
    );
    assert_eq!(refused[3], r#"resource "bf2_sf": deviceType auxNetDevice is not served yet, only netDevice"#);
}

#[test]
fn a_resource_without_a_prefix_has_that_of_the_plugins_command_line() {
    let text = r#"{"resourceList": [{"resourceName": "x", "selectors": {}}, {"resourceName": "y", "resourcePrefix": "", "selectors": {}},
        {"resourceName": "z", "resourcePrefix": "mellanox.com", "selectors": {}}]}"#;
    let openshift = ResourcePrefix::try_from("openshift.io".to_owned()).unwrap();
    let config = DevicePluginConfig::read(text, &openshift).unwrap();
    let names: Vec<_> = config.resources.iter().map(|resource| resource.name.as_str()).collect();
    assert_eq!(names, ["openshift.io/x", "openshift.io/y", "mellanox.com/z"]);
    for wrong in ["", "Openshift.io", "openshift.io/", "a_b", "kubernetes.io", "requests.x"] {
        let told = ResourcePrefix::try_from(wrong.to_owned()).unwrap_err().to_string();
        assert!(told.starts_with(&format!("{wrong:?} is no prefix")), "{told}");
    }
}

#[test]
fn keys_in_any_case_nulls_and_unknown_keys_are_read_as_go_reads_them() {
    let written = json!({"ResourceList": [{
        "RESOURCENAME": "radio", "resourceprefix": "", "deviceType": null, "excludeTopology": true, "comment": 1,
        "Selectors": [{"PFNAMES": ["eth0#0-3"], "vendors": null, "isrdma": false, "note": "mine", "auxTypes": ["sf"]}],
    }]});
    let plain = json!({"resourceList": [{
        "resourceName": "radio", "excludeTopology": true, "selectors": {"pfNames": ["eth0#0-3"]},
    }]});
    let resources = |value: &serde_json::Value| read(&value.to_string()).unwrap().resources;
    assert_eq!(resources(&written), resources(&plain));
    assert!(resources(&written)[0].exclude_topology);
}

#[test]
fn what_holds_for_one_vf_is_over_what_holds_for_all() {
    let written = json!({"resourceList": [{"resourceName": "radio", "selectors": {}, "additionalInfo": {
        "*": {"token": "original", "more": "1"}, "0000:86:00.0": {"token": "specific"},
    }}]});
    let config = read(&written.to_string()).unwrap();
    let told =
        |address: &str| config.resources[0].additional_info(at(address)).into_iter().collect::<Vec<_>>();
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(told("0000:3b:02.6"), [pair("more", "1"), pair("token", "original")]);
    assert_eq!(told("0000:86:00.0"), [pair("more", "1"), pair("token", "specific")]);
}

#[test]
fn a_resource_that_is_wrong_is_refused_alone() {
    let table = [
        (
            json!({"resourceName": "a", "selectors": {}}),
            r#"resource "intel.com/a": a resource before it has the same name"#,
        ),
        (json!({"selectors": {}}), r#"resource "": resourceName must consist of letters, digits, - and _"#),
        (json!({"resourceName": "b/c", "selectors": {}}), "resourceName must consist of"),
        (
            json!({"resourceName": "b", "resourcePrefix": "Intel.com", "selectors": {}}),
            r#"resource "b": resourcePrefix and resourceName: "Intel.com/b" is no name that kubelet takes"#,
        ),
        (
            json!({"resourceName": "b", "resourcePrefix": "a/b", "selectors": {}}),
            "is no name that kubelet takes",
        ),
        (json!({"resourceName": "_b", "selectors": {}}), r#""intel.com/_b" is no name that kubelet takes"#),
        (json!({"resourceName": "b"}), r#"resource "b": it has no selectors"#),
        (json!({"resourceName": "b", "selectors": null}), "it has no selectors"),
        (json!({"resourceName": "b", "selectors": []}), "a list of selectors without one"),
        (json!({"resourceName": "b", "selectors": {"isRdma": "yes"}}), "expected a boolean"),
        (
            json!({"resourceName": "b", "selectors": {"pKeys": ["0x8001"]}}),
            r#"resource "b": pKeys selects VFs of InfiniBand, which are not served yet; take it out"#,
        ),
        (
            json!({"resourceName": "b", "selectors": [{"linkTypes": ["infiniband"]}, {"pKeys": ["0x8001"]}]}),
            "linkTypes: [infiniband] selects VFs of InfiniBand, which are not served yet",
        ),
        (
            json!({"resourceName": "b", "selectors": {"drivers": ["igb_uio", "uio_pci_generic"]}}),
            r#"resource "b": drivers: [igb_uio, uio_pci_generic] selects VFs under UIO, which are not served until they are bound to vfio-pci"#,
        ),
        (json!({"resourceName": 7, "selectors": {}}), "expected a string"),
        (json!("b"), "invalid type: string \"b\""),
    ];
    for (wrong, reason) in table {
        let file = json!({"resourceList": [{"resourceName": "a", "selectors": {}}, wrong]});
        let config = read(&file.to_string()).unwrap();
        assert_eq!((config.resources.len(), config.refused.len()), (1, 1));
        let told = config.refused[0].to_string();
        assert!(told.contains(reason), "{told}");
    }
}

#[test]
fn a_resource_that_selects_what_is_served_beside_what_is_not_is_served() {
    for selectors in [
        json!({"linkTypes": ["ether", "infiniband"]}),
        json!([{"linkTypes": ["infiniband"]}, {"linkTypes": ["ether"]}]),
        json!([{}, {"pKeys": ["0x8001"]}]),
        json!({"drivers": ["igb_uio", "vfio-pci"]}),
    ] {
        let file = json!({"resourceList": [{"resourceName": "a", "selectors": selectors}]});
        let config = read(&file.to_string()).unwrap();
        assert_eq!((config.resources.len(), config.refused.len()), (1, 0), "{selectors}");
    }
}

#[test]
fn what_is_no_configuration_of_the_device_plugin_is_refused_as_a_whole() {
    for text in ["", "{", "{\"resourceList\": [{},]}"] {
        assert!(matches!(read(text), Err(DevicePluginConfigError::Json(_))), "{text}");
    }
    for text in ["{}", "[]", "7", "{\"resourceList\": {}}", "{\"resourceList\": null}"] {
        assert!(matches!(read(text), Err(DevicePluginConfigError::NoList)), "{text}");
    }
}

proptest! {
    #[test]
    fn any_json_is_read_as_a_configuration_without_a_panic(value in json(), resources in prop::collection::vec(json(), 0..4)) {
        let _ = read(&value.to_string());
        let file = json!({"resourceList": resources});
        let config = read(&file.to_string()).unwrap();
        prop_assert_eq!(config.resources.len() + config.refused.len(), resources.len());
    }
}
