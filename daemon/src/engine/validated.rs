//! The network that a call's lane was chosen by, kept for the call: its configuration is validated once. One is kept, the
//! latest; a call whose own was displaced by another's validates it again.

use std::sync::{Arc, Mutex, PoisonError};

use fairlead_cni::config::NetConf;

use crate::networks::Network;

/// What was validated: this configuration with these `CNI_ARGS`.
type Latest = (Arc<NetConf>, String, Network);

/// The latest.
#[derive(Debug, Default)]
pub(super) struct Validated(Mutex<Option<Latest>>);

impl Validated {
    /// Keeps it for the call.
    pub(super) fn keep(&self, conf: &Arc<NetConf>, args: &str, network: Network) {
        let latest = (Arc::clone(conf), args.to_owned(), network);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(latest);
    }

    /// The network of this very configuration and these arguments.
    pub(super) fn take(&self, conf: &Arc<NetConf>, args: &str) -> Option<Network> {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest.take_if(|(of, with, _)| Arc::ptr_eq(of, conf) && with == args).map(|(_, _, network)| network)
    }
}

#[cfg(test)]
mod tests {
    use fairlead_cni::args::Args;

    use super::*;

    #[test]
    fn a_network_is_kept_for_the_same_configuration_and_arguments_alone_and_taken_once() {
        let text = r#"{"cniVersion":"1.1.0","name":"n","type":"sriov","deviceID":"0000:21:10.0"}"#;
        let [conf, other] = [0, 1].map(|_| Arc::new(NetConf::parse(text).unwrap()));
        let network = Network::validate(&conf, &Args::parse("").unwrap()).unwrap();
        let validated = Validated::default();
        validated.keep(&conf, "a=b", network.clone());
        assert_eq!(validated.take(&other, "a=b"), None);
        assert_eq!(validated.take(&conf, ""), None);
        assert_eq!(validated.take(&conf, "a=b"), Some(network));
        assert_eq!(validated.take(&conf, "a=b"), None);
    }
}
