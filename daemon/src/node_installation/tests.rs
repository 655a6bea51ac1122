//! The installer on the files of a node.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use fairlead_cni::wire::OUTCOME_HEADER;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

use super::*;
use crate::conf_dir::Directories;
use crate::metrics::Node;

struct Rig {
    dir: tempfile::TempDir,
    networks: Arc<Networks>,
    node: NodeInstallation,
    in_use: Arc<AtomicBool>,
    /// Which changes pods were made ready for, where Multus keeps what it attached, and whether our configuration was there.
    changes: Arc<Mutex<Vec<(ChangeOver, String, bool)>>>,
}

fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    for part in ["net.d", "bin"] {
        fs::create_dir(dir.path().join(part)).unwrap();
    }
    fs::write(dir.path().join("fairlead"), format!("ELF {OUTCOME_HEADER}")).unwrap();
    let directories = Directories::new(dir.path(), Some("/net.d"), Some("/bin"));
    let networks = Arc::new(Networks::new(directories, &["macvlan"], Node::default()));
    let in_use = Arc::new(AtomicBool::new(false));
    let used = in_use.clone();
    let changes: Arc<Mutex<Vec<(ChangeOver, String, bool)>>> = Arc::default();
    let (seen, conflist) = (changes.clone(), dir.path().join("net.d").join(CONFLIST));
    let node = NodeInstallation::new(
        networks.clone(),
        (dir.path().join("fairlead"), &dir.path().join("state")),
        (Node::default(), SeenNetwork::default()),
        Box::new(move || used.load(Ordering::Relaxed)),
        Box::new(move |change, dir| {
            seen.lock().push((change, dir.to_owned(), conflist.exists()));
            Ok(())
        }),
    );
    Rig { dir, networks, node, in_use, changes }
}

impl Rig {
    fn network(&self, file: &str, name: &str, kind: &str) {
        let text = format!(r#"{{"cniVersion":"0.4.0","name":"{name}","plugins":[{{"type":"{kind}"}}]}}"#);
        fs::write(self.dir.path().join("net.d").join(file), text).unwrap();
        self.networks.rescan();
    }

    fn carry_out(&self, text: &str) -> Result<Changes, NodeInstallationError> {
        let done = self.node.carry_out(&serde_saphyr::from_str(text).unwrap());
        self.networks.rescan();
        done
    }

    /// A pass of the installer's thread: whether the network is displaced, and what `status` tells.
    fn pass(&self, text: &str) -> (bool, NodeNetwork) {
        self.node.bring_to(Some(&serde_saphyr::from_str(text).unwrap()));
        self.networks.rescan();
        (self.node.metrics.network_displaced.get() == 1, self.node.seen.lock().clone().unwrap())
    }

    /// Every file with its content.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        for part in ["net.d", "bin"] {
            for entry in fs::read_dir(self.dir.path().join(part)).unwrap() {
                let path = entry.unwrap().path();
                files.push((path.clone(), fs::read(path).unwrap()));
            }
        }
        files.sort();
        files
    }

    fn cluster_network(&self) -> Option<String> {
        let plugin = self.own()?;
        plugin["clusterNetwork"].as_str().map(str::to_owned)
    }

    fn own(&self) -> Option<Map<String, Value>> {
        own_plugin(&fs::read_to_string(self.node.conflist()).unwrap_or_default())
    }
}

#[test]
fn x18_the_present_first_network_becomes_the_cluster_network_and_the_old_state_comes_back() {
    let rig = rig();
    rig.network("10-bridge.conflist", "pods", "bridge");
    rig.network("20-other.conflist", "other", "macvlan");
    let before = rig.files();
    let done = rig.carry_out("{cni: present}").unwrap();
    assert_eq!(done.conflist.as_deref(), Some("pods"));
    assert_eq!(done.executable, Some(InstallOutcome::Installed));
    let text = fs::read_to_string(rig.node.conflist()).unwrap();
    let list = ConfList::parse(&text).unwrap();
    assert_eq!(rig.networks.in_file_order()[0].name, list.name, "the runtime takes it first");
    let keys: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(keys["cniVersion"], "0.4.0", "the version that an older runtime is known to take");
    assert_eq!(list.version.as_str(), "1.1.0", "with STATUS and GC, where the runtime has them");
    assert!(list.declares(0, "io.kubernetes.cri.pod-annotations") && list.declares(0, "portMappings"));
    let installed = rig.files();
    assert_eq!(installed.len(), 4, "nothing half written is left: {installed:?}");
    assert_eq!(rig.carry_out("{cni: present}").unwrap(), Changes::default(), "a second run changes nothing");
    assert_eq!(rig.files(), installed);
    rig.carry_out("{cni: absent}").unwrap();
    assert_eq!(rig.files(), before);
    assert_eq!(rig.carry_out("{cni: absent}").unwrap(), Changes::default());
}

#[test]
fn x01_the_executable_stays_until_no_pod_needs_it() {
    let rig = rig();
    rig.network("10-bridge.conflist", "pods", "bridge");
    rig.carry_out("{cni: present}").unwrap();
    rig.in_use.store(true, Ordering::Relaxed);
    assert_eq!(rig.carry_out("{cni: absent}").unwrap().executable, None);
    assert!(rig.dir.path().join("bin/fairlead").exists() && !rig.node.conflist().exists());
    rig.in_use.store(false, Ordering::Relaxed);
    assert_eq!(rig.carry_out("{cni: absent}").unwrap().executable, Some(InstallOutcome::Removed));
}

#[test]
fn without_a_network_to_attach_nothing_is_installed_and_an_emptied_conf_dir_is_filled_again() {
    let rig = rig();
    rig.network("00-multus.conf", "multus-cni-network", "multus-shim");
    let told = rig.carry_out("{cni: present}").unwrap_err().to_string();
    assert!(told.contains("clusterNetwork") && told.contains("net.d"), "{told}");
    assert_eq!(rig.files().len(), 1);
    rig.network("10-bridge.conflist", "pods", "bridge");
    rig.carry_out("{cni: present}").unwrap();
    for (file, _) in rig.files() {
        fs::remove_file(file).unwrap();
    }
    rig.networks.rescan();
    assert!(rig.carry_out("{cni: present}").is_err());
    rig.network("10-bridge.conflist", "pods", "bridge");
    rig.carry_out("{cni: present}").unwrap();
    assert_eq!(rig.cluster_network().as_deref(), Some("pods"));
}

#[test]
fn a_network_that_sorts_first_later_does_not_become_the_cluster_network_unless_the_settings_say_so() {
    let rig = rig();
    rig.network("10-bridge.conflist", "pods", "bridge");
    rig.carry_out("{cni: present}").unwrap();
    rig.network("05-new.conflist", "new", "macvlan");
    assert_eq!(rig.carry_out("{cni: present}").unwrap(), Changes::default());
    rig.carry_out("{cni: present, clusterNetwork: new}").unwrap();
    assert_eq!(rig.cluster_network().as_deref(), Some("new"));
    let told = rig.carry_out("{cni: present, clusterNetwork: gone}").unwrap_err().to_string();
    assert!(told.contains("\"gone\""), "{told}");
    assert_eq!(rig.cluster_network().as_deref(), Some("new"));
}

#[test]
fn a_cluster_network_whose_file_is_gone_is_waited_for_and_never_replaced_by_what_lies_there() {
    let rig = rig();
    let file = rig.dir.path().join("net.d/10-calico.conflist");
    rig.network("10-calico.conflist", "calico", "calico");
    rig.carry_out("{cni: present}").unwrap();
    rig.network("87-podman-bridge.conflist", "podman", "bridge");
    let state = rig.dir.path().join("state");
    let kept = || (fs::read(rig.node.conflist()).ok(), fs::read(state.join("node-network.json")).ok());
    let (conflist, remembered) = kept();
    assert!(conflist.is_some() && remembered.is_some());
    fs::remove_file(&file).unwrap();
    rig.networks.rescan();
    let gone = rig.carry_out("{cni: present}");
    let told = gone.as_ref().unwrap_err().to_string();
    for words in ["\"calico\"", "net.d", "until it is back", "install: {clusterNetwork: …}"] {
        assert!(told.contains(words), "{told}");
    }
    rig.node.log(&gone);
    let again = rig.carry_out("{cni: present}").unwrap_err().to_string();
    assert_eq!(*rig.node.told.lock(), again, "the log has it once");

    // A daemon that is started in that moment, and one whose configuration has gone, too.
    let started = || {
        let node = NodeInstallation::new(
            rig.networks.clone(),
            (rig.dir.path().join("fairlead"), &state),
            (Node::default(), SeenNetwork::default()),
            Box::new(|| false),
            Box::new(|_, _| Ok(())),
        );
        let (news, heard) = std::sync::mpsc::channel();
        news.send(()).unwrap();
        drop(news);
        node.keep(&heard, &|| true, &|| serde_saphyr::from_str("{cni: present}").ok());
        assert_eq!(*node.told.lock(), told);
    };
    started();
    assert_eq!(kept(), (conflist.clone(), remembered.clone()));
    fs::remove_file(rig.node.conflist()).unwrap();
    rig.networks.rescan();
    started();
    assert_eq!(kept(), (None, remembered.clone()));

    rig.network("10-calico.conflist", "calico", "calico");
    rig.carry_out("{cni: present}").unwrap();
    assert_eq!(kept(), (conflist, remembered), "it heals by itself");
    fs::remove_file(&file).unwrap();
    rig.networks.rescan();
    rig.carry_out("{cni: present, clusterNetwork: podman}").unwrap();
    assert_eq!(rig.cluster_network().as_deref(), Some("podman"), "the settings say that it is changed");
}

#[test]
fn m07_a_cluster_network_that_is_gone_gives_way_to_the_one_that_multus_names_and_to_no_other() {
    let rig = rig();
    rig.network("10-calico.conflist", "calico", "calico");
    rig.carry_out("{cni: present}").unwrap();
    fs::remove_file(rig.dir.path().join("net.d/10-calico.conflist")).unwrap();
    rig.network("87-podman-bridge.conflist", "podman", "bridge");
    let multus = |more: &str| {
        let text = format!(r#"{{"name":"m","type":"multus"{more}}}"#);
        fs::write(rig.dir.path().join("net.d/05-multus.conf"), text).unwrap();
        rig.networks.rescan();
    };
    // A directory is no name: Multus takes the first that lies there.
    for names_none in ["", r#","clusterNetwork":"/host/net.d""#] {
        multus(names_none);
        let told = rig.carry_out("{cni: present}").unwrap_err().to_string();
        assert!(told.contains("\"calico\""), "{names_none}: {told}");
        assert_eq!(rig.cluster_network().as_deref(), Some("calico"));
    }
    // Nor is our own network, which Multus has taken for the first.
    for ours in
        [r#","clusterNetwork":"/host/etc/cni/net.d/00-fairlead.conflist""#, r#","clusterNetwork":"fairlead""#]
    {
        multus(ours);
        let told = rig.carry_out("{cni: present}").unwrap_err().to_string();
        assert!(told.contains("\"calico\""), "{ours}: {told}");
        assert_eq!(rig.cluster_network().as_deref(), Some("calico"));
    }
    multus(r#","clusterNetwork":"podman""#);
    rig.carry_out("{cni: present}").unwrap();
    assert_eq!(rig.cluster_network().as_deref(), Some("podman"));
}

#[test]
fn our_own_network_that_an_earlier_release_chose_is_replaced_by_one_that_can_be_attached() {
    for is_file_gone in [false, true] {
        let rig = rig();
        rig.network("10-calico.conflist", "calico", "calico");
        let ours = json!({"type": OWN_TYPE, "clusterNetwork": NETWORK, "namespaceIsolation": true});
        let text = json!({"cniVersion": "1.0.0", "name": NETWORK, "plugins": [ours.clone()]}).to_string();
        rig.node.remembered.keep(ours.as_object().unwrap()).unwrap();
        if !is_file_gone {
            fs::write(rig.node.conflist(), text).unwrap();
        }
        rig.networks.rescan();
        rig.carry_out("{cni: present}").unwrap();
        let own = rig.own().unwrap();
        assert_eq!((&own["clusterNetwork"], &own["namespaceIsolation"]), (&json!("calico"), &json!(true)));
        let told = rig.carry_out("{cni: present, clusterNetwork: fairlead}").unwrap_err().to_string();
        assert!(told.contains("\"fairlead\"") && told.contains("attaches no pod by itself"), "{told}");
    }
}

#[test]
fn m07_a_multus_that_has_the_name_of_the_network_that_it_attaches_is_taken_over_and_gets_the_node_back() {
    let told = r#""type":"multus","namespaceIsolation":true,"globalNamespaces":"shared","readinessindicatorfile":"/run/ready""#;
    let pods = r#"{"name":"pods","plugins":[{"type":"bridge"}]}"#;
    for (file, text) in [
        ("00-multus.conf", format!(r#"{{"cniVersion":"0.3.1","name":"pods",{told},"delegates":[{pods}]}}"#)),
        (
            "00-multus.conflist",
            format!(r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[{{{told},"delegates":[{pods}]}}]}}"#),
        ),
        (
            "00-multus.conflist",
            format!(
                r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[{{{told},"clusterNetwork":"pods"}}]}}"#
            ),
        ),
    ] {
        let rig = rig();
        fs::write(rig.dir.path().join("net.d").join(file), &text).unwrap();
        rig.network("20-pods.conflist", "pods", "bridge");
        rig.carry_out("{cni: present}").unwrap();
        let own = rig.own().unwrap();
        assert_eq!(
            (&own["namespaceIsolation"], &own["globalNamespaces"], &own["readinessindicatorfile"]),
            (&json!(true), &json!("shared"), &json!("/run/ready")),
            "{text}"
        );
        let list = rig.networks.find(own["clusterNetwork"].as_str().unwrap()).unwrap();
        assert_eq!(list.plugin_types().collect::<Vec<_>>(), ["bridge"], "{text}");
        rig.changes.lock().clear();
        rig.carry_out("{cni: absent}").unwrap();
        let changes: Vec<ChangeOver> = rig.changes.lock().iter().map(|(change, ..)| *change).collect();
        assert_eq!(changes, [ChangeOver::ToMultus, ChangeOver::ToMultus], "{text}");
    }
}

#[test]
fn what_multus_has_taken_for_its_cluster_network_stays_until_multus_names_another() {
    let rig = rig();
    rig.network("20-pods.conflist", "pods", "bridge");
    rig.carry_out("{cni: present}").unwrap();
    let multus = |key: &str, value: &str| {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"m","type":"multus","{key}":{value}}}"#);
        fs::write(rig.dir.path().join("net.d/00-multus.conf"), text).unwrap();
        rig.networks.rescan();
    };
    let program = rig.dir.path().join("bin/fairlead");
    let ours = fs::read_to_string(rig.node.conflist()).unwrap();
    for (key, value) in [
        ("delegates", format!("[{ours}]")),
        ("delegates", r#"[{"cniVersion":"1.0.0","name":"pods","type":"fairlead"}]"#.to_owned()),
        ("clusterNetwork", r#""/host/etc/cni/net.d/00-fairlead.conflist""#.to_owned()),
    ] {
        multus(key, &value);
        let (is_displaced, seen) = rig.pass("{cni: present}");
        let told = seen.failing.unwrap_or_default();
        for words in ["00-fairlead.conflist", "multusMasterCNI", "--multus-master-cni-file-name", "restart"] {
            assert!(told.contains(words), "{value}: {told}");
        }
        assert!(!is_displaced && seen.fairlead, "{value}");
        assert_eq!(rig.cluster_network().as_deref(), Some("pods"), "{value}");
        assert_eq!(rig.carry_out("{cni: absent}").unwrap_err().to_string(), told);
        assert!(program.exists() && rig.node.conflist().exists(), "{value}");
    }
    // An earlier release has removed it, and Multus still calls the executable.
    fs::remove_file(rig.node.conflist()).unwrap();
    multus("delegates", &format!("[{ours}]"));
    rig.carry_out("{cni: absent}").unwrap_err();
    assert!(program.exists());
    multus("clusterNetwork", r#""/host/etc/cni/net.d/20-pods.conflist""#);
    rig.carry_out("{cni: absent}").unwrap();
    assert!(!program.exists());
}

#[test]
fn our_configuration_has_the_version_of_a_runtime_that_reads_no_list_of_versions() {
    let rig = rig();
    let text = r#"{"cniVersion":"0.4.0","cniVersions":["0.3.1","0.4.0","1.0.0","1.1.0"],"name":"pods","plugins":[{"type":"bridge"}]}"#;
    fs::write(rig.dir.path().join("net.d/10-pods.conflist"), text).unwrap();
    rig.networks.rescan();
    rig.carry_out("{cni: present}").unwrap();
    let own: Value = serde_json::from_str(&fs::read_to_string(rig.node.conflist()).unwrap()).unwrap();
    assert_eq!((&own["cniVersion"], &own["cniVersions"]), (&json!("0.4.0"), &json!(["1.1.0"])));
}

/// As Istio writes it: the list read and written anew, with its keys in another order.
fn append(rig: &Rig, plugin: &Value) {
    let mut list: Value = serde_json::from_str(&fs::read_to_string(rig.node.conflist()).unwrap()).unwrap();
    list["plugins"].as_array_mut().unwrap().push(plugin.clone());
    let keys: Vec<String> =
        list.as_object().unwrap().iter().rev().map(|(key, value)| format!("\"{key}\":{value}")).collect();
    fs::write(rig.node.conflist(), format!("{{{}}}", keys.join(","))).unwrap();
    rig.networks.rescan();
}

#[test]
fn a_plugin_that_another_program_appends_stays_and_is_no_contest() {
    let rig = rig();
    rig.network("10-calico.conflist", "calico", "calico");
    rig.network("20-other.conflist", "other", "macvlan");
    let istio =
        json!({"type": "istio-cni", "log_level": "info", "kubernetes": {"cni_bin_dir": "/opt/cni/bin"}});
    let read = || ConfList::parse(&fs::read_to_string(rig.node.conflist()).unwrap()).unwrap();
    let types = || read().plugin_types().map(str::to_owned).collect::<Vec<_>>();
    let healthy = |text: &str| {
        let (is_displaced, seen) = rig.pass(text);
        assert!(!is_displaced && seen.fairlead && seen.failing.is_none(), "{seen:?}");
        assert!(rig.node.contest.lock().pause().is_none(), "nobody takes anything away");
        seen.cluster_network
    };
    healthy("{cni: present}");
    append(&rig, &istio);
    healthy("{cni: present}");
    assert_eq!(types(), ["fairlead", "istio-cni"]);
    assert_eq!(read().version.as_str(), "0.4.0", "the appended plugin need not know 1.1.0");
    assert_eq!(read().plugin_conf(1, None, &Map::new()).unwrap().value["log_level"], "info");

    // From now on nothing is to be done, in whatever form that program writes it.
    fs::remove_file(rig.dir.path().join("net.d/20-other.conflist")).unwrap();
    append(&rig, &json!({"type": "linkerd-cni"}));
    let written = rig.files();
    healthy("{cni: present}");
    assert_eq!(rig.files(), written, "unchanged");

    // What the settings change is changed, and the appended plugins stay behind ours.
    rig.network("20-other.conflist", "other", "macvlan");
    assert_eq!(healthy("{cni: present, clusterNetwork: other}").as_deref(), Some("other"));
    assert_eq!(types(), ["fairlead", "istio-cni", "linkerd-cni"]);

    // They are taken out again.
    let mut list: Value = serde_json::from_str(&fs::read_to_string(rig.node.conflist()).unwrap()).unwrap();
    list["plugins"].as_array_mut().unwrap().truncate(1);
    fs::write(rig.node.conflist(), list.to_string()).unwrap();
    healthy("{cni: present, clusterNetwork: other}");
    assert_eq!(read().version.as_str(), "1.1.0");
    append(&rig, &istio);
    rig.carry_out("{cni: absent}").unwrap();
    assert!(!rig.node.conflist().exists());
}

#[test]
fn a_program_that_changes_more_than_it_appends_is_told_of_and_not_raced() {
    let changes: [fn(&mut Value); 5] = [
        |list| list["name"] = json!("theirs"),
        |list| list["disableCheck"] = json!(true),
        |list| list["plugins"][0]["clusterNetwork"] = json!("elsewhere"),
        // No pod would start with one of these.
        |list| list["plugins"].as_array_mut().unwrap().push(json!({"log_level": "info"})),
        |list| list["plugins"].as_array_mut().unwrap().push(json!({"type": OWN_TYPE})),
    ];
    for change in changes {
        let rig = rig();
        rig.network("10-calico.conflist", "calico", "calico");
        let wanted = "{cni: present, clusterNetwork: calico}";
        rig.carry_out(wanted).unwrap();
        let there = || -> Value { serde_json::from_slice(&fs::read(rig.node.conflist()).unwrap()).unwrap() };
        let ours = there();
        let changed = || {
            let mut list = ours.clone();
            change(&mut list);
            fs::write(rig.node.conflist(), list.to_string()).unwrap();
            rig.networks.rescan();
        };
        changed();
        rig.carry_out(wanted).unwrap();
        assert_eq!(there(), ours, "the first time it is written again at once");
        rig.node.contest.lock().set_over(false);
        changed();
        let told = rig.carry_out(wanted).unwrap_err().to_string();
        for words in ["was changed 2 times", "net.d/00-fairlead.conflist", "append"] {
            assert!(told.contains(words), "{told}");
        }
    }
}

#[test]
fn a_file_of_somebody_else_under_our_name_is_left_alone() {
    let rig = rig();
    rig.network("10-bridge.conflist", "pods", "bridge");
    rig.network(CONFLIST, "theirs", "macvlan");
    let before = rig.files();
    for text in ["{cni: present}", "{cni: absent}"] {
        let told = rig.carry_out(text).unwrap_err().to_string();
        assert!(told.contains("was not made by Fairlead"), "{told}");
    }
    assert_eq!(rig.files(), before);
}

const MULTUS: &str = r#"{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus-shim",
    "clusterNetwork":"/host/etc/cni/net.d/20-pods.conflist","defaultNetworks":["sidecar","/etc/cni/net.d/10-other.conflist"],
    "systemNamespaces":["kube-system","admin"],"namespaceIsolation":true,"globalNamespaces":"default,shared",
    "readinessindicatorfile":"/host/run/ovn/ready","cniDir":"/var/lib/multus","capabilities":{"ips":true}}"#;

#[test]
fn m07_what_multus_is_told_is_taken_over_and_its_own_file_stays_as_it_was() {
    let rig = rig();
    rig.network("10-other.conflist", "other", "macvlan");
    rig.network("20-pods.conflist", "pods", "bridge");
    fs::write(rig.dir.path().join("net.d/00-multus.conf"), MULTUS).unwrap();
    rig.networks.rescan();
    let before = rig.files();
    rig.carry_out("{cni: present}").unwrap();
    let own = rig.own().unwrap();
    assert_eq!(own["clusterNetwork"], "pods", "Multus', and not the first");
    assert_eq!(own["defaultNetworks"], json!(["sidecar", "other"]));
    assert_eq!(own["systemNamespaces"], json!(["kube-system", "admin"]));
    assert_eq!(
        (&own["namespaceIsolation"], &own["globalNamespaces"]),
        (&json!(true), &json!("default,shared"))
    );
    assert_eq!(
        (&own["readinessindicatorfile"], &own["cniDir"]),
        (&json!("/run/ovn/ready"), &json!("/var/lib/multus"))
    );
    assert_eq!(
        (&own["capabilities"]["ips"], &own["capabilities"]["portMappings"]),
        (&json!(true), &json!(true))
    );
    let list = ConfList::parse(&fs::read_to_string(rig.node.conflist()).unwrap()).unwrap();
    let conf = list.plugin_conf(0, None, &Map::new()).unwrap();
    fairlead_cni::config::Fairlead::parse(&conf).unwrap();
    let from_multus = |there| (ChangeOver::FromMultus, "/var/lib/multus".to_owned(), there);
    assert_eq!(*rig.changes.lock(), [from_multus(false), from_multus(true)], "before a pod of ours can come");
    assert_eq!(rig.carry_out("{cni: present}").unwrap(), Changes::default());

    // Multus' DaemonSet is deleted, and its file with it: what was taken over stays.
    fs::remove_file(rig.dir.path().join("net.d/00-multus.conf")).unwrap();
    rig.networks.rescan();
    assert_eq!(rig.carry_out("{cni: present}").unwrap(), Changes::default());
    assert_eq!(rig.own().unwrap(), own);

    // And back: Multus is there again, and gets the node as it was.
    fs::write(rig.dir.path().join("net.d/00-multus.conf"), MULTUS).unwrap();
    rig.networks.rescan();
    rig.changes.lock().clear();
    rig.in_use.store(true, Ordering::Relaxed);
    rig.carry_out("{cni: absent}").unwrap();
    let to_multus = |there| (ChangeOver::ToMultus, "/var/lib/multus".to_owned(), there);
    assert_eq!(
        *rig.changes.lock(),
        [to_multus(true), to_multus(false)],
        "before Multus is called for pods of ours"
    );
    assert!(rig.dir.path().join("bin/fairlead").exists(), "Multus calls it");
    rig.in_use.store(false, Ordering::Relaxed);
    rig.changes.lock().clear();
    rig.carry_out("{cni: absent}").unwrap();
    assert_eq!(*rig.changes.lock(), [to_multus(false)], "a pod of ours may be on its way");
    rig.changes.lock().clear();
    *rig.node.removed.lock() = Instant::now().checked_sub(LOOK);
    rig.carry_out("{cni: absent}").unwrap();
    let stays = (ChangeOver::StaysWithMultus, "/var/lib/multus".to_owned(), false);
    assert_eq!(*rig.changes.lock(), [stays], "no pod of ours comes any more");
    assert_eq!(rig.files(), before);
}

#[test]
fn m07_the_settings_of_multus_daemon_and_delegates_of_the_old_form_are_taken_over() {
    let rig = rig();
    rig.network("10-other.conflist", "other", "macvlan");
    rig.network("20-pods.conflist", "pods", "bridge");
    let old = r#"{"cniVersion":"0.3.1","name":"m","type":"multus","delegates":[{"name":"pods","plugins":[]},{"name":"other"}]}"#;
    fs::write(rig.dir.path().join("net.d/00-multus.conf"), old).unwrap();
    rig.networks.rescan();
    let of_daemon = rig.dir.path().join("daemon-config.json");
    fs::write(&of_daemon, r#"{"chrootDir":"/hostroot","systemNamespaces":["a"],"namespaceIsolation":true}"#)
        .unwrap();
    let wanted = format!("{{cni: present, multusDaemonConfig: {}}}", of_daemon.display());
    rig.carry_out(&wanted).unwrap();
    let own = rig.own().unwrap();
    assert_eq!((&own["clusterNetwork"], &own["defaultNetworks"]), (&json!("pods"), &json!(["other"])));
    assert_eq!((&own["systemNamespaces"], &own["namespaceIsolation"]), (&json!(["a"]), &json!(true)));
    fs::write(&of_daemon, "{").unwrap();
    let told = rig.carry_out(&wanted).unwrap_err().to_string();
    assert!(told.contains("Multus' configuration cannot be taken over"), "{told}");
    assert_eq!(rig.own().unwrap(), own, "what is in force goes on");
}

#[test]
fn a_cluster_network_of_multus_that_the_conf_dir_does_not_have_is_told_and_can_be_named() {
    let rig = rig();
    rig.network("10-other.conflist", "other", "macvlan");
    for cluster_network in ["calico", "/etc/cni/multus/net.d/calico.conf"] {
        let text = json!({"name": "m", "type": "multus", "clusterNetwork": cluster_network});
        fs::write(rig.dir.path().join("net.d/00-multus.conf"), text.to_string()).unwrap();
        rig.networks.rescan();
        let told = rig.carry_out("{cni: present}").unwrap_err().to_string();
        assert!(told.contains("calico") && told.contains("clusterNetwork: …"), "{told}");
        assert!(!rig.node.conflist().exists());
    }
    rig.carry_out("{cni: present, clusterNetwork: other}").unwrap();
    assert_eq!(rig.cluster_network().as_deref(), Some("other"));
}

#[test]
fn x01_nothing_is_installed_before_the_daemon_is_ready() {
    let rig = rig();
    rig.network("10-bridge.conflist", "pods", "bridge");
    let wanted = || serde_saphyr::from_str("{cni: present}").ok();
    for ready in [false, true] {
        let (news, heard) = std::sync::mpsc::channel();
        news.send(()).unwrap();
        drop(news);
        rig.node.keep(&heard, &|| ready, &wanted);
        assert_eq!(rig.node.conflist().exists(), ready);
    }
}

#[test]
fn a_node_that_was_left_and_has_another_network_by_now_is_installed_like_a_new_one() {
    let rig = rig();
    rig.network("10-calico.conflist", "calico", "calico");
    rig.carry_out("{cni: present}").unwrap();
    rig.carry_out("{cni: absent}").unwrap();
    fs::remove_file(rig.dir.path().join("net.d/10-calico.conflist")).unwrap();
    rig.network("05-cilium.conflist", "cilium", "cilium-cni");
    rig.carry_out("{cni: present}").unwrap();
    assert_eq!(rig.cluster_network().as_deref(), Some("cilium"));
    assert!(!rig.own().unwrap().contains_key(LEFT));
    // It was not left since: a network that is gone is waited for again.
    fs::remove_file(rig.dir.path().join("net.d/05-cilium.conflist")).unwrap();
    rig.network("87-podman-bridge.conflist", "podman", "bridge");
    rig.carry_out("{cni: present}").unwrap_err();
}

#[test]
fn what_was_taken_over_from_multus_outlives_our_configuration() {
    let rig = rig();
    rig.network("10-other.conflist", "other", "macvlan");
    rig.network("20-pods.conflist", "pods", "bridge");
    let multus = rig.dir.path().join("net.d/00-multus.conf");
    fs::write(&multus, MULTUS).unwrap();
    rig.networks.rescan();
    rig.carry_out("{cni: present}").unwrap();
    let own = rig.own().unwrap();
    fs::remove_file(&multus).unwrap();
    for taken_away in ["by somebody", "{cni: absent}"] {
        match taken_away {
            "by somebody" => fs::remove_file(rig.node.conflist()).unwrap(),
            text => drop(rig.carry_out(text).unwrap()),
        }
        rig.networks.rescan();
        rig.carry_out("{cni: present}").unwrap();
        assert_eq!(rig.own().unwrap(), own, "taken away {taken_away}");
    }
    // Multus is back and says something else: it is its word that counts, not what is remembered.
    rig.carry_out("{cni: absent}").unwrap();
    let other = MULTUS.replace("20-pods.conflist", "10-other.conflist").replace("\"sidecar\",", "");
    fs::write(&multus, other).unwrap();
    rig.networks.rescan();
    rig.carry_out("{cni: present}").unwrap();
    assert_eq!(rig.cluster_network().as_deref(), Some("other"));
    assert_eq!(rig.own().unwrap()["defaultNetworks"], json!(["other"]));
}

#[test]
fn a_file_that_sorts_before_ours_is_told_with_its_name() {
    let rig = rig();
    rig.network("10-bridge.conflist", "pods", "bridge");
    let (is_displaced, seen) = rig.pass("{cni: present}");
    assert!(!is_displaced && seen.fairlead && seen.failing.is_none(), "{seen:?}");
    rig.network("00-danm.conf", "danm", "danm");
    let (is_displaced, seen) = rig.pass("{cni: present}");
    assert!(is_displaced && !seen.fairlead, "{seen:?}");
    let told = seen.failing.unwrap();
    assert!(told.contains("00-danm.conf") && told.contains("not Fairlead"), "{told}");
    fs::remove_file(rig.dir.path().join("net.d/00-danm.conf")).unwrap();
    let (is_displaced, seen) = rig.pass("{cni: present}");
    assert!(!is_displaced && seen.fairlead && seen.failing.is_none(), "{seen:?}");
}

#[test]
fn an_install_that_fails_is_told_and_counts_as_displaced_while_the_runtime_takes_another_network() {
    let rig = rig();
    let gone = "{cni: present, clusterNetwork: gone}";
    let (is_displaced, seen) = rig.pass(gone);
    assert!(!is_displaced && seen.file.is_none() && seen.failing.is_some(), "no pod starts: {seen:?}");
    rig.network("10-bridge.conflist", "pods", "bridge");
    let (is_displaced, seen) = rig.pass(gone);
    assert!(is_displaced && !seen.fairlead, "{seen:?}");
    assert_eq!(seen.file.unwrap().file_name().unwrap(), "10-bridge.conflist");
    assert!(seen.failing.unwrap().contains("\"gone\""));
    let (is_displaced, seen) = rig.pass("{cni: present, clusterNetwork: pods}");
    assert!(!is_displaced && seen.failing.is_none(), "it is put right: {seen:?}");
    // Ours is there and goes on, whatever the settings name.
    let (is_displaced, seen) = rig.pass(gone);
    assert!(!is_displaced && seen.failing.is_some(), "{seen:?}");
    assert_eq!(seen.cluster_network.as_deref(), Some("pods"));
    rig.network(CONFLIST, "theirs", "macvlan");
    let (is_displaced, seen) = rig.pass("{cni: present}");
    assert!(is_displaced && !seen.fairlead, "{seen:?}");
    assert!(seen.failing.unwrap().contains("was not made by Fairlead"));
    rig.node.bring_to(None);
    assert_eq!(rig.node.metrics.network_displaced.get(), 0, "nothing is wanted any more");
}

#[test]
fn our_configuration_without_its_executable_is_told_and_counts_as_displaced_whatever_is_wanted() {
    let rig = rig();
    rig.network("10-bridge.conflist", "pods", "bridge");
    rig.carry_out("{cni: present}").unwrap();
    let program = rig.dir.path().join("bin/fairlead");
    fs::remove_file(&program).unwrap();
    // `install` was taken out of the settings.
    rig.node.bring_to(None);
    assert_eq!(rig.node.metrics.network_displaced.get(), 1);
    let told = rig.node.seen.lock().clone().unwrap().failing.unwrap();
    for words in ["net.d/00-fairlead.conflist", "in no plugin directory", "install: {cni: absent}"] {
        assert!(told.contains(words), "{told}");
    }
    symlink("/seen/by/the/host/alone", &program).unwrap();
    rig.node.bring_to(None);
    assert_eq!(rig.node.metrics.network_displaced.get(), 0, "nothing says that the runtime does not find it");
    fs::remove_file(&program).unwrap();
    let (is_displaced, seen) = rig.pass("{cni: present}");
    assert!(!is_displaced && seen.failing.is_none() && program.exists(), "it is put back: {seen:?}");
    for file in [&program, &rig.node.conflist()] {
        fs::remove_file(file).unwrap();
    }
    rig.node.bring_to(None);
    assert_eq!(rig.node.metrics.network_displaced.get(), 0, "nothing names it any more");
}

/// The same in a container that sees the host's whole root.
fn rig_in_container() -> (Rig, tempfile::TempDir) {
    let (rig, host) = (rig(), tempfile::tempdir().unwrap());
    for directory in ["net.d", "bin-1", "bin-2"] {
        fs::create_dir(host.path().join(directory)).unwrap();
    }
    symlink("bin-1", host.path().join("bin")).unwrap();
    fs::create_dir_all(rig.dir.path().join("proc/1")).unwrap();
    symlink(host.path(), rig.dir.path().join("proc/1/root")).unwrap();
    (rig, host)
}

/// A directory of the host's, mounted in a container. It is taken off when this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// Both of them.
    fn all(rig: &Rig, host: &Path) -> [Mounted; 2] {
        ["net.d", "bin"].map(|part| {
            let at = rig.dir.path().join(part);
            let none: Option<&str> = None;
            mount(Some(&host.join(part)), &at, none, MsFlags::MS_BIND, none).unwrap();
            Mounted(at)
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// Needs root: mounts.
#[test]
fn a_directory_that_the_host_replaces_is_told_and_displaced_and_ends_the_containers_life() {
    let make_anew: fn(&Path) = |host| {
        fs::remove_dir_all(host.join("net.d")).unwrap();
        fs::create_dir(host.join("net.d")).unwrap();
    };
    let lead_elsewhere: fn(&Path) = |host| {
        fs::remove_file(host.join("bin")).unwrap();
        symlink("bin-2", host.join("bin")).unwrap();
    };
    for (part, replace) in [("net.d", make_anew), ("bin", lead_elsewhere)] {
        let (rig, host) = rig_in_container();
        let mounted = Mounted::all(&rig, host.path());
        let is_alive = || mounts_are_hosts(&rig.node.seen).is_ok();
        rig.network("10-bridge.conflist", "pods", "bridge");
        let (is_displaced, seen) = rig.pass("{cni: present}");
        assert!(!is_displaced && seen.fairlead && is_alive(), "{part}: {seen:?}");

        replace(host.path());
        let (is_displaced, seen) = rig.pass("{cni: present}");
        assert!(is_displaced && !seen.fairlead && !is_alive(), "{seen:?}");
        let told = seen.failing.unwrap();
        assert!(told.starts_with(&format!("/{part} on the host is not the directory")), "{told}");
        assert!(told.contains("restart the container"), "{told}");
        // Whatever is wanted: no pod of the node gets what is attached here.
        rig.node.bring_to(None);
        assert_eq!(mounts_are_hosts(&rig.node.seen), Err(told));
        assert_eq!(rig.node.metrics.network_displaced.get(), 1);

        drop(mounted);
        let _mounted = Mounted::all(&rig, host.path());
        rig.network("10-bridge.conflist", "pods", "bridge");
        let (is_displaced, seen) = rig.pass("{cni: present}");
        assert!(!is_displaced && seen.fairlead && is_alive(), "{part}: {seen:?}");
        assert!(host.path().join(part).join(if part == "bin" { "fairlead" } else { CONFLIST }).exists());
    }
}

#[test]
fn a_directory_that_never_was_the_hosts_ends_no_life() {
    let (rig, _host) = rig_in_container();
    rig.network("10-bridge.conflist", "pods", "bridge");
    for _ in 0..3 {
        let (is_displaced, seen) = rig.pass("{cni: present}");
        assert!(!is_displaced && seen.fairlead && mounts_are_hosts(&rig.node.seen).is_ok(), "{seen:?}");
    }
}

#[test]
fn what_the_runtime_takes_is_told_until_the_node_is_left_and_also_where_somebody_else_has_written_it() {
    let rig = rig();
    rig.network("10-bridge.conflist", "pods", "bridge");
    let (_, seen) = rig.pass("{cni: present}");
    assert_eq!((seen.file, seen.fairlead), (Some(rig.node.conflist()), true));
    assert_eq!(seen.cluster_network.as_deref(), Some("pods"));
    let (is_displaced, seen) = rig.pass("{cni: absent}");
    assert!(!is_displaced && !seen.fairlead && seen.failing.is_none(), "{seen:?}");
    assert_eq!(seen.file.unwrap().file_name().unwrap(), "10-bridge.conflist");
    // By hand, in the form of a single plugin.
    let by_hand = r#"{"cniVersion":"1.0.0","name":"node","type":"fairlead","clusterNetwork":"pods"}"#;
    fs::write(rig.dir.path().join("net.d/05-node.conf"), by_hand).unwrap();
    let (_, seen) = rig.pass("{cni: absent}");
    assert_eq!((seen.fairlead, seen.cluster_network.as_deref()), (true, Some("pods")));
}

#[test]
fn a_file_that_attaches_no_pod_by_itself_is_not_taken_for_the_cluster_network() {
    let rig = rig();
    rig.network("00-danm.conf", "danm", "danm");
    rig.network("01-genie.conf", "genie", "genie");
    rig.network("99-loopback.conf", "lo", "loopback");
    let told = rig.carry_out("{cni: present}").unwrap_err();
    assert!(matches!(told, NodeInstallationError::NoClusterNetwork { .. }), "{told}");
    rig.network("10-calico.conflist", "calico", "calico");
    rig.carry_out("{cni: present}").unwrap();
    assert_eq!(rig.cluster_network().as_deref(), Some("calico"));
}

#[test]
fn a_program_that_takes_our_configuration_away_again_and_again_is_told_of_and_not_raced() {
    let rig = rig();
    rig.network("10-cilium.conflist", "cilium", "cilium-cni");
    rig.carry_out("{cni: present}").unwrap();
    let file = rig.node.conflist();
    let take_away = || fs::rename(&file, file.with_extension("conflist.cilium_bak")).unwrap();
    take_away();
    rig.carry_out("{cni: present}").unwrap();
    assert!(file.exists(), "the first time it is written again at once");
    rig.node.contest.lock().set_over(false);
    take_away();
    let (mut is_displaced, mut told) = (false, String::new());
    for _ in 0..20 {
        let (now, seen) = rig.pass("{cni: present}");
        (is_displaced, told) = (now, seen.failing.unwrap_or_default());
    }
    for words in ["taken away 2 times", "cilium_bak", "cni.exclusive=false"] {
        assert!(told.contains(words), "{told}");
    }
    assert!(!file.exists() && rig.node.contest.lock().pause().is_some());
    assert!(is_displaced);
    assert_eq!(renamed_copies(&rig.dir.path().join("net.d")).len(), 1);
    let mut pauses = Vec::new();
    for _ in 0..3 {
        rig.node.contest.lock().set_over(true);
        rig.carry_out("{cni: present}").unwrap();
        assert!(file.exists());
        pauses.push(rig.node.contest.lock().last_pause().as_secs());
        take_away();
    }
    assert_eq!(pauses, [2, 4, 8]);
    // What the settings change is nobody's taking away.
    rig.node.contest.lock().set_over(true);
    rig.carry_out("{cni: present}").unwrap();
    rig.network("30-new.conflist", "new", "bridge");
    rig.carry_out("{cni: present, clusterNetwork: new}").unwrap();
    assert_eq!(rig.cluster_network().as_deref(), Some("new"));
}
