//! For tests that are programs of their own, never in a release build: an ADD of the executable that stands for a tenant's definition.
//!
//! Nothing is decided here: the definition goes through [`Engine::add_definition`], as one that came from the API would.

use std::collections::BTreeMap;

use fairlead_cni::wire::{Command, Request};
use fairlead_cni::{CniError, Code};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Engine;
use super::attachment_request::Sandbox;
use super::tenant_definition::DefinitionCall;
use crate::call::Waiting;
use crate::policy::Tenant;

/// A configuration with the name and type of the definition, by which its DEL finds the record.
#[derive(Deserialize)]
struct Wrapper {
    #[serde(rename = "tenantsDefinition")]
    definition: Definition,
}

#[derive(Deserialize)]
struct Definition {
    namespace: String,
    text: String,
    #[serde(default)]
    runtime: Map<String, Value>,
}

/// The answer to such an ADD; `None` for any other call.
pub(super) fn add(engine: &Engine, request: &Request, waiting: &Waiting) -> Option<Result<String, CniError>> {
    let Wrapper { definition } = serde_json::from_str(&request.config).ok()?;
    if request.command != Command::Add {
        return None;
    }
    let tenant = match Tenant::new(&definition.namespace, BTreeMap::new()) {
        Ok(tenant) => tenant,
        Err(wrong) => return Some(Err(CniError::new(Code::InvalidConfig, wrong.to_string()))),
    };
    Some(engine.add_definition(&DefinitionCall {
        tenant: &tenant,
        text: &definition.text,
        object: None,
        runtime: &definition.runtime,
        sandbox: Sandbox::from(request),
        ifname: &request.ifname,
        waiting: waiting.clone(),
    }))
}
