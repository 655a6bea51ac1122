//! VFs that sriov-cni gave to pods: kept from everybody while those live, and brought home as that plugin noted.

use std::fs;
use std::time::SystemTime;

use fairlead_cni::Code;
use fairlead_host::watch::{Action, DeviceEvent};
use fairlead_host::{Link, Mac, NetKernel, Op, SetLink, Vf, VfChange, VfVlan};
use fairlead_sriov::pools::Look;
use nix::errno::Errno;

use super::*;

/// What is asked of it; that plugin was asked the same.
const CONFIG: &str =
    r#"{"cniVersion":"1.0.0","name":"net","type":"sriov","deviceID":"0000:21:10.0","vlan":100,"trust":"on"}"#;

impl Rig {
    fn noted(&self, name: &str) -> PathBuf {
        self.root.join("var/lib/cni/sriov").join(name)
    }

    /// As that plugin notes it when its ADD is done.
    fn note(&self, container: &str, interface: &str, mac: Option<Mac>) {
        fs::create_dir_all(self.noted("pci/vf_lock")).unwrap();
        let mac = mac.map(|mac| mac.to_string()).unwrap_or_default();
        let state = format!(
            r#"{{"MAC":"","MTU":1500,"Master":"pf0","OrigVfState":{{"AdminMAC":"{mac}","EffectiveMAC":"{mac}","HostIFName":"{interface}",
                "LinkState":0,"MTU":1500,"MaxTxRate":0,"MinTxRate":0,"SpoofChk":true,"Trust":false,"Vlan":0,"VlanProto":33024,"VlanQoS":0}},
                "VFID":0,"cniVersion":"1.0.0","deviceID":"{VF}","ipam":{{}},"max_tx_rate":null,"min_tx_rate":null,"name":"net",
                "runtimeConfig":{{}},"trust":"on","type":"sriov","vlan":100,"vlanProto":"802.1q","vlanQoS":0}}"#
        );
        fs::write(self.noted(&format!("{container}-net1")), state).unwrap();
        fs::write(self.noted(&format!("pci/{VF}")), POD).unwrap();
    }

    fn set(&self, change: VfChange) {
        let mut host = self.kernel.host().unwrap();
        let pf = host.link_by_name(PF).unwrap().unwrap().index;
        host.batch(&[Op::SetVfs { pf, changes: vec![(0, change)] }]).unwrap();
    }

    /// What that plugin's ADD does: settings, MTU and name changed, in the pod, up.
    fn lent_by_sriov_cni(&self) {
        let vlan = VfVlan { id: 100, ..VfVlan::default() };
        self.set(VfChange { vlan: Some(vlan), trust: Some(true), ..VfChange::default() });
        let vf = self.kernel.host().unwrap().link_by_name("vf0").unwrap().unwrap();
        let mut pod = self.kernel.pod(POD.as_ref()).unwrap();
        pod.batch(&[Op::TakeFromHost { index: vf.index, as_index: None, name: "net1".into(), up: false }])
            .unwrap();
        let index = pod.link_by_name("net1").unwrap().unwrap().index;
        let set = SetLink { index, up: Some(true), mtu: Some(1300), ..SetLink::default() };
        pod.batch(&[Op::SetLink(set)]).unwrap();
        self.note("c1", "vf0", vf.mac);
    }

    fn noted_files(&self) -> Vec<String> {
        files(&self.noted(""))
    }

    fn add_of(&self, container: &str) -> Result<String, CniError> {
        self.call(self.request(Command::Add, container, CONFIG))
    }

    fn del_of(&self, container: &str) -> Result<String, CniError> {
        self.call(self.request(Command::Del, container, CONFIG))
    }
}

/// All that can be seen of the VF while it is at home.
fn home(rig: &Rig) -> (Option<Link>, Vf) {
    (rig.at_home().map(|link| Link { index: 0, ..link }), rig.settings())
}

fn nothing_is_noted(rig: &Rig) {
    assert_eq!(rig.noted_files(), Vec::<String>::new());
}

#[test]
fn the_del_of_an_old_sandbox_brings_its_vf_home_as_it_was() {
    for (dies, netns) in [(false, POD), (true, POD), (false, "")] {
        let rig = Rig::new();
        let before = home(&rig);
        rig.lent_by_sriov_cni();
        rig.kernel.add_host_link("net1"); // so that the kernel has to find it another name
        if dies {
            rig.kernel.kill_namespace(POD);
        }
        for _ in 0..2 {
            let request = rig.request(Command::Del, "c1", CONFIG);
            rig.call(Request { netns: netns.into(), ..request }).unwrap();
            assert_eq!(home(&rig), before, "dies: {dies}, CNI_NETNS {netns:?}");
            assert_eq!((rig.noted_files().len(), rig.engine().core.store.all().len()), (0, 0));
        }
    }
}

#[test]
fn x05_the_del_of_an_old_sandbox_that_is_refused_at_any_call_is_done_by_the_next_one() {
    let counted = Rig::new();
    counted.lent_by_sriov_cni();
    counted.kernel.forget_calls();
    counted.del_of("c1").unwrap();
    for n in 0..counted.kernel.calls().len() {
        let mut rig = Rig::new();
        let before = rig.state();
        rig.lent_by_sriov_cni();
        rig.kernel.forget_calls();
        rig.kernel.fail_from(n, Errno::ENOBUFS);
        rig.del_of("c1").unwrap_err();
        let noted = rig.noted_files();
        assert!(
            noted == [VF, "c1-net1"] || (noted.is_empty() && rig.state() == before),
            "call {n}: {noted:?}"
        );
        rig.kernel.heal();
        rig.restart();
        rig.del_of("c1").unwrap();
        assert_eq!(rig.state(), before, "call {n}");
        nothing_is_noted(&rig);
    }
}

#[test]
fn a_vf_whose_pod_lives_is_handed_to_nobody() {
    let rig = Rig::new();
    rig.lent_by_sriov_cni();
    let (state, noted) = (rig.state(), rig.noted_files());
    let error = rig.add_of("c2").unwrap_err();
    assert_eq!(error.code, Code::TryAgain);
    assert!(error.msg.contains("sriov-cni has given it to a pod (c1-net1)"), "{error}");
    // Also where that plugin's DEL has left the namespace only.
    fs::remove_file(rig.noted("c1-net1")).unwrap();
    let error = rig.add_of("c2").unwrap_err();
    assert!(error.msg.contains("to the pod in /run/netns/pod"), "{error}");
    assert_eq!(rig.state(), state);
    assert_eq!(noted, [VF, "c1-net1"]);
}

#[test]
fn a_vf_whose_pod_is_dead_is_brought_home_before_it_is_handed_out() {
    let rig = Rig::new();
    let before = home(&rig);
    rig.lent_by_sriov_cni();
    rig.kernel.kill_namespace(POD);
    rig.kernel.add_namespace("/run/netns/next");
    let next = |command| Request {
        netns: "/run/netns/next".into(),
        ..rig.request(
            command,
            "c2",
            r#"{"cniVersion":"1.0.0","name":"net","type":"sriov","deviceID":"0000:21:10.0"}"#,
        )
    };
    rig.call(next(Command::Add)).unwrap();
    nothing_is_noted(&rig);
    assert_eq!(rig.settings(), before.1, "nothing of the dead pod's is left");
    // X22: the old sandbox's late DEL.
    let state = rig.state();
    rig.del_of("c1").unwrap();
    assert_eq!(rig.state(), state);
    rig.call(next(Command::Del)).unwrap();
    assert_eq!(home(&rig), before);
}

#[test]
fn x22_the_del_of_an_old_sandbox_touches_no_vf_that_a_newer_one_has() {
    let rig = Rig::new();
    rig.lent_by_sriov_cni();
    let old = fs::read_to_string(rig.noted("c1-net1")).unwrap();
    let stale = |name: &str| {
        fs::write(rig.noted(name), &old).unwrap();
        let file = fs::File::options().write(true).open(rig.noted(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    };
    stale("c0-net1");
    let state = rig.state();
    rig.del_of("c0").unwrap();
    assert_eq!((rig.state(), rig.noted_files()), (state, vec![VF.to_owned(), "c1-net1".to_owned()]));
    // Also where the newer one is ours.
    rig.del_of("c1").unwrap();
    rig.add_of("c2").unwrap();
    stale("c0-net1");
    let state = rig.state();
    rig.del_of("c0").unwrap();
    assert_eq!(rig.state(), state);
    nothing_is_noted(&rig);
}

#[test]
fn where_no_namespace_was_noted_an_interface_that_is_here_is_in_no_pod() {
    let rig = Rig::new();
    rig.lent_by_sriov_cni();
    fs::remove_file(rig.noted(&format!("pci/{VF}"))).unwrap();
    let error = rig.add_of("c2").unwrap_err();
    assert!(error.msg.contains("nothing tells whether that lives"), "{error}");
    assert!(error.details.contains("/var/lib/cni/sriov"), "{error:?}");
    rig.kernel.kill_namespace(POD);
    rig.kernel.add_namespace(POD);
    rig.add_of("c2").unwrap();
    nothing_is_noted(&rig);
}

#[test]
fn a_vf_in_user_space_has_its_settings_back_and_keeps_its_driver() {
    let rig = Rig::new();
    let before = rig.state();
    vf::drive(&rig.dir.path().join("sys"), "vfio-pci");
    let vlan = VfVlan { id: 100, ..VfVlan::default() };
    rig.set(VfChange { vlan: Some(vlan), trust: Some(true), ..VfChange::default() });
    rig.note("c1", "", None);
    rig.del_of("c1").unwrap();
    assert_eq!(rig.state(), before);
    nothing_is_noted(&rig);
}

#[test]
fn x24_what_was_noted_in_an_earlier_boot_is_forgotten_and_nothing_is_done_for_it() {
    let rig = Rig::new();
    rig.note("c1", "another-name", None);
    let file = fs::File::options().write(true).open(rig.noted("c1-net1")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let before = rig.state();
    rig.kernel.forget_calls();
    rig.del_of("c1").unwrap();
    assert_eq!(rig.state(), before);
    nothing_is_noted(&rig);
}

#[test]
fn what_a_clock_that_was_set_forward_makes_look_old_is_of_this_boot_while_its_pod_lives() {
    let old = |rig: &Rig| {
        let file = fs::File::options().write(true).open(rig.noted("c1-net1")).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    };
    let rig = Rig::new();
    let before = home(&rig);
    rig.lent_by_sriov_cni();
    old(&rig);
    rig.del_of("c1").unwrap();
    assert_eq!(home(&rig), before);
    // Nor is that pod dead because its namespace was not noted.
    rig.lent_by_sriov_cni();
    old(&rig);
    fs::remove_file(rig.noted(&format!("pci/{VF}"))).unwrap();
    let error = rig.add_of("c2").unwrap_err();
    assert!(error.msg.contains("nothing tells whether that lives"), "{error}");
    // In user space.
    rig.del_of("c1").unwrap();
    rig.kernel.drive(VF, Some("vfio-pci")).unwrap();
    rig.set(VfChange { trust: Some(true), ..VfChange::default() });
    rig.note("c1", "", None);
    old(&rig);
    rig.del_of("c1").unwrap();
    assert_eq!(rig.settings().trust, Some(false));
}

#[test]
fn what_cannot_be_read_stops_no_del_and_a_directory_that_cannot_be_read_stops_adds_of_vfs() {
    let rig = Rig::new();
    fs::create_dir_all(rig.noted("")).unwrap();
    fs::write(rig.noted("c1-net1"), "{").unwrap();
    rig.del_of("c1").unwrap();
    rig.add_of("c2").unwrap();
    rig.del_of("c2").unwrap();
    let directory = rig.root.join("var/lib/cni/sriov");
    fs::remove_dir_all(&directory).unwrap();
    std::os::unix::fs::symlink("sriov", directory).unwrap();
    let error = rig.add_of("c2").unwrap_err();
    assert_eq!(error.code, Code::Io, "{error}");
    assert!(error.msg.contains("the files of sriov-cni in /var/lib/cni/sriov"), "{error}");
}

#[test]
fn to_its_pool_a_vf_of_sriov_cnis_is_lent_until_its_pod_is_dead_and_ready_then() {
    let mut rig = Rig::new();
    rig.kernel.show_in(&rig.dir.path().join("sys"));
    rig.lent_by_sriov_cni();
    rig.configure("pools: [{name: radio, selectors: {vendors: ['8086']}}]");
    rig.engine().core.sweep();
    assert_eq!(rig.states(), ["lent"]);
    assert_eq!(rig.members()[0]["attachment"], "sriov-cni's c1-net1", "{:?}", rig.members());
    rig.kernel.kill_namespace(POD);
    rig.kernel.forget_calls();
    rig.engine().core.sweep();
    assert_eq!(rig.noted_files().len(), 2, "the look-out for namespaces waits for no VF");
    rig.reap();
    nothing_is_noted(&rig);
    rig.keep();
    assert_eq!(rig.states(), ["ready"]);
    assert_eq!(rig.settings().vlan.unwrap().id, 0);
}

#[test]
fn to_its_pool_a_vf_whose_file_is_removed_by_hand_is_nobodys_with_the_next_look() {
    let mut rig = Rig::new();
    rig.kernel.show_in(&rig.dir.path().join("sys"));
    rig.lent_by_sriov_cni();
    rig.configure("pools: [{name: radio, selectors: {vendors: ['8086']}}]");
    fs::remove_dir_all(rig.noted("")).unwrap();
    rig.keep();
    assert_eq!(rig.states(), ["foreign"], "its interface is in the pod still");
    rig.kernel.kill_namespace(POD);
    rig.keep();
    rig.engine().core.kinds.sriov.pools.work_here();
    assert_eq!(rig.states(), ["ready"]);
}

#[test]
fn to_its_pool_a_vf_is_lent_as_long_as_the_files_cannot_be_read() {
    let mut rig = Rig::new();
    rig.kernel.show_in(&rig.dir.path().join("sys"));
    let directory = rig.root.join("var/lib/cni/sriov");
    fs::create_dir_all(directory.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("sriov", &directory).unwrap();
    rig.configure("pools: [{name: radio, selectors: {vendors: ['8086']}}]");
    rig.keep();
    assert_eq!(rig.states(), ["lent"]);
    fs::remove_file(directory).unwrap();
    rig.keep();
    assert_eq!(rig.states(), ["ready"]);
}

#[test]
fn a_draw_passes_over_what_sriov_cni_gave_to_a_pod_since_the_pool_was_looked_at() {
    let rig = pools::kept("pools: [{name: radio, selectors: {vendors: ['8086']}}]");
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.note("c0", "vf0", None);
    let drawn = r#"{"cniVersion":"1.1.0","name":"net","type":"fairlead","ipam":{},"paths":[{"type":"sriov","pool":"radio"}]}"#;
    let answer = rig.add(drawn).unwrap();
    assert!(answer.contains(pools::SECOND) && !answer.contains(VF), "{answer}");
    assert_eq!(rig.states(), ["lent", "lent"]);
    assert_eq!(rig.members()[0]["attachment"], "sriov-cni's c0-net1");
    rig.keep();
    assert_eq!(rig.states(), ["lent", "lent"], "a look finds whose it is");
    fs::remove_dir_all(rig.noted("")).unwrap();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "lent"]);
}

#[test]
fn x24_a_vf_in_user_space_that_an_earlier_boots_pod_had_is_free_though_no_namespace_was_noted() {
    let rig = Rig::new();
    rig.kernel.drive(VF, Some("vfio-pci")).unwrap();
    rig.note("c1", "", None);
    fs::remove_file(rig.noted(&format!("pci/{VF}"))).unwrap();
    let error = rig.add_of("c2").unwrap_err();
    assert!(error.msg.contains("nothing tells whether that lives"), "of this boot: {error}");
    let file = fs::File::options().write(true).open(rig.noted("c1-net1")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    rig.add_of("c2").unwrap();
    nothing_is_noted(&rig);
}

#[test]
fn a_draw_takes_nothing_while_the_files_cannot_be_read_and_the_pool_stays_full() {
    let rig = pools::kept("pools: [{name: radio, selectors: {vendors: ['8086']}}]");
    let directory = rig.root.join("var/lib/cni/sriov");
    fs::create_dir_all(directory.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("sriov", &directory).unwrap();
    let drawn = r#"{"cniVersion":"1.1.0","name":"net","type":"fairlead","ipam":{},"paths":[{"type":"sriov","pool":"radio"}]}"#;
    let error = rig.add(drawn).unwrap_err();
    assert_eq!(error.code, Code::Io, "{error}");
    rig.check_pools();
    assert_eq!(rig.states(), ["ready", "ready"]);
    fs::remove_file(directory).unwrap();
    rig.add(drawn).unwrap();
}

#[test]
fn to_its_pool_a_vf_that_sriov_cni_takes_is_lent_and_left_alone_until_it_is_home() {
    let rig = pools::kept("pools: [{name: radio, selectors: {vendors: ['8086']}}]");
    let glance = |rig: &Rig, action| {
        let news = DeviceEvent::Interface { device: VF.to_owned(), name: "vf0".to_owned(), action };
        rig.engine().core.kinds.sriov.pools.device_events(&[news]);
        rig.engine().look_at_pools(Look::News);
    };
    rig.lent_by_sriov_cni();
    glance(&rig, Action::Removed);
    assert_eq!(rig.states(), ["lent", "ready"]);
    rig.kernel.kill_namespace(POD);
    rig.kernel.forget_calls();
    glance(&rig, Action::Added);
    rig.keep();
    assert_eq!((rig.states(), rig.changes()), (vec!["lent".to_owned(), "ready".to_owned()], 0));
    rig.engine().core.sweep();
    rig.reap();
    nothing_is_noted(&rig);
    assert_eq!(rig.states(), ["preparing", "ready"]);
    rig.engine().core.kinds.sriov.pools.work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn to_its_pool_what_somebody_else_used_is_lent_as_soon_as_it_is_told_whose_it_is() {
    let mut rig = Rig::new();
    rig.kernel.show_in(&rig.dir.path().join("sys"));
    rig.lent_by_sriov_cni();
    fs::remove_dir_all(rig.noted("")).unwrap();
    rig.configure("pools: [{name: radio, selectors: {vendors: ['8086']}}]");
    assert_eq!(rig.states(), ["foreign"]);
    rig.note("c1", "vf0", None);
    rig.keep();
    assert_eq!(rig.states(), ["lent"]);
}

/// Looks as the pool reconciler does until the pool's members stand so, before the look that is due each minute.
fn kept_until(rig: &Rig, states: [&str; 2]) {
    let minute = Instant::now() + Duration::from_secs(60);
    while rig.states() != states {
        let how = rig.engine().core.kinds.sriov.pools.next_look(minute).unwrap();
        assert!(Instant::now() < minute, "{:?} instead of {states:?}", rig.states());
        rig.engine().look_at_pools(how);
        rig.engine().core.kinds.sriov.pools.work_here();
    }
}

#[test]
fn to_its_pool_what_sriov_cni_takes_and_brings_home_by_itself_is_so_at_once_where_its_directory_was_not_there()
 {
    let rig = pools::kept("pools: [{name: radio, selectors: {vendors: ['8086']}}]");
    let _watch = Engine::watch_leftovers(rig.engine.as_ref().unwrap()).unwrap();
    rig.lent_by_sriov_cni();
    kept_until(&rig, ["lent", "ready"]);
    rig.kernel.kill_namespace(POD); // and its interface is here again
    fs::remove_file(rig.noted(&format!("pci/{VF}"))).unwrap();
    fs::remove_file(rig.noted("c1-net1")).unwrap();
    kept_until(&rig, ["ready", "ready"]);
}
