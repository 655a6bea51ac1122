//! `fairleadd policy check`: what the policy decides about a definition, interface by interface. It asks no daemon, and changes
//! nothing.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fairlead_cni::CniError;
use fairlead_cni::args::Args;
use fairlead_cni::config::ConfList;
use fairlead_host::files::text_of;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::policy::{
    Definition, DefinitionError, Interface, InvalidNamespace, PolicySettings, Refusal, Tenant, decide,
    may_use, rule_of, with_name,
};
use crate::settings::{Settings, SettingsError};

/// The size in bytes above which a file is not read: more than the longest definition with its metadata.
const LIMIT: u64 = 1 << 20;
/// The name by which standard input is given for a file.
pub(crate) const STANDARD_INPUT: &str = "-";
/// The kind of object that has a definition in it.
pub(crate) const KIND: &str = "NetworkAttachmentDefinition";
/// The group of the API that has that kind, and others of other projects.
pub(crate) const GROUP: &str = "k8s.cni.cncf.io";
/// The annotation by which a definition names the resource whose devices its network takes.
const RESOURCE_NAME: &str = "k8s.v1.cni.cncf.io/resourceName";
/// The one version in which the kind is served.
pub(crate) const VERSION: &str = "v1";
/// What our YAML parser says of a line of a quoted text that is indented no more than the text's key.
const TOO_FAR_LEFT: &str = "invalid indentation in multiline quoted scalar";
/// So many such lines are taken: for each the text is parsed anew.
const LINES_TOO_FAR_LEFT: usize = 1000;
/// More columns than a key is indented by.
const INDENTATION: usize = 80;

/// Why nothing can be decided.
#[derive(Debug, thiserror::Error)]
pub enum PolicyCheckError {
    /// The node's configuration can't be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// There is no configuration where one was said to be.
    #[error("{config}: there is no such configuration; correct --config, or leave it out", config = .0.display())]
    NoConfig(PathBuf),
    /// The file can't be read.
    #[error("{file}: {source}; give a file of at most 1 MiB", file = .file.display())]
    Read {
        /// The file with the definition.
        file: PathBuf,
        /// Why it can't be read.
        source: io::Error,
    },
    /// A directory is where a file should be.
    #[error("{directory} is a directory; give the files in it, as in {directory}/*", directory = .0.display())]
    Directory(PathBuf),
    /// The file has no definition in it.
    #[error("{file}: {reason}; give a network's configuration (JSON), or a {KIND} (YAML or JSON)", file = .file.display())]
    Content {
        /// The file with the definition.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file has objects of Kubernetes in it, and can't be read as YAML.
    #[error("{file}: {reason}; correct its syntax", file = .file.display())]
    Syntax {
        /// The file with the objects.
        file: PathBuf,
        /// What the parser says, and of which line.
        reason: String,
    },
    /// The definition is no configuration of a network.
    #[error("{file}: {source}", file = .file.display())]
    Definition {
        /// The file with the definition.
        file: PathBuf,
        /// What its parser says.
        source: CniError,
    },
    /// A namespace that Kubernetes could not have.
    #[error(transparent)]
    Namespace(#[from] InvalidNamespace),
}

/// What is decided about one part of a definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// Where it stands in the definition; `definition` for the whole of it.
    pub place: String,
    /// Its type; empty for the whole.
    pub r#type: String,
    /// Its IPAM; empty without one.
    pub ipam: String,
    /// Whether it may be made.
    pub allowed: bool,
    /// By which rule it is allowed, or why it is refused.
    pub reason: String,
}

/// Whose definition it is, for the policy.
#[derive(Debug, Clone)]
pub struct Question {
    /// The pod's namespace, and the definition's unless that says its own.
    pub namespace: String,
    /// The labels of the definition's namespace.
    pub labels: Vec<(String, String)>,
}

/// The policy that decides, and where it was found.
#[derive(Debug)]
pub struct Policy {
    settings: PolicySettings,
    /// For a person: the file that it was read from, or that there is none.
    pub found: String,
}

impl Policy {
    /// Reads the policy in the node's configuration: in `named`, which must be there, or in `usual`, which need not be.
    ///
    /// # Errors
    /// When the configuration is refused, or is not where it is said to be.
    pub fn read(named: Option<&Path>, usual: &Path) -> Result<Policy, PolicyCheckError> {
        let file = named.unwrap_or(usual);
        // What cannot be asked is for the reading to report.
        let absent = matches!(file.try_exists(), Ok(false));
        if absent && named.is_some() {
            return Err(PolicyCheckError::NoConfig(file.to_owned()));
        }
        let settings = Settings::load(file)?.policy;
        let found = match absent {
            true => format!("the defaults: there is no {}", file.display()),
            false => file.display().to_string(),
        };
        Ok(Policy { settings, found })
    }

    /// Whether nothing can be decided about a namespace before its labels are known.
    pub(crate) fn needs_labels_of(&self, namespace: &str) -> bool {
        self.settings.needs_labels_of(namespace)
    }

    /// The same without its rules: what no definition may have, whosever it is.
    pub(crate) fn without_rules(&self) -> Policy {
        let settings = PolicySettings { rules: Vec::new(), ..self.settings.clone() };
        Policy { settings, found: self.found.clone() }
    }
}

/// Decides about the definition in a file.
///
/// # Errors
/// When one of the two cannot be read.
pub fn check(policy: &Policy, file: &Path, question: &Question) -> Result<Vec<Decision>, PolicyCheckError> {
    check_found(policy, (file, &FoundDefinition::read(file)?), question)
}

/// Decides about a definition that stands in a file.
pub(crate) fn check_found(
    policy: &Policy,
    (file, found): (&Path, &FoundDefinition),
    question: &Question,
) -> Result<Vec<Decision>, PolicyCheckError> {
    let settings = &policy.settings;
    let namespace = found.namespace.as_deref().unwrap_or(&question.namespace);
    let tenant = Tenant::new(namespace, question.labels.iter().cloned().collect())?;
    Tenant::new(&question.namespace, Default::default())?;
    let mut decisions = Vec::new();
    if let Err(refusal) = may_use(settings, &question.namespace, namespace) {
        decisions.push(of_whole(&refusal));
    }
    let object = found.name.as_deref();
    match Definition::read(&tenant, &found.text, object, &Map::new(), &Args::default()) {
        Ok(definition) => {
            let one = |interface| decided(settings, &tenant, &definition, interface);
            decisions.extend(definition.interfaces().iter().map(one));
        }
        Err(DefinitionError::Refused(refusal)) => decisions.push(of_whole(&refusal)),
        Err(DefinitionError::Unreadable(source)) => {
            return Err(PolicyCheckError::Definition { file: file.into(), source });
        }
    }
    Ok(decisions)
}

fn of_whole(refusal: &Refusal) -> Decision {
    let (r#type, ipam) = (String::new(), String::new());
    Decision { place: "definition".to_owned(), r#type, ipam, allowed: false, reason: refusal.to_string() }
}

fn decided(
    settings: &PolicySettings,
    tenant: &Tenant,
    definition: &Definition,
    interface: &Interface,
) -> Decision {
    let decision = decide(settings, definition.source(), interface);
    let allowed_by = || match rule_of(settings, tenant) {
        Ok(Some((number, rule))) => {
            let namespaces: Vec<String> = rule.namespaces.iter().map(ToString::to_string).collect();
            format!("by rule {number} (namespaces {})", namespaces.join(", "))
        }
        Ok(None) | Err(_) => "the policy has no rules".to_owned(),
    };
    Decision {
        place: if interface.place.is_empty() { "interface".to_owned() } else { interface.place.clone() },
        r#type: interface.conf.plugin_type.clone(),
        ipam: interface.conf.ipam_type.clone().unwrap_or_default(),
        allowed: decision.is_ok(),
        reason: decision.err().map_or_else(allowed_by, |refusal| refusal.to_string()),
    }
}

/// A definition as it stands in a file.
pub(crate) struct FoundDefinition {
    pub(crate) text: String,
    /// The object's name and namespace, where it is one.
    pub(crate) name: Option<String>,
    pub(crate) namespace: Option<String>,
    /// The object names a resource: its plugins are given the pod's device of that, whether or not they declare it.
    pub(crate) has_resource: bool,
}

impl FoundDefinition {
    /// Its network as a list, under the object's name; `None` where the object stands for one of the conf dir.
    pub(crate) fn as_list(&self) -> Result<Option<ConfList>, CniError> {
        if self.text.trim().is_empty() {
            return Ok(None);
        }
        let mut list = ConfList::parse(&with_name(&self.text, self.name.as_deref())?)?;
        if self.has_resource {
            list.declare("deviceID");
        }
        Ok(Some(list))
    }

    fn read(file: &Path) -> Result<FoundDefinition, PolicyCheckError> {
        FoundDefinition::in_text(&text_in(file)?, file)
    }

    /// The one that the text of a file is.
    pub(crate) fn in_text(text: &str, file: &Path) -> Result<FoundDefinition, PolicyCheckError> {
        let tree = match serde_json::from_str::<Value>(text) {
            Ok(tree) => tree,
            Err(_) => one_document(text)
                .map_err(|reason| PolicyCheckError::Content { file: file.into(), reason })?,
        };
        FoundDefinition::of(&tree, text.to_owned(), file)
    }

    /// The definition that an object of a file is; `text` is what a network's own configuration is taken from.
    pub(crate) fn of(tree: &Value, text: String, file: &Path) -> Result<FoundDefinition, PolicyCheckError> {
        let content = |reason: String| PolicyCheckError::Content { file: file.into(), reason };
        // What is none would be taken for an empty one, which means something else.
        if tree.get("spec").is_some_and(|spec| !spec.is_object() && !spec.is_null()) && tree["kind"] == KIND {
            return Err(content("its spec is no object".to_owned()));
        }
        if tree.pointer("/spec/config").is_some_and(|config| !config.is_string() && !config.is_null()) {
            return Err(content(
                "its spec.config is no text (write it in quotes, or after \"config: |\")".to_owned(),
            ));
        }
        let word = |pointer: &str| tree.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        match word("/kind") {
            Some(kind) if kind == KIND => Ok(FoundDefinition {
                text: word("/spec/config").unwrap_or_default(),
                name: Some(
                    word("/metadata/name").ok_or_else(|| content("it has no metadata.name".to_owned()))?,
                ),
                namespace: word("/metadata/namespace"),
                has_resource: tree
                    .pointer("/metadata/annotations")
                    .and_then(|annotations| annotations[RESOURCE_NAME].as_str())
                    .is_some_and(|resource| !resource.is_empty()),
            }),
            // A network's configuration is JSON, and its parser says what is wrong with it.
            _ if text.trim_start().starts_with('{') => {
                Ok(FoundDefinition { text, name: None, namespace: None, has_resource: false })
            }
            Some(kind) => Err(content(format!("it is a {kind}"))),
            None if tree.is_null() => Err(content("it is empty".to_owned())),
            None => Err(content(format!("it is neither a network's configuration nor a {KIND}"))),
        }
    }
}

/// What stands in a file; `-` is standard input.
pub(crate) fn text_in(file: &Path) -> Result<String, PolicyCheckError> {
    if file.is_dir() {
        return Err(PolicyCheckError::Directory(file.into()));
    }
    let text = match file == Path::new(STANDARD_INPUT) {
        true => text_of_stdin(),
        false => {
            let read = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(file);
            read.and_then(|opened| text_of(opened, LIMIT))
        }
    };
    text.map_err(|source| PolicyCheckError::Read { file: file.into(), source })
}

fn text_of_stdin() -> io::Result<String> {
    let mut text = String::new();
    // One byte more than the limit shows that there is more.
    if io::stdin().lock().take(LIMIT + 1).read_to_string(&mut text)? as u64 > LIMIT {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it has more than {LIMIT} bytes")));
    }
    Ok(text)
}

/// The objects of Kubernetes in the text of a file, as kubectl takes it: JSON or YAML, one or several, or a List. `None` where the text is
/// something else.
pub(crate) fn objects_in(text: &str, file: &Path) -> Result<Option<Vec<Value>>, PolicyCheckError> {
    let documents = match serde_json::from_str::<Value>(text) {
        Ok(tree) => vec![tree],
        Err(_) => match documents_in(text) {
            Ok(documents) => documents,
            Err(reason) if is_meant_for_kubernetes(text) => {
                return Err(PolicyCheckError::Syntax { file: file.into(), reason });
            }
            // Whoever reads it as what it is says what is wrong with it.
            Err(_) => return Ok(None),
        },
    };
    Ok(as_objects(documents))
}

/// Whether a text that cannot be parsed is one of objects: nothing else has this key.
fn is_meant_for_kubernetes(text: &str) -> bool {
    text.lines().any(|line| line.trim_start_matches([' ', '{', '"']).starts_with("apiVersion"))
}

fn as_objects(documents: Vec<Value>) -> Option<Vec<Value>> {
    let documents: Vec<Value> = documents.into_iter().filter(|one| !one.is_null()).collect();
    if documents.is_empty() {
        return None;
    }
    let items = |document: Value| match document.pointer("/items").and_then(Value::as_array) {
        Some(items) if document["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) => items.clone(),
        _ => vec![document],
    };
    let objects: Vec<Value> = documents.into_iter().flat_map(items).collect();
    let is_object = |object: &Value| object["kind"].is_string() && object["apiVersion"].is_string();
    objects.iter().all(is_object).then_some(objects)
}

/// The YAML documents of a text. As for kubectl, the lines of a quoted text may be indented as little as they like, which many definitions
/// make use of; our parser refuses that, as YAML 1.2 has it.
fn documents_in(text: &str) -> Result<Vec<Value>, String> {
    let mut text = Cow::Borrowed(text);
    let mut last = 0;
    for _ in 0..=LINES_TOO_FAR_LEFT {
        let error = match serde_saphyr::from_multiple::<Value>(&text) {
            Ok(documents) => return Ok(documents),
            Err(error) => error,
        };
        let error = error.without_snippet();
        let reason = error.to_string();
        let line = error.location().and_then(|place| usize::try_from(place.line()).ok()).unwrap_or(0);
        // A line that is refused again would be so for ever.
        if !reason.contains(TOO_FAR_LEFT) || line <= last {
            return Err(reason);
        }
        // What a line of a quoted text is indented by is no part of the text.
        let start: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
        text.to_mut().insert_str(start, &" ".repeat(INDENTATION));
        last = line;
    }
    Err(format!(
        "more than {LINES_TOO_FAR_LEFT} lines of quoted texts are indented no more than their keys; indent them, or divide the file"
    ))
}

/// The one YAML document of a text.
fn one_document(text: &str) -> Result<Value, String> {
    match <[Value; 1]>::try_from(documents_in(text)?) {
        Ok([document]) => Ok(document),
        Err(none) if none.is_empty() => Ok(Value::Null),
        Err(several) => Err(format!("it has {} documents; give each a file of its own", several.len())),
    }
}
