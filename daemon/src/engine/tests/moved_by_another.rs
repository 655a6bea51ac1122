//! Devices of the host that the reference plugin has moved into a pod: the DEL of such a pod brings them home, and nothing that the pod can
//! have made itself (K10).

use std::fs::File;

use fairlead_host::{Kind, Link, NetKernel, Op, SetLink};
use nix::errno::Errno;

use super::*;

const OTHER_POD: &str = "/run/netns/other";

fn config(how: &str) -> String {
    format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"host-device",{how},"ipam":{{}}}}"#)
}

fn by_bus() -> String {
    config(&format!(r#""pciBusID":"{VF}""#))
}

/// Moves an interface of the host into the pod as the reference plugin does: its name is left in the alias.
fn moved(rig: &Rig, name: &str) {
    let index = rig.kernel.host().unwrap().link_by_name(name).unwrap().unwrap().index;
    let mut pod = rig.kernel.pod(POD.as_ref()).unwrap();
    pod.batch(&[
        Op::TakeFromHost { index, as_index: Some(index), name: "net1".to_owned(), up: true },
        Op::SetLink(SetLink { index, alias: Some(name.to_owned()), ..SetLink::default() }),
    ])
    .unwrap();
}

/// The pod gives its interface another alias.
fn alias(rig: &Rig, alias: &str) {
    rig.in_pod(|index| {
        vec![Op::SetLink(SetLink { index, alias: Some(alias.to_owned()), ..SetLink::default() })]
    });
}

/// The VF's interface is back: down, and under its old name only where that is trusted. Nobody knows whose its alternative names are.
fn is_home(rig: &Rig, before: &Link, has_its_name: bool, at: &str) {
    let now = rig.at_home().unwrap_or_else(|| panic!("{at}: it is not at home"));
    assert_eq!(now.name == before.name, has_its_name, "{at}: it is {}", now.name);
    let (name, alias) = (now.name.clone(), now.alias.clone());
    assert_eq!(now, Link { name, alias, alt_names: Vec::new(), up: false, ..before.clone() }, "{at}");
    assert!(rig.engine().core.store.all().iter().all(|a| a.key.container != "c1"), "{at}");
}

/// What the pod has stays its own.
fn leaves_alone(rig: &Rig, config: &str) {
    let before = rig.state();
    rig.del(config).unwrap();
    assert_eq!(rig.state(), before, "{config}");
}

#[test]
fn k10_del_brings_a_device_home_that_the_reference_plugin_has_moved_however_it_is_named() {
    let mac = Rig::new().at_home().unwrap().mac.unwrap();
    for how in [
        r#""device":"vf0""#.to_owned(),
        format!(r#""pciBusID":"{VF}""#),
        format!(r#""hwaddr":"{mac}""#),
        format!(r#""kernelpath":"/sys/devices/pci0000:20/{VF}""#),
    ] {
        let rig = Rig::new();
        let before = rig.at_home().unwrap();
        let of_path = rig.dir.path().join("sys/devices/pci0000:20").join(VF).join("net/vf0");
        std::fs::create_dir_all(of_path).unwrap();
        moved(&rig, "vf0");
        rig.del(&config(&how)).unwrap();
        let has_its_name = how.starts_with(r#""device":"#);
        is_home(&rig, &before, has_its_name, &how);
        if !has_its_name {
            // As an administrator does.
            rig.rename(&rig.at_home().unwrap().name, "vf0");
        }
        rig.add(&config(&how)).unwrap();
        rig.del(&config(&how)).unwrap();
    }
}

#[test]
fn k10_del_leaves_what_the_pod_can_have_made_whatever_alias_and_name_it_has_given_that() {
    for how in [r#""device":"vf0""#.to_owned(), format!(r#""pciBusID":"{VF}""#)] {
        let rig = Rig::new();
        rig.kernel.add_link(POD, "net1", Kind::Other { name: "veth".to_owned() }).unwrap();
        alias(&rig, "vf0");
        leaves_alone(&rig, &config(&how));
    }
    // Of a device that is on no bus nothing says that the pod has not made it.
    let rig = Rig::new();
    moved(&rig, "dev0");
    leaves_alone(&rig, &config(r#""device":"dev0""#));
}

#[test]
fn k10_del_warns_of_a_virtual_device_that_may_be_the_hosts_and_goes_with_the_pod() {
    let warned = |device: &str, of_pod: &str| {
        let rig = Rig::new();
        rig.kernel.add_namespace(OTHER_POD);
        let lent = config(r#""device":"dev0""#);
        rig.call(Request { netns: OTHER_POD.to_owned(), ..rig.request(Command::Add, "c2", &lent) }).unwrap();
        rig.kernel.add_link(POD, "net1", Kind::Other { name: "bond".to_owned() }).unwrap();
        alias(&rig, of_pod);
        let file = rig.dir.path().join("log");
        let to_log =
            tracing_subscriber::fmt().with_ansi(false).with_writer(File::create(&file).unwrap()).finish();
        tracing::subscriber::with_default(to_log, || {
            leaves_alone(&rig, &config(&format!(r#""device":"{device}""#)));
        });
        std::fs::read_to_string(file).unwrap()
    };
    let log = warned("bond7", "bond7");
    for part in ["WARN", "bond7", "net1", "c1", "Move it back by hand"] {
        assert!(log.contains(part), "{part:?} is not in {log}");
    }
    // Another one than the configured, and one that is on record of another pod.
    for (device, alias) in [("bond7", "bond8"), ("dev0", "dev0")] {
        let log = warned(device, alias);
        assert!(!log.contains("by hand"), "{log}");
    }
}

#[test]
fn k10_del_leaves_another_device_than_the_configured_one() {
    let rig = Rig::new();
    moved(&rig, "vf0");
    leaves_alone(&rig, &config(&format!(r#""pciBusID":"{VFIO}""#)));
    leaves_alone(&rig, &config(r#""device":"dev0""#));
    alias(&rig, "free");
    leaves_alone(&rig, &config(r#""device":"vf0""#));
}

#[test]
fn k10_a_pod_cannot_choose_the_name_under_which_its_device_comes_home() {
    let names = ["free", "", "a name too long for any interface", "eth%d", "a/b"];
    for alias_of_pod in names {
        let rig = Rig::new();
        let before = rig.at_home().unwrap();
        moved(&rig, "vf0");
        alias(&rig, alias_of_pod);
        rig.in_pod(|index| vec![Op::AddAltName { index, name: "chosen".into() }]);
        rig.del(&by_bus()).unwrap();
        is_home(&rig, &before, false, alias_of_pod);
        let mut host = rig.kernel.host().unwrap();
        for name in ["free", "chosen"] {
            assert_eq!(host.link_by_name(name).unwrap(), None, "{alias_of_pod:?}");
        }
    }
}

#[test]
fn k10_a_device_whose_name_is_taken_at_home_comes_home_under_another() {
    let rig = Rig::new();
    let before = rig.at_home().unwrap();
    moved(&rig, "vf0");
    rig.kernel.add_host_link("vf0");
    rig.del(&config(r#""device":"vf0""#)).unwrap();
    is_home(&rig, &before, false, "vf0 is taken");
}

#[test]
fn k10_a_pod_cannot_have_its_device_take_the_name_of_one_that_another_pod_has() {
    let lent = config(r#""device":"dev0""#);
    for del in [by_bus(), lent.clone()] {
        let rig = Rig::new();
        rig.kernel.add_namespace(OTHER_POD);
        let dev0 = |rig: &Rig| rig.kernel.host().unwrap().link_by_name("dev0").unwrap().unwrap().index;
        let (before, index) = (rig.at_home().unwrap(), dev0(&rig));
        let of_other = |command| Request { netns: OTHER_POD.to_owned(), ..rig.request(command, "c2", &lent) };
        rig.call(of_other(Command::Add)).unwrap();
        moved(&rig, "vf0");
        alias(&rig, "dev0");
        rig.del(&del).unwrap();
        is_home(&rig, &before, false, &del);
        rig.call(of_other(Command::Del)).unwrap();
        rig.reap();
        assert_eq!(dev0(&rig), index, "{del}: it is the one that was lent");
    }
}

#[test]
fn k14_the_del_of_such_a_pod_that_dies_half_way_is_finished_after_the_restart() {
    for (config, has_its_name) in [(config(r#""device":"vf0""#), true), (by_bus(), false)] {
        let calls = {
            let rig = Rig::new();
            moved(&rig, "vf0");
            rig.kernel.forget_calls();
            rig.del(&config).unwrap();
            rig.kernel.calls().len()
        };
        for n in 0..calls {
            let mut rig = Rig::new();
            let before = rig.at_home().unwrap();
            moved(&rig, "vf0");
            rig.kernel.forget_calls();
            rig.kernel.fail_from(n, Errno::ENOBUFS);
            let answer = rig.del(&config);
            rig.kernel.heal();
            rig.restart();
            rig.del(&config).unwrap_or_else(|e| panic!("call {n}: DEL after the restart: {e}"));
            rig.reap();
            let at = format!("{config}: call {n} of {calls}, answer {answer:?}");
            is_home(&rig, &before, has_its_name, &at);
        }
    }
}
