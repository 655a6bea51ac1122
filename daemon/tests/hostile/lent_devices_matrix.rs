//! Every combination of what a pod can set on a netdev that was lent to it: whatever it does, the netdev comes home as it was, nothing
//! else does, and the DEL succeeds.

use fairlead_host::scratch_program::ScratchProgram;
use fairlead_host::{NetKernel, ProgramHook};
use serde_json::{Value, json};

use crate::lent_devices::{nic0, node};
use crate::rig::{Pod, Rig, until};

/// What a pod does with a netdev that was lent to it.
#[derive(Debug, Clone, Copy)]
struct Tricks {
    name: Option<&'static str>,
    alias: Option<&'static str>,
    mac: Option<&'static str>,
    alt_names: &'static [&'static str],
    /// It has a veth of its own that looks like the lent netdev.
    bait: bool,
    /// The netdev has been in a namespace of the pod's own meanwhile.
    nested: bool,
    /// Where on the netdev the pod has a program.
    program: Option<ProgramHook>,
}

const PROGRAMS: [Option<ProgramHook>; 3] =
    [None, Some(ProgramHook::XdpGeneric), Some(ProgramHook::TcxIngress)];

const ALL: usize = 216;
/// An emulated machine takes seconds for each. 31 combinations have every pair of values.
const IN_THE_LAB: usize = 7;
/// For kinds that differ from the first in how they are known, not in what a pod can do to them. Prime to all that is combined, so that every
/// value comes, and 20 combinations.
const SAMPLED: usize = 11;

/// Every combination.
fn all() -> Vec<Tricks> {
    let mut all = Vec::new();
    for name in [None, Some("net7"), Some("up0")] {
        for alias in [None, Some(""), Some("up0")] {
            for mac in [None, Some("02:00:00:00:0b:0b")] {
                for alt_names in [&[][..], &["up0-peer"], &["lo-too", "wire0", "nic0"]] {
                    for (bait, nested) in [(false, false), (false, true), (true, false), (true, true)] {
                        // Not one dimension more, but another program in each of the combinations side by side.
                        let program = PROGRAMS[(all.len() + all.len() / 12) % PROGRAMS.len()];
                        all.push(Tricks { name, alias, mac, alt_names, bait, nested, program });
                    }
                }
            }
        }
    }
    all
}

fn play(pod: &Pod, nested: &Pod, tricks: Tricks) {
    if let Some(hook) = tricks.program {
        pod.inside(|kernel| {
            let index = kernel.host().unwrap().link_by_name("eth0").unwrap().unwrap().index;
            ScratchProgram::load(hook).unwrap().attach(index).unwrap();
        });
    }
    if tricks.nested {
        pod.ip(&format!("link set eth0 netns {}", nested.path().display()));
        nested.ip(&format!("link set eth0 netns {}", pod.path().display()));
    }
    if let Some(mac) = tricks.mac {
        pod.ip(&format!("link set eth0 address {mac}"));
    }
    if let Some(alias) = tricks.alias {
        // An empty last word takes the alias away.
        pod.ip(&format!("link set eth0 alias {alias}"));
    }
    for alt_name in tricks.alt_names {
        pod.ip(&format!("link property add dev eth0 altname {alt_name}"));
    }
    if let Some(name) = tricks.name {
        pod.ip("link set eth0 down");
        pod.ip(&format!("link set eth0 name {name}"));
    }
    if tricks.bait {
        let free = if tricks.name.is_some() { "eth0" } else { "bait1" };
        pod.ip(&format!("link add {free} address 02:00:00:00:0a:01 type veth peer name bait2"));
        pod.ip(&format!("link set {free} alias nic0"));
    }
}

/// Plays every `step`th combination.
fn play_all(rig: &Rig, config: &Value, step: usize) {
    let before = rig.links();
    let mut played = 0;
    for (n, tricks) in all().into_iter().enumerate().step_by(step) {
        let (pod, nested) = (rig.pod(&format!("p{n}")), rig.pod(&format!("n{n}")));
        let call = rig.call("c1", &pod, config);
        call.add().succeeds();
        play(&pod, &nested, tricks);
        call.del().succeeds();
        until("nothing is on record", || rig.attachments().is_empty());
        assert_eq!(rig.links(), before, "{tricks:?}");
        assert_eq!(programs(rig), 0, "{tricks:?}");
        let own = if tricks.bait { 2 } else { 0 };
        assert_eq!(pod.links().len(), 1 + own, "{tricks:?}: the pod keeps its own alone");
        played += 1;
    }
    assert_eq!(played, ALL.div_ceil(step));
}

/// How many programs there are on links of the node.
fn programs(rig: &Rig) -> usize {
    rig.inside(|kernel| {
        let mut host = kernel.host().unwrap();
        let links = host.links().unwrap();
        links.iter().map(|link| host.attached_programs(link.index).unwrap().len()).sum()
    })
}

/// Plays a sample with a device of another kind.
fn play_sample_with(make: impl Fn(&Rig) -> Option<Pod>) {
    let rig = node();
    let _peer = make(&rig);
    rig.ip("link set lent0 mtu 1400 alias mine");
    let _daemon = rig.start();
    let mut config = nic0();
    config["device"] = json!("lent0");
    play_all(&rig, &config, SAMPLED);
}

#[test]
fn a_lent_macvlan_comes_home_as_it_was_and_alone_whatever_its_pod_has_made_of_it() {
    play_sample_with(|rig| {
        rig.ip("link add lent0 link nic0 type macvlan mode bridge");
        None
    });
}

#[test]
fn a_lent_tap_comes_home_as_it_was_and_alone_whatever_its_pod_has_made_of_it() {
    play_sample_with(|rig| {
        rig.ip("tuntap add lent0 mode tap");
        None
    });
}

#[test]
fn a_lent_veth_with_its_peer_in_a_third_namespace_comes_home_as_it_was_and_alone() {
    play_sample_with(|rig| {
        let third = rig.pod("third");
        rig.ip(&format!("link add lent0 type veth peer name far netns {}", third.path().display()));
        Some(third)
    });
}

#[test]
fn a_lent_veth_comes_home_as_it_was_and_alone_whatever_its_pod_has_made_of_it() {
    let rig = node();
    let _daemon = rig.start();
    play_all(&rig, &nic0(), 1);
}

#[test]
#[ignore = "this needs a NIC, which LAB_NIC names: `make lab-test` runs it"]
fn a_lent_nic_comes_home_as_it_was_and_alone_whatever_its_pod_has_made_of_it() {
    let nic = std::env::var("LAB_NIC").unwrap();
    let rig = node();
    rig.take(&nic);
    rig.ip(&format!("link set {nic} mtu 1400 alias mine"));
    let _daemon = rig.start();
    let mut config = nic0();
    config["device"] = json!(nic);
    play_all(&rig, &config, IN_THE_LAB);
}

#[test]
#[ignore = "this needs a VF, which LAB_PF, LAB_VF and LAB_NIC name: `make lab-test` runs it"]
fn a_vf_comes_home_as_it_was_and_alone_whatever_its_pod_has_made_of_it() {
    let of_lab = |name: &str| std::env::var(name).unwrap();
    let (pf, nic) = (of_lab("LAB_PF"), of_lab("LAB_NIC"));
    let rig = node();
    for link in [&pf, &nic] {
        rig.take(link);
    }
    rig.ip(&format!("link set {pf} up"));
    rig.ip(&format!("link set {nic} mtu 1400 alias mine"));
    let _daemon = rig.start();
    let mut config = nic0();
    config["type"] = json!("sriov");
    config["deviceID"] = json!(of_lab("LAB_VF"));
    play_all(&rig, &config, IN_THE_LAB);
}
