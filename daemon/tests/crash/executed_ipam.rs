//! An IPAM that is executed and looks for the interface which it is to give an address to, as the plugin of `dhcp` does: it asks the
//! network by that.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::rig::{Reply, Rig};

/// The network with such an IPAM. It refuses as long as the file `refuses` is there, and its DEL as long as
/// `refuses-del` is.
pub(crate) fn asked_by_link(rig: &Rig, mut network: Value) -> Value {
    fs::create_dir_all(rig.path("held")).unwrap();
    let text = format!(
        r#"#!/bin/sh
cat >/dev/null
held={held}/$CNI_CONTAINERID.$CNI_IFNAME
refused() {{ printf '{{"code":100,"msg":"%s"}}' "$1"; exit 1; }}
case $CNI_COMMAND in
ADD)
    nsenter --net="$CNI_NETNS" ip link show dev "$CNI_IFNAME" >/dev/null 2>&1 || refused "no interface to ask by"
    [ ! -e {refuses} ] || refused "nobody answers"
    : >"$held"
    echo '{{"cniVersion":"1.0.0","ips":[{{"address":"10.66.0.2/24"}}]}}'
    ;;
DEL)
    [ ! -e {refuses}-del ] || refused "nobody answers"
    rm -f "$held"
    ;;
esac
"#,
        held = rig.path("held").display(),
        refuses = rig.path("refuses").display(),
    );
    // A file that is being written cannot be executed: so it is renamed into its place.
    let beside = rig.path("asks.new");
    fs::write(&beside, text).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(beside, rig.path("bin/asks")).unwrap();
    network["ipam"] = json!({ "type": "asks" });
    network
}

/// A device of the host to be lent.
pub(crate) fn lent(rig: &Rig) -> Value {
    rig.ip("link add dev0 mtu 1400 type veth peer name dev0-peer");
    rig.ip("link set dev0 alias mine");
    rig.ip("link set dev0 up");
    rig.ip("link set dev0-peer up");
    json!({ "cniVersion": "1.0.0", "name": "lent", "type": "host-device", "device": "dev0" })
}

/// A link that is made, and a device that is lent.
const KINDS: [fn(&Rig) -> Value; 2] = [|rig| rig.macvlan("net"), lent];

#[test]
fn an_executed_ipam_finds_the_interface_in_the_pod_and_takes_it_along_where_it_has_no_address() {
    for network in KINDS {
        let rig = Rig::new();
        let network = network(&rig);
        let (config, pod) = (asked_by_link(&rig, network), rig.pod("pod"));
        let call = rig.call("c1", &pod, &config);
        let _daemon = rig.start();
        let before = rig.leftovers(&[&pod]);
        fs::write(rig.path("refuses"), "").unwrap();
        let told = call.add();
        assert!(matches!(&told, Reply::Refused(e) if e.msg.contains("nobody answers")), "{told:?}");
        rig.is_as(&before, &[&pod], "an ADD that got no address");
        fs::remove_file(rig.path("refuses")).unwrap();
        pod.has_what_was_answered("eth0", &call.add().result());
        call.del().succeeds();
        rig.is_as(&before, &[&pod], "DEL");
    }
}

#[test]
fn where_the_del_of_an_executed_ipam_fails_too_nothing_is_left_but_the_record_which_goes_when_that_works() {
    for network in KINDS {
        let rig = Rig::new();
        let network = network(&rig);
        let (config, pod) = (asked_by_link(&rig, network), rig.pod("pod"));
        let call = rig.call("c1", &pod, &config);
        let daemon = rig.start();
        let before = rig.leftovers(&[&pod]);
        let links = (rig.links(), pod.links());
        for file in ["refuses", "refuses-del"] {
            fs::write(rig.path(file), "").unwrap();
        }
        let told = call.add();
        assert!(matches!(&told, Reply::Refused(e) if e.msg.contains("nobody answers")), "{told:?}");
        assert_eq!((rig.links(), pod.links()), links);
        assert!(matches!(call.del(), Reply::Refused(_)));
        assert_eq!(rig.attachments().len(), 1);
        drop(daemon);
        let _daemon = rig.start();
        assert_eq!((rig.links(), pod.links()), links);
        fs::remove_file(rig.path("refuses-del")).unwrap();
        call.del().succeeds();
        rig.is_as(&before, &[&pod], "DEL");
    }
}
