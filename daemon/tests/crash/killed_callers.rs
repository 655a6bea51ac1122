//! The executable is killed in the middle of its call.

use std::thread::{scope, sleep};

use fairlead_cni::wire::Command;

use super::rig::{Rig, SeededRandom};

const CALLS_EACH: usize = 25;

#[test]
fn x05_callers_killed_in_mid_call_leave_nothing_after_their_del() {
    let mut random = SeededRandom::new("callers");
    let rig = Rig::new();
    let daemon = rig.start();
    let before = rig.leftovers(&[]);
    let configs = [rig.macvlan("net"), rig.layer2()];
    scope(|s| {
        for number in 0..4 {
            let (rig, configs, mut random) = (&rig, &configs, random.fork());
            s.spawn(move || {
                for n in 0..CALLS_EACH {
                    let container = format!("c{number}-{n}");
                    let pod = rig.pod(&container);
                    let untouched = pod.links();
                    let call = rig.call(&container, &pod, &configs[n % 2]);
                    let add = call.execute(Command::Add);
                    sleep(random.micros(8_000));
                    drop(add);
                    if random.below(3) == 0 {
                        let del = call.execute(Command::Del);
                        sleep(random.micros(8_000));
                        drop(del);
                    }
                    call.execute(Command::Del).end().succeeds();
                    // Silent at once, and gone soon after.
                    super::rig::until("the pod is as before", || pod.links() == untouched);
                    // What was DELed is free for the next: the same call is served.
                    if random.below(3) == 0 {
                        pod.has_what_was_answered("eth0", &call.execute(Command::Add).end().result());
                        call.execute(Command::Del).end().succeeds();
                    }
                }
            });
        }
    });
    rig.is_as(&before, &[], "the last DEL");
    daemon.kill();
    let _daemon = rig.start();
    rig.is_as(&before, &[], "a restart");
}
