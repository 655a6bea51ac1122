//! A burst of 200 ADDs and DELs from eight runtimes while the daemon is killed again and again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use fairlead_cni::wire::Command;
use serde_json::Value;

use super::executed_plugins::Ledger;
use super::rig::{Rig, SeededRandom, Way};

const RUNTIMES: usize = 8;
const PODS_EACH: usize = 25;

/// Plays one runtime: one pod after the other, each with a namespace of its own.
fn runtime(rig: &Rig, number: usize, configs: &[Value], mut random: SeededRandom) {
    for n in 0..PODS_EACH {
        let container = format!("c{number}-{n}");
        let pod = rig.pod(&container);
        let way = if random.below(3) == 0 { Way::Executable } else { Way::Socket };
        let call = rig.call(
            &container,
            &pod,
            &configs[usize::try_from(random.below(configs.len() as u64)).unwrap()],
        );
        pod.has_what_was_answered("eth0", &call.insist(Command::Add, way).result());
        sleep(random.micros(20_000));
        let kept = (random.below(2) == 0).then_some(pod);
        call.insist(Command::Del, way).succeeds();
        drop(kept);
    }
}

#[test]
fn k14_x05_in_a_burst_of_200_with_kills_at_random_nothing_leaks_and_every_answered_add_is_there() {
    let mut random = SeededRandom::new("burst");
    let rig = Rig::new();
    let macvlan = rig.macvlan("net");
    let configs = [macvlan.clone(), macvlan.clone(), macvlan, rig.layer2(), rig.cluster_network()];
    let first = rig.start();
    let before = rig.leftovers(&[]);
    let (left, failed) = (AtomicUsize::new(RUNTIMES), AtomicBool::new(false));
    let mut kills = 0;
    let last = scope(|s| {
        let mut daemon = first;
        for number in 0..RUNTIMES {
            let (rig, configs, random, left, failed) = (&rig, &configs, random.fork(), &left, &failed);
            s.spawn(move || {
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    runtime(rig, number, configs, random);
                }));
                failed.fetch_or(done.is_err(), Ordering::Relaxed);
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while left.load(Ordering::Relaxed) > 0 {
            sleep(Duration::from_millis(20) + random.micros(180_000));
            daemon.kill();
            kills += 1;
            // Now and then it is killed before it is ready.
            daemon = if random.below(4) == 0 { rig.launch(None) } else { rig.start() };
        }
        daemon
    });
    assert!(!failed.load(Ordering::Relaxed), "a runtime failed; see above");
    drop(last);
    let _daemon = rig.start();
    rig.is_as(&before, &[], "the burst");
    eprintln!("burst: {} pods, {kills} kills", RUNTIMES * PODS_EACH);
    assert!(kills >= 5, "only {kills} kills: the burst was too short to prove anything");
}
