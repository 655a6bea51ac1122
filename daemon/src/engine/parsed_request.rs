//! A request with the network that its configuration asks for: read and validated once, for the lane and for the call.

use std::sync::Arc;

use fairlead_cni::CniError;
use fairlead_cni::config::NetConf;

use super::attachment_request::{NetworkRequest, OWN_TYPE};
use super::kinds::{Network, not_built_in};

/// What a request says.
#[derive(Debug)]
pub(crate) struct ParsedRequest {
    pub(crate) wanted: NetworkRequest,
    /// The network, or why it can't be validated; `None` for our own type.
    network: Option<Result<Network, CniError>>,
}

impl ParsedRequest {
    /// Reads and validates everything, and reports nothing yet.
    pub(crate) fn new(
        conf: Arc<NetConf>,
        namespace: Option<Arc<str>>,
        container: &str,
        ifname: &str,
        args: &str,
    ) -> ParsedRequest {
        let wanted = NetworkRequest::new(conf, namespace, container, ifname, args);
        let network = (wanted.conf.plugin_type != OWN_TYPE).then(|| {
            let args = wanted.args.as_ref().map_err(CniError::clone)?;
            Network::validate(&wanted.conf, args)
        });
        ParsedRequest { wanted, network }
    }

    /// The network of a built-in type.
    ///
    /// # Errors
    /// Why it can't be validated.
    pub(crate) fn network(&self) -> Result<&Network, CniError> {
        match &self.network {
            Some(network) => network.as_ref().map_err(CniError::clone),
            None => Err(not_built_in(&self.wanted.key.plugin)),
        }
    }

    /// The network of a built-in type, where it can be validated.
    pub(crate) fn valid_network(&self) -> Option<&Network> {
        self.network.as_ref()?.as_ref().ok()
    }
}
