//! The kernel in memory keeps the rules of the real one, records, and fails to order.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use fairlead_host::double::{FakeKernel, KernelRequest, Place};
use fairlead_host::{
    Address, AddressFlags, IommuGroup, Kind, MacvlanMode, NetError, NetKernel, NetnsError, NewLink, Nsid, Op,
    Override, Parent, PciKernel, Route, SetLink,
};
use nix::errno::Errno;

const POD: &str = "/run/netns/pod";
const VF: &str = "0000:21:10.0";

fn macvlan(name: &str, parent: u32) -> NewLink {
    NewLink {
        name: name.to_owned(),
        index: Some(4242),
        kind: Kind::Macvlan { mode: MacvlanMode::Bridge, bc_queue_len: None },
        parent: Parent::Host(parent),
        mac: None,
        mtu: None,
        up: true,
    }
}

fn address(text: &str) -> Op {
    let net = text.parse().unwrap();
    Op::AddAddress(Address { index: 4242, net, broadcast: None, flags: AddressFlags::default() })
}

fn default_route(gateway: &str) -> Op {
    Op::AddRoute(Route {
        dst: "0.0.0.0/0".parse().unwrap(),
        gateway: Some(gateway.parse().unwrap()),
        index: 4242,
        source: None,
        table: None,
        scope: None,
        priority: None,
        mtu: None,
        advmss: None,
        protocol: None,
    })
}

fn errno(outcome: Result<(), NetError>) -> Option<Errno> {
    outcome.unwrap_err().errno()
}

#[test]
fn what_is_made_and_deleted_again_leaves_the_host_as_before() {
    let kernel = FakeKernel::new();
    let parent = kernel.add_host_link("eth0");
    kernel.add_namespace(POD);
    let before = kernel.snapshot();
    let mut pod = kernel.pod(Path::new(POD)).unwrap();
    pod.batch(&[Op::CreateLink(macvlan("net1", parent)), address("10.9.0.2/24"), default_route("10.9.0.1")])
        .unwrap();
    pod.set_sysctl("net/ipv4/conf/net1/arp_notify", "1").unwrap();
    assert_ne!(kernel.snapshot(), before);
    assert_eq!(errno(pod.batch(&[Op::CreateLink(macvlan("net1", parent))])), Some(Errno::EEXIST));
    assert_eq!(errno(pod.batch(&[default_route("10.10.0.1")])), Some(Errno::ENETUNREACH));
    assert_eq!(pod.routes().unwrap().len(), 2, "with the connected one");
    pod.batch(&[Op::DeleteLink(4242)]).unwrap();
    assert_eq!(kernel.snapshot(), before);
    assert_eq!(errno(pod.batch(&[Op::DeleteLink(4242)])), Some(Errno::ENODEV));
}

#[test]
fn the_call_that_is_told_to_fail_does_nothing_and_is_recorded() {
    let kernel = FakeKernel::new();
    let parent = kernel.add_host_link("eth0");
    let id = kernel.add_namespace(POD);
    kernel.fail_at(2, Errno::ENOMEM);
    let mut pod = kernel.pod(Path::new(POD)).unwrap();
    let outcome =
        pod.batch(&[Op::CreateLink(macvlan("net1", parent)), address("10.9.0.2/24"), address("10.9.0.3/24")]);
    let Err(NetError::Op(error)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((error.at, error.errno), (1, Errno::ENOMEM));
    let calls = kernel.calls();
    assert_eq!(calls.len(), 3);
    assert_eq!(calls[0].request, KernelRequest::Open(POD.into()));
    assert_eq!(
        (calls[2].place, &calls[2].request),
        (Place::Pod(id.cookie.unwrap()), &KernelRequest::Op(address("10.9.0.2/24")))
    );
    assert_eq!(pod.addresses(4242).unwrap(), []);
}

#[test]
fn a_dead_namespaces_inode_and_number_are_given_away_again_and_its_cookie_never() {
    let kernel = FakeKernel::new();
    kernel.reuse_inodes();
    let parent = kernel.add_host_link("eth0");
    let first = kernel.add_namespace(POD);
    let mut pod = kernel.pod(Path::new(POD)).unwrap();
    pod.batch(&[Op::CreateLink(macvlan("net1", parent))]).unwrap();
    assert_eq!(pod.nsid().unwrap(), Some(Nsid(0)));
    kernel.unmount(POD);
    assert!(matches!(kernel.pod(Path::new(POD)), Err(NetnsError::Missing { .. })));
    assert_eq!(kernel.link_at(Nsid(0), 4242).unwrap().unwrap().name, "net1");
    kernel.delete_at(Nsid(0), 4242).unwrap();
    assert_eq!(kernel.link_at(Nsid(0), 4242).unwrap(), None);
    let second = kernel.add_namespace(POD);
    kernel.kill_namespace(POD);
    let third = kernel.add_namespace(POD);
    assert_eq!(second.ino, third.ino);
    assert!(!second.same(&third) && !first.same(&third));
}

#[test]
fn a_physical_link_falls_back_to_the_host_and_a_deleted_parent_takes_its_ports_along() {
    let kernel = FakeKernel::new();
    let parent = kernel.add_host_link("eth0");
    kernel.add_namespace(POD);
    let mut pod = kernel.pod(Path::new(POD)).unwrap();
    pod.batch(&[Op::TakeFromHost { index: parent, as_index: None, name: "vf0".to_owned(), up: false }])
        .unwrap();
    assert!(kernel.host().unwrap().link_by_name("eth0").unwrap().is_none());
    drop(pod);
    kernel.kill_namespace(POD);
    assert!(kernel.host().unwrap().link_by_name("vf0").unwrap().is_some());
    let bridge = kernel.add_host_link("eth1");
    kernel.add_namespace(POD);
    let mut pod = kernel.pod(Path::new(POD)).unwrap();
    let upper = NewLink { parent: Parent::Host(bridge), ..macvlan("net1", bridge) };
    pod.batch(&[Op::CreateLink(upper)]).unwrap();
    let lower = NewLink { index: Some(9), parent: Parent::Same(4242), ..macvlan("net2", 4242) };
    pod.batch(&[Op::CreateLink(lower), Op::DeleteLink(4242)]).unwrap();
    assert_eq!(pod.links().unwrap().len(), 1);
}

#[test]
fn a_thread_is_in_one_pods_namespace_at_a_time() {
    let kernel = FakeKernel::new();
    kernel.add_namespace(POD);
    let pod = kernel.pod(Path::new(POD)).unwrap();
    assert!(kernel.pod(Path::new(POD)).is_err());
    std::thread::scope(|scope| assert!(scope.spawn(|| kernel.pod(Path::new(POD)).is_ok()).join().unwrap()));
    drop(pod);
    kernel.pod(Path::new(POD)).unwrap();
}

#[test]
fn an_old_kernel_renames_only_what_is_down() {
    let kernel = FakeKernel::new().without_rename_while_up().without_cookies();
    let index = kernel.add_host_link("eth0");
    let rename = SetLink { index, name: Some("eth9".to_owned()), ..SetLink::default() };
    let mut host = kernel.host().unwrap();
    assert_eq!(errno(host.batch(&[Op::SetLink(rename.clone())])), Some(Errno::EBUSY));
    host.batch(&[Op::SetLink(SetLink { index, up: Some(false), ..SetLink::default() }), Op::SetLink(rename)])
        .unwrap();
    assert_eq!(host.link_by_name("eth9").unwrap().unwrap().index, index);
    assert!(!kernel.renames_while_up());
    assert_eq!(kernel.add_namespace(POD).cookie, None);
}

#[test]
fn a_vf_under_vfio_has_no_interface_and_is_let_go_only_when_its_group_is_free() {
    let kernel = FakeKernel::new();
    let sysfs = tempfile::tempdir().unwrap();
    let device = sysfs.path().join("bus/pci/devices").join(VF);
    std::fs::create_dir_all(&device).unwrap();
    std::os::unix::fs::symlink("../groups/19", device.join("iommu_group")).unwrap();
    let pf = kernel.add_host_link("pf0");
    kernel.add_vf(pf, VF, "vf0");
    kernel.show_in(sysfs.path());
    let interfaces = || {
        let links = kernel.host().unwrap().links().unwrap();
        links.into_iter().filter(|link| link.device.as_deref() == Some(VF)).count()
    };
    assert_eq!(errno(kernel.reset(VF)), Some(Errno::EPERM), "a kernel driver has it");
    kernel.bind(VF, "vfio-pci", Override::Set).unwrap();
    assert_eq!(
        (interfaces(), std::fs::read_link(device.join("driver")).unwrap().ends_with("vfio-pci")),
        (0, true)
    );
    assert_eq!(errno(kernel.bind(VF, "igbvf", Override::Keep)), Some(Errno::ENODEV), "vfio-pci is fixed");
    kernel.set_group(19, IommuGroup::InUse);
    assert_eq!(kernel.iommu_group(19).unwrap(), IommuGroup::InUse);
    for refused in [kernel.reset(VF), kernel.unbind(VF), kernel.bind(VF, "igbvf", Override::Clear)] {
        assert_eq!(errno(refused), Some(Errno::EBUSY));
    }
    kernel.set_group(19, IommuGroup::Free);
    kernel.unbind(VF).unwrap();
    kernel.reset(VF).unwrap();
    kernel.bind(VF, "igbvf", Override::Clear).unwrap();
    assert_eq!(interfaces(), 1);
    kernel.set_dead(VF, true);
    assert!(!kernel.answers(VF).unwrap());
}
