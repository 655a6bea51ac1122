//! The manifests, the chart and the systemd units agree about what they give the daemon and the switch. `tests/e2e.sh` applies them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fairlead_cni::config::cluster_network::MULTUS_CNI_DIR;
use fairlead_cni::config::host_local::DEFAULT_DATA_DIR;
use fairlead_daemon::conf_dir::{CONF_DIR, PLUGIN_DIR};
use fairlead_daemon::node_paths::VFIO_NODES;
use fairlead_daemon::settings::{
    Installation, Kubelet, LogFormat, LogLevel, MetricsSettings, Presence, Settings, TlsFiles, keys_of,
};
use fairlead_vhost::ovs_dpdk::DatabaseAddress;
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
fn a_definition_has_the_short_names_that_it_has_with_multus() {
    for crd in ["deploy/crds/nad-crd.yaml", "deploy/helm/fairlead/crds/nad-crd.yaml"] {
        assert_eq!(yaml(crd)["spec"]["names"]["shortNames"], json!(["nad", "net-attach-def"]), "{crd}");
    }
}

const DAEMONSET: &str = "deploy/base/daemonset.yaml";
const SWITCH: &str = "deploy/components/vhost-user/vswitch.yaml";

/// The pod of a manifest, or what a component's patch says of it.
fn pod(manifest: &str) -> Value {
    yaml(manifest)["spec"]["template"]["spec"].clone()
}

/// The daemon's container in a manifest, or in a component's patch of one.
fn container(manifest: &str) -> Value {
    pod(manifest)["containers"][0].clone()
}

/// Whether a manifest mounts `path` of the host, or a directory above it, at its place below `root`.
fn mounts(manifest: &str, root: &str, path: &str) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mounts = list(&container(manifest)["volumeMounts"]);
    let volumes = list(&yaml(manifest)["spec"]["template"]["spec"]["volumes"]);
    let is_mounted = |directory: &str| {
        let is_its = |volume: &Value, mount: &Value| {
            volume["name"] == mount["name"] && volume["hostPath"]["path"] == directory
        };
        let mut there = mounts.iter().filter(|mount| mount["mountPath"] == format!("{root}{directory}"));
        there.any(|mount| volumes.iter().any(|volume| is_its(volume, mount)))
    };
    Path::new(path).ancestors().filter_map(Path::to_str).filter(|above| *above != "/").any(is_mounted)
}

#[test]
fn every_place_of_the_host_that_the_daemon_opens_is_mounted_below_its_host_root() {
    let arguments = container(DAEMONSET)["args"].clone();
    let mut arguments = arguments.as_array().unwrap().iter().filter_map(Value::as_str);
    let root = arguments.find_map(|argument| argument.strip_prefix("--host-root=")).unwrap();
    let kubelet = |name: &str| Settings::default().kubelet.dir.join(name).display().to_string();
    let DatabaseAddress::Unix(ovs) = DatabaseAddress::default() else { panic!("OVS is not at a socket") };
    let places = [
        (DAEMONSET, CONF_DIR.to_owned()),
        (DAEMONSET, PLUGIN_DIR.to_owned()),
        (DAEMONSET, DEFAULT_DATA_DIR.to_owned()),
        (DAEMONSET, MULTUS_CNI_DIR.to_owned()),
        (DAEMONSET, "/var/lib/cni/sriov".to_owned()),
        (DAEMONSET, "/var/lib/cni/results".to_owned()),
        (DAEMONSET, "/var/run/k8s.cni.cncf.io/devinfo".to_owned()),
        (DAEMONSET, "/run/k8s.cni.cncf.io/devinfo".to_owned()),
        (DAEMONSET, "/proc/1".to_owned()),
        (DAEMONSET, "/proc/sys".to_owned()),
        (DAEMONSET, kubelet("pod-resources")),
        ("deploy/components/device-plugins/device-plugins.yaml", kubelet("device-plugins")),
        ("deploy/components/pods-volumes/pods-volumes.yaml", kubelet("pods")),
        ("deploy/components/sriov/sriov.yaml", "/run/udev".to_owned()),
        ("deploy/components/vfio/vfio.yaml", VFIO_NODES.to_owned()),
        ("deploy/components/ovs-dpdk/ovs.yaml", ovs.display().to_string()),
    ];
    for (manifest, place) in places {
        assert!(mounts(manifest, root, &place), "{manifest} does not mount {place} below {root}");
    }
}

#[test]
fn each_directory_of_namespaces_is_the_hosts_own_and_what_is_mounted_in_it_later_becomes_visible() {
    let mounted = container(DAEMONSET)["volumeMounts"].clone();
    // On Talos the second is no link to the first, and the runtime's namespaces are in it.
    for directory in ["/run/netns", "/var/run/netns"] {
        assert!(mounts(DAEMONSET, "", directory), "{directory}");
        let mut mounted = mounted.as_array().unwrap().iter();
        let mount = mounted.find(|mount| mount["mountPath"] == directory).unwrap();
        assert_eq!(mount["mountPropagation"], "HostToContainer", "{mount}");
    }
}

#[test]
fn a_quota_of_the_namespace_names_the_class_of_both_daemonsets() {
    let quota = yaml("deploy/base/critical-pods.yaml");
    for manifest in [DAEMONSET, SWITCH] {
        let class = &pod(manifest)["priorityClassName"];
        let named = json!([{ "scopeName": "PriorityClass", "operator": "In", "values": [class] }]);
        assert_eq!(quota["spec"]["scopeSelector"]["matchExpressions"], named, "{manifest}");
        assert_eq!(quota["metadata"]["namespace"], yaml(manifest)["metadata"]["namespace"], "{manifest}");
    }
    let base = yaml("deploy/base/kustomization.yaml");
    assert!(base["resources"].as_array().unwrap().contains(&"critical-pods.yaml".into()), "{base}");
}

#[test]
fn neither_daemonset_has_a_pod_on_a_node_of_another_architecture_or_without_a_host() {
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"] },
            { "key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["fargate"] },
            { "key": "type", "operator": "NotIn", "values": ["virtual-kubelet"] },
        ] }],
    } } });
    for manifest in [DAEMONSET, SWITCH] {
        assert_eq!(pod(manifest)["affinity"], affinity, "{manifest}");
    }
    assert_eq!(yaml("deploy/helm/fairlead/values.yaml")["affinity"], affinity);
}

#[test]
fn on_openshift_the_accounts_of_both_daemonsets_may_use_the_privileged_constraints() {
    let manifests = text("deploy/components/openshift/rbac.yaml");
    let manifests = manifests.split("---\n").map(|manifest| serde_saphyr::from_str(manifest).unwrap());
    let [role, binding]: [Value; 2] = manifests.collect::<Vec<Value>>().try_into().unwrap();
    let right = json!([{
        "apiGroups": ["security.openshift.io"],
        "resources": ["securitycontextconstraints"],
        "resourceNames": ["privileged"],
        "verbs": ["use"],
    }]);
    assert_eq!(role["rules"], right);
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    let accounts = [DAEMONSET, SWITCH].map(|manifest| pod(manifest)["serviceAccountName"].clone());
    let subjects: Vec<Value> =
        binding["subjects"].as_array().unwrap().iter().map(|subject| subject["name"].clone()).collect();
    assert_eq!(subjects, accounts);
}

#[test]
fn the_switch_has_an_account_of_its_own_and_no_token_of_it() {
    let account = yaml("deploy/components/vhost-user/account.yaml");
    let pod = pod(SWITCH);
    assert_eq!(account["metadata"]["name"], "fairlead-vswitch");
    assert_eq!(pod["serviceAccountName"], account["metadata"]["name"]);
    for of in [&account, &pod] {
        assert_eq!(of["automountServiceAccountToken"], false, "{of}");
    }
}

#[test]
fn the_probes_restart_the_daemon_only_for_what_its_restart_ends() {
    let container = container(DAEMONSET);
    for (probe, flag) in
        [("startupProbe", "--alive"), ("readinessProbe", "--ready"), ("livenessProbe", "--alive")]
    {
        let command = json!(["/usr/bin/fairleadd", "status", flag]);
        assert_eq!(container[probe]["exec"]["command"], command, "{probe}");
    }
}

#[test]
fn the_daemon_may_lock_memory_and_choose_its_node_where_uplinks_need_it_and_nowhere_else() {
    let of_base = &container(DAEMONSET)["securityContext"]["capabilities"]["add"];
    let of_base = of_base.as_array().unwrap();
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
    let container = container(SWITCH);
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
    for key in ["directories", "resources", "updateStrategy", "vswitch"] {
        let of_schema = &schema["properties"][key];
        assert_eq!(keys(&of_schema["properties"]), keys(&values[key]), "{key}");
        assert_eq!(of_schema["additionalProperties"], false, "{key}");
    }
    let config = &schema["properties"]["config"];
    let known: BTreeSet<String> = Settings::keys().iter().map(|key| (*key).to_owned()).collect();
    assert_eq!(keys(&config["properties"]), known);
    for strict in [&schema, config] {
        assert_eq!(strict["additionalProperties"], false, "{strict}");
    }
    assert_eq!(config["properties"]["metrics"]["required"], json!(["listen"]));
}

#[test]
fn the_charts_schema_judges_what_a_nodes_network_and_metrics_depend_on_as_the_daemon_does() {
    let schema = yaml("deploy/helm/fairlead/values.schema.json");
    let config = &schema["properties"]["config"]["properties"];
    let metrics = &config["metrics"];
    for (of_schema, known) in [
        (&config["install"], keys_of::<Installation>()),
        (&config["kubelet"], keys_of::<Kubelet>()),
        (metrics, keys_of::<MetricsSettings>()),
        (&metrics["properties"]["tls"], keys_of::<TlsFiles>()),
    ] {
        let of_schema_keys: BTreeSet<&str> =
            of_schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(of_schema_keys, known.iter().copied().collect::<BTreeSet<_>>());
        assert_eq!(of_schema["additionalProperties"], false, "{of_schema}");
    }
    let levels = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];
    assert_eq!(config["logLevel"]["enum"], json!(levels));
    assert_eq!(config["logFormat"]["enum"], json!([LogFormat::Text, LogFormat::Json]));
    assert_eq!(config["install"]["properties"]["cni"]["enum"], json!([Presence::Present, Presence::Absent]));
}

#[test]
fn the_chart_takes_every_option_of_the_switch_but_those_of_its_manifest() {
    let taken = [
        ("--cpus", "2,4-5"),
        ("--polling", "always"),
        ("--port-memory", "128"),
        ("--guest-memory", "1024"),
        ("--storm-frames", "20000"),
        ("--log-level", "debug"),
    ];
    let program = Path::new(env!("CARGO_BIN_EXE_fairleadd")).with_file_name("fairlead-vswitch");
    assert!(
        program.exists(),
        "{} is missing; make it with: cargo build -p fairlead-vhost",
        program.display()
    );
    let out = Command::new(program).args(["run", "--help"]).output().unwrap();
    let help = String::from_utf8(out.stdout).unwrap();
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let options: BTreeSet<&str> =
        lines.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--"))).collect();
    let of_manifest = ["--socket", "--user", "--help"];
    assert_eq!(options, taken.iter().map(|(option, _)| *option).chain(of_manifest).collect::<BTreeSet<_>>());
    let schema = yaml("deploy/helm/fairlead/values.schema.json");
    let args = &schema["properties"]["vswitch"]["properties"]["args"];
    let pattern = args["items"]["pattern"].as_str().unwrap();
    let takes = |word: &str| {
        let search = "import re, sys; sys.exit(not re.search(sys.argv[1], sys.argv[2]))";
        Command::new("python3").args(["-c", search, pattern, word]).status().unwrap().success()
    };
    for (option, value) in taken {
        assert!(takes(&format!("{option}={value}")), "{option}");
        assert!(!takes(option), "{option} without a value");
    }
    for refused in ["--socket=/x", "--user=0:0", "--storm-frames=0"] {
        assert!(!takes(refused), "{refused}");
    }
}

#[test]
fn the_charts_schema_refuses_an_empty_text_for_what_null_takes_out() {
    let schema = yaml("deploy/helm/fairlead/values.schema.json");
    let config = &schema["properties"]["config"]["properties"];
    for key in ["devicePluginConfig", "kubeconfig"] {
        assert_eq!(config[key], json!({ "type": ["string", "null"], "pattern": "^/" }), "{key}");
    }
    for key in ["delegateCgroup", "nodeName"] {
        assert_eq!(config[key], json!({ "type": ["string", "null"], "minLength": 1 }), "{key}");
    }
    let notes = text("deploy/helm/fairlead/templates/NOTES.txt");
    assert!(notes.contains(" --reset-then-reuse-values ") && !notes.contains(" --reuse-values"), "{notes}");
}
