//! The switch as its ports see it: who gets which frame.

use super::super::TagChange;
use super::super::test_frames::{address, at, frame, receivers, rules, table_of};
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
    assert!(!table_of(&switch, at(312_000)).iter().any(|entry| entry.mac == address(9)));
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
fn frames_that_begin_as_the_last_one_did_are_judged_by_all_that_may_differ() {
    let mut switch = switch();
    let checked = PortRules { spoof_check: true, ..rules(1) };
    let (one, two) = (add(&mut switch, &checked), add(&mut switch, &PortRules { mtu: 1_400, ..rules(2) }));
    for (length, decided) in [
        (1_414, to(two)),
        (1_415, Decision::Withheld(two, DropReason::Length)),
        (1_514, Decision::Withheld(two, DropReason::Length)),
        (1_515, Decision::Drop(DropReason::Length)),
        (64, to(two)),
        (13, Decision::Drop(DropReason::Length)),
    ] {
        let head = frame(address(2), address(1), &[]);
        let head = &head[..length.min(head.len())];
        assert_eq!([(); 2].map(|()| switch.decide(one, head, length, at(0))), [decided; 2], "{length} bytes");
    }
    // Of ARP more than the start decides.
    let mut arp = frame(address(2), address(1), &[]);
    arp[12..20].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4]);
    arp[22..28].copy_from_slice(&address(1).0);
    for (sender, decided) in [(1, to(two)), (9, Decision::Drop(DropReason::Spoofed)), (1, to(two))] {
        arp[27] = sender;
        assert_eq!([(); 2].map(|()| switch.decide(one, &arp, 64, at(0))), [decided; 2], "{sender}");
    }
}

#[test]
fn an_address_whose_frames_all_begin_alike_is_seen_again_and_does_not_age() {
    let mut switch = switch();
    let (one, two) = (add(&mut switch, &rules(1)), add(&mut switch, &rules(2)));
    for ms in (0..400_000).step_by(100) {
        assert_eq!(send(&mut switch, one, address(2), address(9), ms), to(two));
    }
    let table = table_of(&switch, at(400_000));
    assert!(table.iter().any(|entry| entry.mac == address(9) && entry.age_s <= 2), "{table:?}");
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
    for (head, length) in [(0, 0), (13, 13), (64, 13), (64, 1_515)] {
        assert_eq!(of(&bytes[..head], length), Decision::Drop(DropReason::Length), "{head} of {length}");
    }
    assert_eq!(of(&bytes, 1_015), Decision::Withheld(two, DropReason::Length), "the receiver's MTU");
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
fn a_port_floods_as_many_frames_as_the_limits_say_and_a_fifth_of_a_seconds_at_once() {
    for (frames, at_once) in [(1, 256), (10_000, 2_000), (50_000, 10_000)] {
        let mut switch = Switch::new(Limits::of_storm_frames(frames));
        let one = add(&mut switch, &rules(1));
        let mut flooded = |ms| {
            let sent = (0..12_000).map(|_| send(&mut switch, one, BROADCAST, address(1), ms));
            sent.filter(|decision| matches!(decision, Decision::Flood(_))).count()
        };
        assert_eq!(flooded(0), at_once, "{frames} in a second");
        let in_100_ms = usize::try_from(frames / 10).unwrap();
        assert_eq!(flooded(100), in_100_ms, "{frames} in a second");
    }
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
    let limits =
        Limits { addresses_per_port: 3, addresses: 5, addresses_per_network: 0, ..Limits::default() };
    let mut switch = Switch::new(limits);
    let ports: Vec<_> = [101, 102, 103].map(|last| add(&mut switch, &rules(last))).to_vec();
    for last in 1..=9 {
        send(&mut switch, ports[0], BROADCAST, address(last), 0);
    }
    for last in 11..=19 {
        send(&mut switch, ports[1], BROADCAST, address(last), 0);
    }
    let learnt = |switch: &Switch| {
        let mut all: Vec<_> = table_of(switch, at(0)).iter().map(|entry| entry.mac.0[5]).collect();
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
    let later = table_of(&switch, at(320_000));
    assert!(later.iter().any(|entry| entry.mac == address(8)), "what is too old leaves room: {later:?}");
}

#[test]
fn a_network_learns_its_part_when_others_have_learnt_all_that_all_of_them_may() {
    let limits = Limits { addresses: 5, addresses_per_network: 2, ..Limits::default() };
    let mut switch = Switch::new(limits);
    let red = add(&mut switch, &rules(101));
    let blue = add(&mut switch, &PortRules { network: "blue".into(), ..rules(102) });
    for last in 1..=9 {
        send(&mut switch, red, BROADCAST, address(last), 0);
    }
    for last in 11..=19 {
        send(&mut switch, blue, BROADCAST, address(last), 0);
    }
    let table = table_of(&switch, at(0));
    let learnt = |port| table.iter().filter(|entry| entry.port == port && entry.mac.0[5] < 100).count();
    assert_eq!((learnt(red), learnt(blue)), (5, 2));
}

#[test]
fn the_own_address_of_a_trunk_is_told_once_and_is_its_own_in_all_of_its_vlans() {
    let mut switch = switch();
    let trunk = |last, vlan| PortRules { vlan, trunk: (1..=4094).collect(), ..rules(last) };
    let (one, two) = (add(&mut switch, &trunk(1, None)), add(&mut switch, &trunk(2, Some(7))));
    for vlan in [1, 64, 4094] {
        let bytes = frame(address(2), address(1), &[vlan]);
        assert_eq!(switch.decide(one, &bytes, 68, at(0)), to(two));
    }
    let mut told: Vec<_> =
        table_of(&switch, at(0)).into_iter().map(|entry| (entry.port, entry.vlan)).collect();
    told.sort_unstable();
    assert_eq!(told, [(one, None), (two, Some(7))]);
    assert!(switch.known_addresses() <= 2, "it is what the table's slices are counted by");
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
    let to_slow = frame(address(3), address(2), &[]);
    let over = switch.decide(two, &to_slow, 1_000, at(3));
    assert_eq!(over, Decision::Withheld(slow, DropReason::Rate), "it is the receiver's drop");
    assert_eq!(flooded(&mut switch, 3), [one], "the slow one has got what it may");
    assert_eq!(flooded(&mut switch, 4), [one, slow]);
}

/// A frame of so many segments of 1,000 bytes.
fn segmented(switch: &mut Switch, from: PortIndex, bytes: &[u8], segments: u16, ms: u64) -> Decision {
    let size = FrameSize { longest: 1_000, bytes: 1_000 * usize::from(segments), segments };
    switch.decide_segmented(from, bytes, size, at(ms))
}

#[test]
fn a_segmented_frame_counts_in_both_rates_as_its_segments_would() {
    let mut switch = switch();
    let limited = PortRules { from_guest_bits: Some(8_000_000), ..rules(1) };
    let (one, two) = (add(&mut switch, &limited), add(&mut switch, &rules(2)));
    let slow = add(&mut switch, &PortRules { to_guest_bits: Some(8_000_000), ..rules(3) });
    let (to_two, to_slow) = (frame(address(2), address(1), &[]), frame(address(3), address(2), &[]));
    // 60,000 bytes at once, where 10,000 may be: the other 50,000 come in within 50 ms.
    assert_eq!(segmented(&mut switch, one, &to_two, 60, 0), to(two));
    assert_eq!(segmented(&mut switch, one, &to_two, 1, 50), Decision::Drop(DropReason::Rate));
    assert_eq!(segmented(&mut switch, one, &to_two, 1, 51), to(two));
    assert_eq!(segmented(&mut switch, two, &to_slow, 60, 51), to(slow));
    assert_eq!(segmented(&mut switch, two, &to_slow, 1, 101), Decision::Withheld(slow, DropReason::Rate));
    assert_eq!(segmented(&mut switch, two, &to_slow, 1, 102), to(slow));
}

#[test]
fn an_mtu_is_of_segments_and_the_storm_limit_counts_them() {
    let mut switch = switch();
    let (one, two) = (add(&mut switch, &rules(1)), add(&mut switch, &rules(2)));
    let narrow = add(&mut switch, &PortRules { mtu: 985, ..rules(3) });
    let to_two = frame(address(2), address(1), &[]);
    let size = |longest| FrameSize { longest, bytes: 60_000, segments: 40 };
    assert_eq!(switch.decide_segmented(one, &to_two, size(1_514), at(0)), to(two));
    assert_eq!(switch.decide_segmented(one, &to_two, size(1_515), at(0)), Decision::Drop(DropReason::Length));
    let to_narrow = segmented(&mut switch, one, &frame(address(3), address(1), &[]), 40, 0);
    assert_eq!(to_narrow, Decision::Withheld(narrow, DropReason::Length));

    let to_all = frame(BROADCAST, address(1), &[]);
    let passed = |_: &u32| matches!(segmented(&mut switch, one, &to_all, 40, 0), Decision::Flood(_));
    assert_eq!((0..100).filter(passed).count(), 50, "2,000 at once");
}

#[test]
fn a_frame_in_segments_is_flooded_while_all_copies_of_them_are_few() {
    let mut switch = switch();
    let (one, to_all) = (add(&mut switch, &rules(1)), frame(BROADCAST, address(1), &[]));
    let mut count = 1;
    for (ports, most) in [(2, 256), (5, 64), (60, 4), (255, 1)] {
        for last in count..ports {
            add(&mut switch, &rules(last + 1));
        }
        count = ports;
        let passes = segmented(&mut switch, one, &to_all, most, 0);
        assert!(matches!(passes, Decision::Flood(_)), "{most} segments among {ports} ports");
        let is_too_long = segmented(&mut switch, one, &to_all, most + 1, 0);
        assert_eq!(is_too_long, Decision::Drop(DropReason::Storm), "one more among {ports} ports");
    }
}

#[test]
fn the_table_tells_network_vlan_port_and_age() {
    let mut switch = switch();
    let one = add(&mut switch, &PortRules { vlan: Some(5), ..rules(1) });
    send(&mut switch, one, BROADCAST, address(9), 2_000);
    let mut table = table_of(&switch, at(7_500));
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

fn uplink() -> PortRules {
    let network = rules(1).network;
    let config =
        crate::port::UplinkConfig { network, interface: "eth1".into(), index: 7, mtu: 1500, native: true };
    PortRules::from(&config)
}

#[test]
fn with_an_uplink_what_is_not_known_is_on_the_wire_and_nowhere_else() {
    let mut switch = switch();
    let (one, two) = (add(&mut switch, &rules(1)), add(&mut switch, &rules(2)));
    let wire = add(&mut switch, &uplink());
    assert_eq!(send(&mut switch, one, address(9), address(1), 0), to(wire));
    assert_eq!(send(&mut switch, one, address(2), address(1), 0), to(two));
    assert_eq!(send(&mut switch, wire, address(1), address(9), 0), to(one));
    let stray = send(&mut switch, wire, address(8), address(9), 0);
    assert_eq!(stray, Decision::Drop(DropReason::Unknown), "no pod sees what is for others on the wire");
    let flooded = send(&mut switch, wire, BROADCAST, address(9), 0);
    assert_eq!(receivers(&switch, wire, flooded), [(one, TagChange::None), (two, TagChange::None)]);
    let flooded = send(&mut switch, one, BROADCAST, address(1), 0);
    assert_eq!(receivers(&switch, one, flooded), [(two, TagChange::None), (wire, TagChange::None)]);
    switch.remove_port(wire);
    assert!(matches!(send(&mut switch, one, address(9), address(1), 0), Decision::Flood(_)));
}

#[test]
fn a_frame_of_a_ports_own_that_comes_back_from_the_wire_is_dropped() {
    let mut switch = switch();
    let (one, _two) = (add(&mut switch, &rules(1)), add(&mut switch, &rules(2)));
    let wire = add(&mut switch, &uplink());
    let back = send(&mut switch, wire, BROADCAST, address(1), 0);
    assert_eq!(back, Decision::Drop(DropReason::Spoofed));
    assert_eq!(send(&mut switch, wire, address(1), address(2), 0), Decision::Drop(DropReason::Spoofed));
    assert_eq!(send(&mut switch, one, address(9), address(1), 0), to(wire));
}

#[test]
fn a_full_table_of_the_wires_addresses_costs_no_port_its_way_there() {
    let limits = Limits { addresses_per_uplink: 2, ..Limits::default() };
    let mut switch = Switch::new(limits);
    let one = add(&mut switch, &rules(1));
    let wire = add(&mut switch, &uplink());
    for last in 10..20 {
        send(&mut switch, wire, BROADCAST, address(last), 0);
    }
    let learnt = table_of(&switch, at(0)).into_iter().filter(|entry| entry.port == wire).count();
    assert_eq!(learnt, 2);
    assert_eq!(send(&mut switch, one, address(19), address(1), 0), to(wire));
}

#[test]
fn frames_of_a_vlan_have_its_tag_on_the_wire() {
    let mut switch = switch();
    let access = add(&mut switch, &PortRules { vlan: Some(5), ..rules(1) });
    let plain = add(&mut switch, &rules(2));
    let wire = add(&mut switch, &uplink());
    assert_eq!(send(&mut switch, access, address(9), address(1), 0), Decision::To(wire, TagChange::Push(5)));
    let tagged = |to, tag| frame(to, address(9), &[tag]);
    let from_wire = switch.decide(wire, &tagged(address(1), 5), 68, at(0));
    assert_eq!(from_wire, Decision::To(access, TagChange::Pop));
    let other = switch.decide(wire, &tagged(address(1), 6), 68, at(0));
    assert_eq!(other, Decision::Drop(DropReason::Unknown));
    assert_eq!(send(&mut switch, wire, address(1), address(9), 0), Decision::Drop(DropReason::Unknown));
    assert_eq!(send(&mut switch, plain, address(9), address(2), 0), to(wire));
}

/// Two switches that are one: each port is the first's or the second's.
fn two_switches(ports: &[(PortRules, usize)]) -> ([Switch; 2], Vec<PortIndex>) {
    let mut switches = [(); 2].map(|()| Switch::one_of_several(Limits::default()));
    let add = |(rules, home): &(PortRules, usize)| {
        let there = switches[1 - home].add_port_elsewhere(rules).unwrap();
        assert_eq!(switches[*home].add_port(rules).unwrap(), there);
        there
    };
    let ports = ports.iter().map(add).collect();
    (switches, ports)
}

#[test]
fn what_a_port_may_get_is_counted_where_it_is_served_and_once() {
    let slow = PortRules { to_guest_bits: Some(8_000), ..rules(2) };
    let ([mut first, mut second], ports) = two_switches(&[(rules(1), 0), (slow, 1), (rules(3), 1)]);
    let bytes = frame(address(2), address(1), &[]);
    // A burst of the largest frame's bits, of frames of 64 bytes; half of them from the other thread.
    let mut passed = 0;
    for number in 0..100 {
        let decision = match number % 2 {
            0 => {
                assert_eq!(first.decide(ports[0], &bytes, 64, at(0)), to(ports[1]), "it is not counted here");
                second.relay(ports[0], Some(ports[1]), &bytes, FrameSize::whole(64), at(0))
            }
            _ => send(&mut second, ports[2], address(2), address(3), 0),
        };
        passed += usize::from(decision == to(ports[1]));
        assert!(passed > number || decision == Decision::Withheld(ports[1], DropReason::Rate), "{number}");
    }
    assert_eq!(passed, (1_500 + 22) / 64);
}

#[test]
fn a_frame_that_came_over_is_judged_by_who_reaches_whom_also_where_it_goes_out() {
    let isolated = |last| PortRules { isolated: true, ..rules(last) };
    let red = PortRules { network: "blue".into(), ..rules(3) };
    let tagged = PortRules { vlan: Some(5), ..rules(4) };
    let ([_, mut second], ports) =
        two_switches(&[(isolated(1), 0), (isolated(2), 1), (red, 1), (tagged, 1), (rules(5), 1)]);
    let bytes = frame(BROADCAST, address(1), &[]);
    let size = FrameSize::whole(64);
    let mut relay = |to: usize| second.relay(ports[0], Some(ports[to]), &bytes, size, at(0));
    let dropped = [1, 2, 3].map(&mut relay);
    let (isolated, vlan) = (Decision::Drop(DropReason::Isolated), Decision::Drop(DropReason::Vlan));
    assert_eq!(dropped, [isolated, isolated, vlan]);
    assert_eq!(relay(4), to(ports[4]));
    let flooded = second.relay(ports[0], None, &bytes, size, at(0));
    assert_eq!(receivers(&second, ports[0], flooded), [(ports[4], TagChange::None)]);
}

#[test]
fn a_guest_that_changes_its_addresses_all_the_time_has_the_other_threads_told_of_some() {
    let ([mut first, mut second], ports) = two_switches(&[(rules(1), 0), (rules(2), 0), (rules(3), 1)]);
    let mut told = 0;
    // One address, by turns behind one port and behind the other.
    for number in 0..10_000 {
        send(&mut first, ports[number % 2], address(3), address(9), 0);
        while let Some(sighting) = first.next_sighting() {
            assert_eq!(sighting.port, ports[number % 2]);
            second.hear(sighting, at(0));
            told += 1;
        }
    }
    assert_eq!(told, 2 * 2_048, "of each port");
    assert_eq!(second.next_sighting(), None, "what is heard is not told on");
    // When it is quiet again, one frame puts it right for all.
    send(&mut first, ports[0], address(3), address(9), 60_000);
    second.hear(first.next_sighting().unwrap(), at(60_000));
    assert_eq!(send(&mut second, ports[2], address(9), address(3), 60_000), to(ports[0]));
}

#[test]
fn an_address_of_which_others_were_not_told_is_told_when_it_is_seen_again() {
    let ([mut first, _], ports) = two_switches(&[(rules(1), 0), (rules(2), 1)]);
    let mut told_at = Vec::new();
    for ms in (0..60_000).step_by(500) {
        send(&mut first, ports[0], address(2), address(9), ms);
        told_at.extend(std::iter::from_fn(|| first.next_sighting()).map(|_| ms));
    }
    assert_eq!(told_at.len(), 6, "every ten seconds: {told_at:?}");
}
