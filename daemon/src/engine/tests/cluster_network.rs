//! Our own type: a whole list by its name.

use fairlead_cni::{CniResult, CniVersion, Code};
use fairlead_host::{NetKernel, Op};

use super::identity::macvlan_link;
use super::pod_networks::Cluster;
use super::*;
use crate::store::{Attachment, LinkRecord};

const OWN: &str = r#"{"cniVersion":"1.1.0","name":"cluster","type":"fairlead","clusterNetwork":"net"}"#;

fn with_list() -> (Rig, PathBuf) {
    let mut rig = Rig::new();
    let file = rig.dir.path().join("root/etc/cni/net.d/10-net.conflist");
    let plugin = macvlan().replace(r#""cniVersion":"1.0.0","name":"net","#, "");
    std::fs::write(&file, format!(r#"{{"cniVersion":"1.0.0","name":"net","plugins":[{plugin}]}}"#)).unwrap();
    rig.restart();
    (rig, file)
}

#[test]
fn m09_del_takes_down_what_was_attached_although_the_configuration_is_gone() {
    let (mut rig, file) = with_list();
    let before = rig.state();
    let answer = rig.add(OWN).unwrap();
    assert!(answer.contains("10.1.0.2/24"), "{answer}");
    std::fs::remove_file(file).unwrap();
    rig.restart();
    rig.del(OWN).unwrap();
    rig.reap();
    assert_eq!(rig.state(), before);
}

#[test]
fn k10_del_of_a_pod_that_the_runtime_attached_before_us_takes_down_what_its_list_made() {
    let (rig, file) = with_list();
    rig.kernel.add_link(POD, "net1", macvlan_link()).unwrap();
    let dir = rig.dir.path().join("root/var/lib/cni/networks/net");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("10.1.0.7"), "c1\r\nnet1").unwrap();
    std::fs::write(dir.join("10.1.0.8"), "c2\r\nnet1").unwrap();
    rig.del(OWN).unwrap();
    assert_eq!(rig.allocations(), ["10.1.0.8"]);
    let links = rig.kernel.snapshot().namespaces.into_values().flat_map(|n| n.links.into_values());
    assert!(!links.into_iter().any(|l| l.name == "net1"));
    std::fs::remove_file(file).unwrap();
    rig.del(OWN).unwrap();
}

#[test]
fn a_network_that_is_not_there_yet_is_worth_another_try() {
    let rig = Rig::new();
    let told = rig.add(OWN).unwrap_err();
    assert_eq!(told.code.number(), 11);
    assert!(told.msg.contains("clusterNetwork \"net\""), "{told}");
}

#[test]
fn x05_a_list_that_is_refused_at_any_call_leaves_the_host_as_before() {
    let calls = {
        let (rig, _) = with_list();
        rig.kernel.forget_calls();
        rig.add(OWN).unwrap();
        rig.kernel.calls().len()
    };
    for n in 0..calls {
        let (rig, _) = with_list();
        let before = rig.state();
        rig.kernel.forget_calls();
        rig.kernel.fail_at(n, nix::errno::Errno::ENOBUFS);
        let answer = rig.add(OWN);
        rig.kernel.heal();
        if answer.is_ok() {
            rig.del(OWN).unwrap();
        }
        rig.reap();
        assert_eq!(rig.state(), before, "call {n} of {calls}: {answer:?}");
    }
}

#[test]
fn a_list_that_names_itself_is_refused_and_leaves_nothing() {
    let mut rig = Rig::new();
    let before = rig.state();
    let file = rig.dir.path().join("root/etc/cni/net.d/10-loop.conflist");
    let plugin = r#"{"type":"fairlead","clusterNetwork":"loop"}"#;
    std::fs::write(&file, format!(r#"{{"cniVersion":"1.1.0","name":"loop","plugins":[{plugin}]}}"#)).unwrap();
    rig.restart();
    let own = OWN.replace(r#""net""#, r#""loop""#);
    let told = rig.add(&own).unwrap_err();
    assert_eq!(told.code.number(), 7, "{told}");
    rig.reap();
    assert_eq!(rig.state(), before);
    rig.restart();
    rig.del(&own).unwrap();
}

/// Both have the same network and interface, so only the type tells the list's record from its plugin's.
#[test]
fn a_list_under_our_own_networks_name_that_fails_leaves_nothing() {
    let (mut rig, file) = with_list();
    let own = OWN.replace(r#""cluster""#, r#""net""#);
    rig.add(&own).unwrap();
    rig.del(&own).unwrap();
    rig.reap();
    let before = rig.state();
    let list = std::fs::read_to_string(&file).unwrap().replace(r#""master":"eth0""#, r#""master":"gone0""#);
    assert!(list.contains("gone0"), "{list}");
    std::fs::write(&file, list).unwrap();
    rig.restart();
    let refused = rig.add(&own).unwrap_err();
    assert!(refused.msg.contains("gone0"), "{refused}");
    rig.reap();
    assert_eq!(rig.state(), before);
    rig.del(&own).unwrap();
    assert_eq!(rig.state(), before);
}

#[test]
fn an_attachment_that_the_store_has_lost_is_taken_from_its_record_and_its_plugins_get_no_del() {
    let (mut rig, _) = with_list();
    rig.add(OWN).unwrap();
    // As if one of its plugins had been executed: then the list is on record in the state directory, too.
    let core = &rig.engine().core;
    let list = core.store.all().into_iter().find(|a| a.key.plugin == "fairlead").unwrap();
    let mut executed = Attachment::clone(&list);
    let LinkRecord::Conflist { built_in, .. } = &mut executed.link else { panic!("{list:?}") };
    assert!(*built_in && !list.has_delegates());
    *built_in = false;
    core.records.keep(&executed).unwrap();
    let attached = rig.state();
    rig.engine = None;
    std::fs::remove_file(rig.dir.path().join("run/attachments.journal")).unwrap();
    rig.restart();
    rig.reap();
    let now = rig.state();
    assert_eq!((now.kernel, now.allocations), (attached.kernel, attached.allocations));
    let of_list = rig.engine().core.store.all().into_iter().map(|a| a.key.plugin.clone()).collect::<Vec<_>>();
    assert_eq!(of_list, ["fairlead"]);
    rig.del(OWN).unwrap();
    rig.reap();
    assert!(rig.allocations().is_empty(), "what the list's record names is taken down all the same");
}

#[test]
fn each_caller_is_answered_the_same_in_its_own_version_whatever_the_lists_is() {
    let versions = ["0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    let mut told = Vec::new();
    for of_list in versions {
        let (mut rig, file) = with_list();
        let list = std::fs::read_to_string(&file).unwrap().replacen("1.0.0", of_list, 1);
        std::fs::write(&file, list).unwrap();
        rig.restart();
        for of_caller in versions {
            let own = OWN.replace("1.1.0", of_caller);
            let answer = rig.add(&own).unwrap();
            let keys: serde_json::Value = serde_json::from_str(&answer).unwrap();
            assert_eq!(keys["cniVersion"], of_caller, "the list has {of_list}");
            let version = CniVersion::parse(of_caller).unwrap();
            let result = CniResult::parse_text(&answer, version).unwrap();
            let interfaces: Vec<_> =
                result.interfaces.iter().map(|i| (i.name.clone(), i.sandbox.clone())).collect();
            let prefixes: Vec<_> =
                result.ips.iter().map(|ip| (ip.address.prefix_len(), ip.gateway, ip.interface)).collect();
            let routes: Vec<_> = result.routes.iter().map(|route| (route.dst, route.gw)).collect();
            told.push((interfaces, prefixes, routes, result.dns));
            rig.del(&own).unwrap();
            rig.reap();
        }
    }
    assert_eq!(told.len(), 16);
    assert!(told.iter().all(|one| *one == told[0]), "{told:#?}");
}

#[test]
fn x04_check_by_a_caller_of_today_succeeds_where_the_lists_version_has_no_check() {
    for of_list in ["0.3.1", "0.4.0", "1.1.0"] {
        let (mut rig, file) = with_list();
        let list = std::fs::read_to_string(&file).unwrap().replacen("1.0.0", of_list, 1);
        std::fs::write(&file, list).unwrap();
        rig.restart();
        rig.add(OWN).unwrap();
        let check = |config: &str| rig.call(rig.request(Command::Check, "c1", config));
        check(OWN).unwrap_or_else(|refused| panic!("the list has {of_list}: {refused}"));
        let own_is_old = check(&OWN.replace("1.1.0", "0.3.1")).unwrap_err();
        assert_eq!(own_is_old.code, Code::IncompatibleVersion, "the caller's own version has none either");
        delete_link(&rig, "net1");
        assert_eq!(check(OWN).is_err(), of_list != "0.3.1", "{of_list}: who has no CHECK is not asked");
    }
}

#[test]
fn x04_check_looks_at_the_others_beside_lists_whose_version_has_no_check() {
    let mut cluster = Cluster::asking("old,radio");
    let conf_dir = cluster.rig.dir.path().join("root/etc/cni/net.d");
    for name in ["net", "old"] {
        let plugin = r#"{"type":"macvlan","master":"eth0","ipam":{}}"#;
        let list = format!(r#"{{"cniVersion":"0.3.1","name":"{name}","plugins":[{plugin}]}}"#);
        std::fs::write(conf_dir.join(format!("10-{name}.conflist")), list).unwrap();
    }
    cluster.rig.restart();
    cluster.api.put_definition("shop", "old", "", None);
    cluster.add().unwrap();
    let check = || cluster.rig.call(cluster.request(Command::Check));
    check().unwrap();
    delete_link(&cluster.rig, "net2");
    let told = check().unwrap_err();
    assert!(told.msg.contains("net2"), "{told}");
}

/// Deletes a link of the pod behind everybody's back.
fn delete_link(rig: &Rig, name: &str) {
    let mut pod = rig.kernel.pod(Path::new(POD)).unwrap();
    let link = pod.link_by_name(name).unwrap().unwrap();
    pod.batch(&[Op::DeleteLink(link.index)]).unwrap();
}
