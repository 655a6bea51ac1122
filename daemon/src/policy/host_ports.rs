//! Which ports of the node a pod may have lead to it, by `portMappings` of its annotations. A pod's own `hostPort` is judged by
//! Kubernetes (Pod Security Standards, "Host Ports"), which does not see what an annotation asks for.

use super::{PolicySettings, PortRange, Refusal, Tenant, rule_of};

/// What the node itself serves, where no rule says otherwise: the ports that only root may open, and those of Kubernetes (reference
/// "Ports and Protocols"): etcd, API server, kubelet and what runs beside it, and the node's ports of Services.
const OF_NODE: [PortRange; 5] = [
    PortRange::new(1, 1023),
    PortRange::new(2379, 2381),
    PortRange::new(6443, 6443),
    PortRange::new(10248, 10259),
    PortRange::new(30000, 32767),
];

/// Whether a pod of this namespace may have the ports of the node that it asks for of a network. `metrics`: the port on which the daemon
/// itself tells its metrics; nobody gets it.
///
/// # Errors
/// Why not, and what to do about it.
pub fn may_have_host_ports(
    settings: &PolicySettings,
    pods: &Tenant,
    network: &str,
    metrics: Option<u16>,
    ports: impl IntoIterator<Item = u16>,
) -> Result<(), Refusal> {
    // Definitions of a namespace that no rule is for are refused; it may use those of others.
    let rule = rule_of(settings, pods).ok().flatten();
    let listed = rule.and_then(|(number, rule)| Some((number, rule.host_ports.as_deref()?)));
    let is_among = |ranges: &[PortRange], port| ranges.iter().any(|range| range.contains(port));
    let is_allowed = |port: &u16| match listed {
        _ if metrics == Some(*port) => false,
        Some((_, ranges)) => is_among(ranges, *port),
        None => !is_among(&OF_NODE, *port),
    };
    let Some(port) = ports.into_iter().find(|port| !is_allowed(port)) else { return Ok(()) };
    let joined = |ranges: &[PortRange]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let why = match listed {
        _ if metrics == Some(port) => "fairleadd tells its metrics there (metrics.listen)".to_owned(),
        Some((number, ranges)) => {
            format!("rule {number} of the policy allows \"hostPorts\": [{}]", joined(ranges))
        }
        None => format!("the node itself serves {}", joined(&OF_NODE)),
    };
    Err(Refusal::HostPort { namespace: pods.namespace().to_owned(), network: network.to_owned(), port, why })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn judged(policy: &str, namespace: &str, ports: &[u16]) -> Result<(), String> {
        let settings = serde_saphyr::from_str(policy).unwrap();
        let pods = Tenant::new(namespace, BTreeMap::new()).unwrap();
        may_have_host_ports(&settings, &pods, "shop/radio", Some(9808), ports.iter().copied())
            .map_err(|no| no.to_string())
    }

    #[test]
    fn no_pod_takes_a_port_of_the_node_itself_unless_a_rule_lists_it() {
        let other_namespaces = r#"{rules: [{namespaces: [ran], hostPorts: [22]}]}"#;
        let without_ports = r#"{rules: [{namespaces: [shop], types: [macvlan]}]}"#;
        for policy in ["{}", other_namespaces, without_ports] {
            assert_eq!(judged(policy, "shop", &[1024, 8080, 65535]), Ok(()), "{policy}");
            for port in [1, 22, 1023, 2379, 2381, 6443, 9808, 10250, 10256, 30000, 32767] {
                let told = judged(policy, "shop", &[8080, port]).unwrap_err();
                assert!(told.contains(&format!("port {port} of the node")), "{policy}: {told}");
                assert!(told.contains("shop/radio") && told.contains("\"hostPorts\""), "{told}");
            }
        }
        assert_eq!(judged(other_namespaces, "ran", &[22]), Ok(()));
    }

    #[test]
    fn a_rule_with_ports_allows_these_and_no_other() {
        let policy = r#"{rules: [{namespaces: [shop], hostPorts: [443, "8080-8089"]}]}"#;
        assert_eq!(judged(policy, "shop", &[443, 8080, 8089]), Ok(()));
        let told = judged(policy, "shop", &[443, 8090]).unwrap_err();
        assert!(
            told.contains("port 8090") && told.contains("rule 1") && told.contains("[443, 8080-8089]"),
            "{told}"
        );
        let wide = r#"{rules: [{namespaces: [shop], hostPorts: ["1-65535"]}]}"#;
        assert_eq!(judged(wide, "shop", &[22]), Ok(()));
        let told = judged(wide, "shop", &[9808]).unwrap_err();
        assert!(told.contains("metrics.listen"), "{told}");
        assert!(judged(r#"{rules: [{namespaces: [shop], hostPorts: []}]}"#, "shop", &[8080]).is_err());
    }
}
