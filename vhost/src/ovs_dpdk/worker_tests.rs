//! The driver against a database server that does as a test says.

use std::thread;

use super::super::fake_server::{Conduct, Database, FakeServer};
use super::super::{Limits, OvsDpdk, OvsError, PortName, PortOwner, PortSpec, Removal, VhostSocket, Vlans};
use super::*;

const LONG: Duration = Duration::from_secs(30);

fn patient() -> Limits {
    Limits { connect: LONG, answer: LONG, apply: LONG, release: LONG, serves: LONG, ..Limits::default() }
}

fn name(name: &str) -> PortName {
    PortName::new(name).unwrap()
}

fn spec(port: &str) -> PortSpec {
    PortSpec {
        name: name(port),
        bridge: "br0".to_owned(),
        makes_bridge: false,
        socket: VhostSocket::PodListens(format!("/run/pods/{port}.sock").into()),
        vlans: Vlans::Access(7),
        policing: None,
        mtu: None,
        mac: None,
        owner: PortOwner {
            namespace: "n".to_owned(),
            pod: "p".to_owned(),
            uid: "u".to_owned(),
            container: "c".to_owned(),
            ifname: "net1".to_owned(),
        },
    }
}

#[track_caller]
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !so() {
        assert!(Instant::now() < end, "{what}: not within {LONG:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Adds these ports at once, and answers how each went. All are in the driver's queue before the first transaction is answered.
fn add_together(server: &FakeServer, driver: &OvsDpdk, ports: &[&str]) -> Vec<Result<(), OvsError>> {
    server.database.lock().held = true;
    thread::scope(|scope| {
        let adds: Vec<_> =
            ports.iter().map(|port| scope.spawn(|| driver.add_port(spec(port)).map(drop))).collect();
        until("all are queued", || driver.waiting() == ports.len());
        server.change(|database| database.held = false);
        adds.into_iter().map(|add| add.join().unwrap()).collect()
    })
}

#[test]
fn requests_that_wait_share_a_transaction() {
    let server = FakeServer::start();
    let driver = server.driver(patient());
    let added = add_together(&server, &driver, &["p1", "p2", "p3", "p4", "p5"]);
    assert!(added.iter().all(Result::is_ok), "{added:?}");
    assert_eq!(server.ports(), ["p1", "p2", "p3", "p4", "p5"]);
    assert!(server.database.lock().transactions.len() <= 2);
}

#[test]
fn of_a_refused_transaction_only_the_guilty_fails() {
    let server = FakeServer::start();
    let driver = server.driver(patient());
    server.database.lock().poisoned = ["p2".to_owned()].into();
    let mut added = add_together(&server, &driver, &["p0", "p1", "p2", "p3"]);
    let guilty = added.remove(2).unwrap_err().to_string();
    assert_eq!(
        guilty,
        "port p2: the database refuses the transaction: constraint violation: as a test of it"
    );
    assert!(added.iter().all(Result::is_ok), "{added:?}");
    assert_eq!(server.ports(), ["p0", "p1", "p3"]);
}

#[test]
fn a_connection_that_ends_before_the_answer_is_made_again_and_the_port_looked_for() {
    for conduct in [Conduct::HangUp, Conduct::CommitAndHangUp] {
        let server = FakeServer::start();
        server.database.lock().conducts = vec![conduct];
        let driver = server.driver(patient());
        assert!(driver.add_port(spec("p0")).unwrap().created, "{conduct:?}");
        assert_eq!(server.ports(), ["p0"]);
        assert_eq!(driver.counters().connections, 2);
        server.database.lock().conducts = vec![conduct];
        let removal = driver.remove_recorded(&spec("p0")).unwrap();
        assert!(matches!(removal, Removal::Gone | Removal::Absent), "{removal:?}");
        assert_eq!(server.ports(), [""; 0]);
    }
}

#[test]
fn a_server_that_does_not_answer_is_left_and_asked_again() {
    let server = FakeServer::start();
    server.database.lock().conducts = vec![Conduct::CommitAndBeSilent];
    let driver = server.driver(Limits { answer: Duration::from_secs(1), ..patient() });
    assert!(driver.add_port(spec("p0")).unwrap().created);
    assert_eq!(server.ports(), ["p0"]);
}

#[test]
fn a_port_that_the_switch_does_not_make_in_time_is_an_error_and_leaves_nothing() {
    let server = FakeServer::start();
    server.database.lock().switch_runs = false;
    let driver = server.driver(Limits { apply: Duration::from_millis(500), ..patient() });
    driver.ports().unwrap();
    let error = driver.add_port(spec("p0")).unwrap_err();
    assert!(matches!(&error, OvsError::NotApplied { port, .. } if port.as_str() == "p0"), "{error}");
    until("its rows are removed", || server.ports().is_empty());
    server.change(|database| {
        database.switch_runs = true;
        database.apply();
    });
    until("it is made once the switch runs", || driver.add_port(spec("p0")).is_ok());
}

#[test]
fn a_removal_that_the_switch_does_not_confirm_is_pending() {
    let server = FakeServer::start();
    let driver = server.driver(Limits { release: Duration::from_secs(1), ..patient() });
    driver.add_port(spec("p0")).unwrap();
    server.database.lock().switch_runs = false;
    assert_eq!(driver.remove_recorded(&spec("p0")).unwrap(), Removal::Pending);
    assert_eq!(server.ports(), [""; 0]);
}

#[test]
fn without_a_switch_a_port_is_removed_whatever_was_asked_for_it_before() {
    let server = FakeServer::start();
    let driver = server.driver(Limits {
        apply: Duration::from_millis(500),
        release: Duration::from_millis(500),
        ..patient()
    });
    driver.add_port(spec("p0")).unwrap();
    server.database.lock().switch_runs = false;
    // Its rows are removed unasked, and the switch never confirms that.
    driver.add_port(spec("p1")).unwrap_err();
    assert_eq!(driver.remove_recorded(&spec("p1")).unwrap(), Removal::Pending);
    assert_eq!(driver.remove_recorded(&spec("p1")).unwrap(), Removal::Pending);
    // One that is being put back.
    server.change(|database| database.empty_bridges());
    until("it is put back", || server.ports() == ["p0"]);
    assert_eq!(driver.remove_recorded(&spec("p0")).unwrap(), Removal::Pending);
    assert_eq!(server.ports(), [""; 0]);
    server.change(|database| {
        database.switch_runs = true;
        database.apply();
    });
    until("the switch lets go of both", || driver.waiting() == 0);
    assert_eq!(driver.remove_recorded(&spec("p0")).unwrap(), Removal::Absent);
    assert!(driver.add_port(spec("p1")).unwrap().created);
    assert_eq!(server.ports(), ["p1"]);
}

#[test]
fn a_switch_that_does_not_serve_is_known_and_asked_for_nothing_until_it_does() {
    let server = FakeServer::start();
    let driver = server.driver(Limits { serves: Duration::from_secs(1), ..patient() });
    driver.add_port(spec("p0")).unwrap();
    driver.check_service().unwrap();
    server.database.lock().switch_runs = false;
    let is_told = |told: Result<(), OvsError>| matches!(told, Err(OvsError::NotServing { .. }));
    // The first one finds it out, and its rows are removed.
    assert!(is_told(driver.add_port(spec("p1")).map(drop)));
    until("nothing is left of it", || server.ports() == ["p0"] && driver.waiting() == 0);
    assert!(is_told(driver.check_bridge("br0", LONG)) && is_told(driver.check_service()));
    let transactions = || server.database.lock().transactions.len();
    let before = transactions();
    assert!(is_told(driver.add_port(spec("p2")).map(drop)));
    assert_eq!(transactions(), before);
    assert_eq!(driver.remove_recorded(&spec("p0")).unwrap(), Removal::Pending);
    assert_eq!((server.ports(), transactions()), (vec![], before + 1));
    server.change(|database| {
        database.switch_runs = true;
        database.apply();
    });
    until("it serves again", || driver.check_bridge("br0", LONG).is_ok());
    assert!(driver.add_port(spec("p1")).unwrap().created);
}

#[test]
fn a_switch_of_which_nothing_is_known_is_asked_once() {
    let server = FakeServer::start();
    let limits = Limits { serves: Duration::from_secs(1), ..patient() };
    let driver = server.driver(limits);
    driver.check_service().unwrap();
    for _ in 0..3 {
        driver.check_bridge("br0", LONG).unwrap();
        driver.check_service().unwrap();
    }
    assert_eq!(driver.counters().transactions, 1, "what is fresh is not asked again");
    server.database.lock().switch_runs = false;
    let driver = server.driver(limits);
    assert!(driver.check_bridge("br0", LONG).is_ok(), "who is not to wait hears of it later");
    until("it is told", || matches!(driver.check_bridge("br0", LONG), Err(OvsError::NotServing { .. })));
    assert_eq!(driver.counters().transactions, 1);
    drop(driver);
    let driver = server.driver(limits);
    assert!(matches!(driver.check_service(), Err(OvsError::NotServing { .. })), "who can wait does");
    assert_eq!(driver.counters().transactions, 0, "the last question is not answered yet");
}

#[test]
fn what_the_switch_cannot_make_is_told_with_its_reason_and_removed() {
    let server = FakeServer::start();
    server.database.lock().failing = ["p0".to_owned()].into();
    let driver = server.driver(patient());
    let error = driver.add_port(spec("p0")).unwrap_err();
    assert_eq!(error.to_string(), "OVS cannot make the port p0: no memory for it");
    until("its rows are removed", || server.ports().is_empty());
}

#[test]
fn a_switch_without_dpdk_and_a_bridge_of_the_kernel_are_refused_before_anything_is_done() {
    let server = FakeServer::start();
    let driver = server.driver(patient());
    let columns = |database: &mut Database, table: &str, column: &str, value| {
        let row = database.tables.get_mut(table).unwrap().values_mut().next().unwrap();
        row.insert(column.to_owned(), value);
    };
    driver.ports().unwrap();
    server.change(|database| columns(database, "Open_vSwitch", "dpdk_initialized", false.into()));
    until("DPDK is missed", || matches!(driver.add_port(spec("p0")), Err(OvsError::DpdkNotInitialized)));
    server.change(|database| columns(database, "Bridge", "datapath_type", "".into()));
    until("the bridge is not netdev", || {
        driver.add_port(spec("p0")).is_err_and(|error| matches!(error, OvsError::BridgeNotNetdev { .. }))
    });
}

#[test]
fn ports_that_ovs_lost_are_put_back_without_being_asked_for_but_not_a_removed_one() {
    let server = FakeServer::start();
    let driver = server.driver(patient());
    ["p0", "p1", "p2"].iter().for_each(|port| drop(driver.add_port(spec(port)).unwrap()));
    driver.remove_recorded(&spec("p1")).unwrap();
    server.change(|database| database.empty_bridges());
    until("both are there again", || server.ports() == ["p0", "p2"]);
    until("both were counted", || driver.counters().put_back == 2);
    server.recreate();
    until("both are in the new database", || server.ports() == ["p0", "p2"]);
    until("both were counted again", || driver.counters().put_back == 4);
}

#[test]
fn an_old_server_without_conditional_monitors_is_enough() {
    let server = FakeServer::start();
    server.database.lock().knows_monitor_cond = false;
    let driver = server.driver(patient());
    driver.add_port(spec("p0")).unwrap();
    assert_eq!(driver.ports().unwrap()[0].spec, Some(spec("p0")));
    assert_eq!(driver.remove_recorded(&spec("p0")).unwrap(), Removal::Gone);
    assert_eq!(driver.ports().unwrap(), []);
}

#[test]
fn a_server_without_the_database_or_with_an_old_one_is_named() {
    for (schema, reason) in [
        (Value::Null, "has no database Open_vSwitch: is it that of OVS and not of OVN?"),
        (serde_json::json!({}), "has no column cur_cfg in the table Open_vSwitch: OVS is too old"),
    ] {
        let server = FakeServer::start();
        server.database.lock().schema = schema;
        let driver = server.driver(Limits { connect: Duration::from_millis(50), ..patient() });
        until(reason, || driver.add_port(spec("p0")).unwrap_err().to_string().contains(reason));
    }
}

#[test]
fn ports_of_somebody_else_are_never_touched() {
    let server = FakeServer::start();
    let driver = server.driver(patient());
    driver.add_port(spec("p0")).unwrap();
    let taken = |database: &mut Database| {
        for table in ["Port", "Interface"] {
            for row in database.tables.get_mut(table).unwrap().values_mut() {
                row.insert("external_ids".to_owned(), serde_json::json!(["map", [["owner", "nova"]]]));
            }
        }
    };
    // Not told: the driver still takes the port for its own, and the transaction knows better.
    taken(&mut server.database.lock());
    assert_eq!(driver.remove_recorded(&spec("p0")).unwrap(), Removal::Absent);
    assert_eq!(server.ports(), ["p0"]);
    drop(driver);
    let driver = server.driver(patient());
    assert_eq!(
        driver.add_port(spec("p0")).unwrap_err().to_string(),
        "a port or interface p0 exists in OVS that is not this node's: it has the external_ids owner=nova; it was left as it is"
    );
    let reconciled = driver.reconcile(&[]).unwrap();
    assert!(reconciled.removed.is_empty());
    assert_eq!(server.ports(), ["p0"]);
}

#[test]
fn a_port_on_record_is_ours_whatever_the_node_was_called_and_another_nodes_is_not() {
    let server = FakeServer::start();
    let of = |container: &str, port: &str| PortSpec {
        owner: PortOwner { container: container.to_owned(), ..spec(port).owner },
        ..spec(port)
    };
    let earlier = server.driver_of("earlier", patient());
    for port in [of("c0", "p0"), of("c1", "p1"), of("c2", "p2")] {
        earlier.add_port(port).unwrap();
    }
    drop(earlier);
    let driver = server.driver(patient());
    // An attachment that is new is not on record with a port.
    let refused = driver.add_port(of("c0", "p0")).unwrap_err();
    assert!(refused.to_string().contains("fairlead=earlier"), "{refused}");
    // A reconciliation spares a port whose request is being answered.
    until("it is done with", || driver.waiting() == 0);
    // One of another container is another node's.
    let reconciled = driver.reconcile(&[of("c0", "p0"), of("other", "p2")]).unwrap();
    assert!(reconciled.removed.is_empty() && reconciled.put_back.is_empty(), "{reconciled:?}");
    assert!(matches!(&reconciled.failed[..], [(port, OvsError::NameTaken { .. })] if port.as_str() == "p2"));
    let ports = driver.ports().unwrap();
    assert_eq!((ports.len(), ports[0].spec.as_ref()), (1, Some(&of("c0", "p0"))));
    // It was never put right, as while the database was away, and is removed.
    assert_eq!(driver.remove_recorded(&of("c1", "p1")).unwrap(), Removal::Gone);
    assert_eq!(driver.remove_recorded(&of("c1", "p1")).unwrap(), Removal::Absent);
    assert_eq!(driver.remove_recorded(&of("other", "p2")).unwrap(), Removal::Absent);
    assert_eq!(driver.remove_recorded(&of("c0", "p0")).unwrap(), Removal::Gone);
    assert_eq!(server.ports(), ["p2"]);
    let ids = server.row("Port", "p2")["external_ids"].to_string();
    assert!(ids.contains("earlier"), "{ids}");
}

#[test]
fn a_reconciliation_spares_a_port_that_is_being_added() {
    let server = FakeServer::start();
    let driver = server.driver(patient());
    server.database.lock().held = true;
    thread::scope(|scope| {
        let add = scope.spawn(|| driver.add_port(spec("p0")));
        until("it is under way", || driver.waiting() == 1);
        assert!(driver.reconcile(&[]).unwrap().removed.is_empty());
        server.change(|database| database.held = false);
        add.join().unwrap().unwrap();
    });
    assert_eq!(driver.reconcile(&[]).unwrap().removed, [name("p0")]);
}

#[test]
fn a_port_that_a_reconciliation_could_not_make_is_made_when_its_bridge_comes_and_a_refused_add_is_forgotten()
{
    let server = FakeServer::start();
    let driver = server.driver(patient());
    let on = |port, bridge: &str| PortSpec { bridge: bridge.to_owned(), ..spec(port) };
    assert!(matches!(driver.add_port(on("p1", "br1")), Err(OvsError::BridgeMissing { .. })));
    let reconciled = driver.reconcile(&[on("p0", "br1")]).unwrap();
    assert!(matches!(reconciled.failed[..], [(_, OvsError::BridgeMissing { .. })]), "{reconciled:?}");
    server.change(|database| {
        let row = serde_json::json!({ "name": "br1", "datapath_type": "netdev", "ports": ["set", []] });
        database.insert("Bridge", row);
    });
    until("the reconciled port is made", || server.ports() == ["p0"]);
    until("and counted", || driver.counters().put_back == 1);
}

#[test]
fn a_bridge_is_made_with_its_first_port_and_not_where_somebody_else_was_faster() {
    let server = FakeServer::start();
    let driver = server.driver(patient());
    let on =
        |port: &str, bridge: &str| PortSpec { bridge: bridge.to_owned(), makes_bridge: true, ..spec(port) };
    // Two at once: whoever comes second finds it.
    server.database.lock().held = true;
    thread::scope(|scope| {
        let adds = ["p0", "p1"].map(|port| scope.spawn(|| driver.add_port(on(port, "br1"))));
        until("both wait", || driver.waiting() == 2);
        server.change(|database| database.held = false);
        for add in adds {
            assert!(add.join().unwrap().unwrap().created);
        }
    });
    let bridges = |name: &str| {
        let database = server.database.lock();
        database.tables["Bridge"].values().filter(|row| row["name"] == name).count()
    };
    assert_eq!((bridges("br1"), server.ports()), (1, vec!["br1".to_owned(), "p0".into(), "p1".into()]));
    // It came after the plan was made: the transaction is refused as a whole, and planned again.
    server.database.lock().held = true;
    thread::scope(|scope| {
        let add = scope.spawn(|| driver.add_port(on("p2", "br2")));
        until("it is under way", || driver.waiting() == 1);
        server.change(|database| {
            let row = serde_json::json!({ "name": "br2", "datapath_type": "netdev", "ports": ["set", []] });
            database.insert("Bridge", row);
            database.held = false;
        });
        assert!(add.join().unwrap().unwrap().created);
    });
    assert_eq!(bridges("br2"), 1);
    assert_eq!(driver.reconcile(&[]).unwrap().removed.len(), 3);
    assert_eq!(server.ports(), ["br1"], "the bridge's own port is nobody's");
}

#[test]
fn another_spec_replaces_the_port_and_requests_of_one_port_keep_their_order() {
    let server = FakeServer::start();
    let driver = server.driver(patient());
    driver.add_port(spec("p0")).unwrap();
    let other = PortSpec { vlans: Vlans::Access(8), ..spec("p0") };
    assert!(driver.add_port(other.clone()).unwrap().created);
    assert!(!driver.add_port(other.clone()).unwrap().created);
    assert_eq!(driver.ports().unwrap()[0].spec, Some(other));
    assert_eq!(server.database.lock().transactions.len(), 3, "one makes it, and two replace it");
}

#[test]
fn who_waits_when_the_driver_is_stopped_is_told() {
    let server = FakeServer::start();
    server.database.lock().switch_runs = false;
    let driver = server.driver(patient());
    let told = thread::scope(|scope| {
        let add = scope.spawn(|| driver.add_port(spec("p0")));
        until("it waits", || driver.waiting() == 1);
        driver.stop();
        add.join().unwrap()
    });
    assert!(matches!(told, Err(OvsError::Stopped)), "{told:?}");
}
