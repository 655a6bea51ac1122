//! What a boot finds on record of the one before it: nothing of the host is made what it was then.

use std::fs;

use fairlead_host::process::boot_id;
use fairlead_host::{NetKernel, Op, SetLink};

use super::*;
use crate::delegate::script;

/// Has all that is on record be of another boot. No daemon may run.
fn reboot(rig: &Rig) {
    let this_boot = boot_id().unwrap();
    fs::write(rig.dir.path().join("run/boot-id"), "another").unwrap();
    for file in fs::read_dir(rig.dir.path().join("state/attachments")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "json") {
            let record = fs::read_to_string(&path).unwrap();
            fs::write(&path, record.replace(&this_boot, "another")).unwrap();
        }
    }
}

#[test]
fn x24_a_device_that_was_lent_before_a_reboot_stays_as_it_is_by_now_and_its_ipam_gets_its_del() {
    let mut rig = Rig::on_this_host();
    let plugins = tempfile::tempdir().unwrap();
    let lease = r#"cat >/dev/null
echo $CNI_COMMAND >>"$0.calls"
[ $CNI_COMMAND = DEL ] || echo '{"cniVersion":"1.0.0","ips":[{"address":"10.66.0.2/24"}]}'"#;
    script::write(&plugins.path().join("lease"), lease);
    let config =
        r#"{"cniVersion":"1.0.0","name":"net","type":"host-device","device":"dev0","ipam":{"type":"lease"}}"#;
    let path = plugins.path().display().to_string();
    rig.call(Request { path, ..rig.request(Command::Add, "c1", config) }).unwrap();
    rig.engine = None;
    reboot(&rig);
    rig.kernel.kill_namespace(POD);
    // The kernel has made the device anew, and the node has put it into a bond.
    rig.rename("net1", "dev0");
    let index = rig.kernel.host().unwrap().link_by_name("dev0").unwrap().unwrap().index;
    let (mtu, alias, up) = (Some(9000), Some(String::new()), Some(true));
    rig.in_host(Op::SetLink(SetLink { index, mtu, alias, up, ..SetLink::default() }));
    rig.kernel.add_host_link("bond0");
    rig.kernel.enslave("dev0", "bond0");
    let before = rig.kernel.snapshot();
    rig.restart();
    rig.reap();
    assert_eq!(rig.kernel.snapshot(), before);
    assert_eq!(fs::read_to_string(plugins.path().join("lease.calls")).unwrap(), "ADD\nDEL\n");
    assert!(rig.engine().core.store.all().is_empty());
}
