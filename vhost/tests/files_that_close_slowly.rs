//! Guests that send files of which close(2) takes long: nobody waits for them but the next guest of the same port.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod guest;

use std::io::{ErrorKind, IoSlice, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use fairlead_vhost::dataplane::{Options, PortError, Socket};
use guest::{BASE, BYTES, Guest, Node, PLAIN, config, exchange, wait_until};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};

/// GET_FEATURES, which has no payload.
const GET_FEATURES: u32 = 1;

/// A TCP socket whose last close(2) waits for an hour, since what it has sent is not read; or until the other end, which comes with it, is
/// dropped. The switch waits for five seconds.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while nix::unistd::write(&socket, &[0; 65_536]).is_ok() {}
    setsockopt(&socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 3_600 }).unwrap();
    (OwnedFd::from(socket), other)
}

/// A guest on port 0 that shares its memory and then sends a lingering socket, whose other end it answers. It waits behind another guest
/// until it has closed that: so the last to close it is the switch.
fn guest_that_sent_a_lingering_socket(node: &Node) -> (Guest, TcpStream) {
    let first = node.connect(0);
    wait_until("the first guest is taken", || node.port(0).has_connection, || node.state());
    let guest = node.connect(0);
    let (socket, other_end) = lingering();
    guest.share(BASE, 0, BYTES);
    guest.message(GET_FEATURES, PLAIN, &[], &[socket.as_fd()]);
    drop((socket, first));
    let what = node.wait_misbehaved(0);
    assert!(what.contains("neither an eventfd nor memory"), "{what}");
    (guest, other_end)
}

#[test]
fn a_port_takes_nobody_until_what_its_last_guest_sent_is_closed() {
    let node = Node::with_ports(3);
    let (mut one, mut other) = (node.guest(1), node.guest(2));
    let (_guest, other_end) = guest_that_sent_a_lingering_socket(&node);
    let mut next = node.connect(0);
    // A breach alone holds it off for a second.
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(!node.port(0).has_connection, "{}", node.state());
    exchange(&node, &mut one, &mut other, 1);
    drop(other_end);
    next.set_up();
    node.wait_active(0);
    exchange(&node, &mut next, &mut one, 2);
}

#[test]
fn the_memory_of_a_guest_is_unmapped_at_once_and_its_file_closed_by_a_thread_that_nobody_waits_for() {
    let node = Node::with_ports(3);
    let (mut one, mut other) = (node.guest(1), node.guest(2));
    let (guest, other_end) = guest_that_sent_a_lingering_socket(&node);
    let inode = guest.file.metadata().unwrap().ino();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode.to_string()));
    assert_eq!(mapped.count(), 1, "only the guest's own mapping is left");
    let open = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let of = |entry: std::io::Result<std::fs::DirEntry>| std::fs::metadata(entry.ok()?.path()).ok();
        all.filter_map(of).filter(|metadata| metadata.ino() == inode).count()
    };
    assert_eq!(open(), 3, "the guest's own two, and one that waits behind the socket");
    node.plane.remove_port("0").unwrap();
    exchange(&node, &mut one, &mut other, 1);
    assert_eq!(open(), 3);
    drop(other_end);
    wait_until("the file is closed", || open() == 2, || open().to_string());
}

/// Sends GET_FEATURES with these descriptors.
fn ask(guest: &UnixStream, descriptors: &[i32]) {
    let bytes = [GET_FEATURES, PLAIN, 0].map(u32::to_ne_bytes).concat();
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &rights[..0] } else { &rights };
    sendmsg::<()>(guest.as_raw_fd(), &[IoSlice::new(&bytes)], control, MsgFlags::empty(), None).unwrap();
}

#[test]
fn a_port_that_connects_takes_its_next_connection_when_what_came_over_the_last_is_closed() {
    let node = Node::with_ports(0);
    let (ours, guest) = UnixStream::pair().unwrap();
    let (socket, other_end) = lingering();
    ask(&guest, &[socket.as_raw_fd()]);
    drop(socket);
    node.plane.add_port(config(0), Socket::Connecting(OwnedFd::from(ours)), None).unwrap();
    assert!(node.wait_misbehaved(0).contains("neither an eventfd nor memory"));

    let (ours, mut guest) = UnixStream::pair().unwrap();
    node.plane.reconnect("0", OwnedFd::from(ours)).unwrap();
    assert!(node.port(0).has_connection, "the next one is there, and nobody needs to bring another");
    ask(&guest, &[]);
    guest.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut reply = [0; 20];
    let waits = guest.read(&mut reply).unwrap_err();
    assert_eq!(waits.kind(), ErrorKind::WouldBlock, "{waits}");
    drop(other_end);
    guest.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    guest.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..4], GET_FEATURES.to_ne_bytes());
}

/// A new socket of port 0 in place of the one that its pod has removed.
fn new_socket(node: &Node) -> OwnedFd {
    let _ = std::fs::remove_file(node.path(0));
    OwnedFd::from(UnixListener::bind(node.path(0)).unwrap())
}

#[test]
fn a_port_at_a_new_socket_waits_as_it_did_at_the_old_one() {
    let node = Node::with_ports(3);
    let (mut one, mut other) = (node.guest(1), node.guest(2));
    let (_guest, other_end) = guest_that_sent_a_lingering_socket(&node);
    node.plane.can_listen_anew("0").unwrap();
    node.plane.new_listener("0", new_socket(&node)).unwrap();
    let next = node.connect(0);
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(!node.port(0).has_connection, "{}", node.state());
    // However often the pod removes it, few are open.
    let again = (0..100).take_while(|_| node.plane.can_listen_anew("0").is_ok());
    let taken = again.map(|_| node.plane.new_listener("0", new_socket(&node)).unwrap()).count();
    assert!(taken <= 8, "{taken}");
    assert_eq!(node.plane.can_listen_anew("0"), Err(PortError::Closes("0".to_owned())));
    drop(other_end);
    wait_until("all is closed", || node.plane.can_listen_anew("0").is_ok(), || node.state());
    drop(next);
    let mut next = node.guest(0);
    exchange(&node, &mut next, &mut one, 1);
    // One that is connected stays so.
    node.plane.new_listener("0", new_socket(&node)).unwrap();
    exchange(&node, &mut next, &mut other, 2);
    drop(next);
    exchange(&node, &mut node.guest(0), &mut one, 3);
}

#[test]
fn a_guest_that_broke_the_rules_is_held_off_at_a_new_socket_too() {
    let node = Node::with_ports(1);
    let guest = node.connect(0);
    guest.raw(&[0xff; 12], &[]);
    node.wait_misbehaved(0);
    let since = std::time::Instant::now();
    node.plane.new_listener("0", new_socket(&node)).unwrap();
    let _next = node.connect(0);
    wait_until("the next one is taken", || node.port(0).has_connection, || node.state());
    assert!(since.elapsed() > Duration::from_millis(800), "{:?}", since.elapsed());
}

#[test]
fn a_port_that_connects_or_that_is_not_there_gets_no_listener() {
    let node = Node::with_ports(0);
    let (ours, _guest) = UnixStream::pair().unwrap();
    node.plane.add_port(config(0), Socket::Connecting(OwnedFd::from(ours)), None).unwrap();
    let refused = [node.plane.can_listen_anew("0"), node.plane.new_listener("0", new_socket(&node))];
    assert_eq!(refused, [(); 2].map(|()| Err(PortError::Connects("0".to_owned()))));
    let missing = [node.plane.can_listen_anew("1"), node.plane.new_listener("1", new_socket(&node))];
    assert_eq!(missing, [(); 2].map(|()| Err(PortError::NoSuchPort("1".to_owned()))));
}

/// A daemon from before ports could be given new sockets makes them anew, and a tenant's pods may come and go.
#[test]
fn a_removed_port_counts_until_what_its_guest_sent_is_closed() {
    let node = Node::with_options(Options { port_files: Some(400), ..guest::threads::options() });
    let add = |number: usize| {
        let _ = std::fs::remove_file(node.path(number));
        let listener = UnixListener::bind(node.path(number)).unwrap();
        node.plane.add_port(config(number), Socket::Listening(OwnedFd::from(listener)), None)
    };
    add(0).unwrap();
    let first = UnixStream::connect(node.path(0)).unwrap();
    wait_until("the first guest is taken", || node.port(0).has_connection, || node.state());
    let guest = UnixStream::connect(node.path(0)).unwrap();
    let (socket, other_end) = lingering();
    let pairs: Vec<_> = (0..126).map(|_| UnixStream::pair().unwrap()).collect();
    let mut sent = vec![socket.as_raw_fd()];
    sent.extend(pairs.iter().flat_map(|(one, other)| [one.as_raw_fd(), other.as_raw_fd()]));
    ask(&guest, &sent);
    drop((socket, pairs, first));
    node.wait_misbehaved(0);
    node.plane.remove_port("0").unwrap();
    // 253 of its files are open, or almost: with one port more that is less than 400.
    add(0).unwrap();
    let refused = add(1).unwrap_err();
    assert_eq!(refused, PortError::TooManyFiles);
    drop(other_end);
    wait_until("they are closed", || add(1).is_ok(), || node.state());
}

/// True if the process has this file open: device and inode.
fn is_open(file: (u64, u64)) -> bool {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let of = |entry: std::io::Result<std::fs::DirEntry>| std::fs::metadata(entry.ok()?.path()).ok();
    all.filter_map(of).any(|metadata| (metadata.dev(), metadata.ino()) == file)
}

#[test]
fn both_ends_of_a_connection_are_closed_though_one_waits_behind_the_other_whose_close_waits_for_it() {
    let node = Node::with_ports(0);
    // The guest of the first port leaves, the second port is removed as well.
    let ends = [0, 1].map(|number| {
        let (ours, guest) = UnixStream::pair().unwrap();
        let (socket, other_end) = lingering();
        let link = format!("/proc/self/fd/{}", other_end.as_raw_fd());
        let other = std::fs::metadata(link).unwrap();
        ask(&guest, &[socket.as_raw_fd(), other_end.as_raw_fd()]);
        drop((socket, other_end));
        node.plane.add_port(config(number), Socket::Connecting(OwnedFd::from(ours)), None).unwrap();
        node.wait_misbehaved(number);
        (other.dev(), other.ino())
    });
    node.plane.remove_port("1").unwrap();
    assert!(is_open(ends[0]) && is_open(ends[1]), "the second end waits behind the first");
    let closed = || !is_open(ends[0]) && !is_open(ends[1]);
    wait_until("the second ends are closed", closed, || format!("{:?} {}", ends.map(is_open), node.state()));
}
