//! Why a definition is refused. Each text names the namespace, the rule where one decides, the key, its value and the remedy.

use fairlead_cni::{CniError, Code};

/// The longest value of a definition that is repeated, in characters.
const SHOWN: usize = 64;

/// Why a definition of a tenant is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The configuration file was refused at the start, so that the policy in it is not known.
    #[error(
        "definitions of namespace {namespace} are refused: the policy is not known, because the configuration file is refused; put it right, \
         `fairleadd status` says what is wrong in it"
    )]
    PolicyUnknown {
        /// The definition's namespace.
        namespace: String,
    },
    /// The text is longer than a tenant's may be.
    #[error(
        "the definition of namespace {namespace} has {bytes} bytes, a definition may have {most}; shorten it"
    )]
    TooLong {
        /// The definition's namespace.
        namespace: String,
        /// The length of the text in bytes.
        bytes: usize,
        /// The largest length in bytes.
        most: usize,
    },
    /// The definition has more of something than a tenant's may have.
    #[error(
        "the definition of namespace {namespace} has {number} in {key:?}, a definition may have {most}; leave some out"
    )]
    TooMany {
        /// The definition's namespace.
        namespace: String,
        /// The key of the list.
        key: String,
        /// How many items it has.
        number: usize,
        /// How many it may have.
        most: usize,
    },
    /// A key that only the runtime may give.
    #[error("the definition of namespace {namespace} has {key:?}, which only the runtime gives; leave it out{}", remedy_of(.key))]
    OfRuntime {
        /// The definition's namespace.
        namespace: String,
        /// The key, with its place.
        key: String,
    },
    /// A value that no definition of a tenant may have, whatever the policy says.
    #[error("the definition of namespace {namespace} has {key:?}: {value}, {why}; {remedy}")]
    Never {
        /// The definition's namespace.
        namespace: String,
        /// The key, with its place.
        key: String,
        /// The value, as a text shows it.
        value: String,
        /// What is wrong with it.
        why: &'static str,
        /// What to do about it.
        remedy: String,
    },
    /// A program that the node's configuration does not list.
    #[error(
        "the definition of namespace {namespace} has {key:?}: {value}, which would be executed, and \"policy.execute\" is [{allowed}]; take a type \
         that Fairlead serves itself, or have the node's administrator add it to the list"
    )]
    NotExecuted {
        /// The definition's namespace.
        namespace: String,
        /// The key, with its place.
        key: String,
        /// The program, as a text shows it.
        value: String,
        /// The programs that may be executed.
        allowed: String,
    },
    /// There are rules, and none is for this namespace.
    #[error(
        "definitions of namespace {namespace} are refused: none of the {rules} rules of the policy is for this namespace; the node's administrator \
         can add it to \"policy.rules\""
    )]
    NoRule {
        /// The definition's namespace.
        namespace: String,
        /// How many rules there are.
        rules: usize,
    },
    /// The rule of this namespace does not allow a value.
    #[error(
        "the definition of namespace {namespace} has {key:?}: {value}; rule {rule} (namespaces {selectors}) allows {list:?}: [{allowed}]; take one of \
         these, or have the node's administrator add it to the rule"
    )]
    NotAllowed {
        /// The definition's namespace.
        namespace: String,
        /// The number of the rule, from 1.
        rule: usize,
        /// The namespaces that the rule is for.
        selectors: Box<str>,
        /// The key of the definition, with its place.
        key: String,
        /// The value, as a text shows it.
        value: Box<str>,
        /// The rule's list.
        list: &'static str,
        /// What is in it.
        allowed: Box<str>,
    },
    /// A pod may not have this port of the node lead to it.
    #[error(
        "a pod of namespace {namespace} asks by \"portMappings\" of network {network} for port {port} of the node, and {why}; ask for another \
         port, or have the node's administrator list this one in \"hostPorts\" of the namespace's rule (\"policy.rules\")"
    )]
    HostPort {
        /// The pod's namespace.
        namespace: String,
        /// The network by which the port is to lead.
        network: String,
        /// The node's port that it asks for.
        port: u16,
        /// Which ports the pod may not have, or may.
        why: String,
    },
    /// A pod may not use the definitions of this namespace.
    #[error(
        "a pod of namespace {pods} may not use a definition of namespace {definitions}: \"namespaceIsolation\" is on, and \
         \"globalNamespaces\" is [{global}] (section policy of the configuration file, or 00-fairlead.conflist); move the definition \
         to one of these, or to the pod's namespace"
    )]
    OtherNamespace {
        /// The pod's namespace.
        pods: String,
        /// The definition's namespace.
        definitions: String,
        /// The namespaces that every pod may use.
        global: String,
    },
}

impl From<Refusal> for CniError {
    fn from(refusal: Refusal) -> CniError {
        CniError::new(Code::InvalidConfig, refusal.to_string())
    }
}

/// A value of a definition, quoted and cut off.
pub(super) fn shown(value: &str) -> String {
    match value.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{:?}…", value.get(..at).unwrap_or_default()),
        None => format!("{value:?}"),
    }
}

fn remedy_of(key: &str) -> &'static str {
    match key.ends_with("runtimeConfig") {
        true => ", and declare in \"capabilities\" what the runtime is to pass",
        false => "",
    }
}
