//! Which device is near a pod: from the pod's NUMA nodes, the devices' and the distances between them an order, each with
//! its reason, or a refusal. Pure.
//!
//! A device without a node (-1: the machine reports none) is near nobody.

use std::collections::BTreeSet;
use std::fmt;

use fairlead_host::topology::Topology;
use serde::{Deserialize, Serialize};

/// How firmly a device must be on the pod's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NumaPolicy {
    /// Only a device of the pod's node is taken.
    Strict,
    /// The nearest device is taken.
    #[default]
    Preferred,
    /// Any device is taken, wherever it is.
    Any,
}

/// What a pod was given before its network is made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assigned {
    /// Processors that it has to itself.
    pub cpus: BTreeSet<u32>,
    /// Nodes of the memory that was set aside for it.
    pub memory_nodes: BTreeSet<u32>,
    /// Nodes of its devices.
    pub device_nodes: BTreeSet<u32>,
}

impl Assigned {
    /// The pod's nodes: its processors', for it is they that talk to the device; where it has none to itself its memory's,
    /// else its devices'. None where nothing is known.
    pub fn nodes(&self, topology: &Topology) -> BTreeSet<u32> {
        let of_cpus = self.cpus.iter().filter_map(|cpu| topology.node_of_cpu(*cpu)).collect();
        let known = [&of_cpus, &self.memory_nodes, &self.device_nodes];
        known.into_iter().find(|nodes| !nodes.is_empty()).cloned().unwrap_or_default()
    }
}

/// How a device lies to the pod. Its JSON is part of the device information that others read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "locality", rename_all = "snake_case")]
pub enum Locality {
    /// It is on a node of the pod's.
    Local {
        /// The device's node.
        node: u32,
        /// As of [`Locality::Remote`]: more than 10 for a pod on several nodes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        distance: Option<u32>,
    },
    /// It is on another node.
    Remote {
        /// The device's node.
        node: u32,
        /// The pod's nodes.
        pod: BTreeSet<u32>,
        /// From all of the pod's nodes together (SLIT: 10 is a node's own); `None` where the machine reports none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        distance: Option<u32>,
    },
    /// It has no node.
    Nowhere,
    /// Nothing is known of the pod.
    PodUnknown,
    /// No node is asked for.
    Any,
}

impl Locality {
    /// One word of a closed set, for a metric's label.
    pub fn label(&self) -> &'static str {
        match self {
            Locality::Local { .. } => "local",
            Locality::Remote { .. } => "remote",
            Locality::Nowhere => "nowhere",
            Locality::PodUnknown => "pod_unknown",
            Locality::Any => "any",
        }
    }

    /// How far it is from the pod, where the machine reports that.
    pub fn distance(&self) -> Option<u32> {
        match self {
            Locality::Local { distance, .. } | Locality::Remote { distance, .. } => *distance,
            Locality::Nowhere | Locality::PodUnknown | Locality::Any => None,
        }
    }
}

impl fmt::Display for Locality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Locality::Local { node, .. } => write!(f, "on the pod's NUMA node {node}"),
            Locality::Remote { node, pod, distance } => {
                write!(f, "on NUMA node {node}, while the pod is on {}", listed(pod))?;
                match distance {
                    Some(distance) => write!(f, " (distance {distance})"),
                    None => Ok(()),
                }
            }
            Locality::Nowhere => f.write_str("on no NUMA node that the machine tells"),
            Locality::PodUnknown => f.write_str("anywhere: the pod's NUMA node is not known"),
            Locality::Any => f.write_str("anywhere: no NUMA node is asked for"),
        }
    }
}

/// A device that may be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Its place in the list that was given.
    pub at: usize,
    /// Why it stands where it stands.
    pub locality: Locality,
}

/// Why a device may not be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NumaRefusal {
    /// `strict`, and nobody knows where the pod is.
    #[error(
        "the pod's NUMA node is not known, and numa is strict: kubelet has given the pod no processors, memory or device of its own"
    )]
    PodUnknown,
    /// `strict`, and no device is where the pod is.
    #[error(
        "no device is on the pod's NUMA node {}, and numa is strict: those that there are lie on {}",
        listed(pod),
        listed_or_none(devices)
    )]
    NoneLocal {
        /// The pod's nodes.
        pod: BTreeSet<u32>,
        /// The devices' nodes.
        devices: BTreeSet<Option<u32>>,
    },
}

impl NumaRefusal {
    /// What a person can do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            NumaRefusal::PodUnknown => {
                "have kubelet's CPU manager give whole processors (cpuManagerPolicy: static, a Guaranteed pod with integer CPUs), name the node in args.cni.numaNodes, or say numa: preferred"
            }
            NumaRefusal::NoneLocal { .. } => {
                "have kubelet's topology manager align the pod (single-numa-node), add devices of that node, or say numa: preferred"
            }
        }
    }
}

/// The devices in the order in which they are to be tried; what is equally good stays in the order given. `devices` are
/// their nodes.
///
/// # Errors
/// When the policy allows none of them.
pub fn order(
    policy: NumaPolicy,
    pod: &BTreeSet<u32>,
    devices: &[Option<u32>],
    topology: &Topology,
) -> Result<Vec<Choice>, NumaRefusal> {
    let placed =
        |(at, node): (usize, &Option<u32>)| Choice { at, locality: locality(policy, pod, *node, topology) };
    let mut choices: Vec<Choice> = devices.iter().enumerate().map(placed).collect();
    if policy == NumaPolicy::Strict {
        if pod.is_empty() {
            return Err(NumaRefusal::PodUnknown);
        }
        choices.retain(|choice| matches!(choice.locality, Locality::Local { .. }));
        if choices.is_empty() && !devices.is_empty() {
            return Err(NumaRefusal::NoneLocal {
                pod: pod.clone(),
                devices: devices.iter().copied().collect(),
            });
        }
    }
    if policy != NumaPolicy::Any && !pod.is_empty() {
        // The machine need not report a distance: what is on the pod's own node goes first all the same.
        choices.sort_by_key(|choice| {
            let total = devices.get(choice.at).copied().flatten().and_then(|node| total(pod, node, topology));
            (total.is_none(), total, !matches!(choice.locality, Locality::Local { .. }))
        });
    }
    Ok(choices)
}

/// How a device lies that somebody else has chosen for the pod.
///
/// # Errors
/// Why the policy does not allow it.
pub fn verify(
    policy: NumaPolicy,
    pod: &BTreeSet<u32>,
    device: Option<u32>,
    topology: &Topology,
) -> Result<Locality, NumaRefusal> {
    order(policy, pod, &[device], topology).map(|_| locality(policy, pod, device, topology))
}

fn locality(policy: NumaPolicy, pod: &BTreeSet<u32>, device: Option<u32>, topology: &Topology) -> Locality {
    let distance = device.and_then(|node| total(pod, node, topology));
    match device {
        _ if policy == NumaPolicy::Any => Locality::Any,
        _ if pod.is_empty() => Locality::PodUnknown,
        None => Locality::Nowhere,
        Some(node) if pod.contains(&node) => Locality::Local { node, distance },
        Some(node) => Locality::Remote { node, pod: pod.clone(), distance },
    }
}

/// The distance from all of the pod's nodes together.
fn total(pod: &BTreeSet<u32>, device: u32, topology: &Topology) -> Option<u32> {
    pod.iter().try_fold(0_u32, |sum, node| Some(sum.saturating_add(topology.distance(*node, device)?)))
}

fn listed(nodes: &BTreeSet<u32>) -> String {
    nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(" and ")
}

fn listed_or_none(nodes: &BTreeSet<Option<u32>>) -> String {
    let one =
        |node: &Option<u32>| node.map_or("none that the machine tells".to_owned(), |node| node.to_string());
    nodes.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
