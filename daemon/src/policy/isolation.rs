//! Which namespaces' definitions a pod may use at all (Multus' `namespaceIsolation` and `globalNamespaces`), by the policy and by the
//! node's own configuration.

use super::{PolicySettings, Refusal};

/// Whether a pod of this namespace may use a definition of that one.
///
/// # Errors
/// When namespaces are isolated, and the definition is neither of the pod's own nor of a global one.
pub fn may_use(settings: &PolicySettings, pods: &str, definitions: &str) -> Result<(), Refusal> {
    match settings.namespace_isolation {
        true => may_use_isolated(&settings.global_namespaces, pods, definitions),
        false => Ok(()),
    }
}

/// The same where namespaces are isolated but for the global ones.
///
/// # Errors
/// When the definition is neither of the pod's own namespace nor of a global one.
pub fn may_use_isolated(global: &[String], pods: &str, definitions: &str) -> Result<(), Refusal> {
    if pods == definitions || global.iter().any(|global| global == definitions) {
        return Ok(());
    }
    Err(Refusal::OtherNamespace {
        pods: pods.to_owned(),
        definitions: definitions.to_owned(),
        global: global.join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_isolated_pod_uses_definitions_of_its_own_namespace_and_of_global_ones() {
        let open = PolicySettings::default();
        assert_eq!(may_use(&open, "a", "b"), Ok(()));
        let isolated = PolicySettings { namespace_isolation: true, ..open };
        assert_eq!(may_use(&isolated, "a", "a"), Ok(()));
        assert_eq!(may_use(&isolated, "a", "default"), Ok(()), "as Multus has it where none is named");
        let told = may_use(&isolated, "a", "b").unwrap_err().to_string();
        assert!(
            told.contains("namespace a ")
                && told.contains("namespace b")
                && told.contains("globalNamespaces"),
            "{told}"
        );
        let named = PolicySettings { global_namespaces: vec!["b".into()], ..isolated };
        assert_eq!(may_use(&named, "a", "b"), Ok(()));
        assert!(may_use(&named, "a", "default").is_err(), "named ones stand for the default one");
    }
}
