//! What the engine tells when its health is asked for.

use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;

use super::Rig;
use crate::engine::Engine;
use crate::health::{Condition, Health, Readiness};

struct Told {
    health: Health,
    readiness: Readiness,
}

fn told(rig: &Rig) -> Told {
    let told = Told { health: Health::default(), readiness: Readiness::new(&["store"]) };
    Engine::probe_health(rig.engine.as_ref().unwrap(), &told.health, &told.readiness);
    told
}

impl Told {
    fn unmet(&self) -> Vec<Condition> {
        let health = self.health.conditions().into_iter().chain(self.readiness.conditions());
        health.filter(|c| !c.met).collect()
    }

    fn is_alive(&self) -> bool {
        self.health.is_alive(&self.health.conditions())
    }
}

#[test]
fn k19_an_engine_is_well_and_a_netlink_that_does_not_answer_is_an_illness() {
    let rig = Rig::new();
    let told = told(&rig);
    assert_eq!(told.unmet(), []);
    rig.kernel.fail_from(rig.kernel.calls().len(), Errno::ENOBUFS);
    let [netlink] = &told.unmet()[..] else { panic!("one condition is not met") };
    assert_eq!(netlink.name, "netlink");
    assert!(!told.is_alive());
    assert!(netlink.reason.starts_with("the kernel does not answer: "), "{}", netlink.reason);
    rig.kernel.heal();
    assert_eq!(told.unmet(), []);
}

#[test]
fn k19_a_store_that_can_not_take_records_is_neither_well_nor_ready_and_the_daemon_is_alive() {
    let rig = Rig::new();
    let told = told(&rig);
    assert!(told.readiness.ready());
    std::fs::remove_dir_all(rig.dir.path().join("run")).unwrap();
    let names: Vec<&str> = told.unmet().iter().map(|c| c.name).collect();
    assert_eq!(names, ["store", "store"]);
    assert!(told.readiness.missing().contains("make space"), "{}", told.readiness.missing());
    assert!(told.is_alive());
    let asked: Vec<&str> = told.health.conditions_of_life().iter().map(|c| c.name).collect();
    assert_eq!(asked, ["calls", "netlink", "namespaces"], "what else there is no restart mends");
}

#[test]
fn k19_a_driver_that_does_not_end_is_told_and_is_no_illness() {
    let rig = Rig::new();
    let told = told(&rig);
    let drivers = || told.health.conditions().into_iter().find(|c| c.name == "drivers").unwrap();
    assert_eq!(drivers().reason, "");
    rig.kernel.hang("writing \"1\" to /sys/bus/pci/devices/0000:21:10.0/reset: since 40 s");
    assert!(drivers().reason.ends_with("0000:21:10.0/reset: since 40 s"), "{}", drivers().reason);
    assert_eq!(told.unmet(), []);
}

#[test]
fn k19_a_netns_watch_for_dead_namespaces_that_is_blind_or_hangs_is_an_illness() {
    let rig = Rig::new();
    let told = told(&rig);
    rig.engine().netns_watch.is_blind("no socket");
    let unmet = told.unmet();
    assert_eq!((unmet.len(), unmet[0].name), (1, "namespaces"));
    assert_eq!(unmet[0].reason, "deaths of namespaces can't be watched: no socket");
    assert!(!told.is_alive());
    let engine = Arc::clone(rig.engine.as_ref().unwrap());
    engine.netns_watch.turns();
    assert_eq!(told.unmet(), []);
    let later = std::time::Instant::now() + Duration::from_secs(200);
    assert!(engine.netns_watch.seen(later).unwrap_err().contains("hangs since "));
}
