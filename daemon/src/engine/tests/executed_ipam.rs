//! An IPAM that is executed: it is asked for an address when the interface is there, which goes again where it has none to give.

use fairlead_cni::Code;
use fairlead_host::Op;

use super::*;
use crate::delegate::script;

#[test]
fn an_executed_ipam_is_asked_when_the_interface_is_there_and_that_goes_again_where_it_has_no_address() {
    let vf = format!(r#""type":"sriov","deviceID":"{VF}""#);
    for link in [r#""type":"macvlan","master":"eth0""#, r#""type":"host-device","device":"dev0""#, &vf] {
        let rig = Rig::on_this_host();
        let plugins = tempfile::tempdir().unwrap();
        let refuses = r#"cat >/dev/null
[ $CNI_COMMAND = DEL ] || { echo '{"code":107,"msg":"no lease"}'; exit 1; }"#;
        script::write(&plugins.path().join("lease"), refuses);
        let config = format!(r#"{{"cniVersion":"1.0.0","name":"net",{link},"ipam":{{"type":"lease"}}}}"#);
        let path = plugins.path().display().to_string();
        let before = rig.state();
        let told = rig.call(Request { path, ..rig.request(Command::Add, "c1", &config) }).unwrap_err();
        assert!(told.to_string().contains("no lease"), "{link}: {told}");
        let comes = |op: &Op| matches!(op, Op::CreateLink(_) | Op::TakeFromHost { .. });
        assert!(rig.ops().iter().any(comes), "{link}: it was asked before the interface was there");
        rig.reap();
        assert_eq!(rig.state(), before, "{link}");
    }
}

/// A program that refuses everything while the file `away` is beside it.
fn write_reachable_unless_away(plugins: &Path) {
    let script = r#"cat >/dev/null
[ ! -e "$(dirname "$0")/away" ] || { echo '{"code":11,"msg":"nobody answers"}'; exit 1; }
[ $CNI_COMMAND = DEL ] || echo '{"cniVersion":"1.0.0","ips":[{"address":"10.66.0.2/24"}]}'"#;
    script::write(&plugins.join("lease"), script);
}

#[test]
fn where_its_del_fails_too_the_interface_goes_all_the_same_and_the_record_waits_for_the_ipam() {
    let vf = format!(r#""type":"sriov","deviceID":"{VF}""#);
    for link in [r#""type":"macvlan","master":"eth0""#, r#""type":"host-device","device":"dev0""#, &vf] {
        let mut rig = Rig::on_this_host();
        let plugins = tempfile::tempdir().unwrap();
        let away = plugins.path().join("away");
        write_reachable_unless_away(plugins.path());
        std::fs::write(&away, "").unwrap();
        let config = format!(r#"{{"cniVersion":"1.0.0","name":"net",{link},"ipam":{{"type":"lease"}}}}"#);
        let path = plugins.path().display().to_string();
        let before = rig.state();
        let told = rig.call(Request { path, ..rig.request(Command::Add, "c1", &config) }).unwrap_err();
        assert!(told.to_string().contains("nobody answers"), "{link}: {told}");
        let undone = rig.state();
        assert_eq!((undone.kernel, undone.records), (before.kernel.clone(), 1), "{link}");

        // The device is the next pod's, and no later attempt takes it away from that.
        let other = format!(r#"{{"cniVersion":"1.0.0","name":"other",{link}}}"#);
        let of_other = |rig: &Rig, command| {
            rig.call(Request { ifname: "net2".to_owned(), ..rig.request(command, "c2", &other) })
        };
        of_other(&rig, Command::Add).unwrap_or_else(|e| panic!("{link}: {e}"));
        let lent = rig.state();
        let told = rig.del(&config).unwrap_err();
        assert!(told.to_string().contains("nobody answers"), "{link}: {told}");
        assert_eq!(rig.state(), lent, "{link}: DEL");
        rig.restart();
        rig.reap();
        assert_eq!(rig.state(), lent, "{link}: after a restart");

        std::fs::remove_file(&away).unwrap();
        rig.del(&config).unwrap();
        of_other(&rig, Command::Del).unwrap();
        rig.reap();
        assert_eq!(rig.state(), before, "{link}");
    }
}

#[test]
fn what_was_attached_keeps_its_interface_until_its_ipam_has_taken_the_del() {
    let rig = Rig::on_this_host();
    let plugins = tempfile::tempdir().unwrap();
    let away = plugins.path().join("away");
    write_reachable_unless_away(plugins.path());
    let config =
        r#"{"cniVersion":"1.0.0","name":"net","type":"macvlan","master":"eth0","ipam":{"type":"lease"}}"#;
    let path = plugins.path().display().to_string();
    let before = rig.state();
    rig.call(Request { path, ..rig.request(Command::Add, "c1", config) }).unwrap();
    let attached = rig.state();
    std::fs::write(&away, "").unwrap();
    rig.del(config).unwrap_err();
    assert_eq!(rig.state(), attached);
    std::fs::remove_file(&away).unwrap();
    rig.del(config).unwrap();
    rig.reap();
    assert_eq!(rig.state(), before);
}

#[test]
fn x04_a_check_in_which_an_ipam_finds_something_not_implemented_is_no_missing_check() {
    let refusal = |msg: &str| crate::delegate::says_it_has_no_check(&CniError::new(Code::PluginFailed, msg));
    assert!(refusal("plugin \"w\", CHECK: CNI CHECK method is not implemented"));
    assert!(refusal("plugin \"w\", CHECK: unknown CNI_COMMAND: CHECK"));
    assert!(!refusal("plugin \"w\", CHECK: mode \"x\" is not implemented"));
}

#[test]
fn x04_an_ipam_that_has_no_check_fails_none_and_what_it_gave_is_looked_for_all_the_same() {
    for words in ["CNI CHECK method is not implemented", "unknown CNI_COMMAND: CHECK"] {
        let rig = Rig::on_this_host();
        let plugins = tempfile::tempdir().unwrap();
        let answers = format!(
            r#"cat >/dev/null
[ $CNI_COMMAND != CHECK ] || {{ echo '{{"code":100,"msg":"{words}"}}'; exit 1; }}
[ $CNI_COMMAND = DEL ] || echo '{{"cniVersion":"1.0.0","ips":[{{"address":"10.66.0.2/24"}}]}}'"#
        );
        script::write(&plugins.path().join("lease"), &answers);
        let link = r#""type":"macvlan","master":"eth0","ipam":{"type":"lease"}"#;
        let path = plugins.path().display().to_string();
        let of = |command, prev: &str| {
            let config = format!(r#"{{"cniVersion":"1.0.0","name":"net",{prev}{link}}}"#);
            Request { path: path.clone(), ..rig.request(command, "c1", &config) }
        };
        let answer = rig.call(of(Command::Add, "")).unwrap();
        let prev = format!(r#""prevResult":{answer},"#);
        rig.call(of(Command::Check, &prev)).unwrap();
        let mut pod = fairlead_host::NetKernel::pod(&*rig.kernel, POD.as_ref()).unwrap();
        let link = pod.link_by_name("net1").unwrap().unwrap();
        let given = pod.addresses(link.index).unwrap().into_iter().find(|a| a.net.addr().is_ipv4()).unwrap();
        pod.batch(&[Op::DeleteAddress(given)]).unwrap();
        drop(pod);
        let told = rig.call(of(Command::Check, &prev)).unwrap_err();
        assert!(told.msg.contains("its address 10.66.0.2/24 is gone"), "{words}: {told}");
    }
}
