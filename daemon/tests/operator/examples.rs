//! The examples that users copy are what `validate` finds good, and their pods name networks that are there. `tests/e2e.sh` applies them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fairlead_kube::npwg;
use serde_json::Value;

use super::commands_on_a_host::{BIN, findings, host, plugin};

fn examples(of: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(of);
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{of}");
    files
}

#[test]
fn x14_validate_finds_every_example_good() {
    let host = host();
    for name in ["bridge", "portmap", "bandwidth"] {
        plugin(&host.path().join("opt/cni/bin").join(name));
    }
    let files: Vec<_> = ["networks", "node", "config"].into_iter().flat_map(examples).collect();
    let names: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let (status, told) = findings(host.path(), &[&["validate"], &names[..]].concat());
    assert_eq!((status, told.len()), (Some(0), files.len()), "{told:?}");
    assert!(told.iter().all(|(verdict, _)| verdict == "good"), "{told:?}");
}

#[test]
fn every_pod_of_the_examples_asks_for_a_network_of_the_examples() {
    let networks = examples("networks");
    for file in examples("pods") {
        let written: Value = serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let pod = written["spec"].get("template").unwrap_or(&written);
        let annotations: BTreeMap<String, String> =
            serde_json::from_value(pod["metadata"]["annotations"].clone()).unwrap();
        let asked = npwg::selections(&annotations, "default", "kube-system").unwrap();
        assert!(asked.networks.len() == 1 && asked.ignored.is_empty(), "{}: {asked:?}", file.display());
        let wanted = format!("{}.yaml", asked.networks[0].name);
        assert!(networks.iter().any(|network| network.ends_with(&wanted)), "{}", file.display());
    }
}

#[test]
fn the_pool_of_the_first_available_path_is_one_that_no_pod_has_to_request() {
    let read = |name: &str| -> Value {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name);
        serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap()
    };
    let network = read("networks/first-available.yaml");
    let network: Value = serde_json::from_str(network["spec"]["config"].as_str().unwrap()).unwrap();
    let pools = read("config/pools.yaml");
    let mut pools = pools["pools"].as_array().unwrap().iter();
    let pool = pools.find(|pool| pool["name"] == network["paths"][0]["pool"]).unwrap();
    assert!(pool.get("resourceName").is_none(), "{pool}");
}

#[test]
fn the_policy_of_the_examples_lets_radio_pods_have_vfs_and_others_not() {
    let [definition, policy] = ["networks/sriov-kernel.yaml", "config/policy.yaml"]
        .map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name));
    for (namespace, status) in [("radio-lab", 0), ("shop", 1)] {
        let mut check = Command::new(BIN);
        check
            .args(["policy", "check"])
            .arg(&definition)
            .args(["--namespace", namespace, "--config"])
            .arg(&policy);
        let out = check.output().unwrap();
        assert_eq!(out.status.code(), Some(status), "{namespace}: {out:?}");
    }
}
