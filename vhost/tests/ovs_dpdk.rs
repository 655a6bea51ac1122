//! The driver of OVS-DPDK against a real one (Debian's), with DPDK's testpmd as the pods.
//!
//! Each test has an OVS of its own. They take turns: an OVS and two testpmd keep two cores busy.

#![allow(clippy::unwrap_used)] // of tests alone

#[path = "ovs/real_ovs.rs"]
mod real_ovs;
#[path = "ovs/testpmd.rs"]
mod testpmd;
#[allow(dead_code, reason = "other tests start a data plane")]
mod threads;

use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use fairlead_vhost::ovs_dpdk::{
    OvsDpdk, OvsError, Policing, PortName, PortOwner, PortSpec, Removal, TlsFiles, VhostSocket, Vlans,
};
use real_ovs::{LONG, RealOvs, until};
use testpmd::Testpmd;

/// A pod to which nobody is connected after so long has missed the connection: DPDK's virtio_user, as a server on a busy machine, can miss
/// one that comes while it is still ending the one before. It hears of the next one; docs/vhost-user.md has it.
const MISSED: Duration = Duration::from_secs(30);

static TURN: Mutex<()> = Mutex::new(());

fn take_turn() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn spec(ovs: &RealOvs, name: &str) -> PortSpec {
    PortSpec {
        name: PortName::new(name).unwrap(),
        bridge: "br0".to_owned(),
        makes_bridge: false,
        socket: VhostSocket::PodListens(ovs.path(&format!("{name}.sock"))),
        vlans: Vlans::Untagged,
        policing: None,
        mtu: None,
        mac: None,
        owner: PortOwner {
            namespace: "default".to_owned(),
            pod: format!("pod-{name}"),
            uid: "6d1c6b3e".to_owned(),
            container: format!("container-{name}"),
            ifname: "net1".to_owned(),
        },
    }
}

#[test]
fn a_port_is_added_found_again_and_removed() {
    let _turn = take_turn();
    let ovs = RealOvs::start();
    let driver = ovs.driver();
    let spec = spec(&ovs, "p0");
    let added = driver.add_port(spec.clone()).unwrap();
    assert!(added.created && added.ofport > 0);
    assert_eq!(ovs.vsctl(&["get", "Interface", "p0", "type"]), "dpdkvhostuserclient");
    assert_eq!(ovs.vsctl(&["get", "Interface", "p0", "ofport"]), added.ofport.to_string());
    assert_eq!(ovs.vsctl(&["get", "Port", "p0", "external_ids:fairlead-pod"]), "pod-p0");
    assert!(!driver.add_port(spec.clone()).unwrap().created);
    let ports = driver.ports().unwrap();
    assert_eq!((ports.len(), ports[0].spec.as_ref(), ports[0].connected), (1, Some(&spec), false));
    assert_eq!(driver.remove_recorded(&spec).unwrap(), Removal::Gone);
    assert_eq!(driver.remove_recorded(&spec).unwrap(), Removal::Absent);
    assert_eq!(ovs.vsctl(&["list-ports", "br0"]), "");
}

#[test]
fn every_setting_of_a_port_reaches_ovs_and_is_read_back() {
    let _turn = take_turn();
    let ovs = RealOvs::start();
    let driver = ovs.driver();
    let trunk = |native| Vlans::Trunk { allowed: BTreeSet::from([30, 31, 4094]), native };
    let mut specs = Vec::new();
    for (name, vlans) in [("every", Vlans::Every), ("access", Vlans::Access(7)), ("trunk", trunk(None))] {
        specs.push(PortSpec { vlans, ..spec(&ovs, name) });
    }
    specs.push(PortSpec {
        socket: VhostSocket::OvsListens,
        vlans: trunk(Some(30)),
        policing: Some(Policing { rate_kbps: 100_000, burst_kb: 8_000 }),
        mtu: Some(9000),
        mac: Some("02:00:5e:10:00:01".parse().unwrap()),
        ..spec(&ovs, "whole")
    });
    let added: Vec<_> = specs.iter().map(|spec| driver.add_port(spec.clone()).unwrap()).collect();
    assert!(std::fs::metadata(&added[3].socket).unwrap().file_type().is_socket());
    specs.sort_by(|a, b| a.name.cmp(&b.name));
    let read: Vec<PortSpec> = driver.ports().unwrap().into_iter().filter_map(|port| port.spec).collect();
    assert_eq!(read, specs);
    assert_eq!(ovs.vsctl(&["get", "Port", "whole", "vlan_mode"]), "native-untagged");
    assert_eq!(ovs.vsctl(&["get", "Interface", "whole", "mtu_request"]), "9000");
    assert_eq!(
        ovs.vsctl(&["get", "Interface", "whole", "external_ids:attached-mac"]),
        "\"02:00:5e:10:00:01\""
    );
}

/// Has the first pod send until both have received something that they had not, for so long at most; whether they have.
fn exchanges(pods: &mut [Testpmd; 2], limit: Duration) -> bool {
    let [a, b] = pods;
    let before = (a.received(), b.received());
    b.reflect();
    let both_receive = comes_about(limit, || {
        a.send();
        std::thread::sleep(Duration::from_millis(200));
        a.received() > before.0 && b.received() > before.1
    });
    a.stop();
    b.stop();
    both_receive
}

/// Whether something comes to be so within a time.
fn comes_about(limit: Duration, mut so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn until_connected(driver: &OvsDpdk, ports: usize) {
    until("OVS has connected to every pod", || connected(driver) == ports);
}

fn connected(driver: &OvsDpdk) -> usize {
    driver.ports().unwrap().iter().filter(|port| port.connected).count()
}

/// Has a port replaced by this one, and once more where its pod missed the connection. Two pods are connected afterwards.
fn replace(driver: &OvsDpdk, port: &PortSpec) {
    assert!(driver.add_port(port.clone()).unwrap().created, "another VLAN replaces the port");
    if !comes_about(MISSED, || connected(driver) == 2) {
        driver.remove_recorded(port).unwrap();
        driver.add_port(port.clone()).unwrap();
    }
    until_connected(driver, 2);
}

#[test]
fn pods_of_one_vlan_exchange_frames_of_two_do_not_and_a_killed_switch_goes_on_without_the_driver() {
    let _turn = take_turn();
    let mut ovs = RealOvs::start();
    let driver = ovs.driver();
    let tagged = |name, vlan| PortSpec { vlans: Vlans::Access(vlan), ..spec(&ovs, name) };
    let (a, b, elsewhere) = (tagged("a", 10), tagged("b", 10), tagged("b", 20));
    let socket = |spec: &PortSpec| driver.add_port(spec.clone()).unwrap().socket;
    let mut pods = [Testpmd::start(1, 2, &socket(&a)), Testpmd::start(2, 1, &socket(&b))];
    pods.iter().for_each(Testpmd::wait_until_ready);
    until_connected(&driver, 2);
    assert!(exchanges(&mut pods, LONG), "no frames come back");

    replace(&driver, &elsewhere);
    let (received, sent) = (pods[1].received(), ovs.frames("a").0);
    pods[0].send();
    until("the switch has taken the frames", || ovs.frames("a").0 >= sent + 32);
    assert_eq!((ovs.frames("b").1, pods[1].received()), (0, received), "a frame has left its VLAN");
    pods[0].stop();

    replace(&driver, &b);
    let transactions = driver.counters().transactions;
    ovs.kill_switch();
    ovs.start_switch();
    if !exchanges(&mut pods, MISSED) {
        ovs.kill_switch();
        ovs.start_switch();
        assert!(exchanges(&mut pods, LONG), "no frames come back");
    }
    assert_eq!(driver.counters().transactions, transactions);
}

#[test]
fn what_a_new_database_and_a_careless_hand_have_lost_is_put_back_and_foreign_ports_stay() {
    let _turn = take_turn();
    let mut ovs = RealOvs::start();
    let driver = ovs.driver();
    let specs = [spec(&ovs, "p0"), spec(&ovs, "p1")];
    specs.iter().for_each(|spec| drop(driver.add_port(spec.clone()).unwrap()));
    let ours = || ovs_ports(&driver);

    ovs.vsctl(&["del-port", "p0"]);
    until("a port that was deleted is there again", || ours() == ["p0", "p1"]);
    ovs.recreate_database();
    ovs.set_up_dpdk();
    ovs.add_bridge();
    until("the ports are in the new database", || ours() == ["p0", "p1"]);
    until("each was counted", || driver.counters().put_back == 3);
    drop(driver);

    ovs.vsctl(&["del-port", "p0"]);
    let foreign = ["add-port", "br0", "theirs", "--", "set", "Interface", "theirs", "type=dpdkvhostuser"];
    ovs.vsctl(&foreign);
    let other_node = ovs.driver_of("there");
    other_node.add_port(spec(&ovs, "q0")).unwrap();
    let driver = ovs.driver();
    driver.add_port(spec(&ovs, "orphan")).unwrap();
    let reconciled = driver.reconcile(&specs).unwrap();
    assert_eq!((reconciled.removed, reconciled.put_back), (names(&["orphan"]), names(&["p0"])));
    assert!(reconciled.failed.is_empty(), "{:?}", reconciled.failed);
    assert_eq!(ovs_ports(&driver), ["p0", "p1"]);
    let refused = driver.add_port(spec(&ovs, "theirs")).unwrap_err();
    assert!(matches!(&refused, OvsError::NameTaken { port, .. } if port.as_str() == "theirs"), "{refused}");
    let refused = driver.add_port(spec(&ovs, "q0")).unwrap_err();
    assert!(refused.to_string().contains("fairlead=there"), "{refused}");
    assert_eq!(driver.remove_recorded(&spec(&ovs, "theirs")).unwrap(), Removal::Absent);
    assert_eq!(driver.reconcile(&[]).unwrap().removed, names(&["p0", "p1"]));
    assert_eq!(ovs.vsctl(&["list-ports", "br0"]), "q0\ntheirs");
}

/// The ports of ours that are at work.
fn ovs_ports(driver: &OvsDpdk) -> Vec<String> {
    let ports = driver.ports().unwrap_or_default();
    ports.into_iter().filter(|port| port.ofport.is_some()).map(|port| port.name).collect()
}

fn names(names: &[&str]) -> Vec<PortName> {
    names.iter().map(|name| PortName::new(name).unwrap()).collect()
}

#[test]
fn fifty_ports_at_once_share_transactions() {
    let _turn = take_turn();
    let ovs = RealOvs::start();
    let driver = ovs.driver();
    let specs: Vec<PortSpec> = (0..50).map(|n| spec(&ovs, &format!("p{n}"))).collect();
    let together = Barrier::new(specs.len());
    std::thread::scope(|scope| {
        for spec in &specs {
            let (driver, together) = (&driver, &together);
            scope.spawn(move || {
                together.wait();
                driver.add_port(spec.clone()).unwrap();
            });
        }
    });
    let adding = driver.counters();
    assert!(adding.added == 50 && adding.rejected == 0 && adding.transactions < 50, "{adding:?}");
    println!("50 adds at once: {} transactions", adding.transactions);
    assert_eq!(driver.reconcile(&[]).unwrap().removed.len(), 50);
    assert_eq!(driver.counters().transactions, adding.transactions + 1, "one transaction removes all");
    assert_eq!(driver.reconcile(&specs).unwrap().put_back.len(), 50);
    assert_eq!(driver.counters().transactions, adding.transactions + 2, "one transaction makes all");
    assert_eq!(ovs.vsctl(&["list-ports", "br0"]).lines().count(), 50);
}

#[test]
fn errors_name_the_thing_the_reason_and_what_to_do() {
    let _turn = take_turn();
    let mut ovs = RealOvs::start();
    let driver = ovs.driver();
    let elsewhere = PortSpec { bridge: "br9".to_owned(), ..spec(&ovs, "p0") };
    let error = driver.add_port(elsewhere).unwrap_err().to_string();
    assert!(error.starts_with("the bridge br9 does not exist: ovs-vsctl add-br br9"), "{error}");
    ovs.vsctl(&["--no-wait", "add-br", "br1"]);
    let kernel = PortSpec { bridge: "br1".to_owned(), ..spec(&ovs, "p0") };
    until("the monitor tells of the bridge", || {
        matches!(driver.add_port(kernel.clone()), Err(OvsError::BridgeNotNetdev { .. }))
    });
    ovs.kill_database();
    drop(std::fs::remove_file(ovs.path("db.sock")));
    let hasty = ovs.hasty_driver();
    until("the missing socket is named", || {
        hasty.add_port(spec(&ovs, "p0")).unwrap_err().to_string().contains("db.sock: is ovsdb-server running")
    });
    assert!(hasty.status().unreachable.is_some());
}

#[test]
fn a_port_that_makes_its_bridge_has_it_back_in_a_new_database() {
    let _turn = take_turn();
    let ovs = RealOvs::start();
    let driver = ovs.driver();
    let made = |name, vlan| PortSpec {
        bridge: "br7".to_owned(),
        makes_bridge: true,
        vlans: vlan,
        ..spec(&ovs, name)
    };
    let specs = [made("p0", Vlans::Every), made("p1", Vlans::Access(7))];
    std::thread::scope(|scope| {
        let adds = specs.each_ref().map(|spec| scope.spawn(|| driver.add_port(spec.clone()).unwrap()));
        for add in adds {
            assert!(add.join().unwrap().created);
        }
    });
    assert_eq!(ovs.vsctl(&["get", "Bridge", "br7", "datapath_type"]), "netdev");
    assert_eq!(ovs.vsctl(&["list-ports", "br7"]), "p0\np1");
    assert!(!driver.add_port(specs[0].clone()).unwrap().created, "it is as it is to be");
    driver.remove_recorded(&specs[0]).unwrap();
    driver.remove_recorded(&specs[1]).unwrap();
    assert_eq!(ovs.vsctl(&["list-br"]), "br0\nbr7", "what is in use by others is not known: it stays");
    driver.add_port(specs[0].clone()).unwrap();
    ovs.vsctl(&["del-br", "br7"]);
    until("bridge and port are put back", || driver.counters().put_back == 1);
    assert_eq!(ovs.vsctl(&["list-ports", "br7"]), "p0");
}

#[test]
fn a_database_is_reached_by_tls_with_the_files_as_they_are_and_no_other_is_trusted() {
    let _turn = take_turn();
    let mut ovs = RealOvs::start();
    let (tcp, tls) = ovs.serve_by_tls();
    let address = format!("ssl:127.0.0.1:{tls}");
    let dir = ovs.dir.path().to_owned();
    let files = |who: &str, ca: &str| TlsFiles {
        ca: dir.join(format!("pki/{ca}/cacert.pem")),
        certificate: dir.join(format!("{who}-cert.pem")),
        private_key: dir.join(format!("{who}-privkey.pem")),
    };
    let told = |driver: &OvsDpdk, words: &str| {
        until(words, || driver.status().unreachable.is_some_and(|why| why.contains(words)));
    };
    let driver = ovs.driver_at(&address, Some(files("us", "switchca")));
    // With news of any length each way.
    let specs: Vec<PortSpec> = (0..8).map(|n| spec(&ovs, &format!("p{n}"))).collect();
    std::thread::scope(|scope| {
        let adds: Vec<_> = specs.iter().map(|spec| scope.spawn(|| driver.add_port(spec.clone()))).collect();
        adds.into_iter().for_each(|add| drop(add.join().unwrap().unwrap()));
    });
    assert_eq!(driver.ports().unwrap().len(), 8);
    // Its connection ends with the server, and is made again.
    ovs.kill_database();
    until("its end is seen", || driver.status().unreachable.is_some());
    ovs.start_database();
    driver.remove_recorded(&specs[0]).unwrap();
    drop(driver);

    let by_tcp = ovs.driver_at(&format!("tcp:127.0.0.1:{tcp}"), None);
    assert_eq!(by_tcp.ports().unwrap().len(), 7);
    told(&ovs.driver_at(&address, None), "TLS needs ca");
    told(&ovs.driver_at(&address, Some(files("nobody", "switchca"))), "nobody-cert.pem cannot be read");
    told(&ovs.driver_at(&address, Some(files("stranger", "switchca"))), "does its CA know our certificate?");
    let not_tls = format!("ssl:127.0.0.1:{tcp}");
    told(&ovs.driver_at(&not_tls, Some(files("us", "switchca"))), "TLS handshake failed");

    // Another CA has signed the server's certificate, until the file is renewed.
    std::fs::copy(ovs.path("pki/controllerca/cacert.pem"), ovs.path("ca.pem")).unwrap();
    let renewed = TlsFiles { ca: ovs.path("ca.pem"), ..files("us", "switchca") };
    let driver = ovs.driver_at(&address, Some(renewed));
    told(&driver, "UnknownIssuer");
    std::fs::copy(ovs.path("pki/switchca/cacert.pem"), ovs.path("ca.pem")).unwrap();
    assert_eq!(driver.ports().unwrap().len(), 7);
}

#[test]
#[ignore = "prints figures"]
fn how_long_a_port_takes_beside_ovs_vsctl() {
    let _turn = take_turn();
    let ovs = RealOvs::start();
    // A switch whose poll threads sleep takes ten milliseconds more for each change.
    ovs.vsctl(&["remove", "Open_vSwitch", ".", "other_config", "pmd-maxsleep"]);
    let driver = ovs.driver();
    driver.add_port(spec(&ovs, "first")).unwrap();
    let (mut ours, mut removes, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..50 {
        let (mine, other) = (spec(&ovs, &format!("p{n}")), format!("v{n}"));
        let recorded = mine.clone();
        ours.push(timed(|| drop(driver.add_port(mine).unwrap())));
        let server = format!("options:vhost-server-path={}", ovs.path(&other).display());
        let add = [
            "add-port",
            "br0",
            &other,
            "--",
            "set",
            "Interface",
            &other,
            "type=dpdkvhostuserclient",
            &server,
        ];
        theirs.push(timed(|| drop(ovs.vsctl(&add))));
        removes.push(timed(|| assert_eq!(driver.remove_recorded(&recorded).unwrap(), Removal::Gone)));
        ovs.vsctl(&["del-port", &other]);
    }
    for (what, mut times) in
        [("driver add", ours), ("ovs-vsctl add-port", theirs), ("driver remove", removes)]
    {
        times.sort_unstable();
        println!("{what}: p50 {} µs, p90 {} µs, most {} µs", times[25], times[45], times[49]);
    }
}

fn timed(work: impl FnOnce()) -> u128 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_micros()
}
