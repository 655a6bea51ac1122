//! Any single step refused: the host is as before.

use nix::errno::Errno;

use super::*;

/// Runs a whole life of one attachment; every call of the kernel is counted.
fn calls_of(
    config: &str,
    call: impl Fn(&Rig) -> Result<String, CniError>,
    before: impl Fn(&Rig, &str),
) -> usize {
    let rig = Rig::new();
    before(&rig, config);
    rig.kernel.forget_calls();
    call(&rig).unwrap();
    rig.kernel.calls().len()
}

fn nothing(_rig: &Rig, _config: &str) {}

fn added(rig: &Rig, config: &str) {
    rig.add(config).unwrap();
}

#[test]
fn x05_an_add_that_is_refused_at_any_call_leaves_the_host_as_before() {
    for (name, config) in configurations() {
        let calls = calls_of(&config, |rig| rig.add(&config), nothing);
        let whole = {
            let rig = Rig::new();
            added(&rig, &config);
            rig.pod_has()
        };
        for n in 0..calls {
            let rig = Rig::new();
            let before = rig.state();
            rig.kernel.forget_calls();
            rig.kernel.fail_at(n, Errno::ENOBUFS);
            let answer = rig.add(&config);
            rig.kernel.heal();
            if answer.is_ok() {
                // What was refused was no more than a wish (a sysctl that an old kernel may lack).
                assert_eq!(rig.pod_has(), whole, "{name}, call {n} of {calls}");
                rig.del(&config).unwrap();
            }
            rig.reap();
            let after = rig.state();
            if name == "loopback" {
                assert_eq!(after.records, 0, "{name}, call {n}");
                continue;
            }
            assert_eq!(after, before, "{name}, call {n} of {calls}, answer {answer:?}");
        }
    }
}

#[test]
fn x05_a_del_that_is_refused_at_any_call_is_done_by_the_next_one() {
    for (name, config) in configurations() {
        let calls = calls_of(&config, |rig| rig.del(&config), added);
        for n in 0..calls {
            let rig = Rig::new();
            let before = rig.state();
            added(&rig, &config);
            rig.kernel.forget_calls();
            rig.kernel.fail_at(n, Errno::ENOBUFS);
            let first = rig.del(&config);
            rig.kernel.heal();
            rig.del(&config).unwrap_or_else(|e| panic!("{name}, call {n}: second DEL: {e}"));
            rig.reap();
            let after = rig.state();
            if name != "loopback" {
                assert_eq!(after, before, "{name}, call {n} of {calls}, first answer {first:?}");
            }
        }
    }
}

#[test]
fn k14_an_add_that_dies_with_its_undo_is_undone_after_the_restart() {
    for (name, config) in configurations() {
        let calls = calls_of(&config, |rig| rig.add(&config), nothing);
        for n in 0..calls {
            let mut rig = Rig::new();
            let before = rig.state();
            rig.kernel.forget_calls();
            // From here on the kernel does nothing any more, as if the daemon had been killed.
            rig.kernel.fail_from(n, Errno::ENOBUFS);
            let answer = rig.add(&config);
            rig.kernel.heal();
            rig.restart();
            if answer.is_err() && name != "loopback" {
                assert_eq!(rig.state(), before, "{name}, call {n} of {calls}");
            }
            let again = rig.add(&config);
            assert_eq!(again.is_ok(), answer.is_err(), "{name}, call {n}: the retried ADD: {again:?}");
        }
    }
}

#[test]
fn k14_a_del_that_dies_half_way_is_finished_after_the_restart() {
    for (name, config) in configurations() {
        let calls = calls_of(&config, |rig| rig.del(&config), added);
        for n in 0..calls {
            let mut rig = Rig::new();
            let before = rig.state();
            added(&rig, &config);
            rig.kernel.forget_calls();
            rig.kernel.fail_from(n, Errno::ENOBUFS);
            let answer = rig.del(&config);
            rig.kernel.heal();
            rig.restart();
            rig.del(&config).unwrap_or_else(|e| panic!("{name}, call {n}: DEL after the restart: {e}"));
            rig.reap();
            if name != "loopback" {
                assert_eq!(rig.state(), before, "{name}, call {n} of {calls}, answer {answer:?}");
            }
        }
    }
}

#[test]
fn a_failed_del_never_says_the_words_that_containerd_takes_for_success() {
    let rig = Rig::new();
    added(&rig, &macvlan());
    for errno in [Errno::ENOENT, Errno::EIO] {
        rig.kernel.fail_from(0, errno);
        let told = rig.del(&macvlan()).unwrap_err().to_string().to_lowercase();
        rig.kernel.heal();
        assert!(!told.contains("not found") && !told.contains("no such file or directory"), "{told}");
    }
}
