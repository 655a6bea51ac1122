//! What the operator sees: attachments, networks, pools, ports of the switch, orphans; and the collection that the operator can order.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fairlead_cni::CniError;
use fairlead_host::HostRoot;
use fairlead_ipam::Owner;
use fairlead_kube::KnownDefinition;
use serde_json::{Value, json};

use super::attachment_request::OWN_TYPE;
use super::pod_networks::own_name;
use super::runtime_cache::pod_of;
use super::{Engine, failing_removals};
use crate::call::OrphansListed;
use crate::netconf_summary::ConfigSummary;
use crate::store::{Attachment, IpamRecord, LinkRecord, NewerAttachment};

/// The IPAM whose reconciler frees the addresses of a running pod that its network-status lacks.
const BY_NETWORK_STATUS: &str = "whereabouts";
/// A network-status that waits for longer is told of: as a rule it is written within seconds.
const LATE: Duration = Duration::from_secs(600);

/// A table by its name.
pub(super) fn table(engine: &Engine, name: &str) -> Option<Value> {
    match name {
        "attachments" => {
            let ours = attachments(engine, |_| true).into_iter().map(|(_, row)| row);
            Some(ours.chain(engine.core.store.newer().iter().map(newer_row)).collect())
        }
        "networks" => Some(engine.networks.list()),
        "definitions" => Some(definitions(engine)),
        "pools" => {
            let mut pools = engine.with_owners(|owners| engine.core.kinds.sriov.pools.table(owners));
            pools["ports"] = engine.core.kinds.vhost_user.pools.table();
            Some(pools)
        }
        "vswitch-ports" => Some(engine.core.kinds.vhost_user.ports_table()),
        "vswitch-addresses" => Some(engine.core.kinds.vhost_user.addresses_table()),
        "removals" => Some(failing_removals::table(engine)),
        "late-network-status" => Some(late_network_status(engine)),
        "newer" => Some(engine.core.store.newer().iter().map(newer_row).collect()),
        "orphans" => Some(orphans(engine)),
        _ => None,
    }
}

/// What the cluster has for pods to ask for: each definition as it was seen last, with its namespace's labels where the policy goes by them.
fn definitions(engine: &Engine) -> Value {
    let Some(cluster) = &engine.cluster else { return json!([]) };
    let one = |known: KnownDefinition| {
        let labels = cluster.namespace_labels(&known.namespace);
        let (config, resource, unusable) = match &known.found {
            Ok(definition) => (definition.config.as_deref(), definition.resource.as_deref(), None),
            Err(reason) => (None, None, Some(reason)),
        };
        json!({
            "namespace": known.namespace, "name": known.name, "config": config, "resource": resource,
            "unusable": unusable, "labels": labels.as_deref(),
        })
    };
    cluster.known_definitions().into_iter().map(one).collect()
}

/// Addresses whose container is unknown here, with the pod that the runtime remembers for it.
fn orphans(engine: &Engine) -> Value {
    let networks = engine.networks.list();
    let listed = networks["networks"].as_array().into_iter().flatten();
    let listed: Vec<&str> = listed.filter_map(|network| network["name"].as_str()).collect();
    let root = &HostRoot::new(engine.host_root.clone());
    let mut rows = Vec::new();
    for orphan in engine.core.orphans() {
        let networks: Vec<&str> = std::iter::once(orphan.network.as_str()).chain(listed.clone()).collect();
        let pod = match &orphan.allocation.owner {
            Owner::Attachment { container_id, ifname } => pod_of(root, &networks, container_id, ifname),
            Owner::Container { .. } | Owner::Nobody => None,
        };
        let mut row = json!(orphan);
        row["pod"] = pod.map(|pod| pod.to_string()).into();
        rows.push(row);
    }
    rows.into()
}

/// The pods whose addresses are given out a second time unless their network-status is written soon.
fn late_network_status(engine: &Engine) -> Value {
    let late = engine.cluster.as_ref().map(|cluster| cluster.late_reports(LATE)).unwrap_or_default();
    if late.is_empty() {
        return json!([]);
    }
    let all = engine.core.store.all();
    let with_addresses = all.iter().filter(|attachment| has_ipam_by_network_status(attachment));
    let pods = with_addresses.filter_map(|attachment| attachment.pod.as_ref());
    let named: BTreeSet<String> = pods.filter(|pod| late.contains(pod)).map(ToString::to_string).collect();
    json!(named)
}

/// Whether its addresses are of such an IPAM, which was executed by us or by a plugin of its list.
fn has_ipam_by_network_status(attachment: &Attachment) -> bool {
    let names_it = |conflist: &str| {
        let list: Value = serde_json::from_str(conflist).unwrap_or_default();
        let mut plugins = list["plugins"].as_array().into_iter().flatten();
        plugins.any(|plugin| plugin["ipam"]["type"] == BY_NETWORK_STATUS)
    };
    match (&attachment.ipam, &attachment.link) {
        (IpamRecord::Delegate { plugin }, _) => plugin == BY_NETWORK_STATUS,
        (_, LinkRecord::Conflist { conflist, .. }) => names_it(conflist),
        _ => false,
    }
}

/// The attachments that are meant, each with its row.
pub(super) fn attachments(
    engine: &Engine,
    meant: impl Fn(&Attachment) -> bool,
) -> Vec<(Arc<Attachment>, Value)> {
    let core = &engine.core;
    let home = core.kinds.sriov.netdevs_at_home();
    let late = |a: &Attachment| core.removals.failure(a.id).map(|why| why.msg);
    let all = core.store.all();
    let lists: Vec<_> =
        all.iter().filter(|a| matches!(a.link, LinkRecord::Conflist { .. })).map(Arc::clone).collect();
    let with_row = |a: Arc<Attachment>| {
        let unclean = || a.quarantined.as_ref().map(|left| format!("its VF is quarantined: {left}"));
        let broken = core.kinds.sriov.broken(&a, &home).or_else(|| late(&a)).or_else(unclean);
        let mut row = row(engine, &a, broken.as_deref());
        row["list"] = lists.iter().find(|list| list.has_plugin(&a)).map(|list| own_name(list)).into();
        (a, row)
    };
    all.into_iter().filter(|a| meant(a)).map(with_row).collect()
}

/// An attachment that is left to the newer version that wrote it.
fn newer_row(newer: &NewerAttachment) -> Value {
    let [container, network, ifname, plugin] =
        newer.words().map(|word| if word.is_empty() { "?" } else { word });
    json!({
        "label": newer.label(),
        "pod": newer.pod.as_ref().map(ToString::to_string),
        "podUid": newer.pod.as_ref().and_then(|pod| pod.uid.as_deref()),
        "container": container,
        "network": network,
        "ifname": ifname,
        "type": plugin,
        "phase": "newer",
        "broken": newer.version.to_string(),
        "file": newer.file,
    })
}

fn row(engine: &Engine, a: &Attachment, broken: Option<&str>) -> Value {
    let (kind, mac) = engine.core.kinds.describe(a);
    json!({
        "pod": a.pod.as_ref().map(ToString::to_string),
        "podUid": a.pod.as_ref().and_then(|pod| pod.uid.as_deref()),
        "container": a.key.container,
        "network": own_name(a),
        "runtimeNetwork": a.key.network,
        "namespace": a.namespace,
        "ifname": a.key.ifname,
        "type": a.key.plugin,
        "chosen": chosen_type(a),
        "phase": a.phase,
        "addedAt": a.added_at,
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

/// The type by which the pod got its interface: for our own type that of the path that was taken, or of the list's first plugin.
fn chosen_type(a: &Attachment) -> Cow<'_, str> {
    match &a.link {
        LinkRecord::Conflist { conflist, .. } => Cow::Owned(ConfigSummary::of(conflist).kind),
        _ if a.key.plugin == OWN_TYPE => Cow::Owned(ConfigSummary::of(&a.config).kind),
        _ => Cow::Borrowed(&a.key.plugin),
    }
}

/// Removes what is provably dead, and on order the allocations whose container is unknown here.
pub(super) fn collect(engine: &Engine, orphans: Option<OrphansListed>) -> Result<Value, CniError> {
    engine.core.collect(orphans, |attachment| row(engine, attachment, None))
}
