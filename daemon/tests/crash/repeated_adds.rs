//! The same ADD comes again right after its first answer has arrived.

use std::thread::sleep;
use std::time::Duration;

use super::rig::{Reply, Rig};

const REPEATS: usize = 20;

#[test]
fn the_identical_add_a_moment_after_the_first_answer_has_arrived_is_refused() {
    let rig = Rig::new();
    let _daemon = rig.start();
    let refused = (0..REPEATS).filter(|n| {
        let pod = rig.pod(&format!("p{n}"));
        let config = rig.layer2();
        let call = rig.call(&format!("c{n}"), &pod, &config);
        call.add().succeeds();
        // The confirmation lies in the daemon's socket by now. Deliveries go on record 5 ms later, in batches.
        sleep(Duration::from_millis(1));
        let refused = matches!(call.add(), Reply::Refused(error) if error.msg.contains("already has"));
        call.del().succeeds();
        refused
    });
    // On a machine that is short of processors some confirmations are read late.
    let refused = refused.count();
    assert!(refused > REPEATS / 2, "{refused} of {REPEATS} were refused");
}
