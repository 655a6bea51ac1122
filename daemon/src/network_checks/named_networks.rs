//! The networks that a configuration names instead of describing one: whether they are there, and can be run.
//!
//! What cannot be looked at is not taken for absent: without a conf dir here, or without the cluster's definitions, nothing is wrong yet.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_cni::config::{ClusterNetwork, ConfList};

use super::unread_keys::{asked, closest};
use super::{ABOUT, Node};
use crate::engine::attachment_request::OWN_TYPE;
use crate::finding::{Finding, less, wrong};

/// What is known of networks beside those of the conf dir.
#[derive(Debug, Default)]
pub(crate) struct OtherNetworks {
    /// Networks that are judged together with the one that names them, by their name: whether they are of our own type.
    given: BTreeMap<String, bool>,
    /// Definitions by namespace and name.
    definitions: BTreeSet<(String, String)>,
    /// There are no other definitions.
    all_definitions: bool,
}

impl OtherNetworks {
    pub(crate) fn add_network(&mut self, list: &ConfList) {
        self.given.insert(list.name.clone(), is_of_own_type(list));
    }

    pub(crate) fn add_definition(&mut self, namespace: &str, name: &str) {
        self.definitions.insert((namespace.to_owned(), name.to_owned()));
    }

    /// The definitions of a cluster by namespace and name; `all`: there are no others.
    pub(crate) fn of_cluster<'d>(
        definitions: impl Iterator<Item = (&'d str, &'d str)>,
        all: bool,
    ) -> OtherNetworks {
        let mut others = OtherNetworks { all_definitions: all, ..OtherNetworks::default() };
        definitions.for_each(|(namespace, name)| others.add_definition(namespace, name));
        others
    }
}

/// What is known of a network by its name.
enum Named {
    /// It is there, and can be run.
    There,
    /// It is of our own type, whose list cannot be run by our own type.
    OfOwnType,
    /// The conf dir has none of that name.
    Absent,
    /// There is no conf dir here.
    Unknown,
}

fn is_of_own_type(list: &ConfList) -> bool {
    list.plugin_types().any(|kind| kind == OWN_TYPE)
}

impl Node<'_> {
    fn named(&self, name: &str) -> Named {
        let of_conf_dir = self.networks.find(name).map(|list| is_of_own_type(&list));
        match of_conf_dir.or_else(|| self.others.given.get(name).copied()) {
            Some(false) => Named::There,
            Some(true) => Named::OfOwnType,
            None if self.networks.directories().conf.is_dir() => Named::Absent,
            None => Named::Unknown,
        }
    }

    /// The names of a node's configuration.
    pub(super) fn of_cluster_network(&self, node: &ClusterNetwork, place: &str) -> Vec<Finding> {
        let conf_dir = self.networks.directories().conf.display();
        let mut findings = Vec::new();
        match self.named(&node.name) {
            Named::There => {}
            Named::OfOwnType => findings.push(of_own_type("clusterNetwork", &node.name, place)),
            Named::Absent => {
                let seen = format!(
                    "{place}: every ADD is code 11: clusterNetwork is {:?}, and {conf_dir} has no network of that name{}",
                    node.name,
                    self.alike(&node.name)
                );
                let remedy = "put it there, or name another, in a cluster by `install: {clusterNetwork: …}`; fairleadd networks lists what is there and what was refused";
                findings.push(wrong(ABOUT, seen, remedy));
            }
            Named::Unknown => {
                let seen = format!(
                    "{place}: whether the network {:?} is there, the node alone knows: {conf_dir} is not here",
                    node.name
                );
                findings.push(less(ABOUT, seen, "judge it on the node, or give that network's file too"));
            }
        }
        findings.extend(node.default_networks.iter().filter_map(|name| self.of_every_pod(node, name, place)));
        findings
    }

    /// One of `defaultNetworks`.
    fn of_every_pod(&self, node: &ClusterNetwork, name: &str, place: &str) -> Option<Finding> {
        let is_definition = self.others.definitions.contains(&(node.namespace.clone(), name.to_owned()));
        match self.named(name) {
            Named::There => None,
            Named::OfOwnType => Some(of_own_type("defaultNetworks", name, place)),
            Named::Absent | Named::Unknown if is_definition => None,
            Named::Absent if self.others.all_definitions => {
                let seen = format!(
                    "{place}: every ADD is refused: defaultNetworks has {name:?}, and there is neither a network of that name in the conf dir nor a definition in the namespace {}{}",
                    node.namespace,
                    self.alike(name)
                );
                Some(wrong(ABOUT, seen, "make one of the two, or take the name out"))
            }
            Named::Absent | Named::Unknown => {
                let seen = format!(
                    "{place}: defaultNetworks has {name:?}, which is not in the conf dir: it must be a definition in the namespace {}",
                    node.namespace
                );
                Some(less(ABOUT, seen, "see that it is there: kubectl get network-attachment-definitions -A"))
            }
        }
    }

    /// A definition without a text, which stands for the network of the conf dir that has its name.
    pub(crate) fn of_definition_without_text(&self, name: &str, place: &str) -> Option<Finding> {
        let conf_dir = self.networks.directories().conf.display();
        match self.named(name) {
            Named::There => None,
            Named::OfOwnType => Some(of_own_type("the definition", name, place)),
            Named::Absent => {
                let seen = format!(
                    "{place} has no spec.config, and {conf_dir} has no network {name:?}{}",
                    self.alike(name)
                );
                Some(wrong(ABOUT, seen, "give it a configuration, or put that network into the conf dir"))
            }
            Named::Unknown => {
                let seen = format!(
                    "{place} has no spec.config: it needs the network {name:?} of the node's conf dir, which is not here ({conf_dir})"
                );
                Some(less(ABOUT, seen, "judge it on the node, or give that network's file too"))
            }
        }
    }

    /// A definition of several plugins, one of our own type: it is run as a list by our own type. Such a list of the conf dir is run by the
    /// runtime, plugin by plugin.
    pub(crate) fn of_list_of_definition(&self, list: &ConfList, place: &str) -> Option<Finding> {
        if list.len() < 2 || !is_of_own_type(list) {
            return None;
        }
        let seen = format!(
            "{place}: every ADD is refused: a plugin of type {OWN_TYPE:?} cannot stand in a definition's list of several"
        );
        Some(wrong(ABOUT, seen, "make it the definition's only plugin"))
    }

    fn alike(&self, name: &str) -> String {
        let there = self.networks.in_file_order();
        let possible = there.iter().filter(|list| !is_of_own_type(list));
        asked(closest(name, possible.map(|list| list.name.as_str())))
    }
}

fn of_own_type(key: &str, name: &str, place: &str) -> Finding {
    let seen = format!(
        "{place}: every ADD is refused: {key} names {name:?}, which is of type {OWN_TYPE:?} and cannot be run by that type"
    );
    wrong(ABOUT, seen, "name the network itself, one whose plugins make an interface")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::conf_dir::{Directories, Networks};
    use crate::engine::kinds::BUILT_IN;
    use crate::finding::Verdict;
    use crate::metrics;

    #[test]
    fn a_network_of_every_pod_is_refused_only_where_all_definitions_are_known() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("etc/cni/net.d")).unwrap();
        let networks =
            Networks::new(Directories::new(dir.path(), None, None), &BUILT_IN, metrics::Node::default());
        let node =
            ClusterNetwork { default_networks: vec!["extra".to_owned()], ..ClusterNetwork::named("pods") };
        let verdicts = |definition: &str, all| {
            let mut others = OtherNetworks::of_cluster([("kube-system", definition)].into_iter(), all);
            let pods = r#"{"cniVersion":"1.0.0","name":"pods","type":"macvlan"}"#;
            others.add_network(&ConfList::parse(pods).unwrap());
            let findings = Node::new(&networks, Path::new("/"), others).of_cluster_network(&node, "n");
            findings.into_iter().map(|finding| finding.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts("extra", true), []);
        assert_eq!(verdicts("other", true), [Verdict::Wrong]);
        assert_eq!(verdicts("other", false), [Verdict::Less]);
    }
}
