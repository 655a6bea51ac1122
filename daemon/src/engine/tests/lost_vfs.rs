//! Attachments whose VF has vanished, was made again or bound anew under their pods: what the operator is told of them, and that their DEL
//! touches no VF that was made at the address since.

use fairlead_host::{IommuGroup, Link, NetKernel, Op};

use super::pools::{POOL, kept};
use super::vf::{TAGGED, config};
use super::*;

impl Rig {
    /// The VF is removed, and another one made at its address, which this driver has.
    fn make_again(&self, driver: &str) {
        self.kernel.drive(VF, None).unwrap();
        self.unplug(VF);
        self.plug_in_again(VF);
        self.kernel.drive(VF, Some(driver)).unwrap();
    }

    /// By the DEL of its attachment, or by its namespace's death.
    fn end_the_pod(&self, by_del: bool, config: &str) {
        if by_del {
            self.del(config).unwrap();
            return;
        }
        self.kernel.kill_namespace(POD);
        self.engine().core.namespace_died(self.engine().core.store.all()[0].netns.nsid.unwrap());
        self.reap();
    }
}

#[test]
fn x17_an_attachment_whose_vf_is_no_more_the_pods_is_told_as_broken_until_its_del() {
    type Cause = fn(&Rig);
    let vanished: Cause = |rig| rig.unplug(VF);
    let unbound: Cause = |rig| rig.kernel.drive(VF, None).unwrap();
    let rebound: Cause = |rig| rig.kernel.drive(VF, Some("vfio-pci")).unwrap();
    let anew: Cause = |rig| rig.kernel.drive(VF, Some("igbvf")).unwrap();
    let made_again: Cause = |rig| rig.make_again("igbvf");
    for (cause, says) in [
        (vanished, "the machine has no PCI device 0000:21:10.0"),
        (unbound, "its VF 0000:21:10.0 has no driver"),
        (rebound, "its VF 0000:21:10.0 is bound to vfio-pci instead of igbvf"),
        (anew, "the interface of its VF 0000:21:10.0 is in the host's namespace"),
        (made_again, "PCI device 0000:21:10.0 was made again: it is another one"),
    ] {
        let rig = Rig::new();
        let broken = || rig.engine().table("attachments").unwrap()[0]["broken"].clone();
        rig.add(&config("")).unwrap();
        assert!(broken().is_null(), "{}", broken());
        cause(&rig);
        assert_eq!(broken(), says);
        rig.kernel.kill_namespace(POD);
        rig.del(&config("")).unwrap();
        assert!(broken().is_null());
    }
}

#[test]
fn x17_so_is_one_whose_vf_vfio_has_no_more() {
    let rig = Rig::new();
    let config = config("").replace(VF, VFIO);
    rig.add(&config).unwrap();
    let broken = || rig.engine().table("attachments").unwrap()[0]["broken"].clone();
    assert!(broken().is_null(), "{}", broken());
    rig.kernel.drive(VFIO, Some("igbvf")).unwrap();
    assert_eq!(broken(), "its VF 0000:41:10.0 is bound to igbvf instead of vfio-pci");
}

#[test]
fn x17_the_end_of_a_pod_whose_vf_was_made_again_leaves_the_new_one_to_whoever_has_it() {
    const ELSEWHERE: &str = "/run/netns/elsewhere";
    type Use = fn(&Rig, &Link);
    let in_a_bond: Use = |rig, link| {
        rig.kernel.add_host_link("bond0");
        rig.kernel.enslave(&link.name, "bond0");
        rig.set_up(&link.name, true);
    };
    let in_another_namespace: Use = |rig, link| {
        rig.kernel.add_namespace(ELSEWHERE);
        let mut elsewhere = rig.kernel.pod(ELSEWHERE.as_ref()).unwrap();
        let (index, name) = (link.index, "uplink0".to_owned());
        elsewhere.batch(&[Op::TakeFromHost { index, as_index: None, name, up: true }]).unwrap();
    };
    let config = config(TAGGED);
    for uses_it in [in_a_bond, in_another_namespace] {
        for by_del in [true, false] {
            let rig = Rig::new();
            rig.add(&config).unwrap();
            rig.make_again("igbvf");
            uses_it(&rig, &rig.at_home().unwrap());
            let links = || {
                let all = rig.kernel.snapshot().namespaces.into_values().flat_map(|netns| netns.links);
                all.filter(|(_, link)| link.device.is_some()).collect::<Vec<_>>()
            };
            let (before, settings) = (links(), rig.settings());
            rig.end_the_pod(by_del, &config);
            assert_eq!((links(), rig.settings()), (before, settings));
            assert_eq!(rig.engine().core.store.all().len(), 0);
        }
    }
}

#[test]
fn x17_nor_does_it_wait_for_a_process_that_has_the_new_one_by_vfio() {
    let config = config(TAGGED);
    for by_del in [true, false] {
        let rig = Rig::new();
        rig.kernel.drive(VF, Some("vfio-pci")).unwrap();
        let answer = rig.add(&config).unwrap();
        rig.check(&config, &answer).unwrap();
        rig.make_again("vfio-pci");
        let changed = rig.check(&config, &answer).unwrap_err();
        assert!(changed.msg.contains("was made again"), "{changed}");
        rig.kernel.set_group(GROUP - 1, IommuGroup::InUse);
        let settings = rig.settings();
        rig.end_the_pod(by_del, &config);
        assert_eq!((rig.settings(), rig.engine().core.store.all().len()), (settings, 0));
    }
}

#[test]
fn x17_a_vf_of_a_pool_that_was_made_again_is_ready_after_the_old_pods_del() {
    let rig = kept(POOL);
    let settings = rig.settings();
    rig.add(&config(r#","vlan":100"#)).unwrap();
    rig.make_again("igbvf");
    rig.keep();
    assert_eq!(rig.states(), ["lent", "ready"]);
    rig.del(&config(r#","vlan":100"#)).unwrap();
    rig.engine().core.kinds.sriov.pools.work_here();
    assert_eq!((rig.states(), rig.settings()), (vec!["ready".to_owned(); 2], settings));
    assert_eq!(rig.named("vf0").as_deref(), Some(VF));
}
