//! Several poll threads: which serves a port, and that to the ports they are one switch.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use fairlead_host::Mac;
use fairlead_vhost::dataplane::{Options, PollPlace, Socket};
use fairlead_vhost::port::{DropReason, PortConfig};
use guest::{BASE, Guest, Node, RX, TX_BUFFERS, config, exchange, frame, mac, wait_until};
use nix::sys::eventfd::{EfdFlags, EventFd};

const BROADCAST: [u8; 6] = [0xff; 6];

/// A node with a thread for each of these NUMA nodes, and no port.
fn node_of(numa_nodes: &[u32]) -> Node {
    let place = |numa_node: &u32| PollPlace { numa_node: Some(*numa_node), cpus: Vec::new() };
    Node::with_options(Options { places: numa_nodes.iter().map(place).collect(), ..Options::default() })
}

fn add(node: &Node, config: PortConfig, numa_node: Option<u32>) {
    let path = node.path(config.name.parse().unwrap());
    let _ = std::fs::remove_file(&path);
    let socket = Socket::Listening(OwnedFd::from(UnixListener::bind(path).unwrap()));
    node.plane.add_port(config, socket, numa_node).unwrap();
}

/// Ports that `change` makes out of usual ones, port `n` on NUMA node `n % 2`, and a guest on each.
fn guests_on_both(node: &Node, count: usize, change: impl Fn(usize, &mut PortConfig)) -> Vec<Guest> {
    for number in 0..count {
        let mut config = config(number);
        change(number, &mut config);
        add(node, config, u32::try_from(number % 2).ok());
    }
    (0..count).map(|number| node.guest(number)).collect()
}

/// A frame with any addresses, of 60 bytes.
fn frame_to(to: [u8; 6], from: [u8; 6], tag: &[u8], number: u8) -> Vec<u8> {
    let mut frame = [to.as_slice(), &from, tag, &[0x08, 0x00, number]].concat();
    frame.resize(60, number);
    frame
}

/// Sends frames until one arrives: what is still under way from before may fill the receiver's queue.
fn frames_pass(node: &Node, (guest, from): (&mut Guest, usize), (other, to): (&mut Guest, usize)) {
    let sent = frame(from, to, 77);
    let passes = || {
        if guest.has_room() {
            guest.send(&sent);
        }
        other.received().contains(&sent)
    };
    wait_until("frames pass on", passes, || node.state());
}

/// Sends a frame of the last guest to the first and back, so that all that was sent before has come to wherever it comes.
fn settle(node: &Node, guests: &mut [Guest]) {
    let [first, .., last] = guests else { panic!("two guests") };
    for number in 240..250 {
        exchange(node, first, last, number);
    }
}

#[test]
fn a_port_is_served_by_a_thread_of_its_numa_node_else_by_the_one_that_serves_the_fewest() {
    let node = node_of(&[0, 1, 1]);
    let wanted =
        [(Some(0), 0), (Some(1), 1), (Some(1), 2), (Some(0), 0), (None, 1), (Some(7), 2), (Some(0), 0)];
    for (number, (numa_node, _)) in wanted.iter().enumerate() {
        add(&node, config(number), *numa_node);
    }
    let found = (0..wanted.len()).map(|number| node.port(number).thread.number).collect::<Vec<_>>();
    assert_eq!(found, wanted.map(|(_, thread)| thread));
    assert_eq!([0, 1, 5].map(|number| node.port(number).thread.numa_node), [Some(0), Some(1), Some(1)]);
    let mut guests: Vec<_> = (0..wanted.len()).map(|number| node.guest(number)).collect();
    for at in 1..guests.len() {
        let (before, from) = guests.split_at_mut(at);
        exchange(&node, &mut before[0], &mut from[0], u8::try_from(at).unwrap());
    }
}

#[test]
fn no_frame_of_any_kind_gets_to_another_network_whichever_thread_serves_it() {
    let node = node_of(&[0, 1]);
    // Two networks, each on both threads.
    let network = |number: usize| number / 2 % 2;
    let mut guests = guests_on_both(&node, 8, |number, config| {
        config.network = ["red", "blue"][network(number)].into();
    });
    let mut number = 0;
    for from in 0..8 {
        let others = (0..8).map(mac);
        let unknown =
            [[2, 0, 0, 0, 7, 7], [0x33, 0x33, 0, 0, 0, 1], [1, 0x80, 0xc2, 0, 0, 1], BROADCAST, [0; 6]];
        for to in others.chain(unknown) {
            for tag in [&[][..], &[0x81, 0, 0, 0], &[0x81, 0, 0, 5], &[0x88, 0xa8, 0, 5]] {
                number += 1;
                wait_until("there is room", || guests[from].has_room(), || node.state());
                let sent = frame_to(to, mac(from), tag, 100 + u8::try_from(from).unwrap());
                guests[from].send(&sent);
                // No guest's queue is ever full.
                if number % 16 == 0 {
                    check_networks(&mut guests, network);
                }
            }
        }
    }
    check_networks(&mut guests, network);
    // What is behind a port, learnt on one thread and then used on both.
    let behind = [2, 0, 0, 0, 8, 8];
    guests[0].send(&frame_to(BROADCAST, behind, &[], 100));
    wait_until(
        "it is learnt",
        || node.plane.mac_table().iter().any(|entry| entry.mac.0 == behind),
        || node.state(),
    );
    for from in [2, 3, 6, 7] {
        guests[from].send(&frame_to(behind, mac(from), &[], 100 + u8::try_from(from).unwrap()));
    }
    wait_until("the other network gets it", || received_from(&mut guests[3], 102), || node.state());
    check_networks(&mut guests, network);
    let networks = node.plane.mac_table().into_iter().filter(|entry| entry.mac.0 == behind);
    assert_eq!(networks.map(|entry| entry.network).collect::<Vec<_>>(), ["red"]);
}

fn received_from(guest: &mut Guest, number: u8) -> bool {
    guest.received().iter().any(|frame| frame[59] == number)
}

/// Looks at all that has come: the last byte of each frame tells who sent it.
fn check_networks(guests: &mut [Guest], network: impl Fn(usize) -> usize) {
    for (to, guest) in guests.iter_mut().enumerate() {
        for frame in guest.received() {
            let from = usize::from(frame[frame.len() - 1] - 100);
            assert_eq!(network(from), network(to), "a frame of {from} came to {to}: {frame:x?}");
        }
    }
}

#[test]
fn isolation_vlans_and_the_spoof_check_hold_between_threads() {
    let node = node_of(&[0, 1]);
    // 0 and 1 isolated, 2 to 4 with VLAN 5, 5 and 6 a trunk of 5 and 6, 7 neither: even ones on one thread, odd ones on the other.
    let mut guests = guests_on_both(&node, 8, |number, config| {
        (config.isolated, config.spoof_check) = (number < 2, number == 7);
        config.vlan = (2..5).contains(&number).then_some(5);
        config.trunk = if (5..7).contains(&number) { vec![5, 6] } else { Vec::new() };
    });
    let tag = |vlan: u8| [0x81, 0, 0, vlan];
    let sent = |from: usize, tag: &[u8], number| frame_to(BROADCAST, mac(from), tag, number);
    guests[0].send(&sent(0, &[], 1));
    guests[2].send(&sent(2, &[], 2));
    guests[5].send(&sent(5, &tag(6), 3));
    guests[6].send(&sent(6, &tag(5), 4));
    // Somebody else's address, on another thread.
    guests[7].send(&frame_to(BROADCAST, mac(0), &[], 5));
    guests[7].send(&sent(7, &[], 6));
    guests[1].send(&frame_to(mac(0), mac(1), &[], 7));
    guests[1].send(&frame_to(mac(7), mac(1), &[], 8));
    let pushed = |from: usize, number: u8| [&sent(from, &tag(5), number)[..], &[number; 4]].concat();
    let popped = |from: usize, number: u8| sent(from, &[], number)[..56].to_vec();
    let wanted: [Vec<Vec<u8>>; 8] = [
        vec![sent(7, &[], 6)],
        vec![sent(7, &[], 6)],
        vec![popped(6, 4)],
        vec![sent(2, &[], 2), popped(6, 4)],
        vec![sent(2, &[], 2), popped(6, 4)],
        vec![pushed(2, 2), sent(6, &tag(5), 4)],
        vec![pushed(2, 2), sent(5, &tag(6), 3)],
        vec![sent(0, &[], 1), frame_to(mac(7), mac(1), &[], 8)],
    ];
    for (number, wanted) in wanted.iter().enumerate() {
        let mut came = Vec::new();
        let mut all_came = || {
            came.extend(guests[number].received());
            came.len() >= wanted.len()
        };
        wait_until("all of it comes", &mut all_came, || format!("{number}: {wanted:?} {}", node.state()));
        came.sort_by_key(|frame| frame.last().copied());
        assert_eq!(&came, wanted, "port {number}");
    }
    assert_eq!(node.port(1).counters.from_guest_drops[&DropReason::Isolated], 1);
    assert_eq!(node.port(7).counters.from_guest_drops[&DropReason::Spoofed], 1);
    // Nothing comes later, either.
    settle(&node, &mut [guests.remove(7), guests.remove(1)]);
    assert!(guests.iter_mut().all(|guest| guest.received().is_empty()));
}

#[test]
fn an_address_that_moves_to_a_port_of_another_thread_is_found_there_from_both() {
    let node = node_of(&[0, 1]);
    let mut guests = guests_on_both(&node, 4, |_, _| ());
    let moving = [2, 0, 0, 0, 8, 8];
    for (round, at) in [0, 1, 3, 2, 1, 0].into_iter().enumerate() {
        let number = u8::try_from(round).unwrap();
        // To an address that is known, so that it is no flooded frame that has the others learn.
        guests[at].send(&frame_to(mac(at ^ 2), moving, &[], number));
        wait_until("it comes", || received_from(&mut guests[at ^ 2], number), || node.state());
        let is_there = || {
            let table = node.plane.mac_table();
            let ports = table.iter().filter(|entry| entry.mac.0 == moving).map(|entry| entry.port.clone());
            ports.collect::<Vec<_>>() == [at.to_string()]
        };
        wait_until("it is learnt where it is", is_there, || format!("{:?}", node.plane.mac_table()));
        // What the other thread is told comes before any frame that is sent afterwards.
        let [one, other] = guests.get_disjoint_mut([at, at ^ 1]).unwrap();
        exchange(&node, one, other, 200 + number);
        for from in (0..4).filter(|from| *from != at) {
            let mark = 100 + 10 * number + u8::try_from(from).unwrap();
            guests[from].send(&frame_to(moving, mac(from), &[], mark));
            wait_until("the frame finds it", || received_from(&mut guests[at], mark), || node.state());
        }
        for (other, guest) in guests.iter_mut().enumerate().filter(|(other, _)| *other != at) {
            assert_eq!(guest.received(), Vec::<Vec<u8>>::new(), "port {other} in round {round}");
        }
    }
}

#[test]
fn ports_come_and_go_under_traffic_between_threads_and_nothing_gets_to_the_next_port_of_another_network() {
    let node = node_of(&[0, 1]);
    let mut guests = guests_on_both(&node, 2, |_, _| ());
    let mut other = guests.pop().unwrap();
    // Of the other network, one on each thread.
    let mut marking = [3, 4].map(|number| {
        let config = PortConfig { network: "red".into(), ..config(number) };
        add(&node, config, u32::try_from(number - 3).ok());
        node.guest(number)
    });
    let goes_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut guest = guests.pop().unwrap();
            let mut sent = 0_u16;
            while goes_on.load(Ordering::Relaxed) {
                let to = if sent.is_multiple_of(50) { BROADCAST } else { mac(2) };
                if guest.has_room() {
                    guest.send(&frame_to(to, mac(0), &[], 1));
                    sent = sent.wrapping_add(1);
                }
                drop(guest.received());
            }
            guest
        });
        for round in 0..30 {
            // The same index each time, in the one network or in another.
            let is_neighbour = round % 2 == 0;
            let network = if is_neighbour { "blue" } else { "red" };
            add(&node, PortConfig { network: network.into(), ..config(2) }, Some(1));
            let mut guest = node.guest(2);
            if is_neighbour {
                wait_until("traffic comes", || !guest.received().is_empty(), || node.state());
            } else {
                for number in 0..20 {
                    other.send(&frame_to(BROADCAST, mac(1), &[], number));
                    drop(other.received());
                }
                // When later frames of both threads have come, so has what was sent before them.
                for (mark, number) in (50..56).zip([3, 4, 3, 4, 3, 4]) {
                    let sent = frame_to(mac(2), mac(number), &[], mark);
                    marking[number - 3].send(&sent);
                    let mut came = Vec::new();
                    let has_come = || {
                        came.extend(guest.received());
                        !came.is_empty()
                    };
                    wait_until("the mark comes", has_come, || node.state());
                    assert_eq!(came, [sent], "round {round}");
                }
            }
            node.plane.remove_port("2").unwrap();
        }
        goes_on.store(false, Ordering::Relaxed);
        let mut guest = sender.join().unwrap();
        frames_pass(&node, (&mut guest, 0), (&mut other, 1));
    });
}

#[test]
fn what_a_thread_that_is_held_up_does_not_take_is_counted_and_holds_up_no_other() {
    let node = node_of(&[0, 1]);
    let mut guests = guests_on_both(&node, 4, |_, config| config.mtu = 9_000);
    let reason =
        |number: usize| node.port(number).counters.to_guest_drops.get(&DropReason::LinkFull).copied();
    // Behind the buffers of usual frames: one of 9,000 bytes from guest 0 to guest 3.
    const LONG: u64 = TX_BUFFERS + 0x2_0000;
    for (at, byte) in (LONG + 12..).zip(frame(0, 3, 9)) {
        guests[0].write(at, byte);
    }
    let mut number = 0;
    while reason(3).is_none() {
        // The write by which guest 1 is called waits until somebody ends it: so long its thread does nothing.
        let blocking = EventFd::from_flags(EfdFlags::empty()).unwrap();
        nix::unistd::write(&blocking, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        guests[1].event(13, RX, blocking.as_fd());
        guests[1].settle();
        guests[0].send(&frame(0, 1, 1));
        let mut sent = 0;
        while sent < 1_000 {
            if guests[0].has_room() {
                guests[0].send_from(BASE + LONG, 12 + 9_000);
                sent += 1;
            }
        }
        wait_until("all of them are taken", || guests[0].has_room(), || node.state());
        // Meanwhile frames pass between the ports of the other thread.
        number += 1;
        let (zero, rest) = guests.split_at_mut(1);
        exchange(&node, &mut zero[0], &mut rest[1], number);
        assert!(node.wait_misbehaved(1).contains("call eventfd blocks"));
        drop(guests[3].received());
        guests[1] = node.guest(1);
    }
    assert_eq!(reason(2), None);
    let (first, last) = guests.split_at_mut(3);
    frames_pass(&node, (&mut first[0], 0), (&mut last[0], 3));
}

#[test]
fn flooded_frames_go_once_to_each_port_and_come_back_to_none() {
    let node = node_of(&[0, 1, 2]);
    for number in 0..6 {
        add(&node, config(number), u32::try_from(number % 3).ok());
    }
    let mut guests: Vec<_> = (0..6).map(|number| node.guest(number)).collect();
    for (from, guest) in guests.iter_mut().enumerate() {
        guest.send(&frame_to(BROADCAST, mac(from), &[], 10 + u8::try_from(from).unwrap()));
    }
    for (number, guest) in guests.iter_mut().enumerate() {
        let mut came = Vec::new();
        let mut all_came = || {
            came.extend(guest.received().into_iter().map(|frame| frame[59]));
            came.len() >= 5
        };
        wait_until("five frames come", &mut all_came, || node.state());
        came.sort_unstable();
        let wanted: Vec<u8> = (10..16).filter(|from| usize::from(from - 10) != number).collect();
        assert_eq!(came, wanted);
    }
    settle(&node, &mut guests[..]);
    assert!(guests[1..5].iter_mut().all(|guest| guest.received().is_empty()), "nothing comes twice");
    let table = node.plane.mac_table();
    assert_eq!(table.len(), 6, "each address once: {table:?}");
    assert!(table.iter().all(|entry| Mac(mac(entry.port.parse().unwrap())) == entry.mac));
}
