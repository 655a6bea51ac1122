//! What the operator is told of attachments whose VF has vanished, was made anew or bound anew under their pods.

use super::vf::config;
use super::*;

#[test]
fn x17_an_attachment_whose_vf_is_no_more_the_pods_is_told_as_broken_until_its_del() {
    type Cause = fn(&Rig);
    let vanished: Cause = |rig| rig.unplug(VF);
    let unbound: Cause = |rig| rig.kernel.drive(VF, None).unwrap();
    let rebound: Cause = |rig| rig.kernel.drive(VF, Some("vfio-pci")).unwrap();
    let anew: Cause = |rig| rig.kernel.drive(VF, Some("igbvf")).unwrap();
    for (cause, says) in [
        (vanished, "the machine has no PCI device 0000:21:10.0"),
        (unbound, "its VF 0000:21:10.0 has no driver"),
        (rebound, "its VF 0000:21:10.0 is bound to vfio-pci instead of igbvf"),
        (anew, "the interface of its VF 0000:21:10.0 is in the host's namespace"),
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
