//! Definitions that were read lately: pod after pod asks for the same one, and to read it takes a third of what its link takes.
//!
//! Only what is the same for every pod is kept: a definition without capability arguments, for a call whose `CNI_ARGS` say nothing but
//! which pod it is. It is judged anew each time: the policy may have changed.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_cni::args::Args;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use crate::policy::{Definition, DefinitionError, Source, Tenant};

/// When it is full it is emptied: definitions come and go.
const LIMIT: usize = 128;

/// A longer text is read anew each time: tenants write them, and what was read takes several times the memory. In bytes.
const LONGEST: usize = 4 << 10;

/// Definitions by their text.
#[derive(Debug, Default)]
pub(super) struct ReadDefinitions {
    read: Mutex<HashMap<String, OneRead>>,
}

/// A definition, and the name of the object by which it was read.
#[derive(Debug)]
struct OneRead {
    object: Option<String>,
    definition: Arc<Definition>,
}

impl OneRead {
    fn is_of(&self, tenant: &Tenant, object: Option<&str>) -> bool {
        let whose = matches!(self.definition.source(), Source::Tenant(of) if of == tenant);
        whose && self.object.as_deref() == object
    }
}

impl ReadDefinitions {
    /// The definition, as [`Definition::read`] reads it.
    ///
    /// # Errors
    /// Those of [`Definition::read`], which are not kept.
    pub(super) fn get(
        &self,
        tenant: &Tenant,
        text: &str,
        object: Option<&str>,
        runtime: &Map<String, Value>,
        args: &Args,
    ) -> Result<Arc<Definition>, DefinitionError> {
        let same_for_all = runtime.is_empty() && args.names_only_the_pod() && text.len() <= LONGEST;
        if same_for_all
            && let Some(known) = self.read.lock().get(text).filter(|known| known.is_of(tenant, object))
        {
            return Ok(Arc::clone(&known.definition));
        }
        let definition = Arc::new(Definition::read(tenant, text, object, runtime, args)?);
        if same_for_all {
            let mut read = self.read.lock();
            if read.len() >= LIMIT {
                read.clear();
            }
            let one = OneRead { object: object.map(str::to_owned), definition: Arc::clone(&definition) };
            read.insert(text.to_owned(), one);
        }
        Ok(definition)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    const TEXT: &str = r#"{"cniVersion":"1.0.0","type":"macvlan","master":"ens1","ipam":{"type":"host-local","subnet":"10.9.0.0/16"}}"#;

    fn tenant(namespace: &str, labels: &[(&str, &str)]) -> Tenant {
        let labels: BTreeMap<_, _> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Tenant::new(namespace, labels).unwrap()
    }

    fn args(pod: &str, more: &str) -> Args {
        Args::parse(&format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME={pod}{more}")).unwrap()
    }

    #[test]
    fn pods_that_ask_for_nothing_of_their_own_share_one_reading() {
        let (read, a) = (ReadDefinitions::default(), tenant("a", &[]));
        let get = |pod: &str| read.get(&a, TEXT, Some("radio"), &Map::new(), &args(pod, "")).unwrap();
        assert!(Arc::ptr_eq(&get("one"), &get("two")));
    }

    #[test]
    fn whose_it_is_its_name_and_what_a_pod_asks_for_are_never_anothers() {
        let read = ReadDefinitions::default();
        let (a, labelled, b) = (tenant("a", &[]), tenant("a", &[("tier", "ran")]), tenant("b", &[]));
        let asks = Map::from_iter([("ips".to_owned(), json!(["10.9.0.7"]))]);
        let get = |of: &Tenant, object, runtime: &Map<String, Value>, more: &str| {
            let definition = read.get(of, TEXT, Some(object), runtime, &args("one", more)).unwrap();
            assert_eq!(definition.source(), &Source::Tenant(of.clone()));
            assert_eq!((definition.list().name.as_str(), definition.runtime()), (object, runtime));
            definition
        };
        let first = get(&a, "radio", &Map::new(), "");
        for other in [
            get(&labelled, "radio", &Map::new(), ""),
            get(&b, "radio", &Map::new(), ""),
            get(&b, "other", &Map::new(), ""),
            get(&a, "radio", &asks, ""),
            get(&a, "radio", &Map::new(), ";IP=10.9.0.7"),
        ] {
            assert!(!Arc::ptr_eq(&first, &other));
        }
        let strict = Args::parse("K8S_POD_NAME=one").unwrap();
        assert!(read.get(&a, TEXT, Some("radio"), &Map::new(), &strict).is_err(), "no IgnoreUnknown");
    }

    #[test]
    fn it_is_bounded_and_a_refusal_is_not_kept() {
        let (read, a) = (ReadDefinitions::default(), tenant("a", &[]));
        for n in 0..=LIMIT {
            let text = TEXT.replace("ens1", &format!("ens{n}"));
            read.get(&a, &text, Some("radio"), &Map::new(), &args("one", "")).unwrap();
        }
        assert_eq!(read.read.lock().len(), 1);
        let long = TEXT.replace("ens1", &format!("ens1\",\"x\":\"{}", "x".repeat(LONGEST)));
        read.get(&a, &long, Some("radio"), &Map::new(), &args("one", "")).unwrap();
        read.get(&a, "{", Some("radio"), &Map::new(), &args("one", "")).unwrap_err();
        assert_eq!(read.read.lock().len(), 1);
    }
}
