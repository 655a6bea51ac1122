//! The manifests, the chart and the systemd units agree about what they give the daemon and the switch. `tests/e2e.sh` applies them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fairlead_daemon::settings::Settings;
use serde_json::{Value, json};

fn path(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(of)
}

fn text(of: &str) -> String {
    fs::read_to_string(path(of)).unwrap()
}

fn yaml(of: &str) -> Value {
    serde_saphyr::from_str(&text(of)).unwrap()
}

#[test]
fn the_chart_is_what_the_manifests_give() {
    let out = Command::new("python3").arg(path("deploy/render.py")).arg("--check").output().unwrap();
    assert!(out.status.success(), "{out:?}");
}

#[test]
fn the_daemon_may_lock_memory_and_choose_its_node_where_uplinks_need_it_and_nowhere_else() {
    let of_base =
        &yaml("deploy/base/daemonset.yaml")["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    let of_base = of_base["capabilities"]["add"].as_array().unwrap();
    assert!(of_base.contains(&"NET_ADMIN".into()), "{of_base:?}");
    let patches = yaml("deploy/components/vhost-user/uplinks.yaml");
    let place = "/spec/template/spec/containers/0/securityContext/capabilities/add/-";
    for (at, capability) in ["IPC_LOCK", "SYS_NICE"].into_iter().enumerate() {
        assert!(!of_base.contains(&capability.into()), "{of_base:?}");
        let patch = &patches[at];
        assert_eq!([&patch["op"], &patch["path"], &patch["value"]], ["add", place, capability]);
    }
    assert_eq!(patches.as_array().unwrap().len(), 2);
    let component = yaml("deploy/components/vhost-user/kustomization.yaml");
    let patches = component["patches"].as_array().unwrap();
    assert!(
        patches.iter().any(|patch| patch["path"] == "uplinks.yaml" && patch["target"]["name"] == "fairlead")
    );
    // Whoever gives another capability has a row for it in daemon/tests/capabilities, or in vhost/tests/vswitch_program.rs.
    let files = fs::read_dir(path("deploy/components")).unwrap().flat_map(|component| {
        fs::read_dir(component.unwrap().path()).unwrap().map(|file| file.unwrap().path())
    });
    let gives = files.filter(|file| fs::read_to_string(file).unwrap().contains("capabilities"));
    let mut gives: Vec<_> = gives.map(|file| file.file_name().unwrap().to_owned()).collect();
    gives.sort();
    assert_eq!(gives, ["uplinks.yaml", "vswitch.yaml"]);
    let chart = text("deploy/helm/fairlead/templates/daemonset.yaml");
    for capability in ["- IPC_LOCK", "- SYS_NICE"] {
        let (before, _) = chart.split_once(capability).unwrap();
        let last_block = before.lines().rev().find(|line| line.starts_with("{{-"));
        assert_eq!(last_block, Some("{{- if .Values.vhostUser }}"), "{capability}");
    }
    let unit = text("daemon/systemd/fairleadd.service");
    let bounding = unit.lines().find(|line| line.starts_with("CapabilityBoundingSet=")).unwrap();
    assert!(bounding.contains(" CAP_IPC_LOCK") && bounding.contains(" CAP_SYS_NICE"), "{bounding}");
}

#[test]
fn the_switchs_unit_gives_it_what_its_daemonset_gives_and_systemd_takes_every_line_of_it() {
    let unit = text("daemon/systemd/fairlead-vswitch.service");
    let value = |key: &str| {
        let mut of_key = unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        of_key.next().unwrap_or_else(|| panic!("the unit has no {key}"))
    };
    let pod = &yaml("deploy/components/vhost-user/vswitch.yaml")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let of_pod: Vec<&str> =
        container["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    let of_unit: Vec<&str> = value("ExecStart").split(' ').collect();
    assert_eq!(of_unit[1..].join(" "), of_pod[1..].join(" ").replace("=", " "), "options");
    assert_eq!(format!("{}i", value("MemoryMax")), container["resources"]["limits"]["memory"]);
    let capabilities = &container["securityContext"]["capabilities"]["add"];
    let capabilities =
        capabilities.as_array().unwrap().iter().map(|name| format!("CAP_{}", name.as_str().unwrap()));
    assert_eq!(value("CapabilityBoundingSet"), capabilities.collect::<Vec<_>>().join(" "));
    assert_eq!((value("NoNewPrivileges"), value("Restart")), ("yes", "always"));

    // Where the program is not installed systemd would say so.
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("fairlead-vswitch.service");
    fs::write(&copy, unit.replace(of_unit[0], "/bin/true")).unwrap();
    let out = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy).output().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn the_charts_schema_has_every_value_and_every_key_of_the_configuration_and_no_other() {
    let schema = yaml("deploy/helm/fairlead/values.schema.json");
    let values = yaml("deploy/helm/fairlead/values.yaml");
    let keys = |object: &Value| object.as_object().unwrap().keys().cloned().collect::<BTreeSet<String>>();
    // `global` is a parent chart's, and Helm hands it to every chart below.
    let expected: BTreeSet<String> = keys(&values).into_iter().chain(["global".to_owned()]).collect();
    assert_eq!(keys(&schema["properties"]), expected);
    for key in ["directories", "resources"] {
        assert_eq!(keys(&schema["properties"][key]["properties"]), keys(&values[key]), "{key}");
    }
    let config = &schema["properties"]["config"];
    let known: BTreeSet<String> = Settings::keys().iter().map(|key| (*key).to_owned()).collect();
    assert_eq!(keys(&config["properties"]), known);
    for strict in [&schema, config, &schema["properties"]["directories"], &schema["properties"]["resources"]]
    {
        assert_eq!(strict["additionalProperties"], false, "{strict}");
    }
    assert_eq!(config["properties"]["metrics"]["required"], json!(["listen"]));
}
