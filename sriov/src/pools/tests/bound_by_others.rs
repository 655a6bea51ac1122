//! Pools whose VFs somebody else binds: they keep whatever driver they are given.

use fairlead_host::double::KernelRequest;
use fairlead_host::watch::{Action, DeviceEvent};
use fairlead_host::{IommuGroup, Op, Override, PciKernel, SetLink, VfChange, VfLinkState, VfVlan};

use super::*;

const VFIO_DRIVER: &str = "vfio-pci";

impl Rig {
    /// The owner's, step by step.
    fn rebound(&self, driver: &str, fixed: Override) {
        self.kernel.bind(VF, driver, fixed).unwrap();
        self.kernel.forget_calls();
    }

    fn hears_of(&self, action: Action) {
        self.pools().device_events(&[DeviceEvent::Pci { device: VF.to_owned(), action }]);
        self.look(Look::News);
        self.pools().work_here();
    }

    fn bound_to(&self) -> (Option<String>, Option<String>) {
        self.kernel.snapshot().drivers[VF].clone()
    }

    fn binds(&self) -> usize {
        self.asked(|asked| matches!(asked, KernelRequest::Bind(..) | KernelRequest::Unbind(_)))
    }
}

/// Another plugin's VFs, which have RDMA devices; nothing was done to them yet. With `trust` the interface of such a VF takes its MAC
/// address without a new binding.
fn rdma_vfs_of_another_plugin() -> Rig {
    let text = "pools: [{name: radio, selectors: {vendors: ['8086'], isRdma: true}, allocator: external, \
                profile: {vlan: 7, trust: on}}]";
    let mut rig = with(text);
    [VF, SECOND].iter().for_each(|vf| rig.kernel.add_rdma(vf).unwrap());
    rig.restart();
    rig
}

/// A pod has the first VF, does this, and is gone; its pool has done its work after that.
fn lent_and_returned(rig: &Rig, meanwhile: impl FnOnce()) {
    let lent = rig.pools().lend(pci(VF), Instant::now()).unwrap();
    meanwhile();
    lent.keep();
    rig.pools().take_back(pci(VF), || Ok::<(), ()>(())).unwrap();
    rig.pools().work_here();
}

/// Ready, each by its own configuration: another plugin's VFs, and those of the SR-IOV device plugin's own file.
fn rigs() -> [Rig; 2] {
    let external =
        "pools: [{name: radio, selectors: {vendors: ['8086']}, profile: {vlan: 7}, allocator: external}]";
    let file = tempfile::NamedTempFile::new().unwrap();
    let resources = r#"{"resourceList":[{"resourceName":"radio","selectors":[{"vendors":["8086"]}]}]}"#;
    fs::write(file.path(), resources).unwrap();
    [external, &format!("devicePluginConfig: {}", file.path().display())].map(|text| {
        let rig = kept(text);
        assert_eq!(rig.states(), ["ready", "ready"]);
        rig.kernel.forget_calls();
        rig
    })
}

#[test]
fn a_vf_keeps_the_driver_that_its_owner_gives_it_and_is_prepared_under_that() {
    for mut rig in rigs() {
        let to_vfio = (Some(VFIO_DRIVER.to_owned()), Some(VFIO_DRIVER.to_owned()));
        rig.rebound(VFIO_DRIVER, Override::Set);
        rig.hears_of(Action::Bound);
        assert_eq!((rig.states(), rig.binds()), (vec!["ready".to_owned(); 2], 0));
        assert_eq!(
            (rig.bound_to(), rig.members()[0]["driver"].as_str()),
            (to_vfio.clone(), Some(VFIO_DRIVER))
        );
        rig.restart();
        rig.keep();
        rig.rebound("igbvf", Override::Clear);
        rig.hears_of(Action::Bound);
        assert_eq!((rig.states()[0].as_str(), rig.at_home().unwrap().name.as_str()), ("ready", "vf0"));
        assert_eq!(rig.bound_to(), (Some("igbvf".to_owned()), None));
        rig.rebound(VFIO_DRIVER, Override::Set);
        rig.order(Verb::Drain, VF);
        assert_eq!((rig.bound_to(), rig.settings().vlan.unwrap().id), (to_vfio, 0), "given back under it");
        assert_eq!(rig.states()[0], "drained");
    }
}

#[test]
fn a_vf_that_its_owner_binds_anew_under_a_pod_keeps_that_when_it_comes_home() {
    for rig in rigs() {
        rig.pools().lend(VF.parse().unwrap(), Instant::now()).unwrap().keep();
        rig.rebound(VFIO_DRIVER, Override::Set);
        rig.pools().take_back(VF.parse().unwrap(), || Ok::<(), ()>(())).unwrap();
        rig.pools().work_here();
        assert_eq!((rig.states()[0].as_str(), rig.bound_to().0.as_deref()), ("ready", Some(VFIO_DRIVER)));
        assert_eq!(rig.binds(), 0);
    }
}

#[test]
fn while_its_owner_binds_a_vf_it_is_left_alone() {
    for rig in rigs() {
        // As the SR-IOV operator does it: unbound, the override written, bound, the override cleared.
        rig.kernel.unbind(VF).unwrap();
        rig.kernel.forget_calls();
        rig.hears_of(Action::Unbound);
        assert_eq!((rig.states()[0].as_str(), rig.binds(), rig.bound_to().0), ("foreign", 0, None));
        rig.kernel.bind(VF, "ixgbevf", Override::Set).unwrap();
        rig.kernel.drive(VF, None).unwrap(); // promised to that, and not bound
        rig.kernel.forget_calls();
        rig.check_pools();
        rig.check_pools();
        assert_eq!((rig.states()[0].as_str(), rig.binds(), rig.bound_to().0), ("foreign", 0, None));
        let row = rig.members().remove(0);
        assert!(row["reason"].as_str().unwrap().contains("given from igbvf to ixgbevf"), "{row}");
        rig.rebound(VFIO_DRIVER, Override::Set);
        rig.rebound(VFIO_DRIVER, Override::Clear);
        rig.hears_of(Action::Bound);
        assert_eq!((rig.states()[0].as_str(), rig.binds()), ("ready", 0));
        assert_eq!(rig.bound_to(), (Some(VFIO_DRIVER.to_owned()), None));
    }
}

#[test]
fn one_that_its_owner_leaves_without_a_driver_is_left_alone_until_it_has_one_across_restarts_too() {
    for mut rig in rigs() {
        rig.kernel.unbind(VF).unwrap();
        rig.kernel.forget_calls();
        rig.hears_of(Action::Unbound);
        for restarted in [false, true, false] {
            if restarted {
                rig.restart();
            }
            rig.keep();
            rig.check_pools();
            rig.keep_on();
            assert_eq!((rig.states()[0].as_str(), rig.binds(), rig.bound_to().0), ("foreign", 0, None));
        }
        let row = rig.members().remove(0);
        assert!(row["reason"].as_str().unwrap().contains("bind it to the one that it is to have"), "{row}");
        rig.rebound("igbvf", Override::Keep);
        rig.hears_of(Action::Bound);
        assert_eq!((rig.states()[0].as_str(), rig.bound_to().0.as_deref()), ("ready", Some("igbvf")));
    }
}

#[test]
fn one_that_its_owner_binds_anew_while_no_daemon_runs_keeps_that_though_its_pool_is_gone_then() {
    for mut rig in rigs() {
        let pool = std::mem::take(&mut rig.configuration);
        rig.pools = None;
        rig.rebound(VFIO_DRIVER, Override::Set);
        rig.restart();
        rig.keep();
        let to_vfio = (Some(VFIO_DRIVER.to_owned()), Some(VFIO_DRIVER.to_owned()));
        assert_eq!((rig.members().len(), rig.bound_to()), (0, to_vfio));
        assert_eq!(rig.settings().vlan.unwrap().id, 0, "what the pool has set is taken back all the same");
        let other = rig.kernel.snapshot().drivers[SECOND].0.clone();
        assert_eq!(other.as_deref(), Some("igbvf"));
        rig.configuration = pool;
        rig.restart();
        rig.keep();
        assert_eq!(rig.states(), ["ready", "ready"]);
    }
}

impl Rig {
    /// Somebody gives the first VF's interface this MTU.
    fn set_mtu(&self, mtu: u32) {
        let index = self.at_home().unwrap().index;
        self.in_host(Op::SetLink(SetLink { index, mtu: Some(mtu), ..SetLink::default() }));
    }

    /// Somebody changes a setting of the first VF through its PF.
    fn set_by_pf(&self, change: VfChange) {
        let pf = self.kernel.host().unwrap().link_by_name(PF).unwrap().unwrap().index;
        self.in_host(Op::SetVfs { pf, changes: vec![(0, change)] });
    }

    fn mtu(&self) -> u32 {
        self.at_home().unwrap().mtu
    }
}

#[test]
fn what_its_owner_sets_on_a_ready_vf_is_no_news_and_is_so_after_each_pod() {
    for mut rig in rigs() {
        rig.set_mtu(9000);
        rig.set_by_pf(VfChange { link_state: Some(VfLinkState::Enable), ..VfChange::default() });
        rig.kernel.forget_calls();
        let as_set = |rig: &Rig| {
            let is_so = (rig.states()[0] == "ready", rig.mtu(), rig.settings().link_state);
            assert_eq!(is_so, (true, 9000, Some(VfLinkState::Enable)));
        };
        rig.check_pools();
        as_set(&rig);
        assert_eq!(rig.changes(), 0);
        let lent = rig.pools().lend(pci(VF), Instant::now()).unwrap();
        assert_eq!(lent.known().unwrap().settings.link_state, Some(VfLinkState::Enable));
        drop(lent);
        // What a pod has set is not its next pod's.
        lent_and_returned(&rig, || {
            rig.set_mtu(1400);
            rig.look(Look::Thorough);
        });
        as_set(&rig);
        rig.restart();
        rig.kernel.forget_calls();
        rig.check_pools();
        as_set(&rig);
        assert_eq!(rig.changes(), 0);
    }
}

#[test]
fn what_keeps_tenants_apart_and_what_its_pool_says_is_put_back_whoever_has_set_it() {
    let text =
        "pools: [{name: radio, selectors: {vendors: ['8086']}, profile: {mtu: 1400}, allocator: external}]";
    let rig = kept(text);
    rig.set_mtu(9000);
    rig.check_pools();
    assert_eq!((rig.states()[0].as_str(), rig.mtu()), ("ready", 1400), "as the pool says");
    for rig in rigs() {
        let (before, mtu) = (rig.settings(), rig.mtu());
        let vlan = Some(VfVlan { id: 9, ..VfVlan::default() });
        for change in [
            VfChange { vlan, ..VfChange::default() },
            VfChange { trust: Some(true), ..VfChange::default() },
            VfChange { spoofchk: Some(false), ..VfChange::default() },
        ] {
            rig.set_mtu(9000);
            rig.set_by_pf(change);
            rig.check_pools();
            assert_eq!((rig.settings(), rig.mtu()), (before.clone(), mtu), "made ready anew, all of it");
        }
    }
}

#[test]
fn x07_an_rdma_vf_that_another_plugin_allocates_stays_bound_so_that_its_nodes_are_its_own_at_any_moment() {
    let rig = rdma_vfs_of_another_plugin();
    let nodes = || rig.pools().provisioner.inventory.rdma(pci(VF)).unwrap();
    let before = nodes();
    let was_bound_anew = |asked: &KernelRequest| {
        matches!(asked, KernelRequest::Bind(..) | KernelRequest::Unbind(_) | KernelRequest::Reset(_))
    };
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    lent_and_returned(&rig, || {
        let vlan = Some(VfVlan { id: 9, ..VfVlan::default() });
        rig.set_by_pf(VfChange { vlan, ..VfChange::default() });
    });
    assert_eq!((rig.states()[0].as_str(), rig.settings().vlan.unwrap().id), ("ready", 7));
    assert_eq!((rig.asked(was_bound_anew), nodes()), (0, before));
    rig.order(Verb::Drain, VF);
    assert_eq!((rig.states()[0].as_str(), rig.settings().vlan.unwrap().id), ("drained", 0));
    assert_eq!(rig.asked(|asked| matches!(asked, KernelRequest::Unbind(_) | KernelRequest::Reset(_))), 0);
}

#[test]
fn x07_an_rdma_vf_of_another_plugin_that_is_in_doubt_is_bound_anew() {
    let rig = rdma_vfs_of_another_plugin();
    rig.keep();
    let unbound = || rig.asked(|asked| *asked == KernelRequest::Unbind(VF.to_owned()));
    // Its pod has left a program, and the operator's order, which hides that, ends before the VF is worked on.
    for (ordered, expected) in [(false, 1), (true, 2)] {
        lent_and_returned(&rig, || {
            rig.pools().soiled(pci(VF), "XDP (driver) program 7");
            if ordered {
                [Verb::Quarantine, Verb::Release].iter().for_each(|verb| rig.order(*verb, VF));
            }
        });
        assert_eq!((rig.states()[0].as_str(), unbound()), ("ready", expected));
    }
    rig.kernel.set_dead(VF, true);
    rig.check_pools();
    rig.kernel.set_dead(VF, false);
    rig.keep_on();
    assert_eq!((rig.states()[0].as_str(), unbound()), ("ready", 3));
}

#[test]
fn without_an_iommu_a_vf_of_the_device_plugins_file_is_quarantined_with_a_remedy_that_can_be_followed() {
    let mut rig = with("");
    let file = rig.dir.path().join("config.json");
    let resource = r#"{"resourceName":"radio","selectors":[{"pfNames":["pf0#0"]}]}"#;
    fs::write(&file, format!(r#"{{"resourceList":[{resource}]}}"#)).unwrap();
    rig.configuration = configuration(&format!("devicePluginConfig: {}", file.display()));
    rig.kernel.drive(VF, Some(VFIO_DRIVER)).unwrap();
    rig.kernel.set_group(20, IommuGroup::NoIommu);
    rig.restart();
    rig.keep();
    rig.keep_on();
    assert_eq!(rig.states(), ["quarantined"]);
    let reason = rig.members()[0]["reason"].to_string();
    let remedy = "make a pool with the same resourceName, driver: vfio-pci and allowNoIommu: true";
    assert!(reason.contains("behind no IOMMU") && reason.contains(remedy), "{reason}");
}
