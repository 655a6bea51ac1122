//! News of namespaces and links, and announcements of addresses, on the real kernel. Needs root.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::IpAddr;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fairlead_host::after_answer::AnswerFirst;
use fairlead_host::announce::{Announcement, Announcer, Conflict};
use fairlead_host::real::RealKernel;
use fairlead_host::scratch_netns::ScratchNetns;
use fairlead_host::watch::{Event, NetnsEvents};
use fairlead_host::{Address, AddressFlags, Kind, Mac, MacvlanMode, NetKernel, NewLink, Op, Parent, SetLink};

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
    let kind = Kind::Macvlan { mode: MacvlanMode::Bridge, bc_queue_len: None };
    NewLink { kind, index: Some(7000), parent: Parent::Host(parent), ..veth(name) }
}

fn address(text: &str) -> Address {
    let flags = AddressFlags { nodad: true, ..AddressFlags::default() };
    Address { index: 7000, net: text.parse().unwrap(), broadcast: None, flags }
}

/// Makes `eth0`, with its other end up, in the thread's namespace; answers its index.
fn parent(kernel: &RealKernel) -> u32 {
    let mut host = kernel.host().unwrap();
    host.batch(&[Op::CreateLink(veth("eth0"))]).unwrap();
    for link in host.links().unwrap().into_iter().filter(|link| !link.loopback) {
        host.batch(&[Op::SetLink(SetLink { index: link.index, up: Some(true), ..SetLink::default() })])
            .unwrap();
    }
    host.link_by_name("eth0").unwrap().unwrap().index
}

#[test]
fn links_that_come_and_go_and_a_namespace_that_dies_are_seen() {
    let directory = tempfile::tempdir().unwrap();
    let host = ScratchNetns::new(directory.path(), "host").unwrap();
    host.inside(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut news = NetnsEvents::open().unwrap();
            let mut deaths = NetnsEvents::open_deaths().unwrap();
            let kernel = RealKernel::new().unwrap();
            kernel.host().unwrap().batch(&[Op::CreateLink(veth("eth0"))]).unwrap();
            let index = kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap().index;
            until(&mut news, |event| matches!(event, Event::LinkNew(link) if link.name == "eth0")).await;
            kernel.host().unwrap().batch(&[Op::DeleteLink(index)]).unwrap();
            until(&mut news, |event| *event == Event::LinkGone(index)).await;
            let pod = ScratchNetns::new(directory.path(), "pod").unwrap();
            let nsid = kernel.pod(pod.path()).unwrap().nsid().unwrap().unwrap();
            until(&mut news, |event| *event == Event::NsidNew(nsid)).await;
            drop(pod);
            until(&mut news, |event| *event == Event::NsidGone(nsid)).await;
            assert_eq!(
                deaths.next().await,
                Event::NsidGone(nsid),
                "nothing else is heard by who wants nothing else"
            );
        });
    })
    .unwrap();
}

async fn until(news: &mut NetnsEvents, wanted: impl Fn(&Event) -> bool) {
    let seen = async { while !wanted(&news.next().await) {} };
    tokio::time::timeout(Duration::from_secs(10), seen).await.unwrap();
}

#[test]
fn news_that_nobody_read_in_time_are_told_as_an_overflow() {
    let directory = tempfile::tempdir().unwrap();
    let host = ScratchNetns::new(directory.path(), "host").unwrap();
    host.inside(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut news = NetnsEvents::open().unwrap();
            let kernel = RealKernel::new().unwrap();
            let mut net = kernel.host().unwrap();
            net.batch(&[Op::CreateLink(veth("eth0"))]).unwrap();
            let index = net.link_by_name("eth0").unwrap().unwrap().index;
            for round in 0..3000_u32 {
                let alias = Some(format!("round {round}"));
                net.batch(&[Op::SetLink(SetLink { index, alias, ..SetLink::default() })]).unwrap();
            }
            until(&mut news, |event| *event == Event::Overflow).await;
        });
    })
    .unwrap();
}

/// Two pods on one parent that have the same addresses; the announcements are without any so far.
fn two_pods(act: impl FnOnce(&Announcer, [Announcement; 2], &mpsc::Receiver<Conflict>) + Send) {
    let directory = tempfile::tempdir().unwrap();
    let host = ScratchNetns::new(directory.path(), "host").unwrap();
    let pods = ["ours", "other"].map(|name| ScratchNetns::new(directory.path(), name).unwrap());
    host.inside(|| {
        let kernel = RealKernel::new().unwrap();
        let parent = parent(&kernel);
        let announcements = pods.each_ref().map(|pod| {
            let mut net = kernel.pod(pod.path()).unwrap();
            let ops = [
                Op::CreateLink(macvlan("net1", parent)),
                Op::AddAddress(address("10.9.0.2/24")),
                Op::AddAddress(address("fd00:9::2/64")),
            ];
            net.batch(&ops).unwrap();
            Announcement {
                netns: pod.path().to_owned(),
                netns_id: net.id().clone(),
                ifindex: 7000,
                addresses: Vec::new(),
                probe: true,
                awaits_carrier: false,
                ndisc_notify: None,
                label: pod.path().file_name().unwrap().to_string_lossy().into_owned(),
            }
        });
        let (sender, conflicts) = mpsc::channel();
        let tell = move |conflict| sender.send(conflict).unwrap_or_default();
        let announcer = Announcer::start(Path::new("/proc/sys"), Box::new(tell)).unwrap();
        act(&announcer, announcements, &conflicts);
    })
    .unwrap();
}

/// The MAC address that an announcement's interface has now.
fn mac_of(announcement: &Announcement) -> Mac {
    let kernel = RealKernel::new().unwrap();
    let mut pod = kernel.pod(&announcement.netns).unwrap();
    pod.link_by_index(announcement.ifindex).unwrap().unwrap().mac.unwrap()
}

#[test]
fn somebody_else_with_the_same_address_is_named_in_both_families() {
    two_pods(|announcer, [announcement, _], conflicts| {
        for address in ["10.9.0.2", "fd00:9::2"] {
            let address: IpAddr = address.parse().unwrap();
            announcer.announce(Announcement { addresses: vec![address], ..announcement.clone() });
            let conflict = conflicts.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!((conflict.address, conflict.label.as_str()), (address, "ours"));
            assert_ne!(conflict.other, mac_of(&announcement));
        }
        assert_eq!((announcer.failed(), announcer.dropped()), (0, 0));
    });
}

#[test]
fn with_the_announcement_the_pod_gets_the_sysctl_that_no_message_sets() {
    two_pods(|announcer, [ours, other], _| {
        let addresses: Vec<IpAddr> = vec!["10.9.0.60".parse().unwrap()];
        announcer.announce(Announcement { addresses: addresses.clone(), probe: false, ..other.clone() });
        let ndisc_notify = Some("net1".to_owned());
        announcer.announce(Announcement { addresses, probe: false, ndisc_notify, ..ours.clone() });
        let kernel = RealKernel::new().unwrap();
        let now = |of: &Announcement| {
            kernel.pod(&of.netns).unwrap().sysctl("net/ipv6/conf/net1/ndisc_notify").unwrap()
        };
        let until = Instant::now() + Duration::from_secs(20);
        while now(&ours) != "1" && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!((now(&ours).as_str(), now(&other).as_str()), ("1", "0"));
        assert_eq!(announcer.failed(), 0);
    });
}

#[test]
fn d21_the_neighbours_hear_of_a_new_address_without_asking() {
    two_pods(|announcer, [ours, other], conflicts| {
        let mac = mac_of(&ours);
        for address in ["10.9.0.50", "fd00:9::50"] {
            let addresses: Vec<IpAddr> = vec![address.parse().unwrap()];
            // The neighbour listens by probing for the address itself: what it hears is the announcement.
            announcer.announce(Announcement { addresses: addresses.clone(), ..other.clone() });
            announcer.announce(Announcement { addresses: addresses.clone(), probe: false, ..ours.clone() });
            let heard = conflicts.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!((heard.label.as_str(), heard.address, heard.other), ("other", addresses[0], mac));
        }
        assert_eq!(announcer.failed(), 0);
    });
}

#[test]
fn the_neighbours_hear_the_mac_address_that_a_later_plugin_has_set_and_not_that_of_the_answer() {
    two_pods(|announcer, [ours, other], conflicts| {
        let kernel = RealKernel::new().unwrap();
        for (address, mac) in [("10.9.0.50", Mac::local(0x7700)), ("fd00:9::50", Mac::local(0x7800))] {
            let addresses: Vec<IpAddr> = vec![address.parse().unwrap()];
            // The announcer is woken when this is dropped.
            let answer = AnswerFirst::begin();
            announcer.announce(Announcement { addresses: addresses.clone(), ..other.clone() });
            announcer.announce(Announcement { addresses: addresses.clone(), probe: false, ..ours.clone() });
            let set = SetLink { index: ours.ifindex, mac: Some(mac), ..SetLink::default() };
            kernel.pod(&ours.netns).unwrap().batch(&[Op::SetLink(set)]).unwrap();
            drop(answer);
            let heard = conflicts.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!((heard.label.as_str(), heard.address, heard.other), ("other", addresses[0], mac));
        }
        assert_eq!(announcer.failed(), 0);
    });
}

#[test]
fn an_address_of_nobody_else_is_no_conflict() {
    two_pods(|announcer, [ours, _], conflicts| {
        let addresses = vec!["10.9.0.99".parse().unwrap(), "fd00:9::99".parse().unwrap()];
        announcer.announce(Announcement { addresses, ..ours });
        assert_eq!(conflicts.recv_timeout(Duration::from_millis(600)).ok(), None);
    });
}

#[test]
fn what_awaits_its_carrier_is_announced_when_that_is_there_and_forgotten_when_it_is_cancelled() {
    two_pods(|announcer, [ours, other], conflicts| {
        let kernel = RealKernel::new().unwrap();
        let mut host = kernel.host().unwrap();
        let wire = host.links().unwrap().into_iter().find(|link| link.name.starts_with("veth")).unwrap();
        let pod = ours.netns.clone();
        let mut wire = |up| {
            let set = SetLink { index: wire.index, up: Some(up), ..SetLink::default() };
            host.batch(&[Op::SetLink(set)]).unwrap();
            // The kernel tells the ends above it later, by a thread of its own.
            let mut pod = kernel.pod(&pod).unwrap();
            soon(|| pod.link_by_name("net1").unwrap().unwrap().carrier == up);
        };
        // The other pod has this address: it answers as soon as it is asked.
        let addresses = vec!["10.9.0.2".parse().unwrap()];
        let late = Announcement { addresses, awaits_carrier: true, ..ours };
        wire(false);
        announcer.announce(late.clone());
        assert_eq!(conflicts.recv_timeout(Duration::from_millis(400)).ok(), None);
        assert_eq!(packet_sockets(&late), 0, "nothing of the pod is held meanwhile");
        wire(true);
        assert_eq!(conflicts.recv_timeout(Duration::from_secs(10)).unwrap().label, "ours");
        wire(false);
        announcer.announce(late.clone());
        taken_up(announcer, &other);
        announcer.cancel(7000, &late.netns_id);
        taken_up(announcer, &other);
        wire(true);
        assert_eq!(conflicts.recv_timeout(Duration::from_millis(600)).ok(), None);
        assert_eq!((announcer.failed(), announcer.dropped()), (0, 0));
    });
}

/// Waits until the announcer has taken up all that it was told: it takes one after the other, and this one is seen.
fn taken_up(announcer: &Announcer, pod: &Announcement) {
    let last = Announcement { addresses: vec!["10.9.0.77".parse().unwrap()], ..pod.clone() };
    announcer.announce(last.clone());
    soon(|| packet_sockets(&last) > 0);
    announcer.cancel(last.ifindex, &last.netns_id);
    soon(|| packet_sockets(&last) == 0);
}

fn soon(mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn another_namespace_at_the_path_is_left_alone() {
    two_pods(|announcer, [ours, other], conflicts| {
        let addresses = vec!["10.9.0.2".parse().unwrap()];
        announcer.announce(Announcement { netns: other.netns, addresses, ..ours });
        assert_eq!(conflicts.recv_timeout(Duration::from_millis(400)).ok(), None);
        assert_eq!(announcer.failed(), 0);
    });
}

/// The second interface is in the same subnet as the first one, and in another.
#[test]
fn another_interface_of_the_same_pod_is_no_conflict_and_one_of_another_pod_is() {
    for second in ["10.9.0.3/24", "10.8.0.3/24"] {
        two_pods(|announcer, [ours, _], conflicts| {
            let kernel = RealKernel::new().unwrap();
            let parent = kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap().index;
            let mut pod = kernel.pod(&ours.netns).unwrap();
            let net2 = NewLink { index: Some(7001), ..macvlan("net2", parent) };
            let mine = Address { index: 7000, ..address("10.9.0.7/24") };
            pod.batch(&[
                Op::AddAddress(mine),
                Op::CreateLink(net2),
                Op::AddAddress(Address { index: 7001, ..address(second) }),
                Op::AddAddress(Address { index: 7001, ..address("fd00:8::3/64") }),
            ])
            .unwrap();
            let mac = pod.link_by_name("net2").unwrap().unwrap().mac.unwrap();
            drop(pod);
            let net2 = Announcement { ifindex: 7001, ..ours.clone() };
            let of = |text: &str| text.split('/').next().unwrap().parse::<IpAddr>().unwrap();
            let alone = [of("10.9.0.7"), of(second), of("fd00:8::3")];
            announcer.announce(Announcement { addresses: vec![alone[0]], ..ours.clone() });
            announcer.announce(Announcement { addresses: alone[1..].to_vec(), ..net2 });
            assert_eq!(conflicts.recv_timeout(Duration::from_millis(700)).ok(), None, "{second}");
            // The other pod has this one too.
            announcer.announce(Announcement { addresses: vec![of("10.9.0.2")], ..ours.clone() });
            let conflict = conflicts.recv_timeout(Duration::from_secs(10)).unwrap();
            assert!(![mac_of(&ours), mac].contains(&conflict.other), "{conflict:?}");
            assert_eq!(announcer.failed(), 0);
        });
    }
}

#[test]
fn no_socket_outlives_its_time_or_its_cancellation() {
    two_pods(|announcer, [ours, _], _| {
        let quiet = Announcement { addresses: vec!["10.9.0.77".parse().unwrap()], ..ours };
        taken_up(announcer, &quiet);
        announcer.announce(quiet.clone());
        soon(|| packet_sockets(&quiet) > 0);
        soon(|| packet_sockets(&quiet) == 0);
        announcer.announce(Announcement { netns: "/nowhere".into(), ..quiet.clone() });
        // What a namespace was mounted on is there without it, too.
        let unmounted = tempfile::NamedTempFile::new().unwrap();
        announcer.announce(Announcement { netns: unmounted.path().into(), ..quiet.clone() });
        taken_up(announcer, &quiet);
        assert_eq!(announcer.failed(), 0, "a namespace that has ended is no failure");
    });
}

/// How many packet sockets there are in the pod's namespace, whoever has them.
fn packet_sockets(announcement: &Announcement) -> usize {
    let netns = std::fs::File::open(&announcement.netns).unwrap();
    std::thread::scope(|scope| {
        let counted = scope.spawn(|| {
            nix::sched::setns(&netns, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            std::fs::read_to_string("/proc/thread-self/net/packet").unwrap().lines().count() - 1
        });
        counted.join().unwrap()
    })
}
