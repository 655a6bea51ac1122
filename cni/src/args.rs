//! The variable `CNI_ARGS` (`K=V;K=V`), as libcni's `types.LoadArgs` reads it.
//!
//! A plugin knows a few keys. Any other key is an error unless `IgnoreUnknown` is true. Each plugin says which keys it knows
//! ([`Args::only`]); ipvlan, vlan, host-device and loopback never check. Keys match exactly. Unlike in libcni, a value may
//! contain `=`, as the specification allows.

use crate::error::{CniError, Code};

/// The keys and values of `CNI_ARGS`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Args {
    pairs: Vec<(String, String)>,
    ignore_unknown: bool,
}

impl Args {
    /// Reads the variable. An empty one has no arguments.
    ///
    /// # Errors
    /// Code 4 for a pair without `=`, and for an `IgnoreUnknown` that is no truth value.
    pub fn parse(text: &str) -> Result<Args, CniError> {
        let mut args = Args::default();
        if text.is_empty() {
            return Ok(args);
        }
        for pair in text.split(';') {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(bad(&format!("invalid pair {}", crate::names::shown(pair)))
                    .with("CNI_ARGS is KEY=VALUE;KEY=VALUE, without a ';' at the end"));
            };
            if key == "IgnoreUnknown" {
                args.ignore_unknown = truth(pair, value)?;
            }
            args.pairs.push((key.to_owned(), value.to_owned()));
        }
        Ok(args)
    }

    /// The last value of `key` in the variable.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }

    /// Whether `IgnoreUnknown` is true.
    pub fn ignore_unknown(&self) -> bool {
        self.ignore_unknown
    }

    /// Whether they say nothing to a plugin: only which pod it is (`K8S_…`), with `IgnoreUnknown`.
    pub fn names_only_the_pod(&self) -> bool {
        let of_pod = |key: &str| key == "IgnoreUnknown" || key.starts_with("K8S_");
        self.ignore_unknown && self.pairs.iter().all(|(key, _)| of_pod(key))
    }

    /// The value of `MAC`, where it is not empty.
    pub fn mac(&self) -> Option<&str> {
        self.get("MAC").filter(|mac| !mac.is_empty())
    }

    /// The addresses of `IP`, which are separated by commas. The IPAM decides what they must look like: host-local takes one,
    /// static takes several with prefix lengths.
    pub fn ip(&self) -> Vec<&str> {
        match self.get("IP") {
            Some(list) if !list.is_empty() => list.split(',').map(str::trim).collect(),
            _ => Vec::new(),
        }
    }

    /// Refuses every key but `known` and `IgnoreUnknown`, unless `IgnoreUnknown` is true.
    ///
    /// # Errors
    /// Code 4, with the unknown keys.
    pub fn only(&self, known: &[&str]) -> Result<(), CniError> {
        if self.ignore_unknown {
            return Ok(());
        }
        let unknown: Vec<String> = self
            .pairs
            .iter()
            .filter(|(key, _)| key != "IgnoreUnknown" && !known.contains(&key.as_str()))
            .map(|(key, value)| crate::names::shown(&format!("{key}={value}")))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(bad(&format!("unknown args [{}]", unknown.join(" "))).with(format!(
            "take them out of CNI_ARGS or add IgnoreUnknown=1; known here: {}",
            known.join(", ")
        )))
    }
}

/// Reads a truth value as libcni's `UnmarshallableBool`.
fn truth(pair: &str, value: &str) -> Result<bool, CniError> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(bad(&format!("error parsing value of pair {}", crate::names::shown(pair)))
            .with("IgnoreUnknown is 1, true, 0 or false")),
    }
}

fn bad(what: &str) -> CniError {
    CniError::new(Code::BadEnvironment, format!("CNI_ARGS: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_containerd_passes_is_taken_because_it_says_ignore_unknown() {
        let args = Args::parse("K8S_POD_NAME=web-0;IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_UID=u")
            .unwrap();
        assert_eq!(args.only(&["MAC"]), Ok(()));
        assert_eq!(args.get("K8S_POD_NAME"), Some("web-0"));
        assert!(args.ignore_unknown());
    }

    #[test]
    fn an_unknown_key_without_ignore_unknown_is_bad_environment() {
        let args = Args::parse("FOO=bar;MAC=02:00:00:00:00:01").unwrap();
        let error = args.only(&["MAC"]).unwrap_err();
        assert_eq!(error.code, Code::BadEnvironment);
        assert_eq!(error.msg, r#"CNI_ARGS: unknown args ["FOO=bar"]"#);
        assert_eq!(args.mac(), Some("02:00:00:00:00:01"));
        assert!(Args::parse("mac=x").unwrap().only(&["MAC"]).is_err(), "keys match exactly");
    }

    #[test]
    fn a_value_may_contain_an_equals_sign_and_the_last_value_wins() {
        let args = Args::parse("A=b=c;IP=10.0.0.1;IP=10.0.0.2, 10.0.0.3").unwrap();
        assert_eq!(args.get("A"), Some("b=c"));
        assert_eq!(args.ip(), ["10.0.0.2", "10.0.0.3"]);
    }

    #[test]
    fn a_pair_without_an_equals_sign_is_refused_and_ignore_unknown_is_a_truth_value() {
        for bad in ["x", "A=b;", ";A=b", "IgnoreUnknown=", "IgnoreUnknown=yes"] {
            assert_eq!(Args::parse(bad).unwrap_err().code, Code::BadEnvironment, "{bad}");
        }
        for (text, want) in
            [("IgnoreUnknown=TRUE", true), ("IgnoreUnknown=0", false), ("IgnoreUnknown=False", false)]
        {
            assert_eq!(Args::parse(text).unwrap().ignore_unknown(), want, "{text}");
        }
        assert_eq!(Args::parse("").unwrap(), Args::default());
    }
}
