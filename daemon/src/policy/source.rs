//! Whose text a definition is.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// The longest name of a Kubernetes namespace, in bytes (RFC 1123).
const LONGEST: usize = 63;

/// Who wrote a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The node's administrator: the conf dir, and whatever the runtime hands over.
    Administrator,
    /// Somebody who may write definitions in one namespace of the cluster.
    Tenant(Tenant),
}

/// The namespace that a definition belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    namespace: String,
    labels: BTreeMap<String, String>,
}

/// A text that is no name of a Kubernetes namespace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no namespace: give 1 to 63 lower-case letters, digits and '-', as in radio-a")]
pub struct InvalidNamespace(pub String);

impl Tenant {
    /// The namespace with its labels.
    ///
    /// # Errors
    /// When the name is none of Kubernetes (RFC 1123): it becomes part of a directory's name.
    pub fn new(namespace: &str, labels: BTreeMap<String, String>) -> Result<Tenant, InvalidNamespace> {
        let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let bytes = namespace.as_bytes();
        let ends = [bytes.first(), bytes.last()];
        let valid = bytes.len() <= LONGEST
            && ends.iter().all(|end| end.is_some_and(|c| plain(*c)))
            && bytes.iter().all(|c| plain(*c) || *c == b'-');
        match valid {
            true => Ok(Tenant { namespace: namespace.to_owned(), labels }),
            false => Err(InvalidNamespace(namespace.chars().take(2 * LONGEST).collect())),
        }
    }

    /// The namespace's name.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The labels of the namespace.
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }
}

/// The name of the directory with a network's addresses. Networks of one name in two namespaces never share one, and none of
/// them meets the administrator's: '@' occurs neither in the name of a network nor in that of a namespace.
pub fn address_directory<'n>(network: &'n str, namespace: Option<&str>) -> Cow<'n, str> {
    match namespace {
        Some(namespace) => Cow::Owned(format!("{network}@{namespace}")),
        None => Cow::Borrowed(network),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_one_name_in_two_namespaces_never_share_an_address_directory() {
        assert_eq!(address_directory("net", None), "net");
        assert_eq!(address_directory("net", Some("a")), "net@a");
        assert_ne!(address_directory("a", Some("b-c")), address_directory("a-b", Some("c")));
        assert!(
            fairlead_cni::names::network_name("net@a").is_err(),
            "no administrator's network is called so"
        );
    }

    #[test]
    fn a_namespace_that_could_lead_to_another_directory_is_refused() {
        for bad in ["", "a/b", "..", "a@b", "A", "-a", "a-", "a.b", "a\0", "é", &"a".repeat(64)] {
            assert!(Tenant::new(bad, BTreeMap::new()).is_err(), "{bad:?}");
        }
        assert_eq!(Tenant::new("radio-7", BTreeMap::new()).unwrap().namespace(), "radio-7");
    }
}
