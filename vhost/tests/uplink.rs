//! A guest and the kernel's own stack at the other end of a wire: frames by AF_XDP, over a veth in namespaces of the test's own.

// Every one of these is a test's; what is unwrapped is what it claims.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

#[allow(dead_code, reason = "this is a part of what guests can do")]
mod guest;

use std::io::Read;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use fairlead_host::real::RealKernel;
use fairlead_host::scratch_netns::ScratchNetns;
use fairlead_host::{NetKernel, Uplink};
use fairlead_vhost::control::messages::SocketSide;
use fairlead_vhost::control::{Client, ClientError};
use fairlead_vhost::dataplane::{DataPlane, UplinkError};
use fairlead_vhost::port::{PortCounters, UplinkConfig};
use guest::packets::{ACK, FIN, PUSH, SYN, Tcp, checksum};
use guest::{FEATURES, Guest, Node, SIZE, wait_until};

const WIRE_MAC: [u8; 6] = [2, 0, 0, 0, 9, 9];
/// Of the ports of [`Node`].
const NETWORK: &str = "blue";

/// A node with an interface, and the other end of its wire, where the kernel has the address 10.9.0.1.
struct Wire {
    directory: tempfile::TempDir,
    node: ScratchNetns,
    far: ScratchNetns,
}

impl Wire {
    fn new() -> Wire {
        let directory = tempfile::tempdir().unwrap();
        let node = ScratchNetns::new(directory.path(), "node").unwrap();
        let far = ScratchNetns::new(directory.path(), "far").unwrap();
        let wire = Wire { directory, node, far };
        wire.make();
        wire
    }

    fn make(&self) {
        // By a path: only `ip` needs a name of its own kind.
        let far = self.directory.path().join("far");
        let make = format!("ip link add up0 type veth peer name far0 netns {}", far.display());
        inside(&self.node, &make);
        inside(&self.node, "ip link set up0 up");
        inside(&self.far, "ip link set far0 address 02:00:00:00:09:09 up");
        inside(&self.far, "ip address add 10.9.0.1/24 dev far0");
    }

    /// Gives the network of the test's ports its uplink, as the daemon does.
    fn connect(&self, plane: &DataPlane) -> Result<(), UplinkError> {
        self.node.inside(|| connect_to(plane, NETWORK, "up0")).unwrap()
    }

    /// A process that another test begins has the descriptors too, until it executes its program.
    fn wait_for_no_program(&self) {
        let is_gone = || !self.program().contains("xdp");
        wait_until("the program of the interface is gone", is_gone, || self.program());
    }

    fn program(&self) -> String {
        let shown = Command::new("nsenter")
            .arg(format!("--net={}", self.node.path().display()))
            .args(["ip", "-details", "link", "show", "up0"])
            .output();
        String::from_utf8(shown.unwrap().stdout).unwrap()
    }
}

/// Runs a command in a namespace.
fn inside(netns: &ScratchNetns, command: &str) {
    let enter = format!("--net={}", netns.path().display());
    let status = Command::new("nsenter").arg(enter).args(command.split(' ')).status().unwrap();
    assert!(status.success(), "{command}");
}

fn connect_to(plane: &DataPlane, network: &str, interface: &str) -> Result<(), UplinkError> {
    let (kernel, index, uplink, config) = opened(network, interface);
    let descriptors = uplink.descriptors().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    plane.add_uplink(config, Uplink::of_descriptors(uplink.native, descriptors).unwrap(), None)?;
    kernel.bind_uplink(index, &uplink, None).unwrap();
    Ok(())
}

/// An uplink that nobody serves yet, of the namespace that the thread is in.
fn opened(network: &str, interface: &str) -> (RealKernel, u32, Uplink, UplinkConfig) {
    let kernel = RealKernel::new().unwrap();
    let index = kernel.host().unwrap().link_by_name(interface).unwrap().unwrap().index;
    let uplink = kernel.open_uplink(index, 1, None).unwrap();
    let config = UplinkConfig {
        network: network.to_owned(),
        interface: interface.into(),
        index,
        mtu: 1_500,
        native: uplink.native,
    };
    (kernel, index, uplink, config)
}

/// "Who has 10.9.0.1?" of guest 0, which has 10.9.0.7.
fn arp_request() -> Vec<u8> {
    let own = guest::mac(0);
    let head = [[0xff; 6].as_slice(), &own, &[0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1], &own].concat();
    let mut frame = [head.as_slice(), &[10, 9, 0, 7], &[0; 6], &[10, 9, 0, 1]].concat();
    frame.resize(60, 0);
    frame
}

/// An echo request of guest 0 with so many bytes of data.
fn ping(number: u16, bytes: usize) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0, 7];
    icmp.extend(number.to_be_bytes());
    icmp.resize(8 + bytes, 0x5a);
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum);
    let length = u16::try_from(20 + icmp.len()).unwrap().to_be_bytes();
    let mut ip = vec![0x45, 0, length[0], length[1], 0, 0, 0, 0, 64, 1, 0, 0, 10, 9, 0, 7, 10, 9, 0, 1];
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    [WIRE_MAC.as_slice(), &guest::mac(0), &[0x08, 0x00], &ip, &icmp].concat()
}

/// Whether the guest has got the answer to a ping, or is yet to get it.
fn is_answer(frame: &[u8], number: u16) -> bool {
    let is_reply = frame.get(23) == Some(&1) && frame.get(34) == Some(&0);
    frame[..6] == guest::mac(0) && is_reply && frame.get(40..42) == Some(number.to_be_bytes().as_slice())
}

/// Whether this is the kernel's answer to "who has".
fn is_arp_reply(frame: &[u8]) -> bool {
    frame[12..14] == [0x08, 0x06] && frame[20..22] == [0, 2]
}

/// Asks the kernel at the other end, which asks back for the guest's address first.
fn exchange_with_the_kernel(node: &Node, guest: &mut Guest, pings: std::ops::Range<u16>) {
    ask_the_kernel(guest, pings, || format!("{} {:?}", node.state(), node.plane.uplinks()));
}

fn ask_the_kernel(guest: &mut Guest, pings: std::ops::Range<u16>, state: impl Fn() -> String) {
    guest.send(&arp_request());
    let answers = || guest.received().iter().any(|frame| is_arp_reply(frame));
    wait_until("the kernel answers ARP", answers, &state);
    for number in pings {
        guest.send(&ping(number, usize::from(number) % 1_400));
        let answered = || guest.received().iter().any(|frame| is_answer(frame, number));
        wait_until("the kernel answers a ping", answered, &state);
    }
}

#[test]
fn a_guest_and_the_kernel_at_the_other_end_of_the_wire_reach_each_other() {
    let (wire, node) = (Wire::new(), Node::with_ports(2));
    let (mut guest, mut other) = (node.guest(0), node.guest(1));
    wire.connect(&node.plane).unwrap();
    exchange_with_the_kernel(&node, &mut guest, 1..200);
    // More than the rings and the memory have places for.
    for round in 0..80_u16 {
        (0..32).for_each(|n| guest.send(&ping(1_000 + 32 * round + n, 64)));
        let number = 1_000 + 32 * round + 31;
        let answered = || guest.received().iter().any(|frame| is_answer(frame, number));
        wait_until("the last of a burst is answered", answered, || format!("{:?}", node.plane.uplinks()));
    }
    assert!(other.received().iter().all(|frame| frame[0] & 1 == 1), "what is for groups and no more");
    let view = &node.plane.uplinks()[0];
    assert!(view.counters.to_guest_frames > 2_000 && view.counters.from_guest_frames > 2_000, "{view:?}");
    assert_eq!((view.queues, view.lost_frames, view.config.native), (1, 0, true));
    let table = node.plane.mac_table();
    assert!(table.iter().any(|entry| entry.port == "up0" && entry.mac.0 == WIRE_MAC), "{table:?}");
    guest::exchange(&node, &mut guest, &mut other, 1);
}

/// What the kernel's TCP answers: number, number of the next byte that it wants, flags, window.
fn answer_of_tcp(frame: &[u8]) -> Option<(u32, u32, u8, u16)> {
    let of_guest = frame[..6] == guest::mac(0) && frame[12..14] == [8, 0] && frame[23] == 6;
    let number = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    of_guest.then(|| (number(38), number(42), frame[47], u16::from_be_bytes([frame[48], frame[49]])))
}

/// Sends a packet, and waits until the kernel wants the byte behind it and takes more; answers the kernel's number and window.
fn send_tcp(guest: &mut Guest, header: [u8; 10], packet: &Tcp, state: impl Fn() -> String) -> (u32, u16) {
    let bytes = packet.data.len() + usize::from(packet.flags & (SYN | FIN) != 0);
    let behind = packet.sequence.wrapping_add(u32::try_from(bytes).unwrap());
    guest.send_offloaded(header, &packet.partial());
    let mut answer = None;
    let mut has_come = || {
        let received = guest.received();
        let mut answers = received.iter().filter_map(|frame| answer_of_tcp(frame));
        answer =
            answers.find(|(_, wanted, flags, window)| *wanted == behind && flags & ACK != 0 && *window > 0);
        answer.is_some()
    };
    wait_until("the kernel has all of it", &mut has_come, state);
    answer.map(|(number, _, _, window)| (number, window)).unwrap()
}

#[test]
fn the_kernel_at_the_other_end_of_the_wire_gets_segments_with_sums_that_its_tcp_takes() {
    let (wire, node) = (Wire::new(), Node::with_ports(1));
    // CSUM, HOST_TSO4.
    let mut guest = node.guest_with(0, FEATURES | 1 | 1 << 11);
    wire.connect(&node.plane).unwrap();
    let state = || format!("{} {:?}", node.state(), node.plane.uplinks());
    exchange_with_the_kernel(&node, &mut guest, 1..3);
    inside(&wire.far, "ip neigh replace 10.9.0.7 lladdr 02:00:00:00:09:00 dev far0 nud permanent");
    let listener = wire.far.inside(|| TcpListener::bind("10.9.0.1:80").unwrap()).unwrap();
    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
        received
    });

    // A SYN, with the longest segment that the guest takes.
    let packet = Tcp { options: vec![2, 4, 5, 0xb4], ..Tcp::new(WIRE_MAC, guest::mac(0), 0) };
    let syn = Tcp { flags: SYN, ..packet.clone() };
    let (number, window) = send_tcp(&mut guest, syn.checksum_header(), &syn, state);
    let next = |packet: &Tcp, sequence: u32, data: &[u8]| Tcp {
        sequence,
        acknowledged: number.wrapping_add(1),
        options: Vec::new(),
        data: data.to_vec(),
        ..packet.clone()
    };
    let data = Tcp::new(WIRE_MAC, guest::mac(0), 300_000).data;
    let (mut sent, mut window, mut sequence) = (0, window, syn.sequence.wrapping_add(1));
    while sent < data.len() {
        let until = data.len().min(sent + usize::from(window).min(60_000));
        let long = Tcp { flags: ACK | PUSH, ..next(&packet, sequence, &data[sent..until]) };
        (_, window) = send_tcp(&mut guest, long.segments_header(1_460), &long, state);
        sequence = sequence.wrapping_add(u32::try_from(until - sent).unwrap());
        sent = until;
    }
    let end = Tcp { flags: ACK | FIN, ..next(&packet, sequence, &[]) };
    send_tcp(&mut guest, end.checksum_header(), &end, state);
    assert!(reader.join().unwrap() == data, "the bytes are those that were sent");

    let (port, uplink) = (node.port(0).counters, node.plane.uplinks().remove(0).counters);
    assert!(port.from_guest_bytes / port.from_guest_frames > 5_000, "{port:?}");
    assert!(
        uplink.to_guest_frames > 200 && uplink.to_guest_bytes / uplink.to_guest_frames <= 1_514,
        "{uplink:?}"
    );
    assert!(uplink.to_guest_drops.is_empty() && port.from_guest_drops.is_empty(), "{uplink:?} {port:?}");
}

#[test]
fn an_interface_is_the_kernels_own_again_when_its_uplink_or_the_switch_is_gone() {
    let (wire, node) = (Wire::new(), Node::with_ports(1));
    let mut guest = node.guest(0);
    for _ in 0..3 {
        wire.connect(&node.plane).unwrap();
        assert!(wire.program().contains("xdp"), "{}", wire.program());
        exchange_with_the_kernel(&node, &mut guest, 1..3);
        node.plane.remove_uplink(NETWORK).unwrap();
        wire.wait_for_no_program();
        assert!(matches!(node.plane.remove_uplink(NETWORK), Err(UplinkError::NoSuchUplink(_))));
    }
    wire.connect(&node.plane).unwrap();
    drop(node);
    wire.wait_for_no_program();
}

/// Frames that were for an uplink, whether or not it has sent them.
fn frames_for(uplink: &PortCounters) -> u64 {
    uplink.to_guest_frames + uplink.to_guest_drops.values().sum::<u64>()
}

#[test]
fn an_uplink_sends_again_after_more_frames_than_it_has_places_for_came_while_its_interface_was_down() {
    const FLOOD: u64 = 3_200;
    let (wire, node) = (Wire::new(), Node::with_ports(1));
    let mut guest = node.guest(0);
    wire.connect(&node.plane).unwrap();
    exchange_with_the_kernel(&node, &mut guest, 1..3);
    let counters = || node.plane.uplinks().remove(0).counters;
    let state = || format!("{} {:?}", node.state(), node.plane.uplinks());
    let before = counters();
    inside(&wire.node, "ip link set up0 down");
    for sent in 1..=FLOOD {
        guest.send(&ping(9, 64));
        // No more at a time than there is room for on the way to the uplink.
        if sent % 32 == 0 {
            let all = frames_for(&before) + sent;
            wait_until("the switch has the frames", || frames_for(&counters()) >= all, state);
        }
    }
    let down = counters();

    inside(&wire.node, "ip link set up0 up");
    let arrives = || {
        // Again and again: the other end may be without its carrier for a moment yet.
        if guest.has_room() {
            guest.send(&arp_request());
        }
        guest.received().iter().any(|frame| is_arp_reply(frame))
    };
    wait_until("the kernel answers ARP", arrives, state);
    exchange_with_the_kernel(&node, &mut guest, 20..23);
    // What was sent into the interface that is down is dropped, but for the burst by which that was found out.
    let late = down.to_guest_frames - before.to_guest_frames;
    assert!(late <= u64::from(SIZE), "{late} of {FLOOD} frames wait until the interface is up: {down:?}");
}

#[test]
fn a_network_has_one_uplink_and_an_interface_serves_one_network() {
    let (wire, node) = (Wire::new(), Node::with_ports(0));
    wire.connect(&node.plane).unwrap();
    let taken = wire.node.inside(|| {
        let kernel = RealKernel::new().unwrap();
        let index = kernel.host().unwrap().link_by_name("up0").unwrap().unwrap().index;
        kernel.open_uplink(index, 1, None).map(drop)
    });
    assert_eq!(taken.unwrap().unwrap_err().errno(), Some(nix::errno::Errno::EBUSY));
    inside(&wire.node, "ip link add up1 type bridge");
    inside(&wire.node, "ip link set up1 up");
    let second = wire.node.inside(|| connect_to(&node.plane, NETWORK, "up1")).unwrap();
    assert!(matches!(second, Err(UplinkError::Taken { .. })), "{second:?}");
    let generic = wire.node.inside(|| connect_to(&node.plane, "red", "up1")).unwrap();
    generic.unwrap();
    let views = node.plane.uplinks();
    assert_eq!(views.iter().map(|view| view.config.native).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn an_uplink_whose_interface_went_away_can_be_removed_and_connected_again_when_that_is_back() {
    let (wire, node) = (Wire::new(), Node::with_ports(2));
    let (mut guest, mut other) = (node.guest(0), node.guest(1));
    wire.connect(&node.plane).unwrap();
    exchange_with_the_kernel(&node, &mut guest, 1..3);
    let is_bound = || node.plane.uplinks()[0].bound;
    assert!(is_bound());
    inside(&wire.node, "ip link delete up0");
    assert!(!is_bound(), "to an interface that is gone");
    guest.send(&ping(7, 64));
    guest::exchange(&node, &mut guest, &mut other, 1);
    node.plane.remove_uplink(NETWORK).unwrap();
    wire.make();
    wire.connect(&node.plane).unwrap();
    exchange_with_the_kernel(&node, &mut guest, 10..20);
}

#[test]
fn the_program_without_privileges_serves_an_uplink_and_its_end_gives_the_interface_back() {
    let wire = Wire::new();
    let socket = wire.directory.path().join("control.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fairlead-vswitch"));
    command.arg("run").arg("--socket").arg(&socket).args(["--user", "64321:64321"]);
    let process = command.args(guest::threads::arguments()).spawn();
    let mut process = process.unwrap();
    let is_there = || Client::new(&socket, Duration::from_secs(5)).version().is_ok();
    wait_until("the program serves its socket", is_there, String::new);
    let mut client = Client::new(&socket, Duration::from_secs(60));
    let listener = UnixListener::bind(wire.directory.path().join("0")).unwrap();
    client.add_port(guest::config(0), SocketSide::Listening, listener.as_fd(), None).unwrap();
    let mut guest = Guest::connect(0, &wire.directory.path().join("0"));
    guest.set_up();
    let is_active = || Client::new(&socket, Duration::from_secs(60)).ports().unwrap()[0].active_queues == 1;
    wait_until("the guest's rings are at work", is_active, String::new);
    let connected = wire.node.inside(|| {
        let (kernel, index, uplink, config) = opened(NETWORK, "up0");
        client.add_uplink(config, &uplink, None)?;
        assert!(!client.uplinks()?[0].bound, "as it stays where the daemon is killed now");
        kernel.bind_uplink(index, &uplink, None).unwrap();
        Ok::<(), ClientError>(())
    });
    connected.unwrap().unwrap();
    ask_the_kernel(&mut guest, 1..50, String::new);
    let view = &client.uplinks().unwrap()[0];
    assert!(view.counters.from_guest_frames >= 50 && view.bound && !view.zero_copy, "{view:?}");
    // Killed, it gives nothing back by itself.
    process.kill().unwrap();
    process.wait().unwrap();
    wire.wait_for_no_program();
}
