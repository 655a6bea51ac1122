//! What pods ask for, and what of it is refused.

mod names;
mod requests;
mod status;
mod told;

use std::collections::BTreeMap;

use super::{NETWORKS, RequestError, Requested, selections};

/// What a pod of the namespace `shop` with these annotations asks for.
fn asked(annotations: &[(&str, &str)]) -> Result<Requested, RequestError> {
    let annotations: BTreeMap<String, String> =
        annotations.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    selections(&annotations, "shop", "kube-system")
}

/// The same by the annotation of the specification alone.
fn networks(text: &str) -> Result<Requested, RequestError> {
    asked(&[(NETWORKS, text)])
}

/// `namespace/name` of each.
fn references(requested: &Requested) -> Vec<String> {
    requested.networks.iter().map(super::NetworkSelection::reference).collect()
}
