//! What a member goes through: prepared, lent, drawn, drained, seen by the operator and in the metrics.

use fairlead_host::IommuGroup;
use fairlead_host::double::KernelRequest;

use super::*;
use crate::pools::state::Refusal;

#[test]
fn k25_x23_a_pools_vfs_are_set_up_and_verified_before_anybody_has_them() {
    let mut rig = with(POOL);
    rig.restart();
    assert_eq!(rig.states(), ["preparing", "preparing"]);
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
    let snapshot = rig.kernel.snapshot();
    for vf in snapshot.vfs.values().next().unwrap() {
        assert_eq!((vf.vlan.unwrap().id, vf.trust), (7, Some(true)));
        let local = vf.mac.unwrap().0[0] & 3;
        assert_eq!(local, 2, "a local address, not multicast");
    }
    let row = &rig.members()[0];
    assert_eq!((row["pool"].as_str(), row["driver"].as_str()), (Some("radio"), Some("igbvf")));
}

#[test]
fn k25_after_a_restart_what_fits_is_ready_untouched_with_one_reading_of_the_settings() {
    let mut rig = kept(POOL);
    rig.kernel.forget_calls();
    rig.restart();
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.keep();
    assert_eq!(rig.changes(), 0);
    assert_eq!(rig.asked(|asked| matches!(asked, KernelRequest::Vfs(_))), 1);
}

#[test]
fn k26_drained_vfs_are_as_they_were_and_stay_so_until_they_are_filled() {
    let mut rig = with(POOL);
    let before = rig.machine();
    rig.restart();
    rig.keep();
    assert_ne!(rig.machine(), before);
    rig.order(Verb::Drain, "radio");
    assert_eq!(rig.states(), ["drained", "drained"]);
    assert_eq!(rig.machine(), before);
    rig.restart();
    rig.keep();
    assert_eq!((rig.states(), rig.machine()), (vec!["drained".to_owned(), "drained".to_owned()], before));
    let refused = rig.pools().lend(pci(VF), Instant::now() + Duration::from_secs(30)).err().unwrap();
    assert_eq!(refused.why, Refusal::Drained);
    rig.order(Verb::Fill, SECOND);
    assert_eq!(rig.states(), ["drained", "ready"]);
}

#[test]
fn x22_a_vf_that_is_being_prepared_is_waited_for_and_then_told_to_be_tried_again() {
    let mut rig = with(POOL);
    rig.restart();
    let now = Instant::now();
    let pools = rig.pools();
    let refused = pools.lend(pci(VF), now).err().unwrap();
    assert_eq!(refused.why, Refusal::NotYet("preparing".to_owned()));
    std::thread::scope(|scope| {
        let waits = scope
            .spawn(|| pools.lend(pci(VF), now + Duration::from_secs(30)).map(|loan| loan.known().is_some()));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waits.is_finished());
        pools.work_here();
        assert!(waits.join().unwrap().unwrap());
    });
    assert_eq!(rig.states(), ["ready", "ready"], "a loan that is not kept is none");
}

#[test]
fn k25_a_draw_gives_a_ready_vf_once_and_an_empty_pool_says_how_it_stands() {
    let rig = kept(POOL);
    let pools = rig.pools();
    let (first, second) =
        (pools.draw("radio", |_| Some(0)).unwrap(), pools.draw("radio", |_| Some(0)).unwrap());
    assert_eq!([first.address(), second.address()], [pci(VF), pci(SECOND)]);
    let empty = pools.draw("radio", |_| Some(0)).err().unwrap().to_string();
    assert_eq!(empty, "pool \"radio\" has no VF ready: 2 lent");
    drop(first);
    assert_eq!(pools.draw("radio", |_| Some(0)).unwrap().address(), pci(VF));
    assert_eq!(pools.draw("other", |_| Some(0)).err(), Some(DrawError::NoSuchPool("other".to_owned())));
}

#[test]
fn a_pool_for_user_space_has_its_vfs_under_vfio_and_gives_them_back_to_their_driver() {
    let vfio = "pools: [{name: dpdk, selectors: {drivers: [igbvf]}, driver: vfio-pci}]";
    let mut rig = with(vfio);
    let before = rig.machine();
    rig.restart();
    rig.kernel.set_group(22, IommuGroup::InUse);
    rig.keep();
    assert_eq!(rig.states(), ["ready", "foreign"], "a process has the second one's group open");
    rig.restart();
    assert_eq!(rig.states(), ["ready", "foreign"], "though its driver is not what the selector says");
    rig.kernel.set_group(22, IommuGroup::Free);
    rig.keep();
    rig.pools().work_here();
    assert_eq!(rig.states(), ["ready", "ready"]);
    rig.order(Verb::Drain, "dpdk");
    assert_eq!(rig.machine(), before);
}

#[test]
fn what_a_pool_knows_of_its_vfs_is_counted() {
    let rig = kept(POOL);
    let text = rig.metrics();
    assert!(text.contains(r#"fairlead_pool_functions{pool="radio",state="ready"} 2"#), "{text}");
    assert!(text.contains(r#"fairlead_pool_work_seconds_count{task="prepare"} 2"#), "{text}");
}

#[test]
fn a_draw_that_waits_asks_no_more_often_for_a_ready_vf_that_is_quarantined() {
    let rig = kept(POOL);
    rig.order(Verb::Quarantine, "radio");
    let asked = std::cell::Cell::new(0);
    let rank = |_: &state::Member| {
        asked.set(asked.get() + 1);
        Some(0)
    };
    let limit = Instant::now() + Duration::from_millis(200);
    let drawn = rig.pools().draw_by("radio", limit, rank).err();
    assert!(matches!(drawn, Some(DrawError::Empty { .. })), "{drawn:?}");
    assert!(asked.get() < 100, "{}", asked.get());
}

#[test]
fn the_second_look_comes_when_kubelet_has_its_list_and_at_once_where_vfs_are_to_be_made() {
    let mut rig = kept(POOL);
    rig.restart();
    assert_eq!(rig.look_due(), Look::Thorough, "which is due at its time");
    let next = rig.pools().next_look(Instant::now() + Duration::from_secs(60));
    assert_eq!(next, Some(Look::Quick));
    assert_eq!(rig.look_due(), Look::Thorough);
    let mut rig = with("pools: [{name: radio, selectors: {rootDevices: ['0000:21:00.0']}, numvfs: 2}]");
    rig.restart();
    assert_eq!(rig.look_due(), Look::Quick);
}

#[test]
fn whose_a_vf_is_by_files_is_asked_while_nobody_waits_for_the_pools() {
    let rig = kept(POOL);
    rig.pools().lend(pci(VF), Instant::now()).unwrap().keep();
    let pools = rig.pools();
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let sriov_cni = || {
        // Whoever else wants the pools has them meanwhile.
        std::thread::scope(|scope| drop(scope.spawn(|| pools.trouble()).join().unwrap()));
        asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Arc::default())
    };
    let owners = VfOwners { ours: &|_| None, sriov_cni: &sriov_cni };
    pools.table(owners);
    pools.order(Verb::Fill, "radio", owners).unwrap();
    pools.look(Look::Thorough, owners);
    assert!(asked.into_inner() >= 5);
}

#[test]
fn a_vf_that_a_look_finds_in_a_calls_hands_is_looked_at_when_that_has_ended() {
    let mut rig = with("");
    rig.restart();
    let loan = rig.pools().lend(pci(VF), Instant::now()).unwrap();
    rig.pools().configure(configuration(POOL));
    assert_eq!(rig.look_due(), Look::Thorough);
    rig.keep();
    assert_eq!(rig.states(), ["ready"], "the other one");
    drop(loan);
    assert_eq!(rig.look_due(), Look::Quick);
    rig.keep();
    assert_eq!(rig.states(), ["ready", "ready"]);
}
