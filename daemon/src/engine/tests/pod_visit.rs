//! What the networks of a pod share while they are attached (K23), and on which lane that is.

use fairlead_host::Op;
use fairlead_host::double::{Call, KernelRequest};
use serde_json::json;

use super::pod_networks::{Cluster, definition};
use super::*;
use crate::call::Lane;

#[test]
fn k23_a_pod_whose_networks_take_only_the_kernel_is_attached_on_the_fast_lane() {
    let lane = |cluster: &Cluster| cluster.rig.prepare(cluster.request(Command::Add)).lane();
    let cluster = Cluster::asking("radio, oam@mgmt");
    assert_eq!(lane(&cluster), Lane::Fast);
    let executed = definition("radio", "10.9.0.0/24").replace("host-local", "whereabouts");
    cluster.api.put_definition("shop", "radio", &executed, None);
    assert_eq!(lane(&cluster), Lane::Slow, "a plugin is executed");
    cluster.api.put_definition("shop", "radio", &definition("radio", "10.9.0.0/24"), Some("vendor/vf"));
    assert_eq!(lane(&cluster), Lane::Slow, "kubelet is asked");
    assert_eq!(lane(&Cluster::asking("radio, other")), Lane::Slow, "a definition is waited for");
    assert_eq!(lane(&Cluster::new()), Lane::Slow, "the pod is waited for");
    assert_eq!(cluster.rig.prepare(cluster.request(Command::Del)).lane(), Lane::Slow);
}

#[test]
fn of_a_long_definition_no_more_is_kept_than_which_lane_it_is_for() {
    let rig = Rig::new();
    let engine = rig.engine();
    let padding = format!(r#"{{"padding":"{}","#, "x".repeat(1 << 16));
    let fast = definition("radio", "10.9.0.0/24").replacen('{', &padding, 1);
    let slow = fast.replace("host-local", "whereabouts");
    for _ in 0..2 {
        assert!(engine.immediate.has(&fast, &engine.core.kinds));
        assert!(!engine.immediate.has(&slow, &engine.core.kinds));
    }
    let kept = format!("{:?}", engine.immediate);
    assert!(kept.len() < 1024, "{} bytes", kept.len());
}

/// How often an ADD enters the pod's namespace.
fn visits(cluster: &Cluster) -> usize {
    let opens = |call: &Call| matches!(&call.request, KernelRequest::Open(path) if path == Path::new(POD));
    cluster.rig.kernel.forget_calls();
    cluster.add().unwrap();
    cluster.rig.kernel.calls().iter().filter(|call| opens(call)).count()
}

#[test]
fn k23_networks_that_take_only_the_kernel_share_one_visit_of_the_namespace() {
    assert_eq!(visits(&Cluster::asking("radio, oam@mgmt")), 1);
    let with_default_route = json!([{"name": "radio"}, {"name": "oam", "default-route": ["10.8.0.1"]}]);
    assert_eq!(
        visits(&Cluster::asking(&with_default_route.to_string())),
        1,
        "the routes are of the same visit"
    );
}

#[test]
fn k23_two_networks_are_made_by_as_few_changes_of_the_kernel_as_they_have_links_addresses_and_routes() {
    let cluster = Cluster::asking("radio");
    cluster.rig.kernel.forget_calls();
    cluster.add().unwrap();
    let name = |op: &Op| match op {
        Op::CreateLink(_) => "link",
        Op::SetArpNotify(_) => "arp_notify",
        Op::AddAddress(_) => "address",
        Op::AddRoute(_) => "route",
        _ => "another",
    };
    let changes: Vec<&str> = cluster.rig.ops().iter().map(name).collect();
    // Each link comes up, named and in the pod, by the message that makes it. The default network has two families, and the other no default route.
    let of_default = ["link", "arp_notify", "address", "address", "route", "route"];
    assert_eq!(changes, [of_default.as_slice(), &["link", "arp_notify", "address", "route"]].concat());
}

#[test]
fn k23_a_definition_without_a_name_is_as_fast_as_one_with() {
    let cluster = Cluster::asking("radio");
    let unnamed = definition("radio", "10.9.0.0/24").replace(r#""name":"radio","#, "");
    cluster.api.put_definition("shop", "radio", &unnamed, None);
    assert_eq!(cluster.rig.prepare(cluster.request(Command::Add)).lane(), Lane::Fast);
    assert_eq!(visits(&cluster), 1);
}

#[test]
fn x22_what_may_wait_is_not_waited_for_within_the_shared_visit() {
    let cluster = Cluster::asking("radio, oam");
    // The nearest of several is chosen by what kubelet says of the pod.
    let several = definition("radio", "10.9.0.0/24").replace(r#""eth0""#, r#"["eth0","eth1"]"#);
    cluster.api.put_definition("shop", "radio", &several, None);
    assert_eq!(visits(&cluster), 2, "left before the first of them, and entered again for both");
    cluster.del().unwrap();
}

#[test]
fn k23_a_master_that_several_networks_of_a_pod_name_is_looked_for_once_within_their_visit() {
    let looks = |cluster: &Cluster| {
        cluster.rig.kernel.forget_calls();
        cluster.add().unwrap();
        let looks = |call: &Call| call.request == KernelRequest::LinkByName("eth0".to_owned());
        cluster.rig.kernel.calls().iter().filter(|call| looks(call)).count()
    };
    assert_eq!(looks(&Cluster::asking("radio, oam@mgmt")), 1);
    let cluster = Cluster::asking("radio, oam");
    let several = definition("radio", "10.9.0.0/24").replace(r#""eth0""#, r#"["eth0","eth1"]"#);
    cluster.api.put_definition("shop", "radio", &several, None);
    assert_eq!(looks(&cluster), 3, "what was seen before the visit was left is not gone by");
}
