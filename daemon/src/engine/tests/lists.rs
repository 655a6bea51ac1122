//! Our own type: a whole list by its name.

use super::*;

const OWN: &str = r#"{"cniVersion":"1.1.0","name":"cluster","type":"fairlead","clusterNetwork":"net"}"#;

fn with_list() -> (Rig, PathBuf) {
    let mut rig = Rig::new();
    let file = rig.dir.path().join("root/etc/cni/net.d/10-net.conflist");
    let plugin = macvlan().replace(r#""cniVersion":"1.0.0","name":"net","#, "");
    std::fs::write(&file, format!(r#"{{"cniVersion":"1.0.0","name":"net","plugins":[{plugin}]}}"#)).unwrap();
    rig.restart();
    (rig, file)
}

#[test]
fn m09_del_takes_down_what_was_attached_although_the_configuration_is_gone() {
    let (mut rig, file) = with_list();
    let before = rig.state();
    let answer = rig.add(OWN).unwrap();
    assert!(answer.contains("10.1.0.2/24"), "{answer}");
    std::fs::remove_file(file).unwrap();
    rig.restart();
    rig.del(OWN).unwrap();
    rig.reap();
    assert_eq!(rig.state(), before);
}

#[test]
fn a_network_that_is_not_there_yet_is_worth_another_try() {
    let rig = Rig::new();
    let told = rig.add(OWN).unwrap_err();
    assert_eq!(told.code.number(), 11);
    assert!(told.msg.contains("clusterNetwork \"net\""), "{told}");
}

#[test]
fn x5_a_list_that_is_refused_at_any_call_leaves_the_host_as_before() {
    let calls = {
        let (rig, _) = with_list();
        rig.kernel.forget_calls();
        rig.add(OWN).unwrap();
        rig.kernel.calls().len()
    };
    for n in 0..calls {
        let (rig, _) = with_list();
        let before = rig.state();
        rig.kernel.forget_calls();
        rig.kernel.fail_at(n, nix::errno::Errno::ENOBUFS);
        let answer = rig.add(OWN);
        rig.kernel.heal();
        if answer.is_ok() {
            rig.del(OWN).unwrap();
        }
        rig.reap();
        assert_eq!(rig.state(), before, "call {n} of {calls}: {answer:?}");
    }
}
