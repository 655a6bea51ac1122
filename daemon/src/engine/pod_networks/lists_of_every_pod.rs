//! The networks that every pod gets beside its default one, as they are now (STATUS).

use std::sync::Arc;
use std::time::Instant;

use fairlead_cni::CniError;
use fairlead_cni::args::Args;
use fairlead_cni::config::{ClusterNetwork, ConfList};
use fairlead_kube::{ClusterError, Wait};
use serde_json::Map;

use super::told_of_cluster;
use crate::engine::Engine;

/// A list, and the namespace whose definition it is; `None`: it is the administrator's.
type ListOf = (ConfList, Option<Arc<str>>);

impl Engine {
    /// The list that every pod gets by this name, and the namespace whose definition it is; `None` where the API server cannot be asked
    /// for it now. Waits for nothing.
    ///
    /// # Errors
    /// Why an ADD would not get it.
    pub(in crate::engine) fn list_of_every_pod(
        &self,
        node: &ClusterNetwork,
        name: &str,
        args: &Args,
    ) -> Result<Option<ListOf>, CniError> {
        let cluster = match (self.networks.find(name), self.cluster.as_deref()) {
            (Some(list), _) => return Ok(Some((ConfList::clone(&list), None))),
            (None, None) => return self.wanted(name).map(|list| Some((list, None))),
            (None, Some(cluster)) => cluster,
        };
        let at_once = Wait { deadline: Instant::now(), gone: &|| false };
        let definition = match cluster.definition(&node.namespace, name, &at_once) {
            Ok(definition) => definition,
            // The API server's silence takes no node out of service.
            Err(ClusterError::DefinitionNotSeen { .. }) => return Ok(None),
            Err(why) => return Err(told_of_cluster(&why)),
        };
        let Some(text) = &definition.config else {
            return self.wanted(&definition.name).map(|list| Some((list, None)));
        };
        let tenant = self.tenant(&definition.namespace)?;
        let read = self.judged(&tenant, text, Some(&definition.name), &Map::new(), args)?;
        Ok(Some((read.list().clone(), Some(tenant.namespace().into()))))
    }
}
