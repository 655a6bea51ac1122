//! Guests that keep to the protocol, and guests that do not: whatever one does, its neighbours go on.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use fairlead_vhost::dataplane::{Event, MemoryBound, MemoryLimits, Options, PortError, Socket};
use fairlead_vhost::port::DropReason;
use guest::{
    BASE, BYTES, FEATURES, Guest, NEED_REPLY, Node, PLAIN, RX, SIZE, TX, TX_BUFFERS, config, exchange, frame,
    leave_replies_unread, wait_until,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// A node with two guests that keep to the rules, on ports 1 and 2; port 0 is for one that does not.
fn node_with_neighbours() -> (Node, Guest, Guest) {
    let node = Node::with_ports(3);
    let (mut one, mut other) = (node.guest(1), node.guest(2));
    exchange(&node, &mut one, &mut other, 1);
    (node, one, other)
}

#[test]
fn frames_pass_both_ways_and_a_kick_wakes_a_data_plane_that_sleeps() {
    let node = Node::with_ports(2);
    let (mut one, mut other) = (node.guest(0), node.guest(1));
    for number in 1..=5 {
        wait_until("it sleeps", || one.asks_for_kicks(TX) && other.asks_for_kicks(TX), || node.state());
        exchange(&node, &mut one, &mut other, number);
    }
    assert!(one.calls[0].read().is_ok(), "a guest that wants calls is called");
    let counters = node.port(0).counters;
    assert_eq!((counters.from_guest_frames, counters.from_guest_bytes), (5, 300));
    assert_eq!((counters.to_guest_frames, counters.to_guest_bytes), (5, 300));
    let mut learnt: Vec<_> = node.plane.mac_table().into_iter().map(|entry| entry.port).collect();
    learnt.sort();
    learnt.dedup();
    assert_eq!(learnt, ["0", "1"]);
}

/// One way to break the protocol, and what is said of it.
type Breach = (&'static str, fn(&mut Guest));

const BREACHES: [Breach; 22] = [
    ("not version 1", |guest| guest.message(1, 2, &[], &[])),
    ("not version 1", |guest| guest.message(1, 1 | 4, &[], &[])),
    ("a payload of 5000 bytes", |guest| guest.raw(&[1, 1, 5000].map(u32::to_ne_bytes).concat(), &[])),
    ("the message 200 is not known", |guest| guest.message(200, PLAIN, &[], &[])),
    ("the message 6 is not known", |guest| guest.number(6, 0)),
    ("a payload of 4 bytes", |guest| guest.message(2, PLAIN, &[0; 4], &[])),
    ("were not offered", |guest| guest.number(2, 1 << 26)),
    ("were not offered", |guest| guest.number(16, 1 << 12)),
    ("ring 2 of a port with 2", |guest| guest.state(8, 2, 256)),
    ("ring 4294967295 of a port with 2", |guest| guest.state(18, u32::MAX, 1)),
    ("a ring of 100 entries", |guest| guest.state(8, 0, 100)),
    ("a ring of 65536 entries", |guest| guest.state(8, 0, 65_536)),
    ("message 1 came with 1 file", |guest| guest.message(1, PLAIN, &[], &[guest.file.as_fd()])),
    ("message 5 came with 0 file", |guest| {
        guest.message(5, PLAIN, &[1, BASE, BYTES, BASE, 0].map(u64::to_ne_bytes).concat(), &[]);
    }),
    ("a memory region up to byte", |guest| guest.share(BASE, 0, BYTES + 4096)),
    ("payload that is not valid", |guest| guest.share(BASE, 0, 0)),
    ("payload that is not valid", |guest| guest.share(u64::MAX - 4095, 0, 8192)),
    ("at byte 100 of a file", |guest| guest.share(BASE, 100, 4096)),
    ("neither an eventfd nor memory", |guest| {
        let region = [1_u64, BASE, 4096, BASE, 0].map(u64::to_ne_bytes).concat();
        guest.message(5, PLAIN, &region, &[File::open("/proc/version").unwrap().as_fd()]);
    }),
    ("is no eventfd", |guest| guest.event(12, 0, guest.file.as_fd())),
    ("ring 0 has no kick", |guest| guest.number(12, 1 << 8)),
    ("an MTU of 10", |guest| guest.number(20, 10)),
];

#[test]
fn a_guest_that_breaks_the_protocol_loses_its_own_connection_and_nobody_elses() {
    let (mut node, mut one, mut other) = node_with_neighbours();
    for (n, (said, breach)) in BREACHES.into_iter().enumerate() {
        // A port of its own each time: the last one's is held off for a while.
        let port = 10 + n;
        node = add_port(node, port);
        let mut guest = node.connect(port);
        breach(&mut guest);
        let what = node.wait_misbehaved(port);
        assert!(what.contains(said), "breach {n}: {what:?} does not say {said:?}");
        exchange(&node, &mut one, &mut other, u8::try_from(n).unwrap());
    }
}

#[test]
fn no_descriptor_of_a_guest_stays_open_however_many_come() {
    let (mut node, mut one, mut other) = node_with_neighbours();
    for (port, count) in [(70, 33), (71, 100), (72, 253)] {
        node = add_port(node, port);
        let guest = node.connect(port);
        let sent = guest.file.try_clone().unwrap();
        let inode = sent.metadata().unwrap().ino();
        let open = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap();
            let of = |entry: std::io::Result<std::fs::DirEntry>| std::fs::metadata(entry.ok()?.path()).ok();
            all.filter_map(of).filter(|metadata| metadata.ino() == inode).count()
        };
        let before = open();
        guest.message(1, PLAIN, &[], &vec![sent.as_fd(); count]);
        node.wait_misbehaved(port);
        wait_until("all of them are closed", || open() == before, || format!("{} of {before}", open()));
        exchange(&node, &mut one, &mut other, u8::try_from(count).unwrap());
    }
}

fn add_port(node: Node, number: usize) -> Node {
    let listener = UnixListener::bind(node.path(number)).unwrap();
    let mut config = node.port(0).config;
    config.name = number.to_string();
    node.plane.add_port(config, Socket::Listening(OwnedFd::from(listener)), None).unwrap();
    node
}

#[test]
fn a_guest_whose_ring_is_broken_is_disconnected_and_may_come_again() {
    let (node, mut one, mut other) = node_with_neighbours();
    let bad = node.guest(0);
    bad.set_index(TX, SIZE + 1);
    let what = node.wait_misbehaved(0);
    assert!(what.contains("65 ahead"), "{what}");
    exchange(&node, &mut one, &mut other, 2);
    assert!(!node.port(0).connected);
    drop(bad);
    let mut good = node.guest(0);
    exchange(&node, &mut good, &mut one, 3);
}

#[test]
fn a_guest_with_a_broken_receive_queue_is_disconnected_by_the_first_frame_for_it() {
    let (node, mut one, mut other) = node_with_neighbours();
    let bad = node.guest(0);
    bad.describe(RX, 0, 0x1234, 2048, 2);
    one.send(&[[0xff; 6].as_slice(), &[2, 0, 0, 0, 9, 1], &[8; 48]].concat());
    let what = node.wait_misbehaved(0);
    assert!(what.contains("0x1234 is outside"), "{what}");
    exchange(&node, &mut one, &mut other, 2);
}

#[test]
fn a_guest_that_takes_the_pages_from_under_its_memory_harms_only_itself() {
    let (node, mut one, mut other) = node_with_neighbours();
    let mut bad = node.guest(0);
    bad.file.set_len(BYTES / 2).unwrap();
    bad.send_from(BASE + TX_BUFFERS, 72);
    let what = node.wait_misbehaved(0);
    assert!(what.contains("pages of the shared memory are gone"), "{what}");
    exchange(&node, &mut one, &mut other, 2);
    let mut good = node.guest(0);
    exchange(&node, &mut good, &mut other, 3);
}

#[test]
fn a_guest_whose_call_blocks_the_writer_harms_only_itself() {
    let (node, mut one, mut other) = node_with_neighbours();
    let bad = node.guest(0);
    let blocking = EventFd::from_flags(EfdFlags::empty()).unwrap();
    nix::unistd::write(&blocking, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    bad.event(13, RX, blocking.as_fd());
    let mut bad = bad;
    bad.settle();
    // Nobody knows the guest's address yet: the frame goes to all.
    one.send(&frame(1, 0, 2));
    let what = node.wait_misbehaved(0);
    assert!(what.contains("call eventfd blocks"), "{what}");
    exchange(&node, &mut one, &mut other, 3);
}

/// Each message waits for the thread that the call blocks.
#[test]
fn a_guest_that_blocks_its_call_and_streams_messages_is_found_out_by_its_call() {
    let (node, mut one, mut other) = node_with_neighbours();
    let mut bad = node.guest(0);
    let blocking = EventFd::from_flags(EfdFlags::empty()).unwrap();
    nix::unistd::write(&blocking, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    bad.event(13, RX, blocking.as_fd());
    bad.settle();
    one.send(&frame(1, 0, 2));
    // Until it is hung up on, which `raw` takes for no error.
    for n in 0..200 {
        bad.state(18, TX, n % 2);
    }
    let what = node.wait_misbehaved(0);
    assert!(what.contains("call eventfd blocks"), "{what}");
    exchange(&node, &mut one, &mut other, 3);
}

#[test]
fn a_guest_whose_call_has_very_many_wait_for_it_harms_only_itself() {
    let (node, mut one, mut other) = node_with_neighbours();
    let bad = node.guest(0);
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    // 400 epolls watch 400 descriptors each: a write to the eventfd goes through 160,000, for some 20 ms.
    let calls: Vec<OwnedFd> = (0..400).map(|_| bad.calls[0].as_fd().try_clone_to_owned().unwrap()).collect();
    let epolls: Vec<Epoll> = (0..400).map(|_| Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap()).collect();
    for epoll in &epolls {
        for call in &calls {
            epoll.add(call, EpollEvent::new(EpollFlags::EPOLLIN, 0)).unwrap();
        }
    }
    let is_gone = || matches!(node.events.lock().unwrap().last(), Some(Event::Disconnected { .. }));
    for number in 0..50 {
        if is_gone() {
            break;
        }
        let before = bad.used_index(RX);
        one.send(&frame(1, 0, number));
        let has_come = || bad.used_index(RX) != before || is_gone();
        wait_until("the frame comes, or its guest is found out", has_come, || node.state());
    }
    let what = node.wait_misbehaved(0);
    assert!(what.contains("too many wait for its call eventfd"), "{what}");
    exchange(&node, &mut one, &mut other, 3);
}

#[test]
fn a_guest_that_sends_half_a_message_holds_up_nobody() {
    let (node, mut one, mut other) = node_with_neighbours();
    let mut slow = node.connect(0);
    let bytes = [1, PLAIN, 0].map(u32::to_ne_bytes).concat();
    slow.raw(&bytes[..7], &[]);
    exchange(&node, &mut one, &mut other, 2);
    slow.raw(&bytes[7..], &[]);
    assert!(slow.reply(1).is_some(), "the rest may come later");
}

#[test]
fn a_guest_that_does_not_read_its_replies_is_disconnected() {
    let (node, mut one, mut other) = node_with_neighbours();
    let deaf = node.connect(0);
    let asks = [1, PLAIN, 0].map(u32::to_ne_bytes).concat().repeat(200);
    let found_out = std::thread::scope(|scope| {
        let node = &node;
        let flood = scope.spawn(move || {
            // The first sends that fail are the end of the connection.
            while nix::sys::socket::send(deaf.socket_fd(), &asks, nix::sys::socket::MsgFlags::MSG_NOSIGNAL)
                .is_ok()
            {}
        });
        let what = node.wait_misbehaved(0);
        flood.join().unwrap();
        what
    });
    assert!(found_out.contains("does not read the replies"), "{found_out}");
    exchange(&node, &mut one, &mut other, 2);
}

/// True once something has come: a reply, or the end.
fn is_answered(mut socket: &UnixStream, within: Duration) -> bool {
    socket.set_read_timeout(Some(within)).unwrap();
    match socket.read(&mut [0; 20]) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_port_that_connects_waits_while_eight_of_its_connections_have_replies_unread() {
    let (node, mut one, mut other) = node_with_neighbours();
    node.plane.remove_port("0").unwrap();
    let mut kept = Vec::new();
    for number in 0..8 {
        let (ours, guest) = UnixStream::pair().unwrap();
        leave_replies_unread(&guest);
        let socket = OwnedFd::from(ours);
        if number == 0 {
            node.plane.add_port(config(0), Socket::Connecting(socket), None).unwrap();
        } else {
            node.plane.reconnect("0", socket).unwrap();
        }
        wait_until("it has ended", || !node.port(0).has_connection, || node.state());
        kept.push(guest);
    }
    let (ours, next) = UnixStream::pair().unwrap();
    leave_replies_unread(&next);
    node.plane.reconnect("0", OwnedFd::from(ours)).unwrap();
    assert!(!is_answered(&next, Duration::from_millis(500)), "{}", node.state());
    exchange(&node, &mut one, &mut other, 2);
    // One that is read is as good as one that is closed.
    kept[0].read_exact(&mut [0; 80]).unwrap();
    assert!(is_answered(&next, Duration::from_secs(60)), "{}", node.state());
}

/// A tenant's pods may come and go while somebody keeps what they connected with.
#[test]
fn a_removed_port_counts_until_its_guests_replies_are_read() {
    let node = Node::with_options(Options { port_files: Some(400), ..guest::threads::options() });
    let add = || {
        let _ = std::fs::remove_file(node.path(0));
        let listener = UnixListener::bind(node.path(0)).unwrap();
        node.plane.add_port(config(0), Socket::Listening(OwnedFd::from(listener)), None)
    };
    let mut kept = Vec::new();
    while add().is_ok() {
        let guest = UnixStream::connect(node.path(0)).unwrap();
        leave_replies_unread(&guest);
        let ends = || matches!(node.events.lock().unwrap().pop(), Some(Event::Disconnected { .. }));
        wait_until("it has ended", ends, || node.state());
        node.plane.remove_port("0").unwrap();
        kept.push(guest);
        assert!(kept.len() < 10, "ever more ports have a guest that keeps its socket");
    }
    assert_eq!((kept.len(), add()), (3, Err(PortError::TooManyFiles)));
    drop(kept);
    wait_until("they are closed", || add().is_ok(), || node.state());
}

#[test]
fn a_message_that_wants_an_acknowledgement_gets_one_and_an_unknown_one_a_refusal() {
    let node = Node::with_ports(1);
    let mut guest = node.connect(0);
    guest.agree();
    guest.message(8, NEED_REPLY, &[0, 256_u32].map(u32::to_ne_bytes).concat(), &[]);
    assert_eq!(guest.reply(8), Some(0));
    guest.message(200, NEED_REPLY, &[], &[]);
    assert_eq!(guest.reply(200), Some(1));
    guest.message(17, PLAIN, &[], &[]);
    assert_eq!(guest.reply(17), Some(1), "pairs of queues");
    guest.message(36, PLAIN, &[], &[]);
    assert_eq!(guest.reply(36), Some(32), "memory slots");
}

#[test]
fn an_mtu_above_the_ports_is_refused_to_whoever_wants_an_acknowledgement_and_the_connection_lives() {
    let node = Node::with_ports(2);
    let (mut guest, mut other) = (node.connect(0), node.guest(1));
    guest.agree();
    for (mtu, answer) in [(68_u64, 0), (1_500, 0), (1_501, 1), (65_535, 1)] {
        guest.message(20, NEED_REPLY, &mtu.to_ne_bytes(), &[]);
        assert_eq!(guest.reply(20), Some(answer), "an MTU of {mtu}");
    }
    guest.number(20, 9_000);
    guest.set_up();
    node.wait_active(0);
    exchange(&node, &mut guest, &mut other, 1);
}

/// The frames that come until there is one, at least.
fn next_frames(node: &Node, guest: &mut Guest) -> Vec<Vec<u8>> {
    let mut came = Vec::new();
    let has_come = || {
        came.extend(guest.received());
        !came.is_empty()
    };
    wait_until("a frame comes", has_come, || node.state());
    came
}

#[test]
fn what_is_sent_by_a_queue_that_was_disabled_is_given_back_and_never_delivered_also_by_a_kick() {
    let node = Node::with_ports(2);
    let (mut one, mut other) = (node.guest(0), node.guest(1));
    exchange(&node, &mut one, &mut other, 1);
    one.state(18, TX, 0);
    one.settle();
    for number in 2..=4 {
        wait_until("it sleeps", || one.asks_for_kicks(TX), || node.state());
        one.send(&frame(0, 1, number));
        let is_back = || one.used_index(TX) == u16::from(number);
        wait_until("the buffer is given back", is_back, || node.state());
    }
    assert_eq!(node.port(0).counters.from_guest_drops.get(&DropReason::Disabled), Some(&3));
    one.state(18, TX, 1);
    one.settle();
    one.send(&frame(0, 1, 5));
    assert_eq!(next_frames(&node, &mut other), [frame(0, 1, 5)]);
    exchange(&node, &mut one, &mut other, 6);
}

#[test]
fn a_queue_that_is_started_and_not_enabled_is_drained_unless_queues_begin_enabled() {
    let node = Node::with_ports(3);
    let mut other = node.guest(2);
    let start = |number: usize, features: u64| {
        let mut guest = node.connect(number);
        guest.features = features;
        guest.agree();
        guest.share(BASE, 0, BYTES);
        guest.start_ring(TX);
        guest.settle();
        guest
    };
    let mut guest = start(0, FEATURES);
    guest.send(&frame(0, 2, 1));
    wait_until("the buffer is given back", || guest.used_index(TX) == 1, || node.state());
    guest.state(18, TX, 1);
    guest.settle();
    guest.send(&frame(0, 2, 2));
    assert_eq!(next_frames(&node, &mut other), [frame(0, 2, 2)]);
    // Without VHOST_USER_F_PROTOCOL_FEATURES.
    let mut guest = start(1, FEATURES & !(1 << 30));
    guest.send(&frame(1, 2, 3));
    assert_eq!(next_frames(&node, &mut other), [frame(1, 2, 3)]);
    assert!(node.port(1).counters.from_guest_drops.is_empty());
}

#[test]
fn a_frontend_that_reconnects_in_dpdks_order_is_understood() {
    let node = Node::with_ports(2);
    let mut other = node.guest(1);
    let mut guest = node.connect(0);
    // virtio_user in server mode: the rings are enabled before any feature is agreed on, and the owner is set twice.
    guest.state(18, RX, 1);
    guest.state(18, TX, 1);
    guest.message(3, PLAIN, &[], &[]);
    guest.set_up();
    node.wait_active(0);
    exchange(&node, &mut guest, &mut other, 1);
    // The rings are set up again while they are at work, with a base of 0.
    guest.set_up_ring(RX);
    guest.set_up_ring(TX);
    guest.settle();
    exchange(&node, &mut guest, &mut other, 2);
    assert_eq!(node.port(0).features, FEATURES);
}

#[test]
fn a_ring_that_was_stopped_is_not_touched_and_tells_where_it_stood() {
    let node = Node::with_ports(2);
    let (mut one, mut other) = (node.guest(0), node.guest(1));
    exchange(&node, &mut one, &mut other, 1);
    one.state(11, TX, 0);
    assert_eq!(one.reply(11), Some(u64::from(TX) | 1 << 32), "ring 1 stands at 1");
    one.send(&frame(0, 1, 2));
    one.kicks[1].write(1).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((one.used_index(TX), node.port(0).active_queues), (1, 0));
    one.set_up_ring(TX);
    wait_until("it goes on", || other.received().contains(&frame(0, 1, 2)), || node.state());
}

#[test]
fn memory_is_added_and_removed_while_frames_pass() {
    let node = Node::with_ports(2);
    let (mut one, mut other) = (node.guest(0), node.guest(1));
    let more = BASE + (1 << 30);
    let region = [0, more, 0x8_0000, more, TX_BUFFERS].map(u64::to_ne_bytes).concat();
    one.message(37, NEED_REPLY, &region, &[one.file.as_fd()]);
    assert_eq!(one.reply(37), Some(0));
    exchange(&node, &mut one, &mut other, 1);
    // The same bytes, by their other address.
    one.send_from(more, 72);
    wait_until("it arrives", || other.received().contains(&frame(0, 1, 1)), || node.state());
    one.message(38, NEED_REPLY, &region, &[]);
    assert_eq!(one.reply(38), Some(0));
    exchange(&node, &mut one, &mut other, 2);
    one.send_from(more, 72);
    assert!(node.wait_misbehaved(0).contains("outside the shared memory"));
}

#[test]
fn a_guest_may_share_its_memory_anew_though_both_tables_together_would_cost_too_much() {
    // A table of 256 MiB costs 544 KiB, most of it for page tables.
    let limits = MemoryLimits { port: 900 << 10, total: 1 << 30 };
    let memory = Some(Arc::new(MemoryBound::new(limits).unwrap()));
    let node = Node::with_options(Options { memory, ..guest::threads::options() });
    for number in 0..2 {
        let listener = UnixListener::bind(node.path(number)).unwrap();
        node.plane.add_port(config(number), Socket::Listening(OwnedFd::from(listener)), None).unwrap();
    }
    let (mut one, mut other) = (node.guest(0), node.guest(1));
    one.file.set_len(256 << 20).unwrap();
    for number in 1..=3 {
        one.share(BASE, 0, 256 << 20);
        one.settle();
        exchange(&node, &mut one, &mut other, number);
    }
}

#[test]
fn a_removed_port_leaves_no_memory_mapped_and_no_name() {
    let node = Node::with_ports(2);
    let mut one = node.guest(0);
    let mut other = node.guest(1);
    exchange(&node, &mut one, &mut other, 1);
    let inode = one.file.metadata().unwrap().ino();
    let maps = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode.to_string())).count()
    };
    let before = maps();
    node.plane.remove_port("0").unwrap();
    assert_eq!(maps(), before - 1, "only the guest's own mapping is left");
    one.send(&frame(0, 1, 2));
    assert_eq!(node.plane.remove_port("0"), Err(PortError::NoSuchPort("0".into())));
    assert_eq!(one.reply(1), None, "the connection is closed");
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(other.received(), Vec::<Vec<u8>>::new());
}

#[test]
fn a_port_that_cannot_be_is_refused_in_a_sentence() {
    let node = Node::with_ports(1);
    let listener = || OwnedFd::from(UnixListener::bind(node.path(50 + next_number())).unwrap());
    let config = node.port(0).config;
    let taken = node.plane.add_port(config.clone(), Socket::Listening(listener()), None);
    assert_eq!(taken, Err(PortError::NameTaken("0".into())));
    let mut wrong = config.clone();
    (wrong.name, wrong.queues) = ("x".into(), 9);
    let refused = node.plane.add_port(wrong, Socket::Listening(listener()), None).unwrap_err();
    assert_eq!(refused.to_string(), "the port \"x\" cannot be: a port has 1 to 8 pairs of queues");
    let mut other = config;
    other.name = "x".into();
    let kind = node.plane.add_port(other, Socket::Connecting(listener()), None).unwrap_err();
    assert!(matches!(kind, PortError::Socket(_)), "{kind}");
    let nobody = node.plane.reconnect("y", OwnedFd::from(UnixStream::pair().unwrap().0));
    assert_eq!(nobody, Err(PortError::NoSuchPort("y".into())));
}

/// A number that no other call in this process gave.
fn next_number() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
