//! `Network` objects of `alpha.network.k8s.io/v1`, from before the NPWG specification.
//!
//! Such an object names a plugin and nothing else. Its configuration is generated: the object's name, the plugin, and the newest
//! version of CNI that both the plugin and Fairlead speak.

use std::sync::Arc;

use fairlead_cni::go_json::{self, Fields};
use fairlead_cni::{CniError, CniVersion, Code, names};
use serde_json::json;

use crate::cluster::{Definition, LegacyNetwork};

impl LegacyNetwork {
    /// The network as a definition. `spoken` gives the versions of CNI that a plugin speaks; it is asked where the object names one,
    /// and only if that is the bare name of a file.
    ///
    /// # Errors
    /// Code 7 for a name that is none, 1 where the plugin speaks no version of ours, and those of `spoken`.
    pub fn definition(
        &self,
        spoken: impl FnOnce(&str) -> Result<Vec<CniVersion>, CniError>,
    ) -> Result<Definition, CniError> {
        let config = match &self.plugin {
            None => None,
            Some(plugin) => {
                names::plugin_type(plugin)?;
                Some(Arc::from(self.generated(plugin, &spoken(plugin)?)?))
            }
        };
        Ok(Definition { namespace: self.namespace.clone(), name: self.name.clone(), config, resource: None })
    }

    fn generated(&self, plugin: &str, spoken: &[CniVersion]) -> Result<String, CniError> {
        let newest = spoken.iter().max().ok_or_else(|| {
            let msg = format!(
                "the plugin {} of Network {}/{} speaks no version of CNI from {} to {}",
                names::shown(plugin),
                self.namespace,
                self.name,
                CniVersion::V0_1_0,
                CniVersion::LATEST
            );
            CniError::new(Code::IncompatibleVersion, msg).with("install a release of the plugin that does")
        })?;
        Ok(json!({"cniVersion": newest.as_str(), "name": self.name, "type": plugin}).to_string())
    }
}

/// The versions that a plugin's answer to VERSION names and Fairlead speaks too, as libcni reads the answer (`PluginDecoder` in
/// pkg/version): a plugin of 0.2.0 need not name any, and an answer of an error object is that of a plugin of 0.1.0, which does not
/// know the command.
///
/// # Errors
/// Code 6 for what is no such answer.
pub fn spoken_versions(answer: &str) -> Result<Vec<CniVersion>, CniError> {
    let value = go_json::parse(answer)?;
    let fields = Fields::of(&value)?;
    let named = fields.texts("supportedVersions")?;
    let own = fields.text("cniVersion")?;
    if named.is_empty() {
        let is_error = fields.int("code")?.is_some_and(|code| code != 0);
        return match own.as_deref() {
            _ if is_error => Ok(vec![CniVersion::V0_1_0]),
            Some("0.2.0") => Ok(vec![CniVersion::V0_1_0, CniVersion::V0_2_0]),
            _ => Err(CniError::new(
                Code::Decode,
                "the plugin's answer to VERSION names no \"supportedVersions\"",
            )
            .with("the plugin does not speak CNI, or only in part; install another release")),
        };
    }
    // An empty text would be read as 0.1.0; in this list it is nothing.
    Ok(named.iter().filter(|text| !text.is_empty()).filter_map(|text| CniVersion::parse(text)).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn network(plugin: Option<&str>) -> LegacyNetwork {
        let plugin = plugin.map(str::to_owned);
        LegacyNetwork { namespace: "shop".to_owned(), name: "radio".to_owned(), plugin }
    }

    #[test]
    fn m2_a_network_without_a_plugin_means_the_configuration_of_its_name() {
        let definition = network(None).definition(|_| panic!("nobody is asked")).unwrap();
        assert_eq!((definition.name.as_str(), definition.config), ("radio", None));
    }

    #[test]
    fn m2_m5_a_network_with_a_plugin_has_a_configuration_in_the_newest_version_of_both() {
        let answer = r#"{"cniVersion":"9.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0","9.0.0"]}"#;
        let definition = network(Some("flannel"))
            .definition(|plugin| {
                assert_eq!(plugin, "flannel");
                spoken_versions(answer)
            })
            .unwrap();
        let config: Value = serde_json::from_str(definition.config.as_deref().unwrap()).unwrap();
        assert_eq!(config, json!({"cniVersion": "1.0.0", "name": "radio", "type": "flannel"}));
    }

    #[test]
    fn m2_a_plugin_that_is_a_path_is_never_asked() {
        for plugin in ["../sh", "/bin/sh", "a/b", ".."] {
            let error = network(Some(plugin)).definition(|_| panic!("{plugin} was asked")).unwrap_err();
            assert_eq!(error.code, Code::InvalidConfig);
        }
    }

    #[test]
    fn m5_a_plugins_versions_are_read_as_libcni_reads_them() {
        let versions = |answer| spoken_versions(answer);
        assert_eq!(versions(r#"{"cniVersion":"0.2.0"}"#).unwrap(), [CniVersion::V0_1_0, CniVersion::V0_2_0]);
        let error_object = r#"{"cniVersion":"0.1.0","code":100,"msg":"unknown CNI_COMMAND: VERSION"}"#;
        assert_eq!(versions(error_object).unwrap(), [CniVersion::V0_1_0]);
        assert!(versions(r#"{"cniVersion":"1.0.0"}"#).is_err());
        assert!(versions("not JSON").is_err());
        let error = network(Some("x")).definition(|_| versions(r#"{"supportedVersions":["9.0.0",""]}"#));
        let error = error.unwrap_err();
        assert_eq!(error.code, Code::IncompatibleVersion);
        assert!(error.msg.contains("\"x\" of Network shop/radio speaks no version of CNI"), "{}", error.msg);
    }
}
