//! SIGKILL at every recorded step of ADD and DEL, for every shape that a network can have. Before the commit the
//! restart leaves nothing; after it the interface stays and the same call gets the stored answer; a DEL that was begun
//! is finished by the restart.
//!
//! The ignored ones need a kernel that has the type, or a NIC: the lab runs them (`lab/tests/crash.sh`).

use fairlead_daemon::engine::failpoint::STEPS;
use serde_json::{Value, json};

use super::executed_ipam::{asked_by_link, lent};
use super::executed_plugins::Ledger;
use super::rig::{Call, Leftovers, Pod, Reply, Rig, stored};

/// One kind of network on a node of its own.
struct Kind {
    pod: Pod,
    rig: Rig,
    config: Value,
    ifname: &'static str,
    /// The steps of an ADD before its commit, and the one after it.
    add: (&'static [&'static str], &'static str),
    del: &'static [&'static str],
}

const ADD: [&str; 4] = ["add.begun", "add.allocated", "add.linked", "add.configured"];
/// The steps of an ADD whose IPAM is executed: it is asked when the link is there.
const ADD_ASKED_BY_LINK: [&str; 4] = ["add.begun", "add.linked", "add.allocated", "add.configured"];
const DEL_WHEN_SILENT: [&str; 6] =
    ["del.removing", "del.silent", "del.silenced", "del.unlinked", "del.released", "del.removed"];
const DEL_THAT_WAITS: [&str; 4] = ["del.removing", "del.unlinked", "del.released", "del.removed"];
/// The steps of a DEL that moves a device back to the host.
const DEL_OF_A_LENT_DEVICE: [&str; 6] =
    ["del.removing", "del.leaving", "del.home", "del.unlinked", "del.released", "del.removed"];
/// The steps of an ADD of a VF, which is set up before it is moved to the pod.
const ADD_OF_A_VF: [&str; 5] = ["add.begun", "add.allocated", "add.prepared", "add.linked", "add.configured"];
const DEL_OF_A_VF: [&str; 8] = [
    "del.removing",
    "del.silent",
    "del.silenced",
    "del.leaving",
    "del.home",
    "del.unlinked",
    "del.released",
    "del.removed",
];

impl Kind {
    fn new(config: impl Fn(&Rig) -> Value) -> Kind {
        let rig = Rig::new();
        let (pod, config) = (rig.pod("pod"), config(&rig));
        Kind { pod, rig, config, ifname: "eth0", add: (&ADD, "add.committed"), del: &DEL_THAT_WAITS }
    }

    /// A device of the host that is moved to the pod and back.
    fn lent(config: impl Fn(&Rig) -> Value) -> Kind {
        Kind { del: &DEL_OF_A_LENT_DEVICE, ..Kind::new(config) }
    }

    /// A network type whose DEL is answered when the interface is silent.
    fn early(config: impl Fn(&Rig) -> Value) -> Kind {
        Kind { del: &DEL_WHEN_SILENT, ..Kind::new(config) }
    }

    fn call(&self) -> Call<'_> {
        let mut call = self.rig.call("c1", &self.pod, &self.config);
        self.ifname.clone_into(&mut call.ifname);
        call
    }

    fn add(&self) -> Reply {
        self.call().add()
    }

    fn del(&self) -> Reply {
        self.call().del()
    }

    fn has_what_was_answered(&self, result: &Value) {
        self.pod.has_what_was_answered(self.ifname, result);
    }

    fn leftovers(&self) -> Leftovers {
        self.rig.leftovers(&[&self.pod])
    }

    fn is_as(&self, before: &Leftovers, after: &str) {
        self.rig.is_as(before, &[&self.pod], after);
    }

    /// Everything that the node had before the first call.
    fn before(&self) -> Leftovers {
        let _daemon = self.rig.start();
        self.leftovers()
    }

    fn die_everywhere(&self) {
        let before = self.before();
        for step in self.add.0 {
            self.die_in_add(step, &before);
        }
        self.die_between_commit_and_answer(&before);
        for step in self.del {
            self.die_in_del(step, &before);
        }
    }

    fn die_in_add(&self, step: &str, before: &Leftovers) {
        let daemon = self.rig.start_dying_at(step);
        assert!(matches!(self.add(), Reply::Lost), "{step}");
        daemon.dies();
        let _daemon = self.rig.start();
        self.is_as(before, step);
        let result = self.add().result();
        self.has_what_was_answered(&result);
        self.del().succeeds();
        self.is_as(before, &format!("{step}, ADD again, DEL"));
    }

    fn die_between_commit_and_answer(&self, before: &Leftovers) {
        let step = self.add.1;
        let daemon = self.rig.start_dying_at(step);
        assert!(matches!(self.add(), Reply::Lost), "{step}");
        daemon.dies();
        let links = self.pod.links();
        assert_ne!(self.pod_links(before), links, "{step}: there is no interface");
        let _daemon = self.rig.start();
        assert_eq!(self.pod.links(), links, "{step}: a restart changed what was committed");
        let rows = stored(&self.rig.attachments());
        assert!(!rows.is_empty() && rows.iter().all(|row| row[1] == "attached"), "{step}: {rows:?}");
        let result = self.add().result();
        assert_eq!(self.pod.links(), links, "{step}: the stored answer made something");
        self.has_what_was_answered(&result);
        self.answered_once_only();
        self.del().succeeds();
        self.is_as(before, &format!("{step}, DEL"));
    }

    /// Asserts that the stored answer counts as delivered now: a further ADD is an error, as the specification
    /// says.
    fn answered_once_only(&self) {
        super::rig::until("the delivery is on record", || match self.add() {
            Reply::Refused(error) => error.msg.contains("already has interface"),
            _ => false,
        });
    }

    fn pod_links(&self, before: &Leftovers) -> Vec<String> {
        before.links_of(&self.pod)
    }

    fn die_in_del(&self, step: &str, before: &Leftovers) {
        let daemon = self.rig.start_dying_at(step);
        self.has_what_was_answered(&self.add().result());
        // It may die before its answer or, where the interface is silent, after it.
        let reply = self.del();
        assert!(!matches!(reply, Reply::Refused(_)), "{step}: {reply:?}");
        daemon.dies();
        let _daemon = self.rig.start();
        self.is_as(before, step);
        self.del().succeeds();
        self.has_what_was_answered(&self.add().result());
        self.del().succeeds();
        self.is_as(before, &format!("{step}, ADD and DEL again"));
    }
}

/// A network on `eth0` like [`Rig::macvlan`], of another type.
fn of_type(rig: &Rig, plugin: &str, field: &str, value: Value) -> Value {
    let mut config = rig.macvlan(plugin);
    config["type"] = plugin.into();
    config[field] = value;
    config
}

#[test]
fn k14_x05_macvlan_with_host_local_survives_a_kill_at_every_step() {
    let kind = Kind::early(|rig| rig.macvlan("net"));
    let mine = kind.add.0.iter().chain([&kind.add.1]).chain(kind.del);
    let all: Vec<&&str> = mine.chain(&ADD_OF_A_VF).chain(&DEL_OF_A_VF).collect();
    for step in STEPS {
        assert!(all.contains(&&step), "{step} has no test");
    }
    kind.die_everywhere();
}

#[test]
fn k14_x05_macvlan_of_layer_2_survives_a_kill_at_every_step() {
    Kind::new(Rig::layer2).die_everywhere();
}

#[test]
#[ignore = "this needs a kernel with ipvlan: `make lab-test` runs it"]
fn k14_x05_ipvlan_survives_a_kill_at_every_step() {
    Kind::early(|rig| of_type(rig, "ipvlan", "mode", json!("l2"))).die_everywhere();
}

#[test]
#[ignore = "this needs a kernel with vlan: `make lab-test` runs it"]
fn k14_x05_vlan_survives_a_kill_at_every_step() {
    Kind::new(|rig| of_type(rig, "vlan", "vlanId", json!(100))).die_everywhere();
}

#[test]
fn k14_x05_loopback_survives_a_kill_at_every_step() {
    let mut kind = Kind::new(|_| json!({ "cniVersion": "1.0.0", "name": "lo", "type": "loopback" }));
    kind.ifname = "lo";
    // It has no address to allocate and no link to make.
    kind.add.0 = &["add.begun"];
    kind.die_everywhere();
}

#[test]
#[ignore = "this needs a NIC, which LAB_NIC names: `make lab-test` runs it"]
fn k14_x05_a_lent_nic_survives_a_kill_at_every_step_and_comes_home_as_it_was() {
    let nic = std::env::var("LAB_NIC").unwrap();
    let kind = Kind::lent(|rig| {
        rig.take(&nic);
        rig.ip(&format!("link set {nic} mtu 1400 alias mine"));
        rig.ip(&format!("link set {nic} up"));
        of_type(rig, "host-device", "device", json!(nic))
    });
    kind.die_everywhere();
}

#[test]
#[ignore = "this needs a VF, which LAB_PF, LAB_VF and LAB_NIC name: `make lab-test` runs it"]
fn k14_x05_a_vf_survives_a_kill_at_every_step_and_comes_home_with_its_settings() {
    let of_lab = |name: &str| std::env::var(name).unwrap();
    let (pf, nic) = (of_lab("LAB_PF"), of_lab("LAB_NIC"));
    let mut kind = Kind::new(|rig| {
        for link in [&pf, &nic] {
            rig.take(link);
        }
        rig.ip(&format!("link set {pf} up"));
        rig.ip(&format!("link set {pf} vf 0 vlan 7"));
        rig.ip(&format!("link set {nic} mtu 1400 alias mine"));
        rig.ip(&format!("link property add dev {nic} altname {nic}-alt"));
        let mut config = of_type(rig, "sriov", "deviceID", json!(of_lab("LAB_VF")));
        config["vlan"] = json!(100);
        config["spoofchk"] = json!("off");
        config["trust"] = json!("on");
        config["max_tx_rate"] = json!(100);
        config
    });
    kind.add.0 = &ADD_OF_A_VF;
    kind.del = &DEL_OF_A_VF;
    kind.die_everywhere();
    kind.rig.ip(&format!("link set {pf} vf 0 vlan 0"));
    kind.rig.ip(&format!("link property del dev {nic} altname {nic}-alt"));
}

#[test]
fn k14_x05_a_lent_device_survives_a_kill_at_every_step_and_comes_home_as_it_was() {
    let kind = Kind::lent(|rig| {
        rig.ip("link add dev0 mtu 1400 type veth peer name dev0-peer");
        rig.ip("link set dev0 alias mine");
        rig.ip("link set dev0 up");
        rig.ip("link set dev0-peer up");
        of_type(rig, "host-device", "device", json!("dev0"))
    });
    kind.die_everywhere();
}

#[test]
fn k14_x05_macvlan_with_an_executed_ipam_survives_a_kill_at_every_step() {
    let mut kind = Kind::early(|rig| asked_by_link(rig, rig.macvlan("net")));
    kind.add.0 = &ADD_ASKED_BY_LINK;
    kind.die_everywhere();
}

#[test]
fn k14_x05_a_lent_device_with_an_executed_ipam_survives_a_kill_at_every_step_and_comes_home() {
    let mut kind = Kind::lent(|rig| asked_by_link(rig, lent(rig)));
    kind.add.0 = &ADD_ASKED_BY_LINK;
    kind.die_everywhere();
}

#[test]
fn k14_x05_a_cluster_network_with_an_executed_plugin_survives_a_kill_at_every_step() {
    let mut kind = Kind::new(|rig| rig.cluster_network());
    // The first passage of a step is the list's own, the second that of the macvlan in it, or the other way round.
    kind.add.0 =
        &["add.begun:1", "add.begun:2", "add.allocated", "add.linked", "add.configured", "add.committed:1"];
    kind.add.1 = "add.committed:2";
    kind.del = &[
        "del.removing:1",
        "del.removing:2",
        "del.silent",
        "del.silenced",
        "del.unlinked:1",
        "del.unlinked:2",
        "del.released:1",
        "del.released:2",
        "del.removed:1",
        "del.removed:2",
    ];
    kind.die_everywhere();
}
