//! The version, name and type of a configuration, for logs, labels and errors.
//!
//! Decides nothing: only the configuration's parser says what it means. It is read after the answer has left, or where
//! an answer has already failed.

use fairlead_cni::CniVersion;
use serde_json::Value;

/// The three fields; `name` and `kind` are empty where the configuration does not have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigSummary {
    /// The field `cniVersion`; the newest version when the field names none that Fairlead speaks.
    pub(crate) version: CniVersion,
    pub(crate) name: String,
    /// The field `type`; for a list, the type of its first plugin.
    pub(crate) kind: String,
}

impl ConfigSummary {
    /// Reads the three fields out of any text; garbage gives empty fields.
    pub(crate) fn of(config: &str) -> ConfigSummary {
        let value: Value = serde_json::from_str(config).unwrap_or(Value::Null);
        let first = field(&value, "plugins").and_then(|plugins| plugins.get(0));
        let kind = field(&value, "type").or_else(|| first.and_then(|plugin| field(plugin, "type")));
        ConfigSummary {
            version: field(&value, "cniVersion")
                .map_or(Some(CniVersion::V0_1_0), |v| CniVersion::parse(v.as_str().unwrap_or("?")))
                .filter(|_| value.is_object())
                .unwrap_or(CniVersion::LATEST),
            name: field(&value, "name").and_then(Value::as_str).unwrap_or_default().to_owned(),
            kind: kind.and_then(Value::as_str).unwrap_or_default().to_owned(),
        }
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
        let seen = ConfigSummary::of(r#"{"CNIVersion":"0.4.0","Name":"net","plugins":[{"type":"macvlan"}]}"#);
        assert_eq!(
            seen,
            ConfigSummary { version: CniVersion::V0_4_0, name: "net".into(), kind: "macvlan".into() }
        );
        let nothing = ConfigSummary { version: CniVersion::LATEST, name: String::new(), kind: String::new() };
        assert_eq!(ConfigSummary::of("[1,"), nothing);
        assert_eq!(ConfigSummary::of(r#"{"cniVersion":"9.9"}"#), nothing);
        assert_eq!(ConfigSummary::of("{}").version, CniVersion::V0_1_0);
    }
}
