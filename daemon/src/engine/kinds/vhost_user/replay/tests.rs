//! What is kept of ports between two looks: a real control socket, a switch that only remembers, and a pod that makes its socket.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use fairlead_cni::Code;
use fairlead_host::double::FakeKernel;
use fairlead_host::{HostRoot, Kernel, NetnsId};
use fairlead_sriov::Inventory;
use fairlead_vhost::control::PortCommands;
use fairlead_vhost::dataplane::Socket;
use fairlead_vhost::fake_switch;
use fairlead_vhost::ovs_dpdk::DatabaseAddress;
use fairlead_vhost::port::PortConfig;

use super::super::ovs_link::OvsAccess;
use super::super::services::SocketPlaces;
use super::*;
use crate::port_pools::PortPools;
use crate::run_dir::SWITCH_SOCKET;
use crate::store::{Commit, Key, LinkRecord, Namespace, Store};

const PORT: &str = "c1/net1";

fn services(dir: &Path) -> VhostUserServices {
    let store = Arc::new(Store::open(dir, "this boot").unwrap().0);
    let pools = Arc::new(PortPools::new(dir, dir, Arc::clone(&store), Box::new(|| 7)));
    let root = Arc::new(HostRoot::new(dir.to_owned()));
    let places = SocketPlaces { root, kubelet: PathBuf::from("/var/lib/kubelet") };
    let database = DatabaseAddress::default();
    let ovs = OvsAccess { database, tls: None, is_configured: false, group: None, node: "node".to_owned() };
    let kernel: Arc<dyn Kernel> = Arc::new(FakeKernel::new());
    let machine = (kernel, Inventory::new(&dir.join("sys")));
    VhostUserServices::new(places, pools, store, dir, ovs, machine, None)
}

/// A port whose pod makes the socket, `/sockets/net1.sock` below the host's root.
fn record() -> VhostUserRecord {
    let port = PortConfig {
        name: PORT.to_owned(),
        network: "blue".to_owned(),
        mac: "02:00:00:00:00:07".parse().unwrap(),
        vlan: None,
        trunk: Vec::new(),
        spoof_check: true,
        isolated: false,
        queues: 1,
        mtu: 1500,
        from_guest_bits: None,
        to_guest_bits: None,
    };
    VhostUserRecord {
        port,
        ovs: None,
        directory: "/sockets".to_owned(),
        socket: "net1.sock".to_owned(),
        in_volume: true,
        pod_listens: true,
        pool_port: None,
        draft: None,
        mount_path: None,
        own_directory_in: None,
        configuration_data: None,
        uplink: None,
        numa_node: None,
    }
}

/// Puts an attachment with that port on record, as one that is being made; answers its number.
fn begin(store: &Store) -> u64 {
    let key = Key {
        container: "c1".to_owned(),
        network: "blue".to_owned(),
        ifname: "net1".to_owned(),
        plugin: "vhost-user".to_owned(),
    };
    let id = NetnsId { dev: 4, ino: 77, cookie: Some(77) };
    let netns = Namespace { path: "/run/netns/pod".to_owned(), id, nsid: None };
    let (number, link) = (store.next_id(), LinkRecord::VhostUser(Box::new(record())));
    store.begin(Attachment::new(number, key, netns, link, Arc::from("{}"))).unwrap();
    number
}

/// The same, as attached.
fn attach(store: &Store) -> u64 {
    let number = begin(store);
    store.commit(vec![Commit { id: number, addresses: Vec::new(), answer: "{}".to_owned() }]).unwrap();
    number
}

#[test]
fn a_port_that_fails_again_after_it_was_whole_is_told_again_and_nothing_is_kept_of_one_that_is_detached() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, ports) = fake_switch::serve(&dir.path().join(SWITCH_SOCKET));
    let services = services(dir.path());
    let (id, mut upkeep) = (attach(&services.store), Upkeep::default());
    let sockets = dir.path().join("sockets");
    fs::create_dir(&sockets).unwrap();
    let socket = sockets.join("net1.sock");
    let fails = |upkeep: &mut Upkeep| {
        fs::write(&socket, "no socket").unwrap();
        services.look(upkeep);
        fs::remove_file(&socket).unwrap();
    };

    fails(&mut upkeep);
    assert_eq!(upkeep.told, BTreeSet::from([id]));
    services.look(&mut upkeep);
    assert_eq!(upkeep.told, BTreeSet::from([id]), "it waits for the pod's socket, and is not whole");
    let of_pod = UnixListener::bind(&socket).unwrap();
    services.look(&mut upkeep);
    assert_eq!(ports.names(), [PORT]);
    services.look(&mut upkeep);
    assert!(upkeep.told.is_empty() && upkeep.handed_over.contains_key(PORT));

    // Its pod ends the connection, and has something else there.
    drop(of_pod);
    fs::remove_file(&socket).unwrap();
    ports.remove_port(PORT).unwrap();
    // As when the pause between two connections is over.
    let long_ago = Instant::now().checked_sub(BETWEEN).unwrap();
    upkeep.handed_over.insert(PORT.to_owned(), long_ago);
    fails(&mut upkeep);
    assert_eq!(upkeep.told, BTreeSet::from([id]));

    services.store.removed(id).unwrap();
    services.look(&mut upkeep);
    assert!(upkeep.told.is_empty() && upkeep.handed_over.is_empty());
}

#[test]
fn a_port_that_nobody_has_on_record_goes_with_any_look_and_one_that_is_being_made_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, ports) = fake_switch::serve(&dir.path().join(SWITCH_SOCKET));
    let services = services(dir.path());
    let mut upkeep = Upkeep::default();
    let add = |name: &str| {
        // Nobody looks into it.
        let socket = fs::File::open("/dev/null").unwrap().into();
        let port = PortConfig { name: name.to_owned(), ..record().port };
        ports.add_port(port, Socket::Listening(socket), None).unwrap();
    };
    services.look(&mut upkeep);
    // No port of the node is attached.
    add("c7/net1");
    services.look(&mut upkeep);
    assert!(ports.names().is_empty());
    // An ADD has its intent on record, and no more.
    begin(&services.store);
    add(PORT);
    add("c7/net1");
    services.look(&mut upkeep);
    assert_eq!(ports.names(), [PORT]);
    let after = ports.listings();
    services.look(&mut upkeep);
    assert_eq!((ports.names(), ports.listings()), (vec![PORT.to_owned()], after + 1));
}

#[test]
fn a_pod_that_has_its_port_fail_all_the_time_fills_no_log() {
    let (attachment, record) = {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), "this boot").unwrap().0;
        let id = attach(&store);
        (store.get(id).unwrap(), record())
    };
    let (error, mut upkeep) = (CniError::new(Code::Io, "as asked"), Upkeep::default());
    let told = (0..1000).filter(|_| {
        upkeep.tell(&attachment, &record, &error);
        // As when it was whole in between.
        upkeep.told.remove(&attachment.id)
    });
    assert_eq!(told.count(), 10);
}
