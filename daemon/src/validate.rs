//! `fairleadd validate`: what ADD and the policy would say of files, before they are on a node. It asks no daemon, and changes nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fairlead_cni::config::ConfList;
use fairlead_kube::npwg;
use serde_json::Value;

use crate::conf_dir::{self, Directories};
use crate::doctor::{Finding, good, wrong};
use crate::network_checks::{self, closest};
use crate::node_paths::NodePaths;
use crate::policy_check::{self, FoundDefinition, PolicyCheckError, Question};
use crate::settings::Settings;

/// The namespace of a definition that says none.
const NAMESPACE: &str = "default";
/// What is told of the daemon's configuration.
const ABOUT: &str = "configuration";

/// Judges files, each by what it is; without files those of the conf dir, and the daemon's configuration.
pub fn validate(paths: &NodePaths, files: &[PathBuf]) -> Vec<Finding> {
    let directories =
        Directories::new(&paths.host_root, paths.conf_dir.as_deref(), paths.plugin_dir.as_deref());
    let node = Node { paths, directories };
    if !files.is_empty() {
        return files.iter().flat_map(|file| node.judge(file)).collect();
    }
    let mut findings = vec![settings(&paths.config)];
    match conf_dir::files(&node.directories.conf, &["conflist", "conf", "json"]) {
        Ok(files) => findings.extend(files.iter().flat_map(|file| node.judge(file))),
        Err(error) => findings.push(wrong(
            "conf dir",
            format!("{}: {error}", node.directories.conf.display()),
            "correct CNI_CONF_DIR",
        )),
    }
    findings
}

/// What the files are judged by.
struct Node<'n> {
    paths: &'n NodePaths,
    directories: Directories,
}

impl Node<'_> {
    fn judge(&self, file: &Path) -> Vec<Finding> {
        let name = file.display().to_string();
        let objects = policy_check::objects_in(file);
        if !objects.is_empty() {
            let findings: Vec<Finding> =
                objects.iter().flat_map(|object| self.object(file, object)).collect();
            return if findings.is_empty() { vec![good("objects", name)] } else { findings };
        }
        let findings = match FoundDefinition::read(file) {
            Ok(found) if found.name.is_some() => self.definition(file, &found),
            Ok(found) => self.network(file, &found.text),
            // It has no kind: the daemon's configuration is the other YAML that we know.
            Err(PolicyCheckError::Content { .. }) if is_yaml(file) => return vec![settings(file)],
            Err(error) => vec![wrong("file", error.to_string(), "correct the file, or give another")],
        };
        if findings.is_empty() { vec![good("networks", name)] } else { findings }
    }

    /// What is wrong with an object of Kubernetes. In most kinds nothing is of networks.
    fn object(&self, file: &Path, object: &Value) -> Vec<Finding> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        match text("/kind") {
            Some("NetworkAttachmentDefinition") => match FoundDefinition::of(object, String::new(), file) {
                Ok(found) => self.definition(file, &found),
                Err(error) => vec![wrong("definition", error.to_string(), "correct the definition")],
            },
            Some("ConfigMap") => {
                let parsed = text("/data/config.yaml").map(|text| Settings::parse(file, text));
                parsed
                    .and_then(Result::err)
                    .map(|error| wrong_settings(&error.to_string()))
                    .into_iter()
                    .collect()
            }
            _ => ["/metadata", "/spec/template/metadata"]
                .into_iter()
                .filter_map(|place| object.pointer(place))
                .flat_map(|metadata| annotations(file, metadata))
                .collect(),
        }
    }

    fn network(&self, file: &Path, text: &str) -> Vec<Finding> {
        let place = file.display().to_string();
        match ConfList::parse(text) {
            Ok(list) => network_checks::of_list(&list, &place, &self.directories, &self.paths.host_root),
            Err(error) => vec![network_checks::refused(&place, &error)],
        }
    }

    /// A tenant's definition: what the policy decides, and what any network is judged by.
    fn definition(&self, file: &Path, found: &FoundDefinition) -> Vec<Finding> {
        let namespace = found.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
        let question = Question { namespace, labels: Vec::new() };
        let policy = policy_check::Policy::read(None, &self.paths.config);
        let refused = match policy
            .and_then(|policy| policy_check::check_found(&policy, (file, found), &question))
        {
            Ok(decisions) => {
                let refused = decisions.into_iter().filter(|one| !one.allowed);
                let told = |one: policy_check::Decision| {
                    let seen = format!("{}: {} {}: {}", file.display(), one.place, one.r#type, one.reason);
                    wrong("policy", seen, "change the definition, or the policy (docs/configuration.md)")
                };
                refused.map(told).collect()
            }
            Err(error) => vec![wrong("definition", error.to_string(), "correct the definition")],
        };
        let mut findings: Vec<Finding> = refused;
        let place = format!("{}: {}", file.display(), found.name.as_deref().unwrap_or_default());
        // The same name as the object's, as an ADD reads it.
        match found.as_list() {
            Ok(Some(list)) => findings.extend(network_checks::of_list(
                &list,
                &place,
                &self.directories,
                &self.paths.host_root,
            )),
            Ok(None) => {}
            Err(error) if findings.is_empty() => {
                findings.push(network_checks::refused(&place, &error));
            }
            Err(_) => {}
        }
        findings
    }
}

/// What is wrong with what a pod asks for, and what of it has no meaning.
fn annotations(file: &Path, metadata: &Value) -> Vec<Finding> {
    const REMEDY: &str = "correct the pod's annotation";
    let texts = metadata["annotations"].as_object().into_iter().flatten();
    let texts: BTreeMap<String, String> =
        texts.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    let namespace = metadata["namespace"].as_str().unwrap_or(NAMESPACE);
    let told = |words: String| {
        let name = metadata["name"].as_str().unwrap_or("a pod");
        wrong("annotations", format!("{}: {name}: {words}", file.display()), REMEDY)
    };
    match npwg::selections(&texts, namespace, namespace) {
        Err(refused) => vec![told(refused.to_string())],
        Ok(requested) => requested.ignored.iter().map(|ignored| told(ignored.to_string())).collect(),
    }
}

fn is_yaml(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}

/// The daemon's configuration, the policy in it included.
pub(crate) fn settings(path: &Path) -> Finding {
    match Settings::load(path) {
        Ok(_) if path.exists() => good(ABOUT, path.display().to_string()),
        Ok(_) => good(ABOUT, format!("{} is absent: the defaults", path.display())),
        Err(error) => wrong_settings(&error.to_string()),
    }
}

fn wrong_settings(error: &str) -> Finding {
    let meant = meant(error).map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"));
    wrong(ABOUT, format!("{error}{meant}"), "what was in force before goes on until it is put right")
}

/// The known word that is closest to the first one that an error quotes: its parser names the unknown one, then all known ones.
fn meant(error: &str) -> Option<&str> {
    let (_, quoted) = error.split_once("unknown ")?;
    // The line in question comes last, and has the unknown word again.
    let quoted = quoted.split(", in \"").next()?;
    let mut words =
        quoted.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).skip(1);
    let unknown = words.next()?;
    closest(unknown, words)
}
