//! Which network of a pod has its default routes (M14).

use fairlead_cni::Code;
use fairlead_host::{Net, NetKernel, Op, Route};
use fairlead_kube::npwg::DEFAULT_NETWORK;
use nix::errno::Errno;
use serde_json::{Value, json};

use super::pod_networks::{Cluster, NETWORKS, calls_of, definition, web};
use super::*;
use crate::delegate::script;

#[test]
fn m14_the_network_that_is_asked_to_has_the_default_route() {
    let cluster = Cluster::asking(r#"[{"name":"radio","default-route":["10.9.0.1"]},{"name":"oam"}]"#);
    let answer: Value = serde_json::from_str(&cluster.add().unwrap()).unwrap();
    assert_eq!(cluster.pod().1, ["0.0.0.0/0 net1", "::/0 eth0"]);
    let routes = answer["routes"].as_array().unwrap();
    assert!(routes.iter().all(|route| route["dst"] != "0.0.0.0/0"), "what eth0 has no more: {answer}");
}

#[test]
fn m14_x04_the_default_route_by_a_gateway_is_in_network_status_and_check_misses_it() {
    let asked = json!([{"name": "radio", "default-route": ["10.9.0.1"]}]);
    let cluster = Cluster::asking(&asked.to_string());
    let without_routes = r#"{"cniVersion":"1.0.0","type":"macvlan","master":"eth0","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}"#;
    cluster.api.put_definition("shop", "radio", without_routes, None);
    let call = cluster.rig.prepare(cluster.request(Command::Add));
    let now = Instant::now();
    let waiting =
        || Waiting { arrived: now, deadline: now + Duration::from_secs(5), gone: CallerGone::default() };
    call.serve(waiting()).outcome.unwrap();
    call.answered(true);
    let status: Value = serde_json::from_str(&cluster.api.reports()[0].1).unwrap();
    assert_eq!(status[1]["gateway"], json!(["10.9.0.1"]), "{status}");
    let check = || cluster.rig.call(cluster.request(Command::Check));
    check().unwrap();
    let mut pod = cluster.rig.kernel.pod(Path::new(POD)).unwrap();
    let gateway = Some("10.9.0.1".parse().unwrap());
    let is_it = |route: &Route| route.gateway == gateway && route.dst.prefix_len() == 0;
    let route = pod.routes().unwrap().into_iter().find(is_it).unwrap();
    pod.batch(&[Op::DeleteRoute(route)]).unwrap();
    drop(pod);
    let missed = check().unwrap_err();
    assert_eq!(missed.code, Code::Changed);
    assert!(missed.msg.contains("default route by 10.9.0.1"), "{missed}");
}

#[test]
fn m14_without_gateways_the_default_route_is_that_of_the_networks_own_configuration() {
    let cluster = Cluster::asking(r#"[{"name":"oam"},{"name":"radio","default-route":[]}]"#);
    let answer: Value = serde_json::from_str(&cluster.add().unwrap()).unwrap();
    // The definition says nothing of IPv6, which stays with the default network.
    assert_eq!(cluster.pod().1, ["0.0.0.0/0 net2", "::/0 eth0"]);
    let of_v6 = |route: &Value| route["dst"] == "::/0";
    assert!(answer["routes"].as_array().unwrap().iter().any(of_v6), "{answer}");
    assert!(!answer.to_string().contains("0.0.0.0/0"), "{answer}");
}

#[test]
fn m14_two_networks_share_the_default_route_one_for_each_family() {
    let cluster = Cluster::asking(
        r#"[{"name":"radio","default-route":["10.9.0.1"]},{"name":"six","default-route":["fd00:8::1"]}]"#,
    );
    let six = definition("six", "fd00:8::/64").replace(r#"{"dst":"0.0.0.0/0"},{"dst":"10.99.0.0/16"}"#, "");
    cluster.api.put_definition("shop", "six", &six, None);
    let answer: Value = serde_json::from_str(&cluster.add().unwrap()).unwrap();
    assert_eq!(cluster.pod().1, ["0.0.0.0/0 net1", "::/0 net2"]);
    let routes = answer["routes"].as_array().into_iter().flatten();
    let defaults = routes.filter(|route| route["dst"] == "0.0.0.0/0" || route["dst"] == "::/0");
    assert_eq!(defaults.count(), 0, "what eth0 has no more: {answer}");
}

#[test]
fn x14_a_gateway_that_the_network_does_not_reach_is_the_pods_mistake_with_a_remedy() {
    // What the kernel says for IPv4, for IPv6, and for the pod's own address.
    for errno in [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::EINVAL] {
        let asks = r#"[{"name":"radio","default-route":["10.9.0.1"]}]"#;
        let calls = calls_of(&Cluster::asking(asks), Cluster::add);
        let mut told = 0;
        for n in 0..calls {
            let cluster = Cluster::asking(asks);
            cluster.rig.kernel.forget_calls();
            cluster.rig.kernel.fail_at(n, errno);
            let Err(error) = cluster.add() else { continue };
            if !error.msg.contains("\"default-route\"") {
                continue;
            }
            told += 1;
            assert_eq!(error.code.number(), 7, "{error}");
            assert!(
                error.msg.contains("[10.9.0.1]")
                    && !error.msg.contains("Route {")
                    && error.details.contains("own subnet"),
                "{error}"
            );
        }
        assert!(told > 0, "{errno}: no call of {calls} sets the route");
    }
}

#[test]
fn m14_x22_a_network_that_may_wait_can_have_the_default_route() {
    let asked = json!([{"name": "radio", "default-route": ["10.9.0.1"]}, {"name": "oam"}]);
    let cluster = Cluster::asking(&asked.to_string());
    let several = definition("radio", "10.9.0.0/24").replace(r#""eth0""#, r#"["eth0","eth1"]"#);
    cluster.api.put_definition("shop", "radio", &several, None);
    cluster.add().unwrap();
    assert_eq!(cluster.pod().1, ["0.0.0.0/0 net1", "::/0 eth0"]);
    cluster.del().unwrap();
    // It is not there, and is asked of kubelet, outside the namespace in which the routes were looked at.
    cluster.api.put_definition("shop", "radio", &definition("radio", "10.9.0.0/24"), Some("vendor/vf"));
    let refused = cluster.add().unwrap_err();
    assert!(refused.msg.contains("vendor/vf"), "{refused}");
}

#[test]
fn m14_the_pods_own_default_network_leads_by_the_gateway_that_the_pod_names() {
    let cluster = Cluster::new();
    cluster.api.put_definition("kube-system", "radio", &definition("radio", "10.9.0.0/24"), None);
    let asks = json!([{"name": "radio", "default-route": ["10.9.0.200"]}]).to_string();
    cluster.api.put_pod(&web(), &[(DEFAULT_NETWORK, &asks)]);
    let before = cluster.rig.state();
    let answer: Value = serde_json::from_str(&cluster.add().unwrap()).unwrap();
    let by_gateway = |pod: &mut dyn Net| {
        let defaults = pod.routes().unwrap().into_iter().filter(|route| route.dst.prefix_len() == 0);
        defaults.filter_map(|route| route.gateway.map(|gateway| gateway.to_string())).collect::<Vec<_>>()
    };
    let mut pod = cluster.rig.kernel.pod(Path::new(POD)).unwrap();
    assert_eq!(by_gateway(pod.as_mut()), ["10.9.0.200"]);
    drop(pod);
    let told: Vec<&Value> =
        answer["routes"].as_array().unwrap().iter().filter(|route| route["dst"] == "0.0.0.0/0").collect();
    assert_eq!(told, [&json!({"dst": "0.0.0.0/0", "gw": "10.9.0.200"})], "{answer}");
    let (_, status) = cluster.api.reports().pop().unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status[0]["gateway"], json!(["10.9.0.200"]), "{status}");
    let mut conf: Value = serde_json::from_str(&cluster.request(Command::Check).config).unwrap();
    conf["prevResult"] = answer;
    let check = || cluster.rig.call(Request { config: conf.to_string(), ..cluster.request(Command::Check) });
    check().unwrap();
    let mut pod = cluster.rig.kernel.pod(Path::new(POD)).unwrap();
    let route = pod.routes().unwrap().into_iter().find(|route| route.dst.prefix_len() == 0).unwrap();
    pod.batch(&[Op::DeleteRoute(route)]).unwrap();
    drop(pod);
    assert_eq!(check().unwrap_err().code, Code::Changed);
    cluster.del().unwrap();
    cluster.rig.reap();
    assert_eq!(cluster.rig.state(), before);
}

#[test]
fn m14_a_gateway_that_the_pods_own_default_network_does_not_reach_is_told_of_the_pod() {
    let make = || {
        let cluster = Cluster::new();
        cluster.api.put_definition("kube-system", "radio", &definition("radio", "10.9.0.0/24"), None);
        let asks = json!([{"name": "radio", "default-route": ["10.9.0.200"]}]).to_string();
        cluster.api.put_pod(&web(), &[(DEFAULT_NETWORK, &asks)]);
        cluster
    };
    let calls = calls_of(&make(), Cluster::add);
    let mut told = 0;
    for n in 0..calls {
        let cluster = make();
        let before = cluster.rig.state();
        cluster.rig.kernel.forget_calls();
        cluster.rig.kernel.fail_at(n, Errno::ENETUNREACH);
        let answer = cluster.add();
        cluster.rig.kernel.heal();
        let Err(error) = answer else { continue };
        cluster.rig.reap();
        assert_eq!(cluster.rig.state(), before, "call {n}: {error}");
        told += usize::from(error.msg.contains("\"default-route\"") && error.msg.contains("shop/web-0"));
    }
    assert!(told > 0, "no call of {calls} sets the route");
}

#[test]
fn x04_check_does_not_miss_the_networks_own_default_route_where_the_pod_names_another_gateway() {
    let cluster = Cluster::asking(r#"[{"name":"radio","default-route":["10.9.0.200"]}]"#);
    cluster.add().unwrap();
    let check = || cluster.rig.call(cluster.request(Command::Check));
    check().unwrap();
    let mut pod = cluster.rig.kernel.pod(Path::new(POD)).unwrap();
    let index = pod.link_by_name("net1").unwrap().unwrap().index;
    let is_networks = |route: &Route| route.index == index && route.dst.to_string() == "10.99.0.0/16";
    let route = pod.routes().unwrap().into_iter().find(is_networks).unwrap();
    pod.batch(&[Op::DeleteRoute(route)]).unwrap();
    drop(pod);
    let missed = check().unwrap_err();
    assert_eq!(missed.code, Code::Changed, "its other routes are looked at as ever");
    assert!(missed.msg.contains("10.99.0.0/16"), "{missed}");
}

/// Answers ADD with a default route, and keeps what it is told at CHECK.
const WITH_DEFAULT_ROUTE: &str = r#"conf=$(cat)
[ "$CNI_COMMAND" != CHECK ] || printf %s "$conf" > "$(dirname "$0")/checked"
[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion":"1.0.0","ips":[{"address":"10.7.0.9/24"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.7.0.1"},{"dst":"10.77.0.0/16"}]}'"#;

#[test]
fn x04_check_tells_an_executed_plugin_only_of_the_default_route_that_the_pod_has_let_it_keep() {
    let mut cluster = Cluster::on_this_host();
    let plugins = tempfile::tempdir().unwrap();
    script::write(&plugins.path().join("routes"), WITH_DEFAULT_ROUTE);
    // The files of host-local would be this machine's own.
    let layer_2 =
        r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"macvlan","master":"eth0","ipam":{}}]}"#;
    let file = cluster.rig.dir.path().join("root/etc/cni/net.d/10-net.conflist");
    std::fs::write(file, layer_2).unwrap();
    cluster.rig.restart();
    let wire = r#"{"cniVersion":"1.0.0","name":"wire","type":"routes"}"#;
    cluster.api.put_definition("shop", "wire", wire, None);
    let call = |command| {
        cluster.rig.call(Request { path: plugins.path().display().to_string(), ..cluster.request(command) })
    };
    let kept: [(&str, &[&str]); 2] = [
        (r#"[{"name":"wire"}]"#, &["10.77.0.0/16"]),
        (r#"[{"name":"wire","default-route":[]}]"#, &["0.0.0.0/0", "10.77.0.0/16"]),
    ];
    for (asks, kept) in kept {
        cluster.api.put_pod(&web(), &[(NETWORKS, asks)]);
        call(Command::Add).unwrap();
        call(Command::Check).unwrap();
        let checked = std::fs::read_to_string(plugins.path().join("checked")).unwrap();
        let checked: Value = serde_json::from_str(&checked).unwrap();
        let routes = checked["prevResult"]["routes"].as_array().unwrap();
        let routes: Vec<&str> = routes.iter().filter_map(|route| route["dst"].as_str()).collect();
        assert_eq!(routes, kept, "{asks}");
        call(Command::Del).unwrap();
        cluster.rig.reap();
    }
}
