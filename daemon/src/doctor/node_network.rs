//! Whether the runtime takes our configuration, and whether what it names is there: without that no ADD of this node comes to us, or none
//! succeeds.

use std::path::Path;

use fairlead_cni::config::Fairlead;
use serde_json::Map;

use super::{Finding, good, less, wrong};
use crate::conf_dir::Networks;
use crate::node_installation::{CONFLIST, displaced_by, possible_cluster_networks, renamed_copies};
use crate::settings::Settings;

const ABOUT: &str = "node network";

/// What is to be said of a node on which our configuration is, or was.
pub(super) fn findings(networks: &Networks, config: &Path) -> Vec<Finding> {
    let conf_dir = &networks.directories().conf;
    let mut findings: Vec<Finding> = renamed_copies(conf_dir)
        .iter()
        .map(|copy| {
            let seen = format!("another program has renamed our configuration: {} is there", copy.display());
            wrong(
                ABOUT,
                seen,
                "tell it to leave others' alone (cilium: cni.exclusive=false), and remove that file",
            )
        })
        .collect();
    if !conf_dir.join(CONFLIST).exists() {
        return findings;
    }
    if let Some(seen) = displaced_by(conf_dir) {
        let remedy = "rename that file, or remove it: the runtime takes the first by name";
        findings.push(wrong(ABOUT, seen, remedy));
    }
    findings.extend(cluster_network(networks, config));
    findings
}

/// The network that our configuration names.
fn cluster_network(networks: &Networks, config: &Path) -> Option<Finding> {
    let own = networks.of_file(CONFLIST)?;
    let conf = own.plugin_conf(0, None, &Map::new()).ok()?;
    let Ok(Fairlead::ClusterNetwork(node)) = Fairlead::parse(&conf) else { return None };
    let name = &node.name;
    // That it is not there is told of the network that names it.
    networks.find(name)?;
    let is_named = Settings::load(config)
        .is_ok_and(|settings| settings.install.is_some_and(|install| install.cluster_network.is_some()));
    let others: Vec<String> =
        possible_cluster_networks(networks).into_iter().filter(|other| other != name).collect();
    let seen = format!("pods get {name} first");
    match is_named || others.is_empty() {
        true => Some(good(ABOUT, seen)),
        false => Some(less(
            ABOUT,
            format!(
                "{seen}: it was the first of the conf dir at the install, or Multus'; there are also {}",
                others.join(", ")
            ),
            format!(
                "if that is meant, name it: `install: {{clusterNetwork: {name}}}`; else name the one that is"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::conf_dir::Directories;
    use crate::doctor::Verdict;
    use crate::engine::kinds::BUILT_IN;
    use crate::metrics::Node;

    #[test]
    fn what_comes_before_ours_what_renames_it_and_a_chosen_cluster_network_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let net_d = dir.path().join("etc/cni/net.d");
        fs::create_dir_all(&net_d).unwrap();
        let config = dir.path().join("config.yaml");
        let network = |file: &str, name: &str, plugin: &str| {
            let text = format!(r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":[{plugin}]}}"#);
            fs::write(net_d.join(file), text).unwrap();
        };
        let told = || {
            let directories = Directories::new(dir.path(), None, None);
            findings(&Networks::new(directories, &BUILT_IN, Node::default()), &config)
        };
        network("10-calico.conflist", "calico", r#"{"type":"calico"}"#);
        assert_eq!(told(), [], "Fairlead is not this node's network");
        network(CONFLIST, "fairlead", r#"{"type":"fairlead","clusterNetwork":"calico"}"#);
        let found = told();
        assert!(found.len() == 1 && found[0].verdict == Verdict::Good, "{found:?}");
        network("87-podman-bridge.conflist", "podman", r#"{"type":"bridge"}"#);
        let found = told();
        assert_eq!(found[0].verdict, Verdict::Less, "{found:?}");
        assert!(
            found[0].seen.contains("podman") && found[0].remedy.contains("clusterNetwork: calico"),
            "{found:?}"
        );
        fs::write(&config, "install: {cni: present, clusterNetwork: calico}").unwrap();
        assert_eq!(told()[0].verdict, Verdict::Good);
        fs::remove_file(net_d.join("10-calico.conflist")).unwrap();
        network("00-danm.conf", "danm", r#"{"type":"danm"}"#);
        fs::write(net_d.join("00-fairlead.conflist.cilium_bak"), "{}").unwrap();
        let found = told();
        assert!(found.iter().all(|one| one.verdict == Verdict::Wrong), "{found:?}");
        assert_eq!(found.len(), 2, "{found:?}");
        for (finding, words) in found.iter().zip(["cilium_bak", "00-danm.conf"]) {
            assert!(finding.seen.contains(words) && !finding.remedy.is_empty(), "{words}: {found:?}");
        }
    }
}
