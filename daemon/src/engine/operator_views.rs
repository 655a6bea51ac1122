//! What the operator sees: attachments, networks, pools, orphans; and the collection that the operator can order.

use serde_json::{Value, json};

use super::Engine;
use crate::store::Attachment;

/// A table by its name.
pub(super) fn table(engine: &Engine, name: &str) -> Option<Value> {
    match name {
        "attachments" => Some(attachments(engine)),
        "networks" => Some(engine.networks.list()),
        "pools" => Some(engine.with_owners(|owners| engine.core.kinds.sriov.pools.table(owners))),
        "orphans" => Some(engine.core.orphans().iter().map(|o| json!(o)).collect()),
        _ => None,
    }
}

fn attachments(engine: &Engine) -> Value {
    let core = &engine.core;
    let home = core.kinds.sriov.netdevs_at_home();
    let late = |a: &Attachment| core.removals.failure(a.id).map(|why| why.msg);
    let of = |a: &Attachment| {
        let broken = core.kinds.sriov.broken(a, &home).or_else(|| late(a));
        row(engine, a, broken.as_deref())
    };
    core.store.all().iter().map(|a| of(a)).collect()
}

fn row(engine: &Engine, a: &Attachment, broken: Option<&str>) -> Value {
    let (kind, mac) = engine.core.kinds.describe(a);
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
        "near": a.locality.as_ref().map(ToString::to_string),
        "passedOver": a.passed_over.iter().map(|p| format!("{}: {}", p.kind, p.why)).collect::<Vec<_>>(),
        "netns": a.netns.path,
        "nsid": a.netns.nsid,
    })
}

/// Removes what is provably dead, and on order the allocations whose container is unknown here.
pub(super) fn collect(engine: &Engine, with_orphans: bool) -> Value {
    engine.core.collect(with_orphans, |attachment| row(engine, attachment, None))
}
