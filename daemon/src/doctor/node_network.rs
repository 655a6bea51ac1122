//! Whether the runtime takes our configuration, and whether what it names is there: without that no ADD of this node comes to us, or none
//! succeeds.

use std::path::Path;

use crate::conf_dir::Networks;
use crate::finding::{Finding, good, less, wrong};
use crate::node_installation::{
    self, CONFLIST, cluster_network_of, conflist_without_executable, displaced_by, named_by_multus,
    possible_cluster_networks, renamed_copies,
};
use crate::plugin_installation::OWN_NAME;
use crate::settings::{Installation, Presence, Settings};

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
    findings.extend(named_by_multus(networks).map(|seen| {
        let remedy =
            "name the cluster network's own file in Multus' settings, and restart Multus on this node";
        wrong(ABOUT, seen, remedy)
    }));
    if !conf_dir.join(CONFLIST).exists() {
        findings.extend(not_installed(networks, config));
        return findings;
    }
    if let Some(seen) = displaced_by(conf_dir) {
        let remedy = "rename that file, or remove it: the runtime takes the first by name";
        findings.push(wrong(ABOUT, seen, remedy));
    }
    if let Some(file) = conflist_without_executable(conf_dir, &networks.directories().plugins) {
        let file = file.display();
        findings.push(wrong(
            ABOUT,
            format!("{file} names {OWN_NAME}, which is in no plugin directory: no pod of this node starts"),
            "`install: {cni: present}` has the daemon put it there, `absent` takes that file away; or remove the file",
        ));
    }
    findings.extend(cluster_network(networks, config));
    findings
}

/// What the daemon's configuration says of the install, where Fairlead is to be this node's network.
fn wanted(config: &Path) -> Option<Installation> {
    Settings::load(config).ok()?.install.filter(|install| install.cni == Presence::Present)
}

/// Why a node that is to have our configuration does not have it.
fn not_installed(networks: &Networks, config: &Path) -> Option<Finding> {
    let install = wanted(config)?;
    let dir = networks.directories().conf.display();
    if let Some(named) = install.cluster_network.as_deref().filter(|named| networks.find(named).is_none()) {
        let instead = match networks.in_file_order().first() {
            Some(first) => format!("Fairlead is not installed, and pods get {} without it", first.name),
            None => "Fairlead is not installed, and pods get nothing".to_owned(),
        };
        return Some(not_there(networks, named, &instead));
    }
    Some(match node_installation::cluster_network(networks, install.cluster_network.as_deref()) {
        Err(error) => wrong(
            ABOUT,
            format!("`install: {{cni: present}}` is not done: {error}"),
            "when that is put right, the daemon installs Fairlead by itself within a minute",
        ),
        Ok(_) => less(
            ABOUT,
            format!("`install: {{cni: present}}` is not done yet: {dir} has no {CONFLIST}"),
            "the daemon writes it as soon as it is ready; if it stays away, its log says why",
        ),
    })
}

/// The network that the settings name is not in the conf dir. `instead`: what pods get.
fn not_there(networks: &Networks, named: &str, instead: &str) -> Finding {
    let dir = networks.directories().conf.display();
    let possible = possible_cluster_networks(networks);
    let there = if possible.is_empty() { "none".to_owned() } else { possible.join(", ") };
    wrong(
        ABOUT,
        format!("`install: {{clusterNetwork: {named}}}` names a network that is not in {dir}: {instead}"),
        format!(
            "put the network {named} there, or name one that is there ({there}); the daemon then installs it by itself"
        ),
    )
}

/// The network that our configuration names.
fn cluster_network(networks: &Networks, config: &Path) -> Option<Finding> {
    let list = networks.of_file(CONFLIST)?;
    let name = &cluster_network_of(&list)?;
    let named = wanted(config).and_then(|install| install.cluster_network);
    if let Some(named) = named.as_deref().filter(|named| named != name) {
        return Some(match networks.find(named) {
            None => not_there(networks, named, &format!("pods get {name} first, from an earlier install")),
            Some(_) => less(
                ABOUT,
                format!(
                    "pods get {name} first, and `install: {{clusterNetwork: {named}}}` names another network"
                ),
                "the daemon changes that as soon as it is ready; if it stays so, its log says why",
            ),
        });
    }
    // That it is not there is told of the network that names it.
    networks.find(name)?;
    let others: Vec<String> =
        possible_cluster_networks(networks).into_iter().filter(|other| other != name).collect();
    let seen = format!("pods get {name} first");
    match named.is_some() || others.is_empty() {
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
    use std::path::PathBuf;

    use super::*;
    use crate::conf_dir::Directories;
    use crate::engine::kinds::BUILT_IN;
    use crate::finding::Verdict;
    use crate::metrics::Node;

    /// The conf dir of a node, and its plugin directory with our executable.
    fn node_with_program(root: &Path) -> (PathBuf, PathBuf) {
        let (net_d, bin) = (root.join("etc/cni/net.d"), root.join("opt/cni/bin"));
        for directory in [&net_d, &bin] {
            fs::create_dir_all(directory).unwrap();
        }
        let program = bin.join(OWN_NAME);
        fs::write(&program, "").unwrap();
        (net_d, program)
    }

    #[test]
    fn a_network_that_the_settings_name_and_that_is_not_there_is_told_with_what_pods_get_instead() {
        let dir = tempfile::tempdir().unwrap();
        let (net_d, _) = node_with_program(dir.path());
        let config = dir.path().join("config.yaml");
        let told = || {
            let directories = Directories::new(dir.path(), None, None);
            let found = findings(&Networks::new(directories, &BUILT_IN, Node::default()), &config);
            assert!(
                found.iter().all(|one| one.verdict == Verdict::Good || !one.remedy.is_empty()),
                "{found:?}"
            );
            let [found] = <[Finding; 1]>::try_from(found).unwrap();
            found
        };
        fs::write(&config, "install: {cni: present}").unwrap();
        let nothing = told();
        assert_eq!(nothing.verdict, Verdict::Wrong, "{nothing:?}");
        assert!(nothing.seen.contains("has no network that pods could get first"), "{nothing:?}");
        fs::write(&config, "install: {cni: present, clusterNetwork: wanted}").unwrap();
        let nothing = told();
        assert!(
            nothing.verdict == Verdict::Wrong && nothing.seen.contains("pods get nothing"),
            "{nothing:?}"
        );
        let anet = r#"{"cniVersion":"1.0.0","name":"anet","plugins":[{"type":"macvlan"}]}"#;
        fs::write(net_d.join("10-anet.conflist"), anet).unwrap();
        let without = told();
        assert!(
            without.seen.contains("wanted") && without.seen.contains("pods get anet without it"),
            "{without:?}"
        );
        let ours = r#"{"cniVersion":"1.0.0","name":"fairlead","plugins":[{"type":"fairlead","clusterNetwork":"anet"}]}"#;
        fs::write(net_d.join(CONFLIST), ours).unwrap();
        let another = told();
        assert_eq!(another.verdict, Verdict::Wrong, "{another:?}");
        assert!(
            another.seen.contains("wanted") && another.seen.contains("pods get anet first"),
            "{another:?}"
        );
        assert!(another.remedy.contains("(anet)"), "{another:?}");
        fs::write(&config, "install: {cni: present, clusterNetwork: anet}").unwrap();
        assert_eq!(told().verdict, Verdict::Good);
        fs::remove_file(net_d.join(CONFLIST)).unwrap();
        assert_eq!(told().verdict, Verdict::Less, "it is to be installed");
    }

    #[test]
    fn a_multus_that_attaches_our_network_is_told_with_and_without_our_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let (net_d, _) = node_with_program(dir.path());
        let ours = r#"{"cniVersion":"1.0.0","name":"fairlead","plugins":[{"type":"fairlead","clusterNetwork":"pods"}]}"#;
        let multus = format!(r#"{{"cniVersion":"1.0.0","name":"m","type":"multus","delegates":[{ours}]}}"#);
        fs::write(net_d.join("01-multus.conf"), multus).unwrap();
        for is_installed in [false, true] {
            if is_installed {
                fs::write(net_d.join(CONFLIST), ours).unwrap();
            }
            let directories = Directories::new(dir.path(), None, None);
            let networks = Networks::new(directories, &BUILT_IN, Node::default());
            let found = findings(&networks, &dir.path().join("config.yaml"));
            let of_it: Vec<&Finding> =
                found.iter().filter(|one| one.seen.contains("multusMasterCNI")).collect();
            assert!(of_it.len() == 1 && of_it[0].verdict == Verdict::Wrong, "{found:?}");
        }
    }

    #[test]
    fn what_comes_before_ours_what_renames_it_and_a_chosen_cluster_network_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let (net_d, program) = node_with_program(dir.path());
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
        fs::remove_file(&program).unwrap();
        let found = told();
        assert_eq!((found.len(), found[0].verdict), (2, Verdict::Wrong), "{found:?}");
        assert!(found[0].seen.contains("in no plugin directory") && !found[0].remedy.is_empty(), "{found:?}");
        fs::write(&program, "").unwrap();
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
