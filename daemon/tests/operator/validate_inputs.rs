//! What `validate` judges: the node's own files or those that are given, standard input, and objects as kubectl takes them.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::commands_on_a_host::{BIN, conf, findings, host, write};
use super::rig::Rig;

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

#[test]
fn a_list_without_plugins_is_told_as_the_conf_dir_loads_it() {
    let host = host();
    let net_d = host.path().join("etc/cni/net.d");
    fs::write(net_d.join("10-a.conf"), r#"{"cniVersion":"1.0.0","name":"a","typ":"macvlan"}"#).unwrap();
    let file = net_d.join("20-b.conflist");
    fs::write(&file, r#"{"cniVersion":"1.1.0","name":"b"}"#).unwrap();
    let judged = |words: &[&str]| -> Vec<(String, String)> {
        let (_, told) = findings(host.path(), words);
        told.into_iter().filter(|(_, text)| text.contains("net.d/")).collect()
    };
    for command in ["validate", "doctor"] {
        let told = judged(&[command]);
        assert!(told.len() == 2 && told.iter().all(|(verdict, _)| verdict == "wrong"), "{command}: {told:?}");
        assert!(told[0].1.contains("did you mean \"type\" by \"typ\"?"), "{command}: {told:?}");
        assert!(told[1].1.contains("plugins") && !told[1].1.contains("did you mean"), "{command}: {told:?}");
    }
    // CNI 1.1: what the list does not have itself is in a directory of its name.
    write(net_d.join("b/10-macvlan.conf"), r#"{"type":"macvlan","mastr":"eth0"}"#);
    for words in [&["validate"][..], &["validate", file.to_str().unwrap()]] {
        let told = judged(words);
        assert!(told.last().unwrap().1.contains("did you mean \"master\"?"), "{words:?}: {told:?}");
    }
    write(net_d.join("b/10-macvlan.conf"), r#"{"type":"macvlan","master":"eth0"}"#);
    let told = judged(&["validate", file.to_str().unwrap()]);
    assert!(told.len() == 1 && told[0].0 == "good", "{told:?}");
    write(net_d.join("b/20-bad.conf"), "{");
    let told = judged(&["validate", file.to_str().unwrap()]);
    assert!(told.len() == 1 && told[0].0 == "wrong" && told[0].1.contains("20-bad.conf"), "{told:?}");
    // A definition has no such directory.
    let nad = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: c}\nspec: {config: '{\"cniVersion\":\"1.1.0\",\"typ\":\"macvlan\"}'}\n";
    let file = host.path().join("net.d/nad.yaml");
    write(file.clone(), nad);
    let told = judged(&["validate", file.to_str().unwrap()]);
    assert!(told.len() == 1 && told[0].1.contains("did you mean \"type\" by \"typ\"?"), "{told:?}");
}

#[test]
fn validate_looks_where_the_running_daemon_does_unless_it_is_told_where() {
    let rig = Rig::new();
    fs::create_dir_all(rig.path("net.d")).unwrap();
    fs::write(rig.path("net.d/10-a.conf"), r#"{"cniVersion":"1.0.0","name":"a","typ":"macvlan"}"#).unwrap();
    let elsewhere = host();
    let judged = |more: &[&str]| {
        let mut command = rig.operator(&["validate", "-o", "json"]);
        let out =
            command.args(more).env_remove("CNI_CONF_DIR").env_remove("CNI_PLUGIN_DIR").output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let daemon = rig.start();
    let told = judged(&[]);
    assert!(told.contains("10-a.conf") && told.contains(rig.path("config.yaml").to_str().unwrap()), "{told}");
    let told = judged(&["--config", "/nowhere.yaml"]);
    assert!(told.contains("10-a.conf") && told.contains("/nowhere.yaml: there is no such"), "{told}");
    let told = judged(&["--host-root", elsewhere.path().to_str().unwrap()]);
    assert!(!told.contains("10-a.conf"), "{told}");
    daemon.kill();
    assert!(!judged(&[]).contains("10-a.conf"));
}

#[test]
fn doctor_looks_where_the_running_daemon_does_unless_it_is_told_where() {
    let rig = Rig::new();
    let elsewhere = host();
    let _daemon = rig.start();
    let told = |more: &[&str]| {
        let out = rig.operator(&["doctor", "-o", "json"]).args(more).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let places = [
        ("--config", rig.path("config.yaml"), elsewhere.path().join("config.yaml")),
        ("--state-dir", rig.path("state"), elsewhere.path().join("state")),
        // The daemon's directory of plugins is below it.
        ("--host-root", rig.path("bin"), elsewhere.path().join(rig.path("bin").strip_prefix("/").unwrap())),
    ];
    for (flag, of_daemon, typed) in places {
        let of_daemon = format!("{} ", of_daemon.display());
        let by_itself = told(&[]).replace(['"', ',', ':'], " ");
        assert!(by_itself.contains(&of_daemon), "{flag}: {by_itself}");
        let root = if flag == "--host-root" { elsewhere.path() } else { typed.as_path() };
        let told = told(&[flag, root.to_str().unwrap()]).replace(['"', ',', ':'], " ");
        assert!(told.contains(&format!("{} ", typed.display())), "{flag}: {told}");
        assert!(!told.contains(&format!(" {of_daemon}")), "{flag}: {told}");
    }
}

#[test]
fn a_configuration_that_is_named_must_be_there() {
    let host = host();
    let file = host.path().join("net.conf");
    fs::write(&file, conf(json!({ "type": "macvlan" }))).unwrap();
    let nad = host.path().join("nad.yaml");
    fs::write(&nad, "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: a}\nspec: {config: '{\"cniVersion\":\"1.0.0\",\"type\":\"macvlan\"}'}\n").unwrap();
    fs::remove_file(host.path().join("config.yaml")).unwrap();
    let [file, nad] = [&file, &nad].map(|file| file.to_str().unwrap());
    for words in [&["validate"][..], &["validate", file, nad], &["doctor"]] {
        let (status, told) = findings(host.path(), words);
        let of_it: Vec<_> = told.iter().filter(|(_, text)| text.contains("config.yaml")).collect();
        assert!(status == Some(1) && of_it.len() == 1 && of_it[0].0 == "wrong", "{words:?}: {told:?}");
        let words = "config.yaml: there is no such configuration → correct --config, or leave it out";
        assert!(of_it[0].1.contains(words), "{told:?}");
    }
}

#[test]
fn the_device_plugins_configuration_must_be_there_where_it_is_named() {
    let host = host();
    let (config, other) = (host.path().join("config.yaml"), host.path().join("pcidp.json"));
    fs::write(&config, format!("devicePluginConfig: {}\n", other.display())).unwrap();
    let config = config.to_str().unwrap();
    for (is_there, verdict) in [(false, "wrong"), (true, "good")] {
        if is_there {
            fs::write(&other, "{}").unwrap();
        }
        for words in [&["validate"][..], &["validate", config], &["doctor"]] {
            let (_, told) = findings(host.path(), words);
            let of_it: Vec<_> = told.iter().filter(|(_, text)| text.starts_with("configuration: ")).collect();
            assert!(of_it.len() == 1 && of_it[0].0 == verdict, "{words:?}: {told:?}");
            assert_eq!(of_it[0].1.contains("pcidp.json can't be read: No such file"), !is_there, "{told:?}");
        }
    }
}

#[test]
fn the_key_that_was_meant_is_told_of_the_last_ones_too() {
    let host = host();
    let file = host.path().join("other.yaml");
    for key in ["kublet", "poolz", "vhostUsr", "polcy", "instal", "metrcs", "devicePluginConfg"] {
        fs::write(&file, format!("{key}: 1\n")).unwrap();
        let (status, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(status == Some(1) && told[0].1.matches("did you mean").count() == 1, "{told:?}");
    }
}

#[test]
fn a_network_with_the_name_of_another_files_is_told_as_the_daemon_refuses_it() {
    let host = host();
    let net_d = host.path().join("etc/cni/net.d");
    let network = r#"{"cniVersion":"1.0.0","name":"n","type":"macvlan","ipam":{}}"#;
    let list = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"macvlan","ipam":{}}]}"#;
    let files = [
        (net_d.join("10-a.conf"), network),
        (net_d.join("20-b.conf"), network),
        (host.path().join("later/a.conf"), network),
        (host.path().join("later/b.conflist"), list),
    ];
    let [a, b, later, first] = &files;
    files.iter().for_each(|(path, text)| write(path.clone(), text));
    let [a, b, later, first] = [a, b, later, first].map(|(path, _)| path.to_str().unwrap());
    for (words, refused, verdict) in [
        (&["validate"][..], b, "wrong"),
        (&["doctor"][..], b, "wrong"),
        (&["validate", a, b][..], b, "wrong"),
        (&["validate", b][..], b, "wrong"),
        // Lists come first, as the daemon reads them.
        (&["validate", later, first][..], later, "wrong"),
        // Two nodes may have one each.
        (&["validate", a, later][..], later, "less"),
    ] {
        let (status, told) = findings(host.path(), words);
        let of_it: Vec<_> = told.iter().filter(|(_, text)| text.contains(refused)).collect();
        assert!(of_it.len() == 1 && of_it[0].0 == verdict, "{words:?}: {told:?}");
        assert!(of_it[0].1.contains("the network \"n\" is already defined in"), "{words:?}: {told:?}");
        assert!(status == Some(1) || verdict == "less", "{words:?}: {told:?}");
    }
    // An object of the API is none of a conf dir.
    let nad = |namespace: &str| {
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": "n", "namespace": namespace }, "spec": { "config": network },
        })
    };
    let [red, blue] = ["red", "blue"].map(|namespace| {
        let file = host.path().join(format!("{namespace}.json"));
        fs::write(&file, nad(namespace).to_string()).unwrap();
        file
    });
    let (status, told) =
        findings(host.path(), &["validate", a, red.to_str().unwrap(), blue.to_str().unwrap()]);
    assert!(status == Some(0) && told.len() == 3, "{told:?}");
    fs::write(b, nad("red").to_string()).unwrap();
    let (status, told) = findings(host.path(), &["validate"]);
    let is_told = told.iter().any(|(verdict, text)| verdict == "wrong" && text.contains(b));
    assert!(status == Some(1) && is_told, "{told:?}");
}

#[test]
fn what_comes_by_standard_input_is_judged_and_a_directory_is_called_one() {
    let host = host();
    let nads = |mode: &str| {
        let config =
            json!({ "cniVersion": "1.0.0", "type": "macvlan", "mode": mode, "ipam": {} }).to_string();
        let nad = json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": "a" }, "spec": { "config": config },
        });
        json!({ "apiVersion": "v1", "kind": "List", "items": [nad] }).to_string()
    };
    let none = json!({ "apiVersion": "v1", "kind": "List", "items": [] }).to_string();
    let table = [
        (nads("bridge"), 0, "objects"),
        (nads("brigde"), 1, "brigde"),
        (none, 0, "objects"),
        (conf(json!({ "type": "macvlan", "mode": "brigde" })), 1, "brigde"),
        ("logLevel: debug\n".to_owned(), 0, "configuration"),
    ];
    for (text, status, part) in table {
        let file = host.path().join("stdin");
        fs::write(&file, &text).unwrap();
        // As `kubectl get -o yaml | fairleadd validate -` and as `validate - <FILE`.
        for by in ["cat", "exec"] {
            let from = if by == "cat" { "cat \"$1\" | " } else { "exec <\"$1\"; " };
            let named = "--host-root \"$2\" --config \"$2/config.yaml\"";
            let script = format!("{from} \"$0\" validate - -o json {named}");
            let mut command = Command::new("sh");
            command.args(["-c", &script, BIN]).arg(&file).arg(host.path());
            let out = command.output().unwrap();
            let told = String::from_utf8(out.stdout).unwrap();
            assert!(out.status.code() == Some(status) && told.contains(part), "{by} {text}: {told}");
        }
    }
    let (status, told) = findings(host.path(), &["validate", host.path().to_str().unwrap()]);
    assert!(status == Some(1) && told[0].1.contains("is a directory; give the files in it"), "{told:?}");
}

#[test]
fn an_empty_standard_input_is_an_error() {
    let host = host();
    let (status, told) = findings(host.path(), &["validate", "-"]);
    assert!(status == Some(1) && told.len() == 1 && told[0].0 == "wrong", "{told:?}");
    assert!(told[0].1.contains("standard input is empty"), "{told:?}");
}

#[test]
fn a_file_of_another_program_is_not_taken_for_the_daemons_configuration() {
    let host = host();
    let file = host.path().join("rules.yaml");
    for (text, status, part) in [
        ("groups:\n  - name: a\n", 1, "it looks like nothing of ours"),
        ("groups: []\nlogLevel: debug\n", 1, "unknown field `groups`"),
        ("logLvel: debug\n", 1, "did you mean"),
        ("# nothing yet\n", 0, "configuration"),
    ] {
        fs::write(&file, text).unwrap();
        let (code, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(code == Some(status) && told.len() == 1 && told[0].1.contains(part), "{text}: {told:?}");
    }
}

#[test]
fn a_manifest_that_is_no_yaml_is_not_taken_for_the_daemons_configuration() {
    let host = host();
    let file = host.path().join("nad.yaml");
    let metadata = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata: {name: a}\n";
    for rest in ["spec:\n  config: '{\"type\": \"macvlan\"\n", "spec:\n  config: \"{}\" x\n"] {
        fs::write(&file, format!("{metadata}{rest}")).unwrap();
        let (code, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        assert!(code == Some(1) && told.len() == 1 && told[0].0 == "wrong", "{rest}: {told:?}");
        assert!(told[0].1.starts_with("file: ") && told[0].1.contains("line 5"), "{rest}: {told:?}");
    }
    // The daemon's own one is still judged as what it is.
    fs::write(&file, "logLevel: 'debug\n").unwrap();
    let (_, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
    assert!(told.len() == 1 && told[0].1.starts_with("configuration: "), "{told:?}");
}

#[test]
fn a_quoted_definition_whose_lines_are_indented_no_more_than_its_key_is_read_as_kubectl_reads_it() {
    let host = host();
    let file = host.path().join("nads.yaml");
    let nad = |name: &str, mode: &str| {
        format!(
            "---\napiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: {name}\nspec:\n  config: '{{\n  \
             \"cniVersion\": \"1.0.0\",\n\n\"type\": \"macvlan\",\n    \"mode\": \"{mode}\", \"ipam\": {{}}\n}}'\n"
        )
    };
    for (second, status) in [("bridge", 0), ("brigde", 1)] {
        fs::write(&file, nad("a", "bridge") + &nad("b", second)).unwrap();
        let (code, told) = findings(host.path(), &["validate", file.to_str().unwrap()]);
        let is_told = told.iter().any(|(_, text)| text.contains("brigde"));
        assert!(code == Some(status) && is_told == (status == 1), "{told:?}");
    }
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
    let cron_job = |networks: &str| {
        let of_pods = json!({ "template": { "metadata": asking(networks) } });
        let spec = json!({ "jobTemplate": { "spec": of_pods } });
        json!({ "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {}, "spec": spec })
    };
    let misplaced = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": asking("a"),
        "spec": { "template": { "metadata": {} } },
    });
    let singular = json!({ "annotations": { "k8s.v1.cni.cncf.io/network": "a" } });
    let singular = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": singular });
    let settings = |text: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": { "config.yaml": text } });
    let good = [
        nad("a", "bridge"),
        pod("a, b"),
        deployment(r#"[{"name":"a"}]"#),
        cron_job("a@net7"),
        settings("install: {cni: present}"),
    ];
    let wrong = [
        (nad("b", "brigde"), "brigde"),
        (pod(r#"[{"name":"a","macc":"x"}]"#), "macc"),
        (deployment("a@@"), "annotation"),
        (pod("a@eth0"), "eth0"),
        (pod("a@net2,b"), "by its position its interface is \"net2\""),
        (cron_job("a@@"), "annotation"),
        (misplaced, "template"),
        (singular, "k8s.v1.cni.cncf.io/networks"),
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
