//! The switch as its ports see it: who gets which frame.

use super::super::TagChange;
use super::super::test_frames::{address, at, frame, receivers, rules};
use super::*;
use fairlead_host::Mac;

const BROADCAST: Mac = Mac([0xff; 6]);

fn switch() -> Switch {
    Switch::new(Limits::default())
}

fn add(switch: &mut Switch, rules: &PortRules) -> PortIndex {
    switch.add_port(rules).unwrap()
}

fn send(switch: &mut Switch, from: PortIndex, to: Mac, source: Mac, ms: u64) -> Decision {
    switch.decide(from, &frame(to, source, &[]), 64, at(ms))
}

fn to(port: PortIndex) -> Decision {
    Decision::To(port, TagChange::None)
}

#[test]
fn a_ports_own_address_needs_no_learning() {
    let mut switch = switch();
    let (one, two) = (add(&mut switch, &rules(1)), add(&mut switch, &rules(2)));
    assert_eq!(send(&mut switch, one, address(2), address(1), 0), to(two));
    assert_eq!(send(&mut switch, two, address(1), address(2), 0), to(one));
    assert_eq!(
        send(&mut switch, one, address(1), address(1), 0),
        Decision::Drop(DropReason::Isolated),
        "its own"
    );
}

#[test]
fn an_unknown_address_is_flooded_until_it_is_learnt_and_again_when_it_is_too_old() {
    let mut switch = switch();
    let ports: Vec<_> = (1..=3).map(|last| add(&mut switch, &rules(last))).collect();
    let flooded = send(&mut switch, ports[0], address(9), address(1), 0);
    assert_eq!(
        receivers(&switch, ports[0], flooded),
        [(ports[1], TagChange::None), (ports[2], TagChange::None)]
    );
    send(&mut switch, ports[2], BROADCAST, address(9), 1_000);
    assert_eq!(send(&mut switch, ports[0], address(9), address(1), 1_000), to(ports[2]));
    assert_eq!(send(&mut switch, ports[0], address(9), address(1), 299_000), to(ports[2]));
    let late = send(&mut switch, ports[0], address(9), address(1), 312_000);
    assert!(matches!(late, Decision::Flood(_)), "{late:?}");
    assert!(!switch.mac_table(at(312_000)).iter().any(|entry| entry.mac == address(9)));
}

#[test]
fn an_address_that_moves_is_learnt_at_its_new_port_at_once() {
    let mut switch = switch();
    let ports: Vec<_> = (1..=3).map(|last| add(&mut switch, &rules(last))).collect();
    send(&mut switch, ports[1], BROADCAST, address(9), 0);
    assert_eq!(send(&mut switch, ports[0], address(9), address(1), 0), to(ports[1]));
    send(&mut switch, ports[2], BROADCAST, address(9), 0);
    assert_eq!(send(&mut switch, ports[0], address(9), address(1), 0), to(ports[2]));
}

#[test]
fn an_own_address_is_neither_stolen_nor_kept_after_its_port_is_gone() {
    let mut switch = switch();
    let ports: Vec<_> = (1..=3).map(|last| add(&mut switch, &rules(last))).collect();
    send(&mut switch, ports[2], BROADCAST, address(2), 0);
    assert_eq!(send(&mut switch, ports[0], address(2), address(1), 0), to(ports[1]));
    switch.remove_port(ports[1]);
    assert!(matches!(send(&mut switch, ports[0], address(2), address(1), 0), Decision::Flood(_)));
    let four = add(&mut switch, &rules(4));
    assert_eq!(four, ports[1], "its number is free again");
    assert!(
        matches!(send(&mut switch, ports[0], address(2), address(1), 0), Decision::Flood(_)),
        "no note is left"
    );
}

#[test]
fn of_two_ports_with_one_address_the_first_has_it_and_the_second_inherits_it() {
    let mut switch = switch();
    let (one, two, asks) =
        (add(&mut switch, &rules(1)), add(&mut switch, &rules(1)), add(&mut switch, &rules(3)));
    send(&mut switch, two, BROADCAST, address(1), 0);
    assert_eq!(send(&mut switch, asks, address(1), address(3), 0), to(one));
    switch.remove_port(one);
    assert_eq!(send(&mut switch, asks, address(1), address(3), 0), to(two));
}

#[test]
fn a_port_that_comes_takes_its_address_from_whoever_was_learnt_with_it() {
    let mut switch = switch();
    let (one, two) = (add(&mut switch, &rules(1)), add(&mut switch, &rules(2)));
    send(&mut switch, two, BROADCAST, address(7), 0);
    let seven = add(&mut switch, &rules(7));
    assert_eq!(send(&mut switch, one, address(7), address(1), 0), to(seven));
    assert_eq!(switch.learnt, 0);
}

#[test]
fn networks_and_vlans_with_the_same_addresses_are_apart() {
    let mut switch = switch();
    let red = [add(&mut switch, &rules(1)), add(&mut switch, &rules(2))];
    let blue = [1, 2].map(|last| add(&mut switch, &PortRules { network: "blue".into(), ..rules(last) }));
    let in_vlan = [1, 2].map(|last| add(&mut switch, &PortRules { vlan: Some(5), ..rules(last) }));
    for [one, two] in [red, blue, in_vlan] {
        assert_eq!(send(&mut switch, one, address(2), address(1), 0), to(two));
        let flooded = send(&mut switch, one, BROADCAST, address(1), 0);
        assert_eq!(receivers(&switch, one, flooded), [(two, TagChange::None)]);
    }
}

#[test]
fn trunk_and_access_ports_reach_each_other_with_a_change_of_tag() {
    let mut switch = switch();
    let five = add(&mut switch, &PortRules { vlan: Some(5), ..rules(1) });
    let six = add(&mut switch, &PortRules { vlan: Some(6), ..rules(2) });
    let trunk = add(&mut switch, &PortRules { trunk: vec![5, 6], ..rules(3) });
    assert_eq!(send(&mut switch, five, address(3), address(1), 0), Decision::To(trunk, TagChange::Push(5)));
    let tagged = |switch: &mut Switch, to: Mac, tags: &[u16]| {
        let decision = switch.decide(trunk, &frame(to, address(3), tags), 64, at(0));
        receivers(switch, trunk, decision)
    };
    assert_eq!(tagged(&mut switch, address(1), &[5]), [(five, TagChange::Pop)]);
    assert_eq!(tagged(&mut switch, BROADCAST, &[6]), [(six, TagChange::Pop)]);
    for outside in [&[][..], &[7], &[0], &[4095], &[5, 6], &[5, 6, 7]] {
        assert_eq!(tagged(&mut switch, BROADCAST, outside), [], "{outside:?}");
    }
    let double = switch.decide(five, &frame(address(2), address(1), &[6]), 64, at(0));
    assert_eq!(double, Decision::Drop(DropReason::Vlan), "an access port sends no tags");
}

#[test]
fn isolated_ports_reach_only_others() {
    let mut switch = switch();
    let [one, two] = [1, 2].map(|last| add(&mut switch, &PortRules { isolated: true, ..rules(last) }));
    let three = add(&mut switch, &rules(3));
    assert_eq!(send(&mut switch, one, address(2), address(1), 0), Decision::Drop(DropReason::Isolated));
    let flooded = send(&mut switch, two, BROADCAST, address(2), 0);
    assert_eq!(receivers(&switch, two, flooded), [(three, TagChange::None)]);
    assert_eq!(send(&mut switch, three, address(2), address(3), 0), to(two));
}

#[test]
fn frames_of_wrong_length_or_to_a_bridge_group_go_nowhere() {
    let mut switch = switch();
    let (one, two) = (add(&mut switch, &rules(1)), add(&mut switch, &PortRules { mtu: 1_000, ..rules(2) }));
    let bytes = frame(address(2), address(1), &[]);
    let mut of = |head: &[u8], length| switch.decide(one, head, length, at(0));
    for (head, length) in [(0, 0), (13, 13), (64, 13), (64, 1_515), (64, 1_015)] {
        assert_eq!(of(&bytes[..head], length), Decision::Drop(DropReason::Length), "{head} of {length}");
    }
    assert_eq!(of(&bytes, 1_014), to(two));
    let to_bridges = frame(Mac([1, 0x80, 0xc2, 0, 0, 0xe]), address(1), &[]);
    assert_eq!(of(&to_bridges, 64), Decision::Drop(DropReason::Reserved));
    assert_eq!(
        switch.decide(PortIndex(9), &bytes, 64, at(0)),
        Decision::Drop(DropReason::Isolated),
        "no such port"
    );
}

#[test]
fn a_storm_is_cut_off_and_known_addresses_are_reached_in_it() {
    let mut switch = switch();
    let (one, two) = (add(&mut switch, &rules(1)), add(&mut switch, &rules(2)));
    let sent = (0..5_000).map(|_| send(&mut switch, one, BROADCAST, address(1), 0));
    assert_eq!(sent.filter(|decision| matches!(decision, Decision::Flood(_))).count(), 2_000);
    assert_eq!(
        send(&mut switch, one, address(9), address(1), 0),
        Decision::Drop(DropReason::Storm),
        "unknown"
    );
    assert_eq!(send(&mut switch, one, address(2), address(1), 0), to(two));
    assert!(matches!(send(&mut switch, two, BROADCAST, address(2), 0), Decision::Flood(_)));
    assert!(matches!(send(&mut switch, one, BROADCAST, address(1), 1), Decision::Flood(_)));
}

#[test]
fn in_a_large_network_a_flooded_frame_counts_by_its_copies() {
    let mut switch = switch();
    let ports: Vec<_> = (0..200).map(|last| add(&mut switch, &rules(last))).collect();
    let sent = (0..5_000).map(|_| send(&mut switch, ports[0], BROADCAST, address(0), 0));
    assert_eq!(sent.filter(|decision| matches!(decision, Decision::Flood(_))).count(), 500);
}

#[test]
fn a_port_at_its_bound_learns_no_more_and_others_do() {
    let limits = Limits { addresses_per_port: 3, addresses: 5, ..Limits::default() };
    let mut switch = Switch::new(limits);
    let ports: Vec<_> = [101, 102, 103].map(|last| add(&mut switch, &rules(last))).to_vec();
    for last in 1..=9 {
        send(&mut switch, ports[0], BROADCAST, address(last), 0);
    }
    for last in 11..=19 {
        send(&mut switch, ports[1], BROADCAST, address(last), 0);
    }
    let learnt = |switch: &Switch| {
        let mut all: Vec<_> = switch.mac_table(at(0)).iter().map(|entry| entry.mac.0[5]).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(learnt(&switch), [1, 2, 3, 11, 12, 101, 102, 103]);
    send(&mut switch, ports[2], BROADCAST, address(1), 0);
    send(&mut switch, ports[0], BROADCAST, address(4), 0);
    assert_eq!(learnt(&switch), [1, 2, 3, 11, 12, 101, 102, 103], "full in all");
    switch.remove_port(ports[2]);
    send(&mut switch, ports[0], BROADCAST, address(4), 0);
    assert_eq!(learnt(&switch), [2, 3, 4, 11, 12, 101, 102], "what moved away and what went leaves room");
    send(&mut switch, ports[0], BROADCAST, address(8), 320_000);
    let later = switch.mac_table(at(320_000));
    assert!(later.iter().any(|entry| entry.mac == address(8)), "what is too old leaves room: {later:?}");
}

#[test]
fn more_ports_than_the_limit_are_refused() {
    let mut switch = Switch::new(Limits { ports: 1, ..Limits::default() });
    let one = add(&mut switch, &rules(1));
    assert_eq!(switch.add_port(&rules(2)), Err(TooManyPorts(1)));
    switch.remove_port(one);
    switch.remove_port(one);
    assert_eq!(switch.add_port(&rules(2)), Ok(one));
}

#[test]
fn both_rates_of_a_port_are_kept() {
    let mut switch = switch();
    let limited = PortRules { from_guest_bits: Some(8_000_000), ..rules(1) };
    let (one, two) = (add(&mut switch, &limited), add(&mut switch, &rules(2)));
    let slow = add(&mut switch, &PortRules { to_guest_bits: Some(8_000_000), mtu: 9_000, ..rules(3) });
    // A byte in a microsecond: 10 ms of it at once, then 1,000 bytes in a millisecond.
    let mut passed = |from, last: u8, to: u8, ms| {
        let bytes = frame(address(to), address(last), &[]);
        let decide = |_: &u32| matches!(switch.decide(from, &bytes, 1_000, at(ms)), Decision::To(..));
        (0..100).filter(decide).count()
    };
    assert_eq!(passed(one, 1, 2, 0), 10);
    assert_eq!(passed(one, 1, 2, 3), 3);
    assert_eq!(passed(two, 2, 3, 3), 10);
    assert_eq!(passed(two, 2, 1, 3), 100);
    let flooded = |switch: &mut Switch, ms| {
        let decision = switch.decide(two, &frame(BROADCAST, address(2), &[]), 1_000, at(ms));
        receivers(switch, two, decision).iter().map(|(port, _)| *port).collect::<Vec<_>>()
    };
    assert_eq!(flooded(&mut switch, 3), [one], "the slow one has got what it may");
    assert_eq!(flooded(&mut switch, 4), [one, slow]);
}

#[test]
fn the_table_tells_network_vlan_port_and_age() {
    let mut switch = switch();
    let one = add(&mut switch, &PortRules { vlan: Some(5), ..rules(1) });
    send(&mut switch, one, BROADCAST, address(9), 2_000);
    let mut table = switch.mac_table(at(7_500));
    table.sort_by_key(|entry| entry.mac.0);
    let entry = |last, age_s| LearntAddress {
        network: "red".into(),
        vlan: Some(5),
        mac: address(last),
        port: one,
        age_s,
    };
    assert_eq!(table, [entry(1, 0), entry(9, 5)]);
}
