//! VFs on which a pod has left what cannot be undone: nobody gets one before it was bound anew and is clean.

use fairlead_cni::Code;
use fairlead_host::double::KernelRequest;
use fairlead_host::{AttachedProgram, Channels, NetKernel, NetdevSettings, ProgramHook};
use fairlead_sriov::pools::Verb;

use super::pools::{POOL, config, kept};
use super::*;

const HOST: &str = "/proc/1/ns/net";
/// A program that a pod has left.
const LEFT: AttachedProgram = AttachedProgram { id: 7, hook: ProgramHook::XdpDriver, link: None };
const TOLD: &str = "XDP (driver) program 7";

fn host_device() -> String {
    r#"{"cniVersion":"1.1.0","name":"net","type":"host-device","device":"vf0","ipam":{}}"#.to_owned()
}

/// Every way to have a VF of no pool as a netdev.
fn ways() -> [String; 2] {
    [config(VF, r#","ipam":{}"#), host_device()]
}

impl Rig {
    /// The pod leaves on its interface a program that cannot be taken off.
    fn leave_program(&self) {
        assert!(self.kernel.attach_program(POD, "net1", LEFT, true));
    }

    fn programs_of(&self, name: &str) -> Vec<AttachedProgram> {
        let mut host = self.kernel.host().unwrap();
        let index = host.link_by_name(name).unwrap().unwrap().index;
        host.attached_programs(index).unwrap()
    }

    fn bindings(&self) -> usize {
        self.asked(|asked| matches!(asked, KernelRequest::Bind(address, ..) if address == VF))
    }

    /// Why another container does not get it.
    fn refused_another(&self, config: &str) -> CniError {
        self.call(self.request(Command::Add, "c2", config)).unwrap_err()
    }
}

/// A rig whose pod has a VF with something on it, and whose kernel refuses to bind the VF anew.
fn that_cannot_be_bound(config: &str) -> Rig {
    let at = {
        let rig = Rig::new();
        rig.add(config).unwrap();
        rig.leave_program();
        rig.kernel.forget_calls();
        rig.del(config).unwrap();
        let is_bind = |call: &fairlead_host::double::Call| matches!(call.request, KernelRequest::Bind(..));
        rig.kernel.calls().iter().position(is_bind).unwrap()
    };
    let rig = Rig::new();
    rig.add(config).unwrap();
    rig.leave_program();
    rig.kernel.forget_calls();
    rig.kernel.fail_at(at, nix::errno::Errno::EIO);
    rig.del(config).unwrap();
    rig.kernel.heal();
    rig
}

#[test]
fn a_pools_vf_with_a_program_or_settings_of_a_pods_is_quarantined_until_it_was_bound_anew() {
    let many = Channels { combined: Some(9), ..Channels::default() };
    let settings = NetdevSettings { channels: Some(many), ..NetdevSettings::default() };
    for (is_program, told) in [(true, TOLD), (false, "the driver does not take the settings")] {
        let mut rig = kept(POOL);
        rig.add(&config(VF, "")).unwrap();
        match is_program {
            true => rig.leave_program(),
            false => assert!(rig.kernel.set_netdev_settings(POD, "net1", settings.clone(), true)),
        }
        rig.del(&config(VF, "")).unwrap();
        rig.reap();
        let row = &rig.members()[0];
        assert_eq!(row["state"], "quarantined", "{row}");
        assert!(row["reason"].as_str().unwrap().contains(told), "{row}");
        assert!(rig.exposition.text().contains(r#"state="quarantined"} 1"#), "{}", rig.exposition.text());
        rig.restart();
        assert_eq!(rig.states(), ["quarantined", "ready"], "the next daemon knows it too");
        rig.call_settings.vf_wait = Duration::from_millis(50);
        rig.restart();
        let waits = rig.refused_another(&config(VF, ""));
        assert_eq!(waits.code, Code::TryAgain);
        assert!(waits.msg.contains("quarantined: ") && waits.msg.contains(told), "{waits}");
        rig.keep();
        assert_eq!(rig.states(), ["ready", "ready"]);
        assert_eq!(rig.programs_of("vf0"), []);
        rig.add(&config(VF, "")).unwrap();
    }
}

#[test]
fn a_pools_vf_whose_driver_has_given_its_interface_up_is_quarantined_until_it_was_bound_anew() {
    let rig = kept(POOL);
    rig.add(&config(VF, "")).unwrap();
    rig.kernel.give_interface_up(VF).unwrap();
    rig.del(&config(VF, "")).unwrap();
    rig.reap();
    let row = &rig.members()[0];
    assert_eq!(row["state"], "quarantined", "{row}");
    let told = "its driver igbvf has made no interface for it since its last pod";
    assert_eq!(row["reason"], told);
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn a_pools_vf_that_is_not_clean_although_it_was_bound_anew_stays_quarantined_until_it_is_released() {
    let rig = kept(POOL);
    rig.add(&config(VF, "")).unwrap();
    rig.leave_program();
    rig.kernel.attach_when_bound(VF, Some(LEFT));
    rig.del(&config(VF, "")).unwrap();
    (0..3).for_each(|_| rig.keep_on());
    assert_eq!(rig.states(), ["quarantined", "ready"]);
    let refused = rig.refused_another(&config(VF, ""));
    assert!(refused.msg.contains("although it was bound anew"), "{refused}");
    rig.kernel.attach_when_bound(VF, None);
    rig.order(Verb::Release, VF);
    assert_eq!(rig.states(), ["ready", "ready"]);
}

#[test]
fn a_vf_of_no_pool_on_which_its_pod_has_left_something_is_bound_anew_and_as_it_was() {
    for config in ways() {
        let rig = Rig::new();
        let before = rig.state();
        rig.add(&config).unwrap();
        rig.leave_program();
        rig.kernel.forget_calls();
        rig.del(&config).unwrap();
        rig.reap();
        assert_eq!((rig.bindings(), rig.programs_of("vf0")), (1, Vec::new()), "{config}");
        assert_eq!(rig.state(), before, "{config}");
        rig.add(&config).unwrap();
        rig.del(&config).unwrap();
        rig.reap();
        assert_eq!(rig.bindings(), 1, "{config}: one that is clean is not bound anew");
    }
}

#[test]
fn a_vf_of_no_pool_that_cannot_be_cleaned_is_refused_to_everybody_over_a_restart_until_it_is_clean() {
    for config in ways() {
        let rig = that_cannot_be_bound(&config);
        assert_eq!((rig.state().records, rig.allocations().len()), (1, 0), "all else is given back");
        let mut rig = rig;
        for restarted in [false, true] {
            if restarted {
                // The next daemon's try will meet the same.
                rig.kernel.attach_when_bound(VF, Some(LEFT));
                rig.restart();
            }
            // Under its parked name, or the one that its driver gave it.
            let by_name = host_device().replace("vf0", &rig.at_home().unwrap().name);
            for other in [ways()[0].clone(), by_name] {
                let refused = rig.refused_another(&other);
                assert_eq!(refused.code, Code::TryAgain, "{refused}");
                let why = format!(
                    "VF {VF} is quarantined: its last pod has left on it what cannot be undone: {TOLD}"
                );
                assert!(refused.msg.contains(&why), "{refused}");
                assert!(refused.details.contains("fairleadd forget c1 net1"), "{refused}");
            }
            if restarted {
                rig.reap();
            }
            let table = rig.engine().table("attachments").unwrap();
            assert!(table[0]["broken"].as_str().unwrap().contains(TOLD), "{table}");
            let failing = rig.engine().table("removals").unwrap();
            assert!(failing[0]["reason"].as_str().unwrap().contains(TOLD), "{failing}");
        }
        rig.kernel.attach_when_bound(VF, None);
        rig.reap();
        assert_eq!((rig.state().records, rig.programs_of("vf0")), (0, Vec::new()), "{config}");
        rig.call(rig.request(Command::Add, "c2", &config)).unwrap();
    }
}

#[test]
fn a_del_is_answered_with_success_however_a_vf_was_left_and_says_what_is_still_on_it() {
    let rig = Rig::new();
    let config = config(VF, r#","ipam":{}"#);
    rig.add(&config).unwrap();
    rig.leave_program();
    rig.kernel.attach_when_bound(VF, Some(LEFT));
    rig.del(&config).unwrap();
    let refused = rig.refused_another(&config);
    assert!(
        refused.msg.ends_with(&format!("{TOLD}: it cannot be taken off, although it was bound anew")),
        "{refused}"
    );
    rig.del(&config).unwrap();
}

#[test]
fn a_program_of_the_hosts_that_its_pod_has_put_elsewhere_on_the_device_is_the_pods() {
    let hooks = |first: ProgramHook, then: ProgramHook, link: Option<u32>| {
        (AttachedProgram { id: 9, hook: first, link }, AttachedProgram { id: 9, hook: then, link })
    };
    for (own, moved) in [
        hooks(ProgramHook::XdpGeneric, ProgramHook::XdpDriver, None),
        hooks(ProgramHook::TcxIngress, ProgramHook::TcxEgress, None),
        (
            AttachedProgram { id: 9, hook: ProgramHook::TcxIngress, link: Some(3) },
            AttachedProgram { id: 9, hook: ProgramHook::TcxIngress, link: Some(4) },
        ),
    ] {
        let rig = Rig::new();
        let config = host_device().replace("vf0", "dev0");
        assert!(rig.kernel.attach_program(HOST, "dev0", own, false));
        rig.add(&config).unwrap();
        rig.del(&config).unwrap();
        rig.reap();
        assert_eq!(rig.programs_of("dev0"), [own], "one that only went along comes back with the device");
        rig.add(&config).unwrap();
        assert!(rig.kernel.attach_program(POD, "net1", moved, false));
        rig.del(&config).unwrap();
        rig.reap();
        assert_eq!(rig.programs_of("dev0"), [], "{own} is known by more than its number");
    }
}
