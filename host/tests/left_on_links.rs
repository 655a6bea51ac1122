//! What a pod leaves on a link that was lent to it, on the real kernel: what goes home with the link, what is gone by the move alone, and
//! that the former is taken off and put back. Needs root.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use fairlead_host::ProgramHook::{self, TcxEgress, TcxIngress, XdpDriver, XdpGeneric};
use fairlead_host::real::RealKernel;
use fairlead_host::scratch_netns::ScratchNetns;
use fairlead_host::scratch_program::ScratchProgram;
use fairlead_host::{
    Address, AddressFlags, AttachedProgram, Channels, Kind, LinkSettings, Net, NetKernel, NetdevSettings,
    NewLink, Numbers, Op, Parent, SetLink,
};
use nix::errno::Errno;
use tempfile::TempDir;

/// A stand-in for the host and a pod, to which `eth0` is lent as `net1`; both have an unrelated `other0`.
struct Stage {
    directory: TempDir,
    host: ScratchNetns,
    _pod: ScratchNetns,
}

const INDEX: u32 = 4242;

fn veth(name: &str, index: Option<u32>) -> Op {
    Op::CreateLink(NewLink {
        name: name.to_owned(),
        index,
        kind: Kind::Other { name: "veth".to_owned() },
        parent: Parent::None,
        mac: None,
        mtu: None,
        up: true,
    })
}

fn lend() -> Op {
    Op::TakeFromHost { index: INDEX, as_index: None, name: "net1".to_owned(), up: true }
}

fn home() -> Op {
    Op::MoveToHost { index: INDEX, as_index: None, name: "eth0".to_owned() }
}

impl Stage {
    fn new() -> Stage {
        let directory = TempDir::new().unwrap();
        let host = ScratchNetns::new(directory.path(), "host").unwrap();
        let pod = ScratchNetns::new(directory.path(), "pod").unwrap();
        Stage { directory, host, _pod: pod }
    }

    fn pod(&self) -> PathBuf {
        self.directory.path().join("pod")
    }

    fn play(&self, act: impl FnOnce(&RealKernel, &Path) + Send) {
        let played = self.host.inside(|| {
            let kernel = RealKernel::new().unwrap();
            kernel.host().unwrap().batch(&[veth("eth0", Some(INDEX))]).unwrap();
            act(&kernel, &self.pod());
        });
        played.unwrap();
    }
}

/// Of the programs of a link only where they are.
fn hooks(net: &mut dyn Net) -> Vec<ProgramHook> {
    net.attached_programs(INDEX).unwrap().into_iter().map(|program| program.hook).collect()
}

fn run(line: &str) -> String {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn programs_that_a_pod_attached_itself_come_home_with_a_link_and_are_taken_off_there() {
    let stage = Stage::new();
    stage.play(|kernel, pod| {
        let mut host = kernel.host().unwrap();
        assert_eq!(hooks(&mut *host), []);
        let wanted = [XdpGeneric, TcxIngress, TcxEgress];
        {
            let mut pod = kernel.pod(pod).unwrap();
            pod.batch(&[lend()]).unwrap();
            for hook in wanted {
                ScratchProgram::load(hook).unwrap().attach(INDEX).unwrap();
            }
            assert_eq!(hooks(&mut *pod), wanted);
            pod.batch(&[home()]).unwrap();
        }
        assert_eq!(hooks(&mut *host), wanted, "a move takes none of them off");
        assert_eq!(host.detach_programs(INDEX).unwrap(), Vec::<String>::new());
        assert_eq!(hooks(&mut *host), []);
        assert_eq!(host.detach_programs(INDEX).unwrap(), Vec::<String>::new(), "nothing is left to be done");
        let gone = host.attached_programs(77).unwrap_err();
        assert_eq!(gone.errno(), Some(Errno::ENODEV));
    });
}

#[test]
fn programs_that_a_process_of_the_pod_holds_by_a_bpf_link_are_taken_off_and_it_cannot_use_them_again() {
    let stage = Stage::new();
    stage.play(|kernel, pod| {
        let wanted = [XdpDriver, TcxIngress, TcxEgress];
        let mut held = Vec::new();
        {
            let mut pod = kernel.pod(pod).unwrap();
            pod.batch(&[lend()]).unwrap();
            for hook in wanted {
                let program = ScratchProgram::load(hook).unwrap();
                held.push(program.attach_by_link(INDEX).unwrap());
            }
            pod.batch(&[home()]).unwrap();
        }
        let mut host = kernel.host().unwrap();
        let found = host.attached_programs(INDEX).unwrap();
        assert_eq!(found.iter().map(|program| program.hook).collect::<Vec<_>>(), wanted);
        assert!(found[1].link.is_some() && found[2].link.is_some(), "{found:?}");
        assert_eq!(host.detach_programs(INDEX).unwrap(), Vec::<String>::new());
        assert_eq!(hooks(&mut *host), []);
        drop(held);
    });
}

#[test]
fn a_bpf_link_of_another_namespace_on_a_link_of_the_same_index_is_never_taken_off() {
    let stage = Stage::new();
    stage.play(|kernel, pod| {
        let program = ScratchProgram::load(XdpDriver).unwrap();
        let ours = program.attach_by_link(INDEX).unwrap();
        let another = {
            // The pod makes itself a link of that very index, and has the very same program on it.
            let mut pod = kernel.pod(pod).unwrap();
            pod.batch(&[veth("net0", Some(INDEX))]).unwrap();
            program.attach_by_link(INDEX).unwrap()
        };
        let mut host = kernel.host().unwrap();
        let left = host.detach_programs(INDEX).unwrap();
        assert!(left.len() == 1 && left[0].contains("more than one bpf_link"), "{left:?}");
        drop(host);
        let attached = || hooks(&mut *kernel.pod(pod).unwrap());
        assert_eq!(attached(), [XdpDriver], "it is not ours");
        // Another program there is no matter.
        drop(another);
        // Whoever looks through all links of the kernel, as other tests do, holds each of them for a moment.
        let limit = Instant::now() + Duration::from_secs(60);
        while !attached().is_empty() {
            assert!(Instant::now() < limit, "the link stays though nobody has it");
            thread::sleep(Duration::from_millis(1));
        }
        let another = {
            let _pod = kernel.pod(pod).unwrap();
            ScratchProgram::load(XdpDriver).unwrap().attach_by_link(INDEX).unwrap()
        };
        assert_eq!(kernel.host().unwrap().detach_programs(INDEX).unwrap(), Vec::<String>::new());
        assert_eq!(attached(), [XdpDriver]);
        drop((ours, another));
    });
}

#[test]
fn features_and_channels_that_a_pod_changed_come_home_with_a_link_and_are_made_what_they_were() {
    let stage = Stage::new();
    stage.play(|kernel, pod| {
        run("ip link add eth1 numtxqueues 4 numrxqueues 4 type veth peer name eth2");
        let mut host = kernel.host().unwrap();
        let index = host.link_by_name("eth1").unwrap().unwrap().index;
        let before = host.netdev_settings(index).unwrap();
        let channels = before.channels.unwrap();
        assert_eq!((channels.rx, channels.tx, channels.combined), (Some(4), Some(4), None));
        let changed = {
            let mut pod = kernel.pod(pod).unwrap();
            pod.batch(&[Op::TakeFromHost { index, as_index: None, name: "net1".to_owned(), up: true }])
                .unwrap();
            let mut changed = before.clone();
            changed.features = before.features.as_ref().map(|all| all.replace(|digit| digit != '0', "0"));
            changed.channels = Some(Channels { rx: Some(1), tx: Some(2), ..channels });
            assert_eq!(pod.restore_netdev_settings(index, &changed).unwrap(), Vec::<String>::new());
            assert_eq!(pod.netdev_settings(index).unwrap(), changed);
            pod.batch(&[Op::MoveToHost { index, as_index: None, name: "eth1".to_owned() }]).unwrap();
            changed
        };
        assert_eq!(host.netdev_settings(index).unwrap(), changed, "a move changes none of them");
        assert_eq!(host.restore_netdev_settings(index, &before).unwrap(), Vec::<String>::new());
        assert_eq!(host.netdev_settings(index).unwrap(), before);
    });
}

#[test]
fn features_are_switched_by_their_names_and_no_others_change_with_them() {
    let stage = Stage::new();
    stage.play(|kernel, _| {
        let mut host = kernel.host().unwrap();
        let before = host.netdev_settings(INDEX).unwrap();
        let names = ["tx-checksum-ip-generic", "rx-gro", "no-such-feature"];
        let was = host.features_on(INDEX, &names).unwrap();
        for on in [true, false] {
            let left = host.switch_features(INDEX, &names.map(str::to_owned), on).unwrap();
            assert_eq!(left, Vec::<String>::new(), "switched to {on}");
            let expected: &[&str] = if on { &names[..2] } else { &[] };
            assert_eq!(host.features_on(INDEX, &names).unwrap(), expected, "switched to {on}");
        }
        host.switch_features(INDEX, &was, true).unwrap();
        assert_eq!(host.netdev_settings(INDEX).unwrap(), before);
        assert_eq!(host.features_on(77, &names).unwrap_err().errno(), Some(Errno::ENODEV));
    });
}

#[test]
fn coalescing_that_a_pod_changed_comes_home_with_a_link_and_is_made_what_it_was() {
    let stage = Stage::new();
    stage.play(|kernel, pod| {
        // The one kind of virtual link that has any.
        run("ip tuntap add tap0 mode tap");
        let mut host = kernel.host().unwrap();
        let index = host.link_by_name("tap0").unwrap().unwrap().index;
        let before = host.netdev_settings(index).unwrap();
        let coalescing = before.coalescing.clone().unwrap();
        // ETHTOOL_A_COALESCE_RX_MAX_FRAMES
        let changed = Numbers::from([(3, coalescing.get(&3).copied().unwrap_or_default() + 5)]);
        let changed = NetdevSettings { coalescing: Some(changed), ..before.clone() };
        {
            let mut pod = kernel.pod(pod).unwrap();
            pod.batch(&[Op::TakeFromHost { index, as_index: None, name: "net1".to_owned(), up: false }])
                .unwrap();
            assert_eq!(pod.restore_netdev_settings(index, &changed).unwrap(), Vec::<String>::new());
            pod.batch(&[Op::MoveToHost { index, as_index: None, name: "tap0".to_owned() }]).unwrap();
        }
        assert_eq!(host.netdev_settings(index).unwrap(), changed, "a move does not change it");
        assert_eq!(host.restore_netdev_settings(index, &before).unwrap(), Vec::<String>::new());
        assert_eq!(host.netdev_settings(index).unwrap(), before);
        let wrong = NetdevSettings { rings: Some(Numbers::from([(6, 7)])), ..before };
        let left = host.restore_netdev_settings(index, &wrong).unwrap();
        assert!(left.len() == 1 && left[0].contains("rings"), "what it has none of is told: {left:?}");
    });
}

#[test]
fn a_setting_that_cannot_be_restored_is_told_and_keeps_no_other_from_it() {
    let stage = Stage::new();
    stage.play(|kernel, _| {
        let mut host = kernel.host().unwrap();
        let before = host.netdev_settings(INDEX).unwrap();
        let mut wrong = before.clone();
        wrong.channels = Some(Channels { rx: Some(999), ..before.channels.unwrap() });
        let off = before.features.as_ref().map(|all| all.replace(|digit| digit != '0', "0"));
        wrong.features.clone_from(&off);
        let left = host.restore_netdev_settings(INDEX, &wrong).unwrap();
        assert!(
            left.len() == 1 && left[0].contains("channels") && left[0].contains("999 receive"),
            "{left:?}"
        );
        assert_eq!(host.netdev_settings(INDEX).unwrap().features, off);
        // Of another kernel, by its number of features.
        wrong = NetdevSettings { features: Some("00".to_owned()), ..before };
        let left = host.restore_netdev_settings(INDEX, &wrong).unwrap();
        assert!(left.len() == 1 && left[0].contains("features"), "{left:?}");
        assert_eq!(host.netdev_settings(77).unwrap_err().errno(), Some(Errno::ENODEV));
        assert!(!left[0].to_lowercase().contains("not found"));
    });
}

/// What a move does by itself, so that nobody has to.
#[test]
fn queueing_disciplines_with_their_filters_group_memberships_and_addresses_of_a_pod_do_not_leave_it() {
    let stage = Stage::new();
    stage.play(|kernel, pod| {
        let mut pod = kernel.pod(pod).unwrap();
        pod.batch(&[lend()]).unwrap();
        let address = Address {
            index: INDEX,
            net: "10.9.0.2/24".parse().unwrap(),
            broadcast: None,
            flags: AddressFlags::default(),
        };
        pod.batch(&[Op::AddAddress(address)]).unwrap();
        run("tc qdisc add dev net1 clsact");
        run("tc filter add dev net1 ingress protocol all u32 match u32 0 0");
        run("tc qdisc add dev net1 root tbf rate 1mbit burst 10k latency 50ms");
        run("ip maddr add 33:33:00:00:00:99 dev net1");
        run("bridge fdb add 02:00:00:00:00:77 dev net1 self");
        run("ip link set net1 promisc on allmulticast on");
        pod.batch(&[home()]).unwrap();
        drop(pod);
        let mut host = kernel.host().unwrap();
        assert_eq!(host.addresses(INDEX).unwrap(), []);
        // A veth that is down has none.
        assert!(
            !run("tc qdisc show dev eth0").contains("clsact")
                && !run("tc qdisc show dev eth0").contains("tbf")
        );
        assert!(!run("ip maddr show dev eth0").contains("33:33:00:00:00:99"));
        assert!(!run("bridge fdb show dev eth0").contains("02:00:00:00:00:77"));
        assert!(host.link_by_index(INDEX).unwrap().unwrap().is_promiscuous(), "that has to be taken away");
        let off = SetLink { index: INDEX, settings: LinkSettings::of_flags(0), ..SetLink::default() };
        host.batch(&[Op::SetLink(off)]).unwrap();
        assert!(!host.link_by_index(INDEX).unwrap().unwrap().is_promiscuous());
    });
}

#[test]
fn a_program_is_told_by_its_number_and_its_place() {
    let program = AttachedProgram { id: 7, hook: XdpGeneric, link: None };
    assert_eq!(program.to_string(), "XDP (generic) program 7");
}
