//! What the operator sees: attachments, networks, pools, orphans; and the collection that he can order.

use serde_json::{Value, json};

use super::Engine;
use super::removal::Answer;
use crate::store::{Attachment, LinkRecord, Phase};
use fairlead_ipam::{Allocation, Owner};

pub(super) fn table(engine: &Engine, name: &str) -> Option<Value> {
    match name {
        "attachments" => Some(attachments(engine)),
        "networks" => Some(engine.networks.list()),
        "pools" => Some(engine.with_holders(|holders| engine.pools.table(holders))),
        "orphans" => Some(orphans(engine).iter().map(|o| json!(o)).collect()),
        _ => None,
    }
}

fn attachments(engine: &Engine) -> Value {
    let home = engine.devices_at_home();
    let late = |a: &Attachment| engine.reaper.why(a.id).map(|why| why.msg);
    let of = |a: &Attachment| row(a, engine.broken(a, &home).or_else(|| late(a)).as_deref());
    engine.store.all().iter().map(|a| of(a)).collect()
}

fn row(a: &Attachment, broken: Option<&str>) -> Value {
    let (kind, mac) = match &a.link {
        LinkRecord::Made { kind, mac, .. } => (kind.name().to_owned(), mac.map(|m| m.to_string())),
        LinkRecord::Moved(lent) => (format!("lent {}", lent.was.name), lent.was.mac.map(|m| m.to_string())),
        LinkRecord::Given(vf) => (format!("given {}", vf.address), None),
        LinkRecord::Loopback => ("loopback".to_owned(), None),
        LinkRecord::List { .. } => ("list".to_owned(), None),
        LinkRecord::None => ("none".to_owned(), None),
    };
    json!({
        "container": a.key.container,
        "network": a.key.network,
        "ifname": a.key.ifname,
        "type": a.key.plugin,
        "phase": a.phase,
        "broken": broken,
        "link": kind,
        "mac": mac,
        "addresses": a.addresses,
        "near": a.near.as_ref().map(ToString::to_string),
        "passedOver": a.passed_over.iter().map(|p| format!("{}: {}", p.kind, p.why)).collect::<Vec<_>>(),
        "netns": a.netns.path,
        "nsid": a.netns.nsid,
    })
}

/// An allocation whose container is unknown here.
#[derive(serde::Serialize)]
pub(super) struct Orphan {
    pub(super) network: String,
    #[serde(rename = "dataDir")]
    data_dir: String,
    #[serde(flatten)]
    pub(super) allocation: Allocation,
}

fn known(engine: &Engine, owner: &Owner) -> bool {
    match owner {
        Owner::Attachment { container_id, ifname } => engine.owns(container_id, ifname),
        Owner::Container { container_id } => {
            engine.store.all().iter().any(|a| a.key.container == *container_id)
        }
        Owner::Nobody => false,
    }
}

pub(super) fn orphans(engine: &Engine) -> Vec<Orphan> {
    let mut found = Vec::new();
    for place in engine.host_local.places() {
        match engine.host_local.orphans(&place.data_dir, &place.network, &|owner| known(engine, owner)) {
            Ok(here) => found.extend(here.into_iter().map(|allocation| Orphan {
                network: place.network.clone(),
                data_dir: place.data_dir.clone(),
                allocation,
            })),
            Err(e) => tracing::warn!(network = %place.network, error = %e, "allocations cannot be listed"),
        }
    }
    found
}

/// Removes what is provably dead, and on order the allocations whose container is unknown here.
pub(super) fn collect(engine: &Engine, with_orphans: bool) -> Value {
    let (mut removed, mut errors) = (Vec::new(), Vec::<String>::new());
    engine.sweep();
    for attachment in engine.store.all().into_iter().filter(|a| a.phase == Phase::Removing) {
        let Some(_claim) = engine.claims.try_take(&attachment.key.container) else { continue };
        let let_go = engine.must_be_let_go(&attachment);
        match let_go.and_then(|()| engine.remove(&attachment, Answer::WhenGone)) {
            Ok(()) => removed.push(row(&attachment, None)),
            Err(e) => errors.push(e.to_string()),
        }
    }
    let mut addresses = Vec::new();
    if with_orphans {
        for place in engine.host_local.places() {
            let here = engine
                .host_local
                .release_orphans(&place.data_dir, &place.network, &|owner| known(engine, owner));
            addresses.extend(here.allocations);
            errors.extend(here.errors.iter().map(ToString::to_string));
        }
    }
    json!({ "attachments": removed, "addresses": addresses, "errors": errors })
}
