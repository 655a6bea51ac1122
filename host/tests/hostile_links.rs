//! What a pod can do to its links, on the real kernel: nothing of it keeps the daemon from reading them and the others. Needs root.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlead_host::real::RealKernel;
use fairlead_host::scratch_netns::ScratchNetns;
use fairlead_host::{
    Address, AddressFlags, Kind, Link, LinkName, Net, NetError, NetKernel, NewLink, Op, Parent, SetLink,
};
use nix::errno::Errno;
use tempfile::TempDir;

/// As many names as make one message of 39 KB.
const MANY: usize = 300;

fn veth(name: &str) -> Op {
    Op::CreateLink(NewLink {
        name: name.to_owned(),
        index: None,
        kind: Kind::Other { name: "veth".to_owned() },
        parent: Parent::None,
        mac: None,
        mtu: None,
        up: false,
    })
}

/// Runs a test in a namespace of its own, which it sees as the host's.
fn in_a_namespace(act: impl FnOnce(&RealKernel) + Send) {
    let directory = TempDir::new().unwrap();
    let namespace = ScratchNetns::new(directory.path(), "host").unwrap();
    namespace.inside(|| act(&RealKernel::new().unwrap())).unwrap();
}

fn long_names() -> Vec<LinkName> {
    (0..MANY).map(|n| LinkName::from(format!("{n:0120}"))).collect()
}

fn alt_names(index: u32, add: bool) -> Vec<Op> {
    let op = |name: LinkName| {
        if add { Op::AddAltName { index, name } } else { Op::DeleteAltName { index, name } }
    };
    long_names().into_iter().map(op).collect()
}

fn rename(index: u32, name: &str) -> Op {
    Op::SetLink(SetLink { index, name: Some(name.to_owned()), ..SetLink::default() })
}

fn named(net: &mut dyn Net, name: &str) -> Link {
    net.link_by_name(name).unwrap().unwrap()
}

#[test]
fn a_link_with_300_long_alternative_names_is_read_whole_and_hides_no_other() {
    in_a_namespace(|kernel| {
        let mut net = kernel.host().unwrap();
        net.batch(&[veth("eth0"), veth("eth1")]).unwrap();
        let index = named(&mut *net, "eth0").index;
        net.batch(&alt_names(index, true)).unwrap();
        let links = net.links().unwrap();
        assert_eq!(links.len(), 5, "lo, and two pairs: {links:?}");
        let link = links.into_iter().find(|link| link.index == index).unwrap();
        assert_eq!(link.alt_names, long_names());
        assert_eq!(net.link_by_index(index).unwrap().as_ref(), Some(&link));
        assert_eq!(named(&mut *net, "eth0"), link);
        assert_eq!(named(&mut *net, &long_names()[MANY - 1].text()), link);
        net.batch(&alt_names(index, false)).unwrap();
        assert!(named(&mut *net, "eth0").alt_names.is_empty());
    });
}

#[test]
fn a_link_that_grows_while_all_are_listed_hides_no_other() {
    in_a_namespace(|kernel| {
        let mut net = kernel.host().unwrap();
        // More than go into one datagram, and the one that grows is the last.
        let pairs: Vec<Op> = (0..40).map(|n| veth(&format!("eth{n}"))).collect();
        net.batch(&pairs).unwrap();
        let grows = net.links().unwrap().into_iter().map(|link| link.index).max().unwrap();
        let mut lists = Vec::new();
        while lists.len() < 300 {
            // None is taken away meanwhile: to tell how long an answer can get, Linux 6.18 reads a link's names without a lock, and
            // one that goes just then ends the thread that lists, in the kernel (`rtnl_calcit`).
            std::thread::scope(|scope| {
                let growing = scope.spawn(|| kernel.host().unwrap().batch(&alt_names(grows, true)).unwrap());
                while !growing.is_finished() {
                    lists.push(net.links().map(|links| links.len()));
                }
            });
            net.batch(&alt_names(grows, false)).unwrap();
        }
        for list in lists {
            assert_eq!(list.unwrap(), 81);
        }
    });
}

#[test]
fn a_name_that_is_no_utf_8_is_read_looked_up_taken_away_and_put_back() {
    in_a_namespace(|kernel| {
        let mut net = kernel.host().unwrap();
        net.batch(&[veth("eth0")]).unwrap();
        let index = named(&mut *net, "eth0").index;
        let all = [&b"\xff\xfe"[..], b"up\xc3", "caf\u{e9} \n/:".as_bytes(), b"", &[0x80; 127]]
            .map(LinkName::from_bytes);
        let names = |name: &LinkName| (index, name.clone());
        for round in 0..2 {
            for (index, name) in all.iter().map(names) {
                net.batch(&[Op::AddAltName { index, name }]).unwrap();
            }
            let link = net.link_by_index(index).unwrap().unwrap();
            assert_eq!(link.alt_names, all, "round {round}");
            assert_eq!(named(&mut *net, &all[0].text()), link);
            assert_eq!(net.link_by_name(&String::from_utf8_lossy(all[0].as_bytes())).unwrap(), None);
            for name in link.alt_names {
                net.batch(&[Op::DeleteAltName { index, name }]).unwrap();
            }
            assert!(net.link_by_index(index).unwrap().unwrap().alt_names.is_empty());
        }
        let strange = LinkName::from_bytes(b"n\xff\xfe");
        net.batch(&[rename(index, &strange.text())]).unwrap();
        let name = net.link_by_index(index).unwrap().unwrap().name;
        assert_eq!(LinkName::from(name.as_str()).as_bytes(), b"n\xff\xfe");
        assert_eq!(named(&mut *net, &name).index, index);
        net.batch(&[rename(index, "eth0"), rename(index, &name)]).unwrap();
        assert_eq!(LinkName::from(net.link_by_index(index).unwrap().unwrap().name), strange);
    });
}

#[test]
fn a_batch_goes_on_behind_what_is_gone_already_and_stops_at_any_other_refusal() {
    in_a_namespace(|kernel| {
        let mut net = kernel.host().unwrap();
        net.batch(&[veth("eth0"), veth("eth1")]).unwrap();
        let (index, other) = (named(&mut *net, "eth0").index, named(&mut *net, "eth1").index);
        let delete = |name: &str| Op::DeleteAltName { index, name: name.into() };
        net.batch(&[Op::AddAltName { index: other, name: "moved".into() }]).unwrap();
        net.batch_past_gone(&[delete("nobodys"), delete("moved"), delete("eth0"), rename(index, "eth9")])
            .unwrap();
        assert_eq!(named(&mut *net, "eth9").index, index);
        assert_eq!(named(&mut *net, "moved").index, other);
        let refused = net.batch_past_gone(&[delete("nobodys"), rename(index, "lo"), rename(index, "eth8")]);
        let Err(NetError::Op(error)) = refused else { panic!("{refused:?}") };
        assert_eq!((error.at, error.errno), (1, Errno::EEXIST));
        assert_eq!(net.link_by_name("eth8").unwrap(), None);
    });
}

#[test]
fn of_many_addresses_no_more_than_asked_for_are_kept_and_a_link_that_is_down_answers_for_none() {
    let directory = TempDir::new().unwrap();
    let pod = ScratchNetns::new(directory.path(), "pod").unwrap();
    in_a_namespace(|kernel| {
        let mut host = kernel.host().unwrap();
        host.batch(&[veth("eth0")]).unwrap();
        let (ours, peer) = (named(&mut *host, "eth0").index, named(&mut *host, "veth0").index);
        let address = |index: u32, text: String| {
            let flags = AddressFlags::default();
            Op::AddAddress(Address { index, net: text.parse().unwrap(), broadcast: None, flags })
        };
        let up = |index: u32, up: bool| Op::SetLink(SetLink { index, up: Some(up), ..SetLink::default() });
        host.batch(&[up(ours, true), address(ours, "10.9.0.1/16".to_owned())]).unwrap();
        let mut inside = kernel.pod(pod.path()).unwrap();
        inside
            .batch(&[
                Op::TakeFromHost { index: peer, as_index: None, name: "net1".to_owned(), up: true },
                up(1, true),
            ])
            .unwrap();
        let index = named(&mut *inside, "net1").index;
        inside
            .batch(&(0..100).map(|n| address(index, format!("10.9.1.{n}/16"))).collect::<Vec<_>>())
            .unwrap();
        assert_eq!(inside.addresses_at_most(index, 64).unwrap(), None);
        assert_eq!(
            inside.addresses(index).unwrap().iter().filter(|all| all.net.addr().is_ipv4()).count(),
            100
        );
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(inside);
        let reached = || {
            let to = SocketAddr::from(([10, 9, 1, 50], port));
            TcpStream::connect_timeout(&to, Duration::from_millis(1500)).is_ok()
        };
        assert!(reached());
        kernel.pod(pod.path()).unwrap().batch(&[up(index, false)]).unwrap();
        assert!(!reached());
    });
}

#[test]
fn every_address_that_a_pod_gave_its_link_is_deleted_whatever_its_peer_and_its_prefix_length() {
    in_a_namespace(|kernel| {
        let mut net = kernel.host().unwrap();
        net.batch(&[veth("eth0")]).unwrap();
        let index = named(&mut *net, "eth0").index;
        let given = [
            "10.9.0.1 peer 10.8.0.1/24",
            "10.9.0.2 peer 10.8.1.1/32",
            "10.9.0.2 peer 10.8.1.2/32",
            "10.9.0.3/24",
            "10.9.0.3/16",
            "fd00:9::1 peer fd00:8::1/64",
            "fd00:9::2/64",
        ];
        for address in given {
            let line = format!("address add {address} dev eth0");
            let output = Command::new("ip").args(line.split(' ')).output().unwrap();
            assert!(output.status.success(), "{line}: {output:?}");
        }
        let all = net.addresses(index).unwrap();
        assert_eq!(all.len(), given.len(), "{all:?}");
        let deletions: Vec<Op> = all.into_iter().map(Op::DeleteAddress).collect();
        let refused = net.batch_past_refusals(&deletions).unwrap();
        assert!(refused.is_empty(), "{refused:?}");
        assert_eq!(net.addresses(index).unwrap(), []);
        let gone = net.batch(&deletions[..1]).unwrap_err().errno();
        assert_eq!(gone, Some(Errno::EADDRNOTAVAIL));
    });
}

#[test]
fn one_link_is_found_among_many_while_others_come_without_a_pause() {
    in_a_namespace(|kernel| {
        let mut net = kernel.host().unwrap();
        net.batch(&(0..300).map(|n| veth(&format!("v{n}"))).collect::<Vec<_>>()).unwrap();
        let wanted = named(&mut *net, "v150").index;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut net = kernel.host().unwrap();
                // A limit, so that a slow machine does not make links without end.
                for n in 0..2_000 {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    net.batch(&[veth(&format!("w{n}"))]).unwrap();
                }
            });
            let found = (0..5).map(|_| net.find_link(&|link| link.index == wanted)).collect::<Vec<_>>();
            done.store(true, Ordering::Relaxed);
            for found in found {
                assert_eq!(found.unwrap().map(|link| link.name).as_deref(), Some("v150"));
            }
        });
    });
}
