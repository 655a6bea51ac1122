//! Pools that kubelet allocates from: which VFs it is offered, and what a pod gets of that.

use fairlead_host::double::KernelRequest;

use super::machine::join_group;
use super::*;
use crate::VFIO_PCI;
use crate::pools::state::Refusal;

const RADIO: &str = "pools: [{name: radio, selectors: {vendors: ['8086']}, resourceName: intel.com/radio}]";

impl Rig {
    fn offer(&self, resource: &str) -> Arc<Offer> {
        let offers = self.pools().offers();
        offers.into_iter().find(|offer| offer.resource() == resource).unwrap()
    }

    /// The list of a resource: each VF by the last digit of its address, with `!` where it is not healthy.
    fn offered(&self, resource: &str) -> Option<String> {
        let short = |vf: &OfferedVf| {
            let address = vf.address.to_string();
            let sick = if vf.healthy { "" } else { "!" };
            format!("{}{sick}", address.rsplit('.').next().unwrap())
        };
        let list = self.offer(resource).list();
        let list = list.borrow();
        list.as_ref().map(|list| list.iter().map(short).collect::<Vec<_>>().join(" "))
    }

    /// What kubelet is answered, while the threads work.
    fn allocate(&self, vf: &str) -> Result<VfAccess, String> {
        self.allocate_at(Instant::now(), vf)
    }

    fn allocate_at(&self, now: Instant, vf: &str) -> Result<VfAccess, String> {
        std::thread::scope(|scope| {
            let answered = scope.spawn(|| self.pools().allocate_at(now, pci(vf)));
            while !answered.is_finished() {
                self.pools().work_here();
                std::thread::sleep(Duration::from_millis(1));
            }
            answered.join().unwrap()
        })
    }
}

#[test]
fn x17_x23_a_list_is_complete_when_it_comes_and_names_only_what_was_verified() {
    let mut rig = with(RADIO);
    rig.restart();
    assert_eq!(rig.offered("intel.com/radio").as_deref(), Some(""), "nothing is verified");
    rig.pools().work_here();
    assert_eq!(rig.offered("intel.com/radio").as_deref(), Some("0 2"));
    rig.order(Verb::Quarantine, VF);
    assert_eq!(rig.offered("intel.com/radio").as_deref(), Some("0! 2"));
    rig.order(Verb::Release, VF);
    assert_eq!(rig.offered("intel.com/radio").as_deref(), Some("0 2"));
    rig.kernel.set_dead(SECOND, true);
    rig.check_pools();
    assert_eq!(rig.offered("intel.com/radio").as_deref(), Some("0 2!"));
}

#[test]
fn a_lend_and_a_return_show_nobody_a_new_list() {
    let two = "pools: [{name: a, selectors: {pfNames: ['pf0#0']}, resourceName: intel.com/a}, \
               {name: b, selectors: {pfNames: ['pf0#1']}, resourceName: intel.com/b}]";
    let rig = kept(two);
    assert_eq!(rig.offered("intel.com/a").as_deref(), Some("0"));
    let [mut a, mut b] = ["intel.com/a", "intel.com/b"].map(|resource| rig.offer(resource).list());
    a.mark_unchanged();
    b.mark_unchanged();
    rig.pools().lend(pci(VF), Instant::now()).unwrap().keep();
    rig.pools().take_back(pci(VF), || Ok::<(), ()>(())).unwrap();
    rig.pools().work_here();
    assert!(!a.has_changed().unwrap(), "it was healthy all the while");
    rig.order(Verb::Quarantine, VF);
    assert!(a.has_changed().unwrap() && !b.has_changed().unwrap());
}

#[test]
fn a_resource_that_stays_declared_stays_the_same_offer() {
    let mut rig = kept(RADIO);
    let before = rig.offer("intel.com/radio");
    rig.configure(&RADIO.replace("name: radio", "name: other"));
    assert!(Arc::ptr_eq(&before, &rig.offer("intel.com/radio")));
    rig.keep(); // The other pool has them when the first one has given them back.
    assert_eq!(rig.offered("intel.com/radio").as_deref(), Some("0 2"));
    rig.configure("pools: []");
    assert!(rig.pools().offers().is_empty());
}

fn resets(rig: &Rig) -> usize {
    rig.asked(|asked| *asked == KernelRequest::Reset(VF.to_owned()))
}

/// When what kubelet asks is about another pod than what it asks now.
fn next_pod() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn x07_a_vf_that_two_containers_of_a_pod_have_stays_as_it_is_and_is_cleaned_for_the_next_pod() {
    let rig = kept(RADIO);
    rig.kernel.forget_calls();
    let now = Instant::now();
    let told = rig.allocate_at(now, VF).unwrap();
    assert_eq!(rig.allocate_at(now, VF).unwrap(), told);
    assert_eq!((rig.states(), rig.changes()), (vec!["given".to_owned(), "ready".to_owned()], 0));
    rig.allocate_at(next_pod(), VF).unwrap();
    assert_eq!((rig.states(), resets(&rig)), (vec!["given".to_owned(), "ready".to_owned()], 1));
}

#[test]
fn x07_a_vf_whose_container_has_waited_for_another_vf_is_the_same_pods_still_when_its_next_container_comes() {
    let rig = kept(RADIO);
    rig.kernel.forget_calls();
    let offer = rig.offer("intel.com/radio");
    let begun = Instant::now() - Duration::from_secs(6);
    rig.allocate_at(begun, VF).unwrap();
    // The second one of the same answer comes so much later.
    rig.allocate(SECOND).unwrap();
    [VF, SECOND].iter().for_each(|vf| offer.allocation_answered(pci(vf)));
    for vf in [VF, SECOND] {
        rig.allocate(vf).unwrap();
    }
    assert_eq!((rig.states(), rig.changes()), (vec!["given".to_owned(), "given".to_owned()], 0));
}

#[test]
fn x07_a_vf_that_was_allocated_without_an_add_is_cleaned_before_it_is_allocated_again() {
    let mut rig = kept(RADIO);
    rig.kernel.forget_calls();
    rig.allocate(VF).unwrap();
    assert_eq!((rig.states(), resets(&rig)), (vec!["given".to_owned(), "ready".to_owned()], 0));
    rig.restart();
    rig.check_pools();
    assert_eq!((rig.states(), resets(&rig)), (vec!["given".to_owned(), "ready".to_owned()], 0));
    rig.allocate_at(next_pod(), VF).unwrap();
    assert_eq!((rig.states(), resets(&rig)), (vec!["given".to_owned(), "ready".to_owned()], 1));
    let mark = rig.dir.path().join("run/pools").join(SECOND);
    fs::remove_file(&mark).unwrap();
    fs::create_dir(&mark).unwrap();
    let refused = rig.allocate(SECOND).unwrap_err();
    assert!(refused.contains("make room in the run directory"), "{refused}");
    assert_eq!(rig.states(), ["given", "ready"]);
}

/// A pool of VFs with RDMA devices, everything ready.
fn with_rdma() -> Rig {
    rdma_vfs(&RADIO.replace("['8086']", "['8086'], isRdma: true"))
}

/// The same with these pools.
fn rdma_vfs(text: &str) -> Rig {
    let mut rig = with(text);
    [VF, SECOND].iter().for_each(|vf| rig.kernel.add_rdma(vf).unwrap());
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig
}

/// The RDMA device of a VF and its nodes, as they are now.
fn rdma_of(rig: &Rig, vf: &str) -> crate::Rdma {
    rig.pools().provisioner.inventory.rdma(pci(vf)).unwrap()
}

#[test]
fn x07_the_rdma_nodes_that_a_pod_gets_are_those_that_its_vf_has_when_it_was_cleaned() {
    let rig = with_rdma();
    assert_eq!(rig.allocate(VF).unwrap().rdma.unwrap(), rdma_of(&rig, VF));
    let before = rdma_of(&rig, VF);
    assert_eq!(rig.allocate(VF).unwrap().rdma.unwrap(), before, "for another container of the pod");
    let again = rig.allocate_at(next_pod(), VF).unwrap().rdma.unwrap();
    assert_ne!(again, before, "it was bound anew");
    assert_eq!(again, rdma_of(&rig, VF));
}

#[test]
fn x07_an_rdma_vf_that_its_last_pod_has_still_is_waited_for() {
    let rig = with_rdma();
    rig.pools().lend(pci(VF), Instant::now()).unwrap().keep();
    let offer = rig.offer("intel.com/radio");
    let told = std::thread::scope(|scope| {
        let answered = scope.spawn(|| offer.allocate(pci(VF)));
        std::thread::sleep(Duration::from_millis(100));
        let waits = !answered.is_finished();
        rig.pools().take_back(pci(VF), || Ok::<(), ()>(())).unwrap();
        rig.pools().work_here();
        (waits, answered.join().unwrap())
    });
    assert_eq!((told.0, told.1.unwrap().rdma.unwrap()), (true, rdma_of(&rig, VF)));
    assert_eq!(rig.states(), ["given", "ready"]);
    // Without RDMA its ADD waits instead, and kubelet is answered at once: also where another selector of the pool says isRdma.
    for selectors in ["{vendors: ['8086']}", "[{pfNames: ['pf0#0']}, {isRdma: true}]"] {
        let rig = rdma_vfs(&RADIO.replace("{vendors: ['8086']}", selectors));
        rig.pools().lend(pci(VF), Instant::now()).unwrap().keep();
        assert_eq!(rig.offer("intel.com/radio").allocate(pci(VF)).unwrap().rdma, None);
        assert_eq!(rig.states(), ["lent", "ready"], "{selectors}");
    }
}

/// The pod of a VF loses its sandbox: the VF is lent to that and comes back.
fn sandbox_comes_and_goes(rig: &Rig, vf: &str) {
    rig.pools().lend(pci(vf), Instant::now()).unwrap().keep();
    rig.pools().take_back(pci(vf), || Ok::<(), ()>(())).unwrap();
}

#[test]
fn x07_a_pod_whose_sandbox_is_made_anew_has_the_rdma_nodes_that_kubelet_was_told() {
    let rig = with_rdma();
    let told = [VF, SECOND].map(|vf| rig.allocate(vf).unwrap().rdma.unwrap());
    // Both at once, as when the runtime is restarted: bound anew, each would have whatever number is free.
    [VF, SECOND].iter().for_each(|vf| sandbox_comes_and_goes(&rig, vf));
    rig.pools().work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
    assert_eq!([VF, SECOND].map(|vf| rdma_of(&rig, vf)), told);
    [VF, SECOND].iter().for_each(|vf| rig.pools().lend(pci(vf), Instant::now()).unwrap().keep());
    // One on which its pod has left something is bound anew all the same.
    rig.pools().soiled(pci(VF), "XDP (driver) program 7");
    rig.pools().take_back(pci(VF), || Ok::<(), ()>(())).unwrap();
    rig.pools().work_here();
    assert_ne!(rdma_of(&rig, VF), told[0]);
}

#[test]
fn x07_a_sandbox_is_refused_a_vf_with_other_rdma_nodes_than_kubelet_was_told() {
    let mut rig = with_rdma();
    let told = rig.allocate(VF).unwrap().rdma.unwrap();
    sandbox_comes_and_goes(&rig, VF);
    rig.pools().soiled(pci(VF), "XDP (driver) program 7");
    rig.pools().work_here();
    let now = rdma_of(&rig, VF);
    assert_ne!(now, told, "it was bound anew");
    for restarted in [false, true] {
        if restarted {
            rig.restart();
        }
        let refused = rig.pools().lend(pci(VF), Instant::now()).err().unwrap();
        let why = Refusal::OtherNodes { told: told.nodes.join(", "), now: now.nodes.join(", ") };
        assert_eq!((refused.why, rig.states()[0].as_str()), (why, "ready"));
    }
    // The pod is made anew, and kubelet asks again.
    assert_eq!(rig.allocate(VF).unwrap().rdma.unwrap(), now);
    sandbox_comes_and_goes(&rig, VF);
    // What an earlier release told nobody has noted: it is not refused.
    rig.pools().soiled(pci(VF), "XDP (driver) program 7");
    rig.pools().work_here();
    fs::remove_file(rig.dir.path().join("run/pools").join(format!("{VF}.nodes"))).unwrap();
    sandbox_comes_and_goes(&rig, VF);
}

#[test]
fn k27_after_a_reboot_a_vf_of_no_known_pool_is_refused_in_another_group_than_kubelet_was_told() {
    let mut rig = with("");
    let file = rig.dir.path().join("config.json");
    let text = format!("devicePluginConfig: {}", file.display());
    let resource = r#"{"resourceName":"radio","selectors":[{"pfNames":["pf0"],"drivers":["vfio-pci"]}]}"#;
    fs::write(&file, format!(r#"{{"resourceList":[{resource}]}}"#)).unwrap();
    rig.configuration = configuration(&text);
    rig.kernel.drive(VF, Some(VFIO_PCI)).unwrap();
    rig.restart();
    rig.keep();
    assert_eq!(rig.states(), ["ready"]);
    rig.allocate(VF).unwrap();
    rig.rewrite_records(|record| {
        record.get_mut("was").into_iter().for_each(|was| was["bootId"] = "another".into());
    });
    fs::remove_dir_all(rig.dir.path().join("run/pools")).unwrap();
    // Whoever binds it to vfio-pci comes after the first look.
    rig.kernel.drive(VF, Some("igbvf")).unwrap();
    rig.restart();
    rig.keep();
    assert!(rig.members().is_empty());
    rig.kernel.drive(VF, Some(VFIO_PCI)).unwrap();
    drop(rig.pools().lend(pci(VF), Instant::now()).unwrap()); // as mostly, the group is the same
    join_group(&rig.sys(), VF, 30);
    for is_read in [true, false] {
        if !is_read {
            fs::write(&file, "{").unwrap();
            rig.configuration = configuration(&text);
            rig.restart();
            rig.keep();
        }
        assert!(rig.members().is_empty());
        let refused = rig.pools().lend(pci(VF), Instant::now()).err().unwrap();
        let [told, now] = [20, 30].map(|group| format!("those of IOMMU group {group}"));
        let why = Refusal::OtherNodes { told, now };
        assert_eq!(refused, Refused { pool: "intel.com/radio".to_owned(), why }, "{is_read}");
    }
}

#[test]
fn vhost_net_goes_with_a_vf_where_the_host_has_its_nodes_or_its_dev_is_not_seen() {
    let rig = kept(&RADIO.replace("['8086']", "['8086'], needVhostNet: true"));
    let dev = rig.dir.path().join("dev");
    let goes = || rig.allocate(VF).unwrap().vhost_net;
    assert!(goes(), "nothing says that they are not there");
    fs::create_dir_all(dev.join("net")).unwrap();
    assert!(goes(), "only a part of it is seen");
    fs::write(dev.join("null"), "").unwrap();
    assert!(!goes());
    fs::write(dev.join("vhost-net"), "").unwrap();
    assert!(!goes(), "no /dev/net/tun");
    fs::write(dev.join("net/tun"), "").unwrap();
    assert!(goes());
    fs::remove_file(dev.join("vhost-net")).unwrap();
    assert!(!goes());
}

#[test]
fn x07_the_pod_of_a_vf_under_vfio_gets_no_rdma_nodes_though_its_selector_says_so() {
    let rig = rdma_vfs(&RADIO.replace("{vendors: ['8086']}", "{isRdma: true}, driver: vfio-pci"));
    let access = rig.allocate(VF).unwrap();
    assert!(access.vfio.is_some() && access.rdma.is_none(), "{access:?}");
}

#[test]
fn an_rdma_vf_whose_nodes_cannot_be_told_is_refused_to_kubelet_and_nobodys_after_that() {
    for has_device in [false, true] {
        let rig = with_rdma();
        match has_device {
            true => fs::remove_dir_all(rig.device(VF).join("infiniband_verbs")).unwrap(),
            false => rig.take_rdma(VF),
        }
        let refused = rig.allocate(VF).unwrap_err();
        assert!(refused.contains("its driver has made no RDMA device, or no node of it yet"), "{refused}");
        assert_eq!(rig.states(), ["ready", "ready"]);
    }
}

#[test]
fn x07_one_that_was_given_when_a_daemon_was_killed_that_had_not_noted_it_as_clean_is_given_still() {
    let mut rig = kept(RADIO);
    rig.allocate(VF).unwrap();
    rig.rewrite_records(|record| drop(record.insert("unclean".to_owned(), "a program".into())));
    rig.restart();
    assert_eq!(rig.states()[0], "given");
}
