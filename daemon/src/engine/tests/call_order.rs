//! What comes after what: repeats, callers that go away, removals that an ADD has to wait for, GC.

use fairlead_host::double::KernelRequest;
use fairlead_host::{Address, AddressFlags, Op, SetLink};
use nix::errno::Errno;

use super::*;

fn gc(rig: &Rig, valid: &str) -> Result<String, CniError> {
    let config = macvlan().replace(r#""cniVersion":"1.0.0""#, &format!(r#""cniVersion":"1.1.0"{valid}"#));
    rig.call(rig.request(Command::Gc, "", &config))
}

#[test]
fn the_identical_add_gets_the_stored_answer_only_if_the_first_one_may_not_have_arrived() {
    let mut rig = Rig::new();
    let request = rig.request(Command::Add, "c1", &macvlan());
    let now = Instant::now();
    let call = rig.prepare(request.clone());
    let waiting =
        Waiting { arrived: now, deadline: now + Duration::from_secs(5), gone: CallerGone::default() };
    let first = call.serve(waiting).outcome.unwrap();
    call.answered(false);
    drop(call);
    rig.restart();
    assert_eq!(rig.call(request.clone()).unwrap(), first, "a restart never undoes a committed attachment");
    let told = rig.call(request).unwrap_err();
    assert!(told.msg.contains("already has interface"), "{told}");
}

#[test]
fn the_identical_add_is_refused_as_soon_as_the_first_answer_is_confirmed_and_not_only_when_that_is_on_record()
{
    let mut rig = Rig::new();
    let request = rig.request(Command::Add, "c1", &macvlan());
    let now = Instant::now();
    let call = rig.prepare(request.clone());
    let waiting =
        Waiting { arrived: now, deadline: now + Duration::from_secs(5), gone: CallerGone::default() };
    let first = call.serve(waiting).outcome.unwrap();
    call.delivered();
    let told = rig.call(request.clone()).unwrap_err();
    assert!(told.msg.contains("already has interface"), "{told}");
    drop(call);
    rig.restart();
    assert_eq!(rig.call(request).unwrap(), first, "what was not put on record yet is unknown after a kill");
}

#[test]
fn an_add_whose_caller_went_before_the_commit_is_undone() {
    let rig = Rig::new();
    let before = rig.state();
    let gone = CallerGone::default();
    gone.set();
    rig.call_with(rig.request(Command::Add, "c1", &macvlan()), gone).unwrap_err();
    assert_eq!(rig.state(), before);
}

#[test]
fn a_del_whose_caller_went_goes_on() {
    let rig = Rig::new();
    let before = rig.state();
    rig.add(&macvlan()).unwrap();
    let gone = CallerGone::default();
    gone.set();
    rig.call_with(rig.request(Command::Del, "c1", &macvlan()), gone).unwrap();
    rig.reap();
    assert_eq!(rig.state(), before);
}

#[test]
fn after_del_the_name_is_free_nobody_answers_and_the_address_comes_back_with_the_links_end() {
    let rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    rig.del(&macvlan()).unwrap();
    let pod = rig
        .kernel
        .snapshot()
        .namespaces
        .into_values()
        .find(|n| n.links.values().any(|l| l.name.starts_with("fl")))
        .unwrap();
    assert!(!pod.links.values().any(|l| l.name == "net1"));
    assert!(
        pod.addresses.iter().all(|a| a.contains("127.0.0.1") || a.contains("::1/128")),
        "{:?}",
        pod.addresses
    );
    assert_eq!(rig.allocations().len(), 2, "the addresses are kept until the link is gone");
    rig.reap();
    assert!(rig.allocations().is_empty());
}

#[test]
fn add_again_on_the_same_namespace_and_name_right_after_a_del_works() {
    let rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    rig.del(&macvlan()).unwrap();
    rig.add(&macvlan()).unwrap();
    rig.reap();
    assert_eq!(rig.engine().core.store.all().len(), 1);
}

#[test]
fn an_add_that_needs_the_last_address_hurries_the_removal_that_holds_it() {
    let rig = Rig::new();
    let small = of_subnet("10.1.0.0/30");
    rig.add(&small).unwrap();
    rig.del(&small).unwrap();
    rig.call(rig.request(Command::Add, "c2", &small)).unwrap();
    let told =
        rig.call(Request { ifname: "net2".into(), ..rig.request(Command::Add, "c3", &small) }).unwrap_err();
    assert!(told.msg.contains("no IP addresses available"), "{told}");
}

#[test]
fn an_add_that_needs_the_last_address_hurries_the_removal_of_a_vf_that_has_to_leave_its_pod_for_it() {
    let rig = Rig::new();
    let small = of_subnet("10.1.0.0/30");
    let of_vf =
        small.replace(r#""type":"macvlan","master":"eth0""#, &format!(r#""type":"sriov","deviceID":"{VF}""#));
    rig.add(&of_vf).unwrap();
    rig.del(&of_vf).unwrap();
    assert!(rig.at_home().is_none(), "its DEL was answered when it was silent");
    // This one is in its pod's namespace when it finds no address.
    rig.call(of_container(&rig, Command::Add, 2, &small)).unwrap();
    assert!(rig.at_home().is_some());
}

/// A network of few addresses.
fn of_subnet(subnet: &str) -> String {
    macvlan()
        .replace(
            r#"[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00:1::/64"}]]"#,
            &format!(r#"[[{{"subnet":"{subnet}"}}]]"#),
        )
        .replace(r#",{"dst":"::/0"}"#, "")
}

/// A call for the interface of its own that a container has in these tests.
fn of_container(rig: &Rig, command: Command, n: usize, config: &str) -> Request {
    Request { ifname: format!("net{n}"), ..rig.request(command, &format!("c{n}"), config) }
}

#[test]
fn adds_at_once_that_need_what_pending_removals_hold_each_get_the_address_of_one() {
    let rig = Rig::new();
    // Three addresses for pods: two are the network's, one the gateway's, and two are never let go.
    let small = of_subnet("10.1.0.0/29");
    for n in 1..=5 {
        rig.call(of_container(&rig, Command::Add, n, &small)).unwrap();
    }
    for n in 1..=3 {
        rig.call(of_container(&rig, Command::Del, n, &small)).unwrap();
    }
    std::thread::scope(|scope| {
        let add = |n| {
            let (rig, small) = (&rig, &small);
            scope.spawn(move || rig.call(of_container(rig, Command::Add, n, small)))
        };
        for done in [6, 7, 8].map(add) {
            done.join().unwrap().unwrap();
        }
    });
    let told = rig.call(of_container(&rig, Command::Add, 9, &small)).unwrap_err();
    assert!(told.msg.contains("no IP addresses available"), "{told}");
}

#[test]
fn an_add_that_asks_for_an_address_hurries_the_removal_that_holds_that_one() {
    let rig = Rig::new();
    let network = of_subnet("10.1.0.0/24");
    for n in 1..=3 {
        rig.call(of_container(&rig, Command::Add, n, &network)).unwrap();
        rig.call(of_container(&rig, Command::Del, n, &network)).unwrap();
    }
    let asking = Request {
        args: "IgnoreUnknown=1;IP=10.1.0.4".to_owned(),
        ..of_container(&rig, Command::Add, 4, &network)
    };
    let answer = rig.call(asking).unwrap();
    assert!(answer.contains("10.1.0.4/24"), "{answer}");
    assert_eq!(rig.engine().core.store.silenced().len(), 2, "the other removals have their time");
}

#[test]
fn a_removal_that_an_add_has_hurried_in_vain_is_tried_again_whatever_fails() {
    let mut failed = 0;
    for step in 0..20 {
        let rig = Rig::new();
        let small = of_subnet("10.1.0.0/30");
        rig.add(&small).unwrap();
        rig.del(&small).unwrap();
        let id = rig.engine().core.store.silenced()[0].id;
        rig.kernel.forget_calls();
        rig.kernel.fail_at(step, Errno::EIO);
        let _ = rig.call(of_container(&rig, Command::Add, 2, &small));
        rig.kernel.heal();
        let core = &rig.engine().core;
        if core.store.get(id).is_some() {
            failed += 1;
            assert!(core.removals.drain().contains(&Task::Attachment(id)), "step {step}");
        }
    }
    assert!(failed > 0, "none of the steps is one of the removal");
}

#[test]
fn gc_without_a_list_removes_nothing_and_with_one_everything_else_of_this_network() {
    let rig = Rig::new();
    rig.add(&macvlan()).unwrap();
    rig.call(Request { ifname: "net2".into(), ..rig.request(Command::Add, "c2", &macvlan()) }).unwrap();
    let other = macvlan().replace(r#""name":"net""#, r#""name":"other""#);
    rig.call(Request { ifname: "net3".into(), ..rig.request(Command::Add, "c3", &other) }).unwrap();
    gc(&rig, "").unwrap();
    assert_eq!(rig.engine().core.store.all().len(), 3);
    gc(&rig, r#","cni.dev/valid-attachments":[{"containerID":"c2","ifname":"net2"}]"#).unwrap();
    let left: Vec<_> = rig.engine().core.store.all().iter().map(|a| a.key.container.clone()).collect();
    assert_eq!(left, ["c2", "c3"]);
    gc(&rig, r#","cni.dev/valid-attachments":null"#).unwrap();
    assert_eq!(rig.engine().core.store.all().len(), 1);
}

#[test]
fn gc_never_touches_what_was_attached_after_it_arrived() {
    let rig = Rig::new();
    let arrived = Instant::now();
    rig.add(&macvlan()).unwrap();
    let config = macvlan()
        .replace(r#""cniVersion":"1.0.0""#, r#""cniVersion":"1.1.0","cni.dev/valid-attachments":[]"#);
    let request = rig.request(Command::Gc, "", &config);
    rig.serve(request, arrived, Duration::from_secs(5)).outcome.unwrap();
    assert_eq!(rig.engine().core.store.all().len(), 1);
    assert_eq!(rig.allocations().len(), 2);
}

#[test]
fn k24_a_pod_mtu_above_the_parents_is_a_clear_error() {
    let rig = Rig::new();
    let told =
        rig.add(&macvlan().replace(r#""master":"eth0""#, r#""master":"eth0","mtu":9000"#)).unwrap_err();
    assert_eq!(told.code.number(), 7);
    assert!(told.msg.contains("mtu 9000 is above 1500 of its master \"eth0\""), "{told}");
}

/// The configuration as CHECK gets it after this answer of ADD.
fn with_prev_result(config: &str, answer: &str) -> String {
    config.replace(r#""cniVersion":"1.0.0""#, &format!(r#""cniVersion":"1.0.0","prevResult":{answer}"#))
}

#[test]
fn x20_a_macvlan_in_passthru_has_its_masters_mac_address_whichever_is_asked_for() {
    let rig = Rig::new();
    let asking = r#""master":"eth0","mode":"passthru","mac":"02:00:00:00:00:77""#;
    let config = macvlan().replace(r#""master":"eth0""#, asking);
    let answer = rig.add(&config).unwrap();
    let told: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let mut host = fairlead_host::NetKernel::host(&*rig.kernel).unwrap();
    let master = host.link_by_name("eth0").unwrap().unwrap().mac.unwrap();
    drop(host);
    assert_eq!(told["interfaces"][0]["mac"], master.to_string());
    let check = rig.request(Command::Check, "c1", &with_prev_result(&config, &answer));
    rig.call(check).unwrap();
}

#[test]
fn x04_check_finds_what_has_changed() {
    let rig = Rig::new();
    let answer = rig.add(&macvlan()).unwrap();
    let config = with_prev_result(&macvlan(), &answer);
    rig.call(rig.request(Command::Check, "c1", &config)).unwrap();
    let mut pod = fairlead_host::NetKernel::pod(&*rig.kernel, POD.as_ref()).unwrap();
    let link = pod.link_by_name("net1").unwrap().unwrap();
    let address = pod.addresses(link.index).unwrap().into_iter().find(|a| a.net.addr().is_ipv4()).unwrap();
    pod.batch(&[Op::DeleteAddress(address)]).unwrap();
    drop(pod);
    let told = rig.call(rig.request(Command::Check, "c1", &config)).unwrap_err();
    assert!(told.msg.contains("its address 10.1.0.2/24 is gone"), "{told}");
}

#[test]
fn x04_check_misses_no_route_whose_gateway_is_0_0_0_0_nor_one_of_the_kernels_own_table() {
    let rig = Rig::new();
    let routes = r#"[{"dst":"10.9.0.0/16","gw":"0.0.0.0"},{"dst":"10.8.0.0/16","table":255}]"#;
    let ipam = format!(
        r#"{{"type":"static","addresses":[{{"address":"10.2.0.5/24","gateway":"10.2.0.1"}}],"routes":{routes}}}"#
    );
    let config =
        format!(r#"{{"cniVersion":"1.1.0","name":"net","type":"macvlan","master":"eth0","ipam":{ipam}}}"#);
    let answer = rig.add(&config).unwrap();
    rig.check(&config, &answer).unwrap();
}

#[test]
fn x04_check_finds_a_route_that_a_later_plugin_has_moved_to_another_table_of_the_same_link() {
    let rig = Rig::new();
    let routes = r#"[{"dst":"10.9.0.0/16"},{"dst":"10.8.0.0/16","table":7}]"#;
    let ipam = format!(
        r#"{{"type":"static","addresses":[{{"address":"10.2.0.5/24","gateway":"10.2.0.1"}}],"routes":{routes}}}"#
    );
    let config =
        format!(r#"{{"cniVersion":"1.1.0","name":"net","type":"macvlan","master":"eth0","ipam":{ipam}}}"#);
    let answer = rig.add(&config).unwrap();
    let moved = |dst: &str, table: u32| {
        let mut pod = fairlead_host::NetKernel::pod(&*rig.kernel, POD.as_ref()).unwrap();
        let route = pod.routes().unwrap().into_iter().find(|route| route.dst.to_string() == dst).unwrap();
        let there = fairlead_host::Route { table: Some(table), ..route };
        pod.batch(&[Op::DeleteRoute(route), Op::AddRoute(there.clone())]).unwrap();
        there
    };
    let of_sbr = moved("10.9.0.0/16", 100);
    rig.check(&config, &answer).unwrap();
    moved("10.8.0.0/16", 100);
    let told = rig.check(&config, &answer).unwrap_err();
    assert!(told.msg.contains("the route to 10.8.0.0/16 is gone"), "a table that is named is meant: {told}");
    moved("10.8.0.0/16", 7);
    rig.check(&config, &answer).unwrap();
    rig.in_pod(|_| vec![Op::DeleteRoute(of_sbr.clone())]);
    let told = rig.check(&config, &answer).unwrap_err();
    assert!(told.msg.contains("the route to 10.9.0.0/16 is gone"), "{told}");
}

#[test]
fn x04_check_does_not_miss_the_mac_address_of_a_bonds_port() {
    let rig = Rig::new();
    let answer = rig.add(&macvlan()).unwrap();
    let mac = fairlead_host::Mac::local(0xbad);
    rig.in_pod(|index| vec![Op::SetLink(SetLink { index, mac: Some(mac), ..SetLink::default() })]);
    let check = || rig.check(&macvlan(), &answer);
    let told = check().unwrap_err();
    assert!(told.msg.contains(&format!("its MAC address is {mac} instead of")), "{told}");
    for (kind, is_whole) in [("bridge", false), ("bond", true)] {
        rig.kernel.add_link(POD, kind, fairlead_host::Kind::Other { name: kind.to_owned() }).unwrap();
        rig.kernel.enslave("net1", kind);
        assert_eq!(check().is_ok(), is_whole, "a port of a {kind}");
    }
}

#[test]
fn an_ipam_plugin_that_is_not_there_is_refused_before_anything_is_on_record() {
    let rig = Rig::new();
    let before = rig.state();
    let config =
        r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth0","ipam":{"type":"nobody"}}"#;
    let told = rig.add(config).unwrap_err();
    assert_eq!(told.code.number(), 7, "{told}");
    assert_eq!(rig.state(), before);
    rig.add(&macvlan()).unwrap();
}

#[test]
fn a_resolv_conf_that_is_a_pipe_or_has_no_end_keeps_nobody() {
    let rig = Rig::new();
    let root = rig.dir.path().join("root");
    nix::unistd::mkfifo(&root.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::write(root.join("long"), vec![b'#'; 2 << 20]).unwrap();
    for (path, why) in [("/pipe", "no regular file"), ("/long", "more than 1048576 bytes")] {
        let config = macvlan()
            .replace(r#""type":"host-local","#, &format!(r#""type":"host-local","resolvConf":"{path}","#));
        let told = rig.add(&config).unwrap_err();
        assert!(told.msg.contains(why), "{told}");
    }
    assert!(rig.engine().core.store.all().is_empty());
}

#[test]
fn an_address_directory_in_which_nothing_can_be_taken_leaves_no_record_that_fails_for_ever() {
    let rig = Rig::new();
    let pods = rig.dir.path().join("root/var/lib/cni/networks/net");
    std::fs::create_dir_all(&pods).unwrap();
    for name in ["lock", "last_reserved_ip.0"] {
        nix::unistd::mkfifo(&pods.join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let told = rig.add(&macvlan()).unwrap_err();
        assert!(told.msg.contains(&format!("{name:?} is a FIFO")), "{told}");
        assert!(rig.engine().core.store.all().is_empty(), "{name}");
        std::fs::remove_file(pods.join(name)).unwrap();
    }
    rig.add(&macvlan()).unwrap();
}

#[test]
fn a_pod_that_fills_its_interface_with_addresses_is_silenced_by_one_message_not_by_one_for_each() {
    let rig = Rig::new();
    let before = rig.state();
    rig.add(&macvlan()).unwrap();
    let mut pod = fairlead_host::NetKernel::pod(&*rig.kernel, POD.as_ref()).unwrap();
    let index = pod.link_by_name("net1").unwrap().unwrap().index;
    let ours = pod.addresses(index).unwrap().remove(0);
    for n in 0..100 {
        let net = format!("10.77.0.{n}/32").parse().unwrap();
        pod.batch(&[Op::AddAddress(Address { net, ..ours.clone() })]).unwrap();
    }
    drop(pod);
    rig.kernel.forget_calls();
    rig.del(&macvlan()).unwrap();
    let deletions = rig.ops().into_iter().filter(|op| matches!(op, Op::DeleteAddress(_))).count();
    assert_eq!(deletions, 0);
    let mut pod = fairlead_host::NetKernel::pod(&*rig.kernel, POD.as_ref()).unwrap();
    assert!(pod.link_by_index(index).unwrap().is_some_and(|link| !link.up), "it answers for none of them");
    drop(pod);
    rig.reap();
    assert_eq!(rig.state(), before);
}

#[test]
fn del_switches_ipv6_off_before_the_interface_loses_its_name_where_it_has_a_routed_address_of_it() {
    let off = KernelRequest::SetSysctl("net/ipv6/conf/net1/disable_ipv6".to_owned(), "1".to_owned());
    let renamed = |request: &KernelRequest| {
        matches!(request, KernelRequest::Op(Op::SetLink(SetLink { name: Some(_), .. })))
    };
    for (name, has_ipv6) in [("macvlan with two families", true), ("macvlan, static", false)] {
        let config = configurations().into_iter().find(|(of, _)| *of == name).unwrap().1;
        let added = || {
            let rig = Rig::new();
            rig.add(&config).unwrap();
            rig.in_pod(|index| {
                let (net, flags) = ("fe80::5/64".parse().unwrap(), AddressFlags::default());
                vec![Op::AddAddress(Address { index, net, broadcast: None, flags })]
            });
            rig.kernel.forget_calls();
            rig
        };
        let rig = added();
        rig.del(&config).unwrap();
        let requests: Vec<_> = rig.kernel.calls().into_iter().map(|call| call.request).collect();
        let (at, renamed) = (requests.iter().position(|r| *r == off), requests.iter().position(renamed));
        assert_eq!(at.is_some(), has_ipv6, "{name}: {requests:?}");
        assert!(at < renamed, "{name}: {requests:?}");
        if let Some(at) = at {
            // As where `/proc/sys` is read-only.
            let rig = added();
            rig.kernel.fail_at(at, Errno::EROFS);
            rig.del(&config).unwrap();
        }
    }
}
