//! `validate`, `doctor` and `uninstall`, the real program on real files: what ADD would refuse is told before a pod asks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::rig::Rig;
use super::{call_of, told};

pub(super) const BIN: &str = env!("CARGO_BIN_EXE_fairleadd");

/// A host's root with a conf dir and a plugin that does nothing.
pub(super) fn host() -> tempfile::TempDir {
    let host = tempfile::tempdir().unwrap();
    for dir in ["etc/cni/net.d", "opt/cni/bin", "run/cni", "run/fairlead"] {
        fs::create_dir_all(host.path().join(dir)).unwrap();
    }
    plugin(&host.path().join("opt/cni/bin/tuning"));
    host
}

pub(super) fn plugin(path: &Path) {
    fs::write(path, "#!/bin/sh\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The exit status and the findings of a command on a host, each as its verdict and its text.
pub(super) fn findings(host: &Path, words: &[&str]) -> (Option<i32>, Vec<(String, String)>) {
    let mut command = Command::new(BIN);
    command.args(words).args(["-o", "json"]);
    for (flag, name) in [("--host-root", ""), ("--run-dir", "run/fairlead"), ("--config", "config.yaml")] {
        command.arg(flag).arg(host.join(name));
    }
    let out = command.env_remove("CNI_CONF_DIR").env_remove("CNI_PLUGIN_DIR").output().unwrap();
    let all: Vec<Value> = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{out:?}"));
    let text = |f: &Value, key: &str| f[key].as_str().unwrap_or_default().to_owned();
    let one = |f: &Value| {
        (text(f, "verdict"), format!("{}: {} → {}", text(f, "about"), text(f, "seen"), text(f, "remedy")))
    };
    (out.status.code(), all.iter().map(one).collect())
}

fn conf(mut more: Value) -> String {
    let keys = more.as_object_mut().unwrap();
    keys.insert("cniVersion".into(), "1.0.0".into());
    keys.insert("name".into(), "net".into());
    more.to_string()
}

#[test]
fn what_add_would_refuse_is_told_of_a_file_with_what_was_meant() {
    let host = host();
    let file = host.path().join("net.conf");
    let local = |subnet: &str| json!({ "type": "host-local", "subnet": subnet });
    let macvlan =
        |key: &str, value: Value| json!({ "type": "macvlan", key: value, "ipam": local("10.1.0.0/24") });
    let with = |ipam: Value| conf(json!({ "type": "macvlan", "ipam": ipam }));
    let table = [
        (conf(macvlan("mode", json!("brigde"))), vec!["\"brigde\"", "bridge, private, vepa or passthru"]),
        (conf(macvlan("mastr", json!("eth0"))), vec!["unknown key \"mastr\"; did you mean \"master\"?"]),
        (with(local("10.1.0.0/33")), vec!["ipam: every ADD is refused", "10.1.0.0/33"]),
        (with(json!({ "type": "host-local", "subent": "10.1.0.0/24" })), vec!["did you mean \"subnet\"?"]),
        (with(json!({ "type": "whereabouts" })), vec!["no executable whereabouts in the plugin directories"]),
        (conf(json!({ "type": "tunning" })), vec!["no executable tunning", "did you mean \"tuning\"?"]),
        (with(json!({ "type": "static" })), vec!["IPAM static has no \"addresses\""]),
        (with(json!({ "type": "dhcp" })), vec!["IPAM dhcp needs its daemon", "run/cni/dhcp.sock"]),
        (
            conf(json!({ "type": "sriov", "if0": "eth0", "l2enable": true })),
            vec!["\"if0\" is of sriov-cni before 2.0", "deviceID"],
        ),
        (
            conf(json!({ "type": "sriov", "dpdk": { "dpdk_driver": "vfio-pci" } })),
            vec!["\"dpdk\" is of sriov-cni before 2.0"],
        ),
        (conf(json!({ "type": "sriov", "vlan": 5000 })), vec!["vlan", "4094"]),
        (
            conf(json!({ "type": "fairlead", "paths": [{ "type": "macvlan", "mod": "x" }] })),
            vec!["unknown key \"mod\""],
        ),
        ("{".to_owned(), vec!["unclosed bracket"]),
    ];
    for (text, parts) in table {
        fs::write(&file, &text).unwrap();
        let (status, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert_eq!(status, Some(1), "{text}: {told:?}");
        let wrong: Vec<&String> =
            told.iter().filter(|(verdict, _)| verdict == "wrong").map(|(_, text)| text).collect();
        for part in parts {
            assert!(wrong.iter().any(|text| text.contains(part)), "{part}: {told:?}");
        }
        assert!(told.iter().all(|(_, text)| text.contains("net.conf") && !text.ends_with("→ ")), "{told:?}");
    }
}

#[test]
fn what_add_would_do_is_found_good() {
    let host = host();
    plugin(&host.path().join("opt/cni/bin/dhcp"));
    fs::write(host.path().join("run/cni/dhcp.sock"), "").unwrap();
    let good = [
        json!({ "type": "macvlan", "Master": "eth0", "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]] } }),
        json!({ "type": "macvlan", "ipam": { "type": "dhcp" } }),
        json!({ "plugins": [{ "type": "macvlan", "capabilities": { "ips": true }, "ipam": { "type": "static" } }, { "type": "tuning", "any": 1 }] }),
        json!({ "type": "sriov", "vlan": 100, "logLevel": "info", "resourceName": "x/radio" }),
        json!({ "type": "loopback" }),
    ];
    for (n, network) in good.into_iter().enumerate() {
        let file = host.path().join(format!("{n}.conf"));
        fs::write(&file, conf(network)).unwrap();
        let (status, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(status == Some(0) && told.len() == 1 && told[0].0 == "good", "{told:?}");
    }
}

#[test]
fn definitions_are_judged_by_the_policy_too_and_the_configuration_by_its_keys() {
    let host = host();
    let policy =
        "policy:\n  rules:\n    - namespaces: [radio]\n      types: [macvlan]\n      masters: [ens1]\n";
    fs::write(host.path().join("config.yaml"), policy).unwrap();
    let file = host.path().join("nad.yaml");
    let object = |namespace: &str, config: &str| {
        format!(
            "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: net\n  namespace: {namespace}\nspec:\n  config: |\n    {config}\n"
        )
    };
    let judged = |text: &str| {
        fs::write(&file, text).unwrap();
        findings(host.path(), &["validate", file.to_str().unwrap()])
    };
    let good = r#"{"cniVersion":"1.0.0","type":"macvlan","master":"ens1","ipam":{}}"#;
    let (status, told) = judged(&object("radio", good));
    assert_eq!((status, told.len()), (Some(0), 1), "{told:?}");
    let (status, told) = judged(&object("shop", good));
    assert!(status == Some(1) && told[0].1.starts_with("policy: "), "{told:?}");
    let (status, told) = judged(&object("radio", &good.replace("master", "mastr")));
    assert!(
        status == Some(1) && told.iter().any(|(_, t)| t.contains("did you mean \"master\"?")),
        "{told:?}"
    );
    let (status, told) = judged("logLvel: debug\n");
    assert!(status == Some(1) && told[0].1.contains("did you mean \"logLevel\"?"), "{told:?}");
}

#[test]
fn without_files_the_nodes_own_are_judged_and_doctor_says_the_same() {
    let host = host();
    let bad = json!({ "type": "macvlan", "mode": "brigde", "mastr": "eth0" });
    fs::write(host.path().join("etc/cni/net.d/10-bad.conf"), conf(bad)).unwrap();
    for command in ["validate", "doctor"] {
        let (status, told) = findings(host.path(), &[command]);
        for part in ["\"brigde\"", "did you mean \"master\"?"] {
            assert!(
                told.iter().any(|(verdict, t)| verdict == "wrong" && t.contains(part)),
                "{command}: {told:?}"
            );
        }
        assert_eq!(status, Some(1));
    }
}

/// What doctor says of the runtimes.
fn of_runtimes(host: &Path) -> Vec<(String, String)> {
    let (_, told) = findings(host, &["doctor"]);
    told.into_iter().filter(|(_, text)| text.starts_with("runtime: ")).collect()
}

fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn an_install_where_the_runtime_never_looks_is_told_with_the_file_that_says_where_it_looks() {
    let host = host();
    let bin = host.path().join("opt/cni/bin");
    let ours = [b"fairlead ".as_slice(), fairlead_cni::wire::OUTCOME_HEADER.as_bytes()].concat();
    fs::write(bin.join("fairlead"), ours).unwrap();
    assert_eq!(of_runtimes(host.path()), [], "no runtime's configuration is there");
    let containerd = host.path().join("etc/containerd/config.toml");
    let elsewhere = [
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/usr/lib/cni\"\n",
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = [\"/usr/lib/cni\"]\n",
        "[plugins.cri.cni]\nbin_dir = \"/usr/lib/cni\"\n",
        "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n",
    ];
    let drop_in = "[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = [\"/usr/lib/cni\"]\n";
    write(host.path().join("etc/containerd/conf.d/cni.toml"), drop_in);
    for text in elsewhere {
        write(containerd.clone(), text);
        let told = of_runtimes(host.path());
        assert!(told.len() == 1 && told[0].0 == "wrong", "{text}: {told:?}");
        for part in ["containerd looks for plugins in ", "usr/lib/cni (", "config.toml", "--bin-dir "] {
            assert!(told[0].1.contains(part), "{part}: {told:?}");
        }
    }
    for text in [
        "version = 3\n",
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = [\"/x\", \"/opt/cni/bin\"]\n",
    ] {
        write(containerd.clone(), text);
        let told = of_runtimes(host.path());
        assert!(told.len() == 1 && told[0].0 == "good", "{text}: {told:?}");
    }
    let nets = "[plugins.\"io.containerd.grpc.v1.cri\".cni]\nconf_dir = \"/etc/other\"\n";
    write(containerd.clone(), nets);
    let told = of_runtimes(host.path());
    assert!(told[0].0 == "wrong" && told[0].1.contains("CNI_CONF_DIR=/etc/other"), "{told:?}");
    write(containerd.clone(), "version = [\n");
    assert_eq!(of_runtimes(host.path())[0].0, "less");
    fs::remove_file(containerd).unwrap();
    write(host.path().join("etc/crio/crio.conf"), "[crio]\n");
    assert_eq!(of_runtimes(host.path())[0].0, "good");
    let last = host.path().join("etc/crio/crio.conf.d/20-cni.conf");
    write(last, "[crio.network]\nplugin_dirs = [\"/usr/libexec/cni/\"]\n");
    let told = of_runtimes(host.path());
    assert!(
        told[0].1.contains("CRI-O looks for plugins in ") && told[0].1.contains("20-cni.conf"),
        "{told:?}"
    );
}

#[test]
fn uninstall_refuses_while_a_pod_needs_us_unless_it_is_forced() {
    let rig = Rig::new();
    let bin = rig.path("bin");
    let ours = [b"fairlead ".as_slice(), fairlead_cni::wire::OUTCOME_HEADER.as_bytes()].concat();
    fs::write(bin.join("macvlan"), ours).unwrap();
    let uninstall = |more: &[&str]| {
        let out =
            rig.operator(&["uninstall", "--bin-dir", bin.to_str().unwrap()]).args(more).output().unwrap();
        let text = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
        (out.status.code(), text)
    };
    let daemon = rig.start();
    let pod = rig.pod("a");
    let call = call_of(&rig, &pod, "c1", ("shop", "web-0", "u-1"), &rig.layer2());
    call.add().succeeds();
    let (status, text) = uninstall(&[]);
    assert!(status == Some(1) && text.contains("eth0 of shop/web-0") && text.contains("--force"), "{text}");
    daemon.kill();
    let (status, text) = uninstall(&[]);
    assert!(status == Some(1) && text.contains("attachments.journal may have interfaces"), "{text}");
    assert!(bin.join("macvlan").exists());
    let _daemon = rig.start();
    call.del().succeeds();
    let (status, text) = uninstall(&[]);
    assert!(status == Some(0) && text.contains("removed"), "{text}");
    call.add().succeeds();
    fs::copy(BIN, bin.join("macvlan")).unwrap();
    assert_eq!(uninstall(&["--force"]).0, Some(0));
    assert_eq!(told(&mut rig.operator(&["attachments", "-o", "json"])).matches("\"c1\"").count(), 1);
}

#[test]
fn whoever_is_not_root_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("fairleadd");
    fs::copy(BIN, &program).unwrap();
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).args(words);
        let out = command.output().unwrap();
        (out.status.code(), String::from_utf8([out.stdout, out.stderr].concat()).unwrap())
    };
    for words in [&["attachments"][..], &["describe", "a"], &["run"], &["gc"]] {
        let (status, text) = as_nobody(words);
        assert!(
            status == Some(1) && text.contains("not root, and only root may do this"),
            "{words:?}: {text}"
        );
    }
    let (_, text) = as_nobody(&["doctor"]);
    assert!(text.lines().next().unwrap().starts_with("WRONG  user"), "{text}");
}

#[test]
fn files_as_kubectl_takes_them_are_judged_object_by_object() {
    let host = host();
    let nad = |name: &str, mode: &str| {
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": { "name": name },
            "spec": { "config": json!({ "cniVersion": "1.0.0", "type": "macvlan", "mode": mode, "ipam": {} }).to_string() },
        })
    };
    let asking = |networks: &str| json!({ "annotations": { "k8s.v1.cni.cncf.io/networks": networks } });
    let pod = |networks: &str| json!({ "apiVersion": "v1", "kind": "Pod", "metadata": asking(networks) });
    let deployment = |networks: &str| {
        let spec = json!({ "template": { "metadata": asking(networks) } });
        json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}, "spec": spec })
    };
    let settings = |text: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": { "config.yaml": text } });
    let good = [
        nad("a", "bridge"),
        pod("a, b"),
        deployment(r#"[{"name":"a"}]"#),
        settings("install: {cni: present}"),
    ];
    let wrong = [
        (nad("b", "brigde"), "brigde"),
        (pod(r#"[{"name":"a","macc":"x"}]"#), "macc"),
        (deployment("a@"), "annotation"),
        (settings("instal: {}"), "unknown field `instal`"),
    ];
    let judged = |objects: &[Value], ending: &str| {
        let text = match ending {
            "json" => json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string(),
            _ => objects.iter().map(|object| format!("---\n{object}\n")).collect(),
        };
        let file = host.path().join(format!("objects.{ending}"));
        fs::write(&file, text).unwrap();
        findings(host.path(), &["validate", file.to_str().unwrap()])
    };
    for ending in ["yaml", "json"] {
        let (status, told) = judged(&good, ending);
        assert!(status == Some(0) && told.len() == 1, "{told:?}");
        for (object, words) in &wrong {
            let (status, told) = judged(&[good[0].clone(), object.clone(), good[1].clone()], ending);
            assert_eq!(status, Some(1), "{words}");
            assert!(told.iter().all(|(verdict, _)| verdict == "wrong"), "{told:?}");
            assert!(told.iter().any(|(_, text)| text.contains(words)), "{words}: {told:?}");
        }
    }
}
