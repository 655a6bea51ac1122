//! `fairleadd validate`: what ADD and the policy would say of files, before they are on a node. It changes nothing.

mod given_files;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fairlead_cni::config::ConfList;
use fairlead_kube::npwg;
use serde_json::{Map, Value};

use self::given_files::{Given, Labels, labels_in, named_in, named_twice};
use crate::conf_dir::{self, ConfDirError, Directories, Networks};
use crate::engine::kinds::BUILT_IN;
use crate::finding::{Finding, Verdict, good, less, wrong};
use crate::metrics;
use crate::network_checks::{self, OtherNetworks, closest};
use crate::node_paths::{NodePaths, TypedPaths};
use crate::policy_check::{self, FoundDefinition, Policy, PolicyCheckError, Question};
use crate::settings::{Settings, SettingsError};

/// Where the objects that make pods have the metadata of these: a CronJob, then all others.
const TEMPLATES: [&str; 2] = ["/spec/jobTemplate/spec/template/metadata", "/spec/template/metadata"];
/// The interface of a pod's default network, as runtimes call it.
const DEFAULT_INTERFACE: &str = "eth0";
/// The namespace of a definition that says none.
const NAMESPACE: &str = "default";
/// How long the executable waits for a call unless its environment says otherwise (`shim/src/environment.rs`).
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// So many keys of a file that is none of ours are named.
const FEW: usize = 4;
/// What is told of the daemon's configuration.
const ABOUT: &str = "configuration";
/// What is told of networks.
const NETWORKS: &str = "networks";

/// Judges files, each by what it is; without files those of the conf dir, and the daemon's configuration.
pub fn validate(paths: &NodePaths, typed: TypedPaths, files: &[PathBuf]) -> Vec<Finding> {
    let directories =
        Directories::new(&paths.host_root, paths.conf_dir.as_deref(), paths.plugin_dir.as_deref());
    let networks = Networks::new(directories, &BUILT_IN, metrics::Node::default());
    let conf_dir = &networks.directories().conf;
    let mut findings = Vec::new();
    let are_given = !files.is_empty();
    let files = match conf_dir::files(conf_dir, &["conflist", "conf", "json"]) {
        _ if are_given => {
            findings.extend(typed_and_absent(&paths.config, typed));
            files.to_vec()
        }
        of_node => {
            findings.push(settings(&paths.config, typed));
            of_node.unwrap_or_else(|error| {
                let seen = format!("{}: {error}", conf_dir.display());
                findings.push(wrong("conf dir", seen, "correct CNI_CONF_DIR"));
                Vec::new()
            })
        }
    };
    let given: Vec<Result<Given, PolicyCheckError>> = files.iter().cloned().map(Given::read).collect();
    let readable = || given.iter().flatten();
    let node = Node::new((paths, typed), &networks, named_in(readable())).with_labels(labels_in(readable()));
    let mut refused = networks.refused();
    refused.retain(|refused| files.iter().any(|file| file == refused.file()));
    if are_given {
        refused.extend(named_twice(readable()));
    }
    findings.extend(given.into_iter().flat_map(|given| match given {
        Ok(given) => node.judge(given),
        Err(error) => vec![unreadable(&error)],
    }));
    refused.iter().for_each(|refused| add_refused(&mut findings, refused));
    findings
}

/// Adds what the daemon refuses though nothing is wrong with the file itself: above all a network with the name of another file's.
fn add_refused(findings: &mut Vec<Finding>, refused: &ConfDirError) {
    let name = refused.file().display().to_string();
    let of_file = format!("{name}: ");
    let is_told = |one: &Finding| one.verdict == Verdict::Wrong && one.seen.starts_with(&of_file);
    let finding = match refused {
        // Files of several nodes may be judged at once.
        ConfDirError::Twice { file, first, .. } if file.parent() != first.parent() => {
            less(NETWORKS, refused.to_string(), "in one conf dir the daemon takes the first of the two alone")
        }
        ConfDirError::Read { .. } | ConfDirError::Content { .. } if findings.iter().any(is_told) => return,
        _ => {
            let remedy = "put the file right; the other networks are not affected";
            wrong(NETWORKS, refused.to_string(), remedy)
        }
    };
    findings.retain(|one| one.verdict != Verdict::Good || one.seen != name);
    if !findings.contains(&finding) {
        findings.push(finding);
    }
}

fn unreadable(error: &PolicyCheckError) -> Finding {
    wrong("file", error.to_string(), "correct the file, or give another")
}

/// What the files are judged by.
pub(crate) struct Node<'n> {
    policy: Result<Policy, PolicyCheckError>,
    /// Of the namespaces that are given with the files.
    labels: BTreeMap<String, Labels>,
    checks: network_checks::Node<'n>,
}

impl<'n> Node<'n> {
    pub(crate) fn new(
        (paths, typed): (&'n NodePaths, TypedPaths),
        networks: &'n Networks,
        others: OtherNetworks,
    ) -> Node<'n> {
        let config = paths.config.as_path();
        let policy = Policy::read(typed.config.then_some(config), config);
        let checks = network_checks::Node::new(networks, &paths.host_root, others);
        Node { policy, labels: BTreeMap::new(), checks }
    }

    fn with_labels(self, labels: BTreeMap<String, Labels>) -> Node<'n> {
        Node { labels, ..self }
    }

    fn judge(&self, given: Given) -> Vec<Finding> {
        let Given { file, text, objects } = given;
        let (file, name) = (file.as_path(), file.display().to_string());
        if let Some(objects) = objects {
            let findings: Vec<Finding> =
                objects.iter().flat_map(|object| self.object(file, object)).collect();
            return if findings.is_empty() { vec![good("objects", name)] } else { findings };
        }
        let findings = match FoundDefinition::in_text(&text, file) {
            Ok(found) if found.name.is_some() => self.definition_in(file, &found),
            Ok(found) => self.network(file, &found.text),
            // It has no kind: the daemon's configuration is the other YAML that we know.
            Err(PolicyCheckError::Content { .. }) if is_yaml(file) => {
                return vec![configuration(file, &text)];
            }
            Err(error) => vec![unreadable(&error)],
        };
        if findings.is_empty() { vec![good(NETWORKS, name)] } else { findings }
    }

    /// What is wrong with an object of Kubernetes. In most kinds nothing is of networks.
    fn object(&self, file: &Path, object: &Value) -> Vec<Finding> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        match text("/kind") {
            Some(policy_check::KIND) => {
                let mut findings = as_kubernetes_reads_it(file, object);
                match FoundDefinition::of(object, String::new(), file) {
                    // A text under another key would be taken for none, which means something else.
                    Ok(found) if found.text.is_empty() && !findings.is_empty() => {}
                    Ok(found) => findings.extend(self.definition_in(file, &found)),
                    Err(error) => {
                        findings.push(wrong("definition", error.to_string(), "correct the definition"));
                    }
                }
                findings
            }
            Some(kind) if is_meant_for_a_definition(kind, object) => {
                let seen = format!(
                    "{}: the API has no kind {kind} in {}; did you mean {}?",
                    file.display(),
                    policy_check::GROUP,
                    policy_check::KIND
                );
                vec![wrong("definition", seen, "correct the kind: the API server refuses the object")]
            }
            Some("ConfigMap") => {
                let parsed = text("/data/config.yaml").map(|text| Settings::parse(file, text));
                parsed
                    .and_then(Result::err)
                    .map(|error| wrong_settings(&error.to_string()))
                    .into_iter()
                    .collect()
            }
            _ => of_pods(file, object),
        }
    }

    fn network(&self, file: &Path, text: &str) -> Vec<Finding> {
        let place = file.display().to_string();
        let list = match ConfList::parse(text) {
            Ok(list) => list,
            Err(error) => return vec![network_checks::refused(&place, &error)],
        };
        // What comes by standard input has no directory beside it.
        let whole = match file == Path::new(policy_check::STANDARD_INPUT) {
            true => Ok(list),
            false => conf_dir::with_plugins_beside(list, file),
        };
        match whole {
            Ok(list) => self.checks.of_network(text, &list, &place),
            Err(error) => vec![wrong(NETWORKS, error.to_string(), "correct that file")],
        }
    }

    fn definition_in(&self, file: &Path, found: &FoundDefinition) -> Vec<Finding> {
        let namespace = found.namespace.as_deref().unwrap_or(NAMESPACE);
        let place = format!("{}: {}", file.display(), found.name.as_deref().unwrap_or_default());
        self.definition((file, &place), found, (namespace, self.labels.get(namespace).cloned()))
    }

    /// A tenant's definition: what the policy decides, and what any network is judged by. `origin` is where it was found, `place` how its
    /// network is named to a person; `labels` are those of its namespace, as far as they are known.
    pub(crate) fn definition(
        &self,
        (origin, place): (&Path, &str),
        found: &FoundDefinition,
        (namespace, labels): (&str, Option<Labels>),
    ) -> Vec<Finding> {
        // Under the object's name, as an ADD reads it.
        let list = found.as_list();
        if let Ok(Some(list)) = list.as_ref()
            && list.is_empty()
        {
            return self.checks.of_network(&found.text, list, place);
        }
        let mut findings = self.refused_by_policy((origin, place), found, (namespace, labels));
        match list {
            Ok(Some(list)) => {
                findings.extend(self.checks.of_list_of_definition(&list, place));
                findings.extend(self.checks.of_network(&found.text, &list, place));
            }
            Ok(None) => {
                let name = found.name.as_deref().unwrap_or_default();
                findings.extend(self.checks.of_definition_without_text(name, place));
            }
            Err(error) if findings.is_empty() => {
                findings.push(network_checks::refused(place, &error));
            }
            Err(_) => {}
        }
        findings
    }

    fn refused_by_policy(
        &self,
        (origin, place): (&Path, &str),
        found: &FoundDefinition,
        (namespace, labels): (&str, Option<Labels>),
    ) -> Vec<Finding> {
        let policy = match &self.policy {
            Ok(policy) => policy,
            // It is told already, once.
            Err(PolicyCheckError::NoConfig(_)) => return Vec::new(),
            Err(error) => return vec![wrong_settings(&error.to_string())],
        };
        if labels.is_none() && policy.needs_labels_of(namespace) {
            let seen = format!(
                "{place}: the policy goes by the labels of namespace {namespace}, which are not known here: whether it allows this is open"
            );
            let remedy = "give the Namespace's file too, or ask with them: fairleadd policy check --label; doctor has the cluster's";
            let mut findings = decided(&policy.without_rules(), (origin, found), (namespace, Vec::new()));
            findings.push(less("policy", seen, remedy));
            return findings;
        }
        decided(policy, (origin, found), (namespace, labels.unwrap_or_default()))
    }
}

/// What a policy refuses of a definition.
fn decided(
    policy: &Policy,
    found: (&Path, &FoundDefinition),
    (namespace, labels): (&str, Labels),
) -> Vec<Finding> {
    let question = Question { namespace: namespace.to_owned(), labels };
    match policy_check::check_found(policy, found, &question) {
        Ok(decisions) => {
            let refused = decisions.into_iter().filter(|one| !one.allowed);
            let told = |one: policy_check::Decision| {
                let seen = format!("{}: {} {}: {}", found.0.display(), one.place, one.r#type, one.reason);
                wrong("policy", seen, "change the definition, or the policy (docs/configuration.md)")
            };
            refused.map(told).collect()
        }
        Err(error) => vec![wrong("definition", error.to_string(), "correct the definition")],
    }
}

/// What the API server refuses of a definition, or drops.
fn as_kubernetes_reads_it(file: &Path, definition: &Value) -> Vec<Finding> {
    let place =
        format!("{}: {}", file.display(), definition["metadata"]["name"].as_str().unwrap_or_default());
    let version = definition["apiVersion"].as_str().unwrap_or_default();
    let served = format!("{}/{}", policy_check::GROUP, policy_check::VERSION);
    let mut findings = Vec::new();
    if version != served {
        let seen = format!("{place}: apiVersion is {version:?}, and a {} is {served}", policy_check::KIND);
        findings.push(wrong("definition", seen, "correct it: the API server refuses the object"));
    }
    for (keys, known, place) in [
        (Some(definition), &["apiVersion", "kind", "metadata", "spec"][..], place.clone()),
        (definition.get("spec"), &["config"], format!("{place}: spec")),
    ] {
        let keys = keys.and_then(Value::as_object);
        findings
            .extend(keys.into_iter().flat_map(|keys| network_checks::unread_exactly(keys, known, &place)));
    }
    findings
}

/// Whether an object's kind is a mistyped one of a definition. Its group has other kinds, of other projects.
fn is_meant_for_a_definition(kind: &str, object: &Value) -> bool {
    let group = object["apiVersion"].as_str().and_then(|version| version.split_once('/'));
    group.is_some_and(|(group, _)| group == policy_check::GROUP)
        && closest(kind, [policy_check::KIND].into_iter()).is_some()
}

/// What is wrong with the annotations of a pod, or of the pods that an object makes.
fn of_pods(file: &Path, object: &Value) -> Vec<Finding> {
    let own = object.pointer("/metadata").unwrap_or(&Value::Null);
    let templates: Vec<&Value> = TEMPLATES.into_iter().filter_map(|place| object.pointer(place)).collect();
    let Some(metadata) = templates.first() else { return annotations(file, own, own) };
    let misplaced =
        own["annotations"].as_object().into_iter().flat_map(Map::keys).filter(|key| is_of_pods(key));
    let told = |key: &String| {
        let name = own["name"].as_str().unwrap_or("an object");
        let seen = format!(
            "{}: {name}: the annotation {key} is the object's own, and its pods do not get it",
            file.display()
        );
        wrong("annotations", seen, "put it into the metadata of the pods' template")
    };
    let mut findings: Vec<Finding> = misplaced.map(told).collect();
    findings.extend(annotations(file, metadata, own));
    findings
}

fn is_of_pods(annotation: &str) -> bool {
    [npwg::NETWORKS, npwg::DEFAULT_NETWORK, npwg::LEGACY_NETWORKS].contains(&annotation)
}

/// Keys that look like one of a pod's networks and are none: nobody reads them.
fn mistyped(texts: &BTreeMap<String, String>) -> Vec<String> {
    const READ: [&str; 3] = [npwg::NETWORKS, npwg::DEFAULT_NETWORK, npwg::LEGACY_NETWORKS];
    // Written by whoever attaches the pod, and read by others.
    const WRITTEN: [&str; 2] = ["k8s.v1.cni.cncf.io/network-status", "k8s.v1.cni.cncf.io/networks-status"];
    let group = |key: &str| key.split_once('/').map(|(group, _)| group.to_owned());
    let is_of_group = |key: &str| READ.iter().any(|read| group(read) == group(key));
    let unread = texts.keys().filter(|key| is_of_group(key) && !READ.contains(&key.as_str()));
    let unread = unread.filter(|key| !WRITTEN.contains(&key.as_str()));
    unread
        .filter_map(|key| {
            let meant = closest(key, READ.into_iter().filter(|read| group(read) == group(key)))?;
            Some(format!("nobody reads the annotation {key}; did you mean {meant}?"))
        })
        .collect()
}

/// What is wrong with what a pod asks for, and what of it has no meaning. `object`: what has the namespace and the name.
fn annotations(file: &Path, metadata: &Value, object: &Value) -> Vec<Finding> {
    const REMEDY: &str = "correct the pod's annotation";
    let texts = metadata["annotations"].as_object().into_iter().flatten();
    let texts: BTreeMap<String, String> =
        texts.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    let of = |key: &str| metadata[key].as_str().or(object[key].as_str());
    let namespace = of("namespace").unwrap_or(NAMESPACE);
    let told = |words: String| {
        let name = of("name").unwrap_or("a pod");
        wrong("annotations", format!("{}: {name}: {words}", file.display()), REMEDY)
    };
    let names = npwg::InterfaceNames { default: DEFAULT_INTERFACE, added: 0 };
    let requested = npwg::selections(&texts, namespace, namespace);
    let mut words = mistyped(&texts);
    match requested.and_then(|requested| names.of(&requested).map(|_| requested)) {
        Err(refused) => words.push(refused.to_string()),
        Ok(requested) => words.extend(requested.ignored.iter().map(ToString::to_string)),
    }
    words.into_iter().map(told).collect()
}

/// Whether YAML may be in a file: what comes by standard input has no ending that says it.
fn is_yaml(file: &Path) -> bool {
    file == Path::new(policy_check::STANDARD_INPUT)
        || file.extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}

/// A text that is the daemon's configuration, unless not one of its keys is, nor is like one.
fn configuration(file: &Path, text: &str) -> Finding {
    let written: Map<String, Value> = serde_saphyr::from_str(text).unwrap_or_default();
    let is_ours = |key: &String| closest(key, Settings::keys().iter().copied()).is_some();
    if written.is_empty() || written.keys().any(is_ours) {
        return judged(file, Settings::parse(file, text).map(Settings::with_device_plugin));
    }
    let keys: Vec<&str> = written.keys().take(FEW).map(String::as_str).collect();
    let seen = format!(
        "{}: it looks like nothing of ours: no network, no object of Kubernetes, and no key of the daemon's configuration ({})",
        file.display(),
        keys.join(", ")
    );
    wrong("file", seen, "give another file")
}

/// The daemon's configuration, the policy in it included.
pub(crate) fn settings(path: &Path, typed: TypedPaths) -> Finding {
    typed_and_absent(path, typed).unwrap_or_else(|| judged(path, Settings::load(path)))
}

/// A configuration that was typed and is not there: the defaults, by which everything is allowed, are not what was meant.
fn typed_and_absent(path: &Path, typed: TypedPaths) -> Option<Finding> {
    let is_absent = typed.config && matches!(path.try_exists(), Ok(false));
    let seen = || format!("{}: there is no such configuration", path.display());
    is_absent.then(|| wrong(ABOUT, seen(), "correct --config, or leave it out"))
}

fn judged(path: &Path, settings: Result<Settings, SettingsError>) -> Finding {
    match settings {
        Ok(Settings { device_plugin_config: Some(file), device_plugin: Some(Err(reason)), .. }) => wrong(
            ABOUT,
            format!("{}: devicePluginConfig: {} can't be read: {reason}", path.display(), file.display()),
            "correct the key, or the file: none of its resources is a pool before it can be read",
        ),
        Ok(settings) if settings.pod_wait.0 >= CALL_LIMIT => less(
            ABOUT,
            format!(
                "{}: podWait is {} s, and a call is given up after {} s",
                path.display(),
                settings.pod_wait.0.as_secs(),
                CALL_LIMIT.as_secs()
            ),
            "choose less; or set FAIRLEAD_TIMEOUT in the runtime's environment to more seconds, and leave this",
        ),
        Ok(_) if path.exists() || path == Path::new(policy_check::STANDARD_INPUT) => {
            good(ABOUT, path.display().to_string())
        }
        Ok(_) => good(ABOUT, format!("{} is absent: the defaults", path.display())),
        Err(error) => wrong_settings(&error.to_string()),
    }
}

fn wrong_settings(error: &str) -> Finding {
    let remedy = "put it right: until then what was in force goes on, and a daemon that starts has the defaults and is not ready";
    wrong(ABOUT, error, remedy)
}
