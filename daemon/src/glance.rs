//! A first look at a configuration, for logs, labels and errors: its version, name and type.
//!
//! Decides nothing: what a configuration means is said by its parser alone. Read only off the answer's path or
//! where an answer has failed already.

use fairlead_cni::CniVersion;
use serde_json::Value;

/// What was seen; empty where it could not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glance {
    /// `cniVersion`, the newest when it is none that we speak.
    pub(crate) version: CniVersion,
    /// `name`
    pub(crate) name: String,
    /// `type`; of a list, its first plugin's.
    pub(crate) kind: String,
}

/// Looks at a configuration.
pub(crate) fn of(config: &str) -> Glance {
    let value: Value = serde_json::from_str(config).unwrap_or(Value::Null);
    let first = field(&value, "plugins").and_then(|plugins| plugins.get(0));
    let kind = field(&value, "type").or_else(|| first.and_then(|plugin| field(plugin, "type")));
    Glance {
        version: field(&value, "cniVersion")
            .map_or(Some(CniVersion::V0_1_0), |v| CniVersion::parse(v.as_str().unwrap_or("?")))
            .filter(|_| value.is_object())
            .unwrap_or(CniVersion::LATEST),
        name: field(&value, "name").and_then(Value::as_str).unwrap_or_default().to_owned(),
        kind: kind.and_then(Value::as_str).unwrap_or_default().to_owned(),
    }
}

/// A field by its name, in any case, as Go's decoder finds it.
fn field<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.as_object()?.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_seen_in_any_case_and_garbage_is_seen_as_nothing() {
        let seen = of(r#"{"CNIVersion":"0.4.0","Name":"net","plugins":[{"type":"macvlan"}]}"#);
        assert_eq!(seen, Glance { version: CniVersion::V0_4_0, name: "net".into(), kind: "macvlan".into() });
        let nothing = Glance { version: CniVersion::LATEST, name: String::new(), kind: String::new() };
        assert_eq!(of("[1,"), nothing);
        assert_eq!(of(r#"{"cniVersion":"9.9"}"#), nothing);
        assert_eq!(of("{}").version, CniVersion::V0_1_0);
    }
}
