//! Many ports at work at the same time.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::collections::HashSet;

use fairlead_vhost::port::PortConfig;
use guest::{Guest, Node, frame, wait_until};

const PORTS: usize = 64;
/// The frames that each sends.
const FRAMES: usize = 200;
/// The number of no guest.
const UNKNOWN: usize = 200;
/// The frames of one sender that are under way at most: fewer than a receiver has room for, from both of its senders.
const UNDER_WAY: usize = 8;

/// Whom a guest sends frame `n` to: two others in turn.
fn receiver(from: usize, n: usize) -> usize {
    (from + [1, 7][n % 2]) % PORTS
}

fn number(n: usize) -> u8 {
    u8::try_from(n).unwrap()
}

#[test]
fn sixty_four_ports_at_work_get_every_frame_once_and_in_order() {
    let node = Node::with_ports(PORTS);
    let mut guests: Vec<Guest> = (0..PORTS).map(|number| node.guest(number)).collect();
    // Each is known before: nothing that is sent later is flooded.
    for from in 0..PORTS {
        let hello = frame(from, UNKNOWN, 0);
        guests[from].send(&hello);
        for (to, guest) in guests.iter_mut().enumerate().filter(|(to, _)| *to != from) {
            let what = format!("the first frame of {from} arrives at {to}");
            wait_until(&what, || guest.received() == std::slice::from_ref(&hello), || node.state());
        }
    }
    // By sender, of those to each of its two receivers.
    let (mut sent, mut came) = ([0_usize; PORTS], [[0_usize; 2]; PORTS]);
    let all_arrived = || {
        for (from, guest) in guests.iter_mut().enumerate() {
            let arrived: usize = came[from].iter().sum();
            while sent[from] < FRAMES && sent[from] - arrived < UNDER_WAY {
                guest.send(&frame(from, receiver(from, sent[from]), number(sent[from])));
                sent[from] += 1;
            }
        }
        for (to, guest) in guests.iter_mut().enumerate() {
            for got in guest.received() {
                let from = usize::from(got[11]);
                let which = usize::from(receiver(from, 1) == to);
                let next = 2 * came[from][which] + which;
                assert_eq!(got, frame(from, to, number(next)), "from {from} to {to}");
                came[from][which] += 1;
            }
        }
        came.iter().all(|of_sender| of_sender.iter().sum::<usize>() == FRAMES)
    };
    wait_until("all frames arrive", all_arrived, || node.state());
    for number in 0..PORTS {
        let counters = node.port(number).counters;
        let (sent, got) = (counters.from_guest_frames, counters.to_guest_frames);
        assert_eq!((sent, got), ((FRAMES + 1) as u64, (FRAMES + PORTS - 1) as u64), "port {number}");
    }
}

#[test]
fn a_table_of_many_addresses_and_of_trunks_with_all_vlans_is_told_whole_and_each_address_once() {
    // As many as a port may have, and more than a poll thread tells of at once.
    const LEARNT: usize = 1_024;
    let trunk = |number| PortConfig { trunk: (1..=4094).collect(), ..guest::config(number) };
    let node = Node::with_configs([0, 1].map(guest::config).into_iter().chain((2..12).map(trunk)).collect());
    let (mut sender, _receiver) = (node.guest(0), node.guest(1));
    for n in 0..LEARNT {
        wait_until("there is room", || sender.has_room(), || node.state());
        let mut sent = frame(0, 1, 0);
        sent[6..12]
            .copy_from_slice(&[&[2, 0, 7, 7], u16::try_from(n).unwrap().to_be_bytes().as_slice()].concat());
        sender.send(&sent);
    }
    let all_are_learnt = || node.plane.mac_table().len() == LEARNT + 12;
    wait_until("all are learnt", all_are_learnt, || format!("{} known", node.plane.mac_table().len()));
    let table = node.plane.mac_table();
    let addresses: HashSet<[u8; 6]> = table.iter().map(|entry| entry.mac.0).collect();
    assert_eq!(addresses.len(), LEARNT + 12, "each once");
    assert!((0..12).all(|number| addresses.contains(&guest::mac(number))));
}
