//! The real kernel: every operation of the seam, in namespaces made for the test. Needs root.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fairlead_host::after_answer::AnswerFirst;
use fairlead_host::real::RealKernel;
use fairlead_host::scratch_netns::ScratchNetns;
use fairlead_host::{
    Address, AddressFlags, Kind, LinkSettings, Mac, MacvlanMode, NetError, NetKernel, NetnsError, NewLink,
    Op, Parent, ParentLink, PciKernel, Route, SetLink,
};
use nix::errno::Errno;
use tempfile::TempDir;

/// A stand-in for the host, with a parent `eth0`, and a pod. The test's thread works in the stand-in.
struct Stage {
    pod: Option<ScratchNetns>,
    host: ScratchNetns,
    directory: TempDir,
}

const POD_INDEX: u32 = 4242;

impl Stage {
    fn new() -> Stage {
        let directory = TempDir::new().unwrap();
        let host = ScratchNetns::new(directory.path(), "host").unwrap();
        let pod = ScratchNetns::new(directory.path(), "pod").unwrap();
        host.inside(|| {
            let kernel = RealKernel::new().unwrap();
            let mut net = kernel.host().unwrap();
            net.batch(&[Op::CreateLink(veth("eth0"))]).unwrap();
            let peer = net.links().unwrap().into_iter().find(|link| link.name.starts_with("veth")).unwrap();
            net.batch(&[Op::SetLink(SetLink { index: peer.index, up: Some(true), ..SetLink::default() })])
                .unwrap();
        })
        .unwrap();
        Stage { pod: Some(pod), host, directory }
    }

    fn pod_path(&self) -> PathBuf {
        self.directory.path().join("pod")
    }

    /// Runs a test in the stand-in for the host.
    fn play(&self, act: impl FnOnce(&RealKernel, u32) + Send) {
        let played = self.host.inside(|| {
            let kernel = RealKernel::new().unwrap();
            let parent = kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap().index;
            act(&kernel, parent);
        });
        played.unwrap();
    }
}

fn veth(name: &str) -> NewLink {
    NewLink {
        name: name.to_owned(),
        index: None,
        kind: Kind::Other { name: "veth".to_owned() },
        parent: Parent::None,
        mac: None,
        mtu: None,
        up: true,
    }
}

fn macvlan(name: &str, parent: u32) -> NewLink {
    NewLink {
        name: name.to_owned(),
        index: Some(POD_INDEX),
        kind: Kind::Macvlan { mode: MacvlanMode::Bridge, bc_queue_len: None },
        parent: Parent::Host(parent),
        mac: None,
        mtu: None,
        up: true,
    }
}

fn address(text: &str) -> Address {
    let net = text.parse().unwrap();
    Address {
        index: POD_INDEX,
        net,
        broadcast: None,
        flags: AddressFlags { nodad: true, ..AddressFlags::default() },
    }
}

fn route(dst: &str, gateway: Option<&str>) -> Route {
    Route {
        dst: dst.parse().unwrap(),
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
        index: POD_INDEX,
        source: None,
        table: None,
        scope: None,
        priority: None,
        mtu: None,
        advmss: None,
        protocol: None,
    }
}

fn errno(outcome: Result<(), NetError>) -> Option<Errno> {
    outcome.unwrap_err().errno()
}

fn own_netns() -> PathBuf {
    fs::read_link("/proc/thread-self/ns/net").unwrap()
}

#[test]
fn a_macvlan_is_made_in_the_pod_up_and_with_its_index_in_one_message() {
    let stage = Stage::new();
    stage.play(|kernel, parent| {
        let mut pod = kernel.pod(&stage.pod_path()).unwrap();
        let mac: Mac = "02:00:5e:10:00:01".parse().unwrap();
        let new = NewLink { mac: Some(mac), mtu: Some(1400), ..macvlan("net1", parent) };
        pod.batch(&[Op::CreateLink(new)]).unwrap();
        let link = pod.link_by_name("net1").unwrap().unwrap();
        assert_eq!((link.index, link.up, link.mac, link.mtu), (POD_INDEX, true, Some(mac), 1400));
        assert!(matches!(link.kind, Kind::Macvlan { mode: MacvlanMode::Bridge, .. }), "{:?}", link.kind);
        assert_eq!(link.parent, Some(parent));
        assert!(link.parent_nsid.is_some());
        assert_eq!(pod.link_by_index(POD_INDEX).unwrap(), Some(link));
        assert_eq!(pod.links().unwrap().len(), 2);
        assert_eq!(pod.link_by_name("net2").unwrap(), None);
        assert_eq!(pod.link_by_name("a-name-that-is-longer-than-fifteen-bytes").unwrap(), None);
        assert_eq!(pod.link_by_index(77).unwrap(), None);
        assert_eq!(errno(pod.batch(&[Op::CreateLink(macvlan("net1", parent))])), Some(Errno::EEXIST));
        assert_eq!(errno(pod.batch(&[Op::CreateLink(macvlan("net2", parent))])), Some(Errno::EEXIST));
        assert_eq!(
            errno(pod.batch(&[Op::CreateLink(NewLink { index: None, ..macvlan("net3", 99) })])),
            Some(Errno::ENODEV)
        );
        assert_eq!(
            errno(pod.batch(&[Op::CreateLink(NewLink {
                index: None,
                mac: Some(mac),
                ..macvlan("net3", parent)
            })])),
            Some(Errno::EADDRINUSE)
        );
        let large = NewLink { mtu: Some(9000), index: None, ..macvlan("net4", parent) };
        assert_eq!(
            errno(pod.batch(&[Op::CreateLink(large)])),
            Some(Errno::EINVAL),
            "k24: an MTU above the parent's"
        );
        pod.batch(&[Op::DeleteLink(POD_INDEX)]).unwrap();
        assert_eq!(errno(pod.batch(&[Op::DeleteLink(POD_INDEX)])), Some(Errno::ENODEV));
    });
}

#[test]
fn addresses_and_routes_go_in_come_out_and_are_read_back() {
    let stage = Stage::new();
    stage.play(|kernel, parent| {
        let mut pod = kernel.pod(&stage.pod_path()).unwrap();
        let v4 = Address { broadcast: Some("10.9.0.255".parse().unwrap()), ..address("10.9.0.2/24") };
        let rich = Route {
            priority: Some(7),
            table: Some(1000),
            mtu: Some(1300),
            advmss: Some(1200),
            scope: Some(0),
            source: Some("10.9.0.2".parse().unwrap()),
            ..route("10.77.0.0/16", Some("10.9.0.1"))
        };
        pod.batch(&[
            Op::CreateLink(macvlan("net1", parent)),
            Op::AddAddress(v4.clone()),
            Op::AddAddress(address("fd00:9::2/64")),
            Op::AddRoute(route("0.0.0.0/0", Some("10.9.0.1"))),
            Op::AddRoute(route("::/0", Some("fd00:9::1"))),
            Op::AddRoute(route("192.168.7.0/24", None)),
            Op::AddRoute(rich.clone()),
        ])
        .unwrap();
        let addresses = pod.addresses(POD_INDEX).unwrap();
        let nets: Vec<String> = addresses.iter().map(|address| address.net.to_string()).collect();
        assert!(
            nets.contains(&"10.9.0.2/24".to_owned()) && nets.contains(&"fd00:9::2/64".to_owned()),
            "{nets:?}"
        );
        assert_eq!(addresses[0].broadcast, v4.broadcast);
        assert_eq!(pod.addresses(1).unwrap(), []);
        assert_eq!(pod.addresses(99).unwrap(), []);
        let routes = pod.routes().unwrap();
        let find =
            |dst: &str| routes.iter().find(|route| route.dst == dst.parse().unwrap()).cloned().unwrap();
        let read = Route { protocol: None, ..find("10.77.0.0/16") };
        assert_eq!(read, rich);
        assert_eq!(find("0.0.0.0/0").gateway, Some("10.9.0.1".parse().unwrap()));
        assert_eq!(find("::/0").gateway, Some("fd00:9::1".parse().unwrap()));
        assert_eq!(find("192.168.7.0/24").scope, Some(253));
        assert!(routes.iter().all(|route| route.table != Some(255)), "{routes:?}");
        assert_eq!(errno(pod.batch(&[Op::AddAddress(v4.clone())])), Some(Errno::EEXIST));
        assert_eq!(errno(pod.batch(&[Op::AddRoute(rich.clone())])), Some(Errno::EEXIST));
        assert_eq!(
            errno(pod.batch(&[Op::AddRoute(route("10.78.0.0/16", Some("10.10.0.1")))])),
            Some(Errno::ENETUNREACH)
        );
        pod.batch(&[
            Op::DeleteRoute(rich),
            Op::DeleteRoute(route("192.168.7.0/24", None)),
            Op::DeleteAddress(v4.clone()),
        ])
        .unwrap();
        assert_eq!(errno(pod.batch(&[Op::DeleteAddress(v4)])), Some(Errno::EADDRNOTAVAIL));
        assert_eq!(pod.routes().unwrap().iter().filter(|route| route.dst.addr().is_ipv4()).count(), 0);
    });
}

#[test]
fn a_batch_stops_at_the_first_refusal_and_tells_the_kernels_words() {
    let stage = Stage::new();
    stage.play(|kernel, parent| {
        let mut pod = kernel.pod(&stage.pod_path()).unwrap();
        let refused = pod.batch(&[
            Op::CreateLink(macvlan("net1", parent)),
            Op::AddAddress(address("10.9.0.2/24")),
            Op::AddRoute(route("0.0.0.0/0", Some("10.10.0.1"))),
            Op::AddAddress(address("10.9.0.3/24")),
        ]);
        let Err(NetError::Op(error)) = refused else { panic!("{refused:?}") };
        assert_eq!((error.at, error.errno), (2, Errno::ENETUNREACH));
        assert_eq!(error.extack.as_deref(), Some("Nexthop has invalid gateway"));
        assert_eq!(error.to_string(), "add route 0.0.0.0/0 via 10.10.0.1 on link 4242: Network is unreachable (Nexthop has invalid gateway)");
        let v4 = pod.addresses(POD_INDEX).unwrap().into_iter().filter(|address| address.net.addr().is_ipv4()).count();
        assert_eq!(v4, 1);
    });
}

#[test]
fn an_ipv6_address_without_detection_is_usable_at_once() {
    let stage = Stage::new();
    stage.play(|kernel, parent| {
        let mut pod = kernel.pod(&stage.pod_path()).unwrap();
        pod.batch(&[Op::CreateLink(macvlan("net1", parent)), Op::AddAddress(address("fd00:9::2/64"))])
            .unwrap();
        let listener = std::net::UdpSocket::bind("[fd00:9::2]:0");
        assert!(listener.is_ok(), "{listener:?}");
        let ours: IpAddr = "fd00:9::2".parse().unwrap();
        let all = pod.addresses(POD_INDEX).unwrap();
        let found = all.iter().find(|address| address.net.addr() == ours).unwrap();
        assert!(found.flags.nodad && !found.flags.tentative, "{found:?}");
    });
}

#[test]
fn a_link_is_changed_moved_to_the_host_and_taken_back() {
    let stage = Stage::new();
    stage.play(|kernel, parent| {
        let mut pod = kernel.pod(&stage.pod_path()).unwrap();
        pod.batch(&[Op::CreateLink(macvlan("net1", parent))]).unwrap();
        let mac: Mac = "02:00:5e:10:00:09".parse().unwrap();
        let changes = SetLink {
            index: POD_INDEX,
            name: Some("renamed0".to_owned()),
            up: Some(false),
            mtu: Some(1300),
            mac: Some(mac),
            alias: Some("pod's own".to_owned()),
            settings: LinkSettings::of_flags(LinkSettings::PROMISCUITY),
        };
        pod.batch(&[Op::SetLink(changes)]).unwrap();
        let link = pod.link_by_index(POD_INDEX).unwrap().unwrap();
        assert!(link.is_promiscuous());
        assert_eq!((link.name.as_str(), link.up, link.mtu, link.mac), ("renamed0", false, 1300, Some(mac)));
        assert_eq!(link.alias.as_deref(), Some("pod's own"));
        pod.batch(&[Op::SetLink(SetLink {
            index: POD_INDEX,
            alias: Some(String::new()),
            ..SetLink::default()
        })])
        .unwrap();
        assert_eq!(pod.link_by_index(POD_INDEX).unwrap().unwrap().alias, None);
        pod.batch(&[Op::MoveToHost { index: POD_INDEX, as_index: None, name: "parked0".to_owned() }])
            .unwrap();
        assert_eq!(pod.links().unwrap().len(), 1);
        let parked = kernel.host().unwrap().link_by_name("parked0").unwrap().unwrap();
        pod.batch(&[Op::TakeFromHost {
            index: parked.index,
            as_index: None,
            name: "net5".to_owned(),
            up: true,
        }])
        .unwrap();
        assert!(pod.link_by_name("net5").unwrap().is_some_and(|link| link.up));
        assert_eq!(kernel.host().unwrap().link_by_name("parked0").unwrap(), None);
    });
}

#[test]
fn a_move_under_a_taken_name_leaves_the_link_where_it_was() {
    let stage = Stage::new();
    stage.play(|kernel, parent| {
        let mut pod = kernel.pod(&stage.pod_path()).unwrap();
        pod.batch(&[Op::CreateLink(macvlan("net1", parent))]).unwrap();
        let refused =
            pod.batch(&[Op::MoveToHost { index: POD_INDEX, as_index: None, name: "eth0".to_owned() }]);
        assert_eq!(errno(refused), Some(Errno::EEXIST));
        assert!(pod.link_by_name("net1").unwrap().is_some(), "it moved under its old name");
    });
}

#[test]
fn a_link_that_is_up_is_renamed_where_the_kernel_can() {
    let stage = Stage::new();
    stage.play(|kernel, parent| {
        let mut pod = kernel.pod(&stage.pod_path()).unwrap();
        pod.batch(&[Op::CreateLink(macvlan("net1", parent))]).unwrap();
        let rename = SetLink { index: POD_INDEX, name: Some("other".to_owned()), ..SetLink::default() };
        assert_eq!(pod.batch(&[Op::SetLink(rename)]).is_ok(), kernel.renames_while_up());
    });
}

#[test]
fn a_sysctl_of_an_interface_with_a_dot_belongs_to_the_views_namespace() {
    let stage = Stage::new();
    stage.play(|kernel, parent| {
        let mut pod = kernel.pod(&stage.pod_path()).unwrap();
        pod.batch(&[Op::CreateLink(macvlan("eth0.100", parent))]).unwrap();
        let key = "net/ipv4/conf/eth0.100/arp_notify";
        pod.set_sysctl(key, "1").unwrap();
        assert_eq!(pod.sysctl(key).unwrap(), "1");
        let mut host = kernel.host().unwrap();
        assert_eq!(host.sysctl(key).unwrap_err().errno(), Some(Errno::ENOENT));
        assert_eq!(host.sysctl("net/ipv4/conf/eth0/arp_notify").unwrap(), "0");
        assert_eq!(pod.sysctl(key).unwrap(), "1", "the thread is back in the pod's namespace");
        for wrong in ["kernel/hostname", "net/../kernel/hostname", "/etc/passwd", ""] {
            assert!(pod.sysctl(wrong).is_err(), "{wrong:?}");
        }
    });
}

#[test]
fn a_row_goes_on_behind_what_is_refused_and_names_it() {
    let stage = Stage::new();
    stage.play(|kernel, parent| {
        let mut pod = kernel.pod(&stage.pod_path()).unwrap();
        pod.batch(&[Op::CreateLink(macvlan("net1", parent))]).unwrap();
        let has = |text: &str| Op::AddAddress(address(text));
        let mut ops = vec![Op::SetArpNotify(POD_INDEX + 1), has("10.9.0.2/24"), has("10.9.0.2/24")];
        // More than go in one datagram.
        ops.extend((0..100).map(|n| has(&format!("10.8.0.{n}/32"))));
        ops.extend([has("10.8.0.7/32"), Op::SetArpNotify(POD_INDEX)]);
        let refused = pod.batch_past_refusals(&ops).unwrap();
        let told: Vec<_> = refused.iter().map(|e| (e.at, e.errno)).collect();
        assert_eq!(told, [(0, Errno::ENODEV), (2, Errno::EEXIST), (103, Errno::EEXIST)]);
        assert!(refused[2].to_string().contains("add address 10.8.0.7/32"), "{}", refused[2]);
        assert_eq!(pod.sysctl("net/ipv4/conf/net1/arp_notify").unwrap(), "1");
        let there = pod.addresses(POD_INDEX).unwrap().iter().filter(|a| a.net.addr().is_ipv4()).count();
        assert_eq!(there, 101);
        // The socket is at the beginning of an answer again.
        assert!(pod.batch_past_refusals(&[]).unwrap().is_empty());
        pod.batch(&[Op::DeleteAddress(address("10.9.0.2/24"))]).unwrap();
    });
}

#[test]
fn what_is_no_pods_namespace_is_refused_by_name() {
    let stage = Stage::new();
    let directory = stage.directory.path();
    let regular = directory.join("regular");
    fs::write(&regular, "x").unwrap();
    let pipe = directory.join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let dangling = directory.join("dangling");
    std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
    stage.play(|kernel, _| {
        let refusal = |path: &Path| kernel.pod(path).err().unwrap();
        for path in [
            regular.as_path(),
            pipe.as_path(),
            directory,
            Path::new("/proc/self/ns/mnt"),
            Path::new("/dev/null"),
        ] {
            assert!(matches!(refusal(path), NetnsError::NotANetns { .. }), "{path:?}: {:?}", refusal(path));
        }
        assert!(matches!(refusal(&dangling), NetnsError::Missing { .. }));
        assert!(matches!(refusal(&regular.join("below")), NetnsError::Missing { .. }));
        assert!(matches!(refusal(stage.host.path()), NetnsError::Host { .. }));
        assert!(matches!(refusal(Path::new("/proc/thread-self/ns/net")), NetnsError::Host { .. }));
        let _view = kernel.pod(&stage.pod_path()).unwrap();
        assert!(matches!(refusal(&stage.pod_path()), NetnsError::Io { .. }), "no second view on one thread");
    });
}

#[test]
fn a_namespace_with_the_dead_ones_inode_has_another_cookie() {
    let mut stage = Stage::new();
    let path = stage.pod_path();
    let id_of = |stage: &Stage| {
        let mut id = None;
        stage.play(|kernel, _| id = Some(kernel.pod(&path).unwrap().id().clone()));
        id.unwrap()
    };
    let mut cookies = HashMap::new();
    for _ in 0..300 {
        let id = id_of(&stage);
        let cookie = id.cookie.unwrap();
        assert!(!cookies.values().any(|earlier| *earlier == cookie), "cookie {cookie} came twice");
        if cookies.insert(id.ino, cookie).is_some() {
            return;
        }
        stage.pod = None;
        stage.pod = Some(ScratchNetns::new(stage.directory.path(), "pod").unwrap());
    }
    panic!("no inode was used twice");
}

#[test]
fn a_link_is_read_and_deleted_by_number_after_the_path_is_unmounted() {
    let mut stage = Stage::new();
    let path = stage.pod_path();
    let mut nsid = None;
    stage.play(|kernel, parent| {
        let mut pod = kernel.pod(&path).unwrap();
        pod.batch(&[Op::CreateLink(macvlan("net1", parent))]).unwrap();
        nsid = pod.nsid().unwrap();
        assert_eq!(pod.nsid().unwrap(), nsid);
        assert_eq!(kernel.nsids().unwrap(), [nsid.unwrap()]);
        assert!(kernel.link_at(nsid.unwrap(), POD_INDEX).unwrap().is_some());
        assert_eq!(kernel.nsids().unwrap(), [nsid.unwrap()], "the host's own number is left out");
    });
    stage.play(|kernel, _| {
        assert_eq!(kernel.pod(&path).unwrap().nsid().unwrap(), nsid, "it keeps its number")
    });
    let nsid = nsid.unwrap();
    let held = File::open(&path).unwrap();
    stage.pod = None;
    stage.play(|kernel, _| {
        assert_eq!(kernel.link_at(nsid, POD_INDEX).unwrap().unwrap().name, "net1");
        assert_eq!(kernel.link_at(nsid, 77).unwrap(), None);
        kernel.delete_at(nsid, POD_INDEX).unwrap();
        assert_eq!(kernel.link_at(nsid, POD_INDEX).unwrap(), None);
        kernel.delete_at(nsid, POD_INDEX).unwrap();
    });
    drop(held);
    stage.play(|kernel, _| {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !kernel.nsids().unwrap().is_empty() {
            assert!(Instant::now() < deadline, "the namespace does not die");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(kernel.link_at(nsid, 1).unwrap(), None);
        kernel.delete_at(nsid, 1).unwrap();
    });
}

#[test]
fn after_a_view_the_thread_is_home_and_no_descriptor_is_left() {
    let stage = Stage::new();
    stage.play(|kernel, parent| {
        let home = own_netns();
        let open_and_use = || {
            let mut pod = kernel.pod(&stage.pod_path()).unwrap();
            assert_ne!(own_netns(), home);
            pod.batch(&[Op::CreateLink(macvlan("net1", parent))]).unwrap();
            pod.batch(&[Op::DeleteLink(POD_INDEX)]).unwrap();
            pod.nsid().unwrap();
        };
        open_and_use();
        let descriptors_of = |path: &Path| {
            let wanted = nix::sys::stat::stat(path).unwrap();
            let all = fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
            all.filter(|entry| {
                nix::sys::stat::stat(&entry.path())
                    .is_ok_and(|it| (it.st_dev, it.st_ino) == (wanted.st_dev, wanted.st_ino))
            })
            .count()
        };
        assert_eq!(own_netns(), home);
        assert_eq!(descriptors_of(&stage.pod_path()), 0);
        let answer_first = AnswerFirst::begin();
        open_and_use();
        assert_eq!(descriptors_of(&stage.pod_path()), 0, "a call that may fail keeps no namespace alive");
        let mut last = kernel.pod(&stage.pod_path()).unwrap();
        last.close_when_answered();
        drop(last);
        assert_eq!(own_netns(), home);
        assert_eq!(descriptors_of(&stage.pod_path()), 1, "it is closed before the answer");
        drop(answer_first);
        assert_eq!(descriptors_of(&stage.pod_path()), 0);
    });
}

#[test]
fn a_view_on_a_second_thread_uses_a_socket_of_the_same_host() {
    let stage = Stage::new();
    stage.play(|kernel, parent| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(kernel.host().unwrap().link_by_index(parent).unwrap().unwrap().name, "eth0")
            });
        });
        let elsewhere = stage.pod.as_ref().unwrap().inside(|| kernel.host().unwrap().links().err());
        assert!(
            matches!(elsewhere.unwrap(), Some(NetError::Socket(_))),
            "a thread in a stranger's namespace is refused"
        );
    });
}

#[test]
fn a_parent_that_was_looked_up_before_is_told_as_it_is_now() {
    Stage::new().play(|kernel, eth0| {
        let mut host = kernel.host().unwrap();
        let mut told_as_it_is = |name: &str| {
            let looked_up = host.link_by_name(name).unwrap().map(ParentLink::from);
            // Twice: the first look can be the one that is remembered.
            for _ in 0..2 {
                assert_eq!(host.parent_by_name(name).unwrap(), looked_up, "{name}");
            }
            looked_up
        };
        let change = |change: SetLink| kernel.host().unwrap().batch(&[Op::SetLink(change)]).unwrap();
        let of = |index| SetLink { index, ..SetLink::default() };
        assert_eq!(told_as_it_is("eth0").unwrap().index, eth0);
        let mac = Some(Mac([0x02, 0, 0, 0, 0, 0x17]));
        change(SetLink { mtu: Some(1400), mac, ..of(eth0) });
        let parent = told_as_it_is("eth0").unwrap();
        assert_eq!((parent.mtu, parent.mac), (1400, mac));
        // Its name is another link's, then nobody's.
        change(SetLink { name: Some("eth1".into()), ..of(eth0) });
        assert_eq!(told_as_it_is("eth0"), None);
        kernel.host().unwrap().batch(&[Op::CreateLink(veth("eth0"))]).unwrap();
        let other = told_as_it_is("eth0").unwrap().index;
        assert_ne!(other, eth0);
        kernel.host().unwrap().batch(&[Op::DeleteLink(other)]).unwrap();
        assert_eq!(told_as_it_is("eth0"), None);
        assert_eq!(told_as_it_is("eth1").unwrap().index, eth0);
        // An alternative name can go to another link, while this one keeps its own.
        let alternative = |index| Op::AddAltName { index, name: "uplink".into() };
        kernel.host().unwrap().batch(&[alternative(eth0)]).unwrap();
        assert_eq!(told_as_it_is("uplink").unwrap().index, eth0);
        kernel.host().unwrap().batch(&[Op::DeleteAltName { index: eth0, name: "uplink".into() }]).unwrap();
        kernel.host().unwrap().batch(&[Op::CreateLink(veth("eth2"))]).unwrap();
        let eth2 = told_as_it_is("eth2").unwrap().index;
        kernel.host().unwrap().batch(&[alternative(eth2)]).unwrap();
        assert_eq!(told_as_it_is("uplink").unwrap().index, eth2);
    });
}

#[test]
fn x04_the_kinds_that_the_kernel_has_are_told_and_nothing_is_left_of_the_question() {
    let stage = Stage::new();
    // Without their carrier, which a veth of the stage may get meanwhile.
    let links = || {
        let all = stage.host.inside(|| RealKernel::new().unwrap().host().unwrap().links().unwrap());
        all.unwrap().into_iter().map(|link| (link.index, link.name)).collect::<Vec<_>>()
    };
    let before = links();
    let known = stage.host.inside(|| {
        let kernel = RealKernel::new().unwrap();
        ["macvlan", "veth", "bridge", "no-such-kind"].map(|kind| kernel.knows(kind).unwrap())
    });
    assert_eq!(known.unwrap(), [true, true, true, false]);
    assert_eq!(links(), before);
}

/// In a namespace that has no devices: devlink may be in this kernel or not.
#[test]
fn devlink_is_asked_and_a_namespace_without_cards_has_none() {
    Stage::new().play(|kernel, _| assert_eq!(kernel.devlink().unwrap(), []));
}
