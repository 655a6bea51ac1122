//! A guest of the test's own: it speaks vhost-user over a real socket and drives two rings in a memfd, well or badly.

pub(crate) mod packets;
#[path = "../threads/mod.rs"]
#[allow(dead_code, reason = "some tests start the program")]
pub(crate) mod threads;

use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlead_host::Mac;
use fairlead_vhost::dataplane::{DataPlane, Event, Options, Socket};
use fairlead_vhost::port::{PortConfig, PortView};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// How long a condition may take on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(60);

/// The guest's address of its memory, of both kinds.
pub(crate) const BASE: u64 = 0x5000_0000_0000;
pub(crate) const BYTES: u64 = 2 << 20;
/// Entries of each ring.
pub(crate) const SIZE: u16 = 64;
const BUFFER: u64 = 2048;
const RING: u64 = 0x4000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const RX_BUFFERS: u64 = 0x1_0000;
/// Where the frames lie that the guest sends: in the second half.
pub(crate) const TX_BUFFERS: u64 = 0x18_0000;
/// Where those lie that may be long, and room for one.
const LONG_TX_BUFFERS: u64 = 0x1a_0000;
const LONG_BUFFER: u64 = 0x1_1000;

pub(crate) const RX: u32 = 0;
pub(crate) const TX: u32 = 1;

/// VERSION_1, MRG_RXBUF, IN_ORDER, INDIRECT_DESC, PROTOCOL_FEATURES.
pub(crate) const FEATURES: u64 = 1 << 32 | 1 << 15 | 1 << 35 | 1 << 28 | 1 << 30;
/// REPLY_ACK, CONFIGURE_MEM_SLOTS.
pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 3 | 1 << 15;

/// The flags of a message: version 1, and whether an acknowledgement is wanted.
pub(crate) const PLAIN: u32 = 1;
pub(crate) const NEED_REPLY: u32 = 1 | 8;

/// Waits for `condition`; what `state` says is in the panic.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool, state: impl Fn() -> String) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < LIMIT, "{what}: not within {LIMIT:?}; {}", state());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A data plane whose ports listen in a directory of the test's own.
pub(crate) struct Node {
    pub(crate) plane: DataPlane,
    pub(crate) events: Arc<Mutex<Vec<Event>>>,
    directory: tempfile::TempDir,
}

impl Node {
    /// A data plane with ports `0` to `count - 1` of one network.
    pub(crate) fn with_ports(count: usize) -> Node {
        Node::with_configs((0..count).map(config).collect())
    }

    /// The same with ports that are this: their names are their numbers.
    pub(crate) fn with_configs(configs: Vec<PortConfig>) -> Node {
        let node = Node::with_options(threads::options());
        for (number, config) in configs.into_iter().enumerate() {
            let listener = UnixListener::bind(node.path(number)).unwrap();
            node.plane.add_port(config, Socket::Listening(OwnedFd::from(listener)), None).unwrap();
        }
        node
    }

    /// A data plane without ports.
    pub(crate) fn with_options(options: Options) -> Node {
        let events = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&events);
        let plane = DataPlane::start(options, move |event| told.lock().unwrap().push(event));
        let directory = tempfile::tempdir().unwrap();
        Node { plane: plane.expect("a data plane starts"), events, directory }
    }

    pub(crate) fn path(&self, number: usize) -> std::path::PathBuf {
        self.directory.path().join(number.to_string())
    }

    pub(crate) fn port(&self, number: usize) -> PortView {
        let name = number.to_string();
        self.plane.ports().into_iter().find(|port| port.config.name == name).expect("the port")
    }

    pub(crate) fn state(&self) -> String {
        format!("{:?} {:?}", self.plane.ports(), self.events.lock().unwrap())
    }

    /// A guest on port `number` whose rings are at work.
    pub(crate) fn guest(&self, number: usize) -> Guest {
        self.guest_with(number, FEATURES)
    }

    /// The same of a guest that agrees on these features.
    pub(crate) fn guest_with(&self, number: usize, features: u64) -> Guest {
        let mut guest = self.connect(number);
        guest.features = features;
        guest.set_up();
        self.wait_active(number);
        guest
    }

    /// A guest on port `number` that has said nothing yet.
    pub(crate) fn connect(&self, number: usize) -> Guest {
        Guest::connect(number, &self.path(number))
    }

    pub(crate) fn wait_active(&self, number: usize) {
        let active = || self.port(number).active_queues == 1;
        wait_until("the guest's rings are at work", active, || self.state());
    }

    /// Waits until the guest of port `number` was disconnected for breaking the rules, and answers how it did.
    pub(crate) fn wait_misbehaved(&self, number: usize) -> String {
        let what = || {
            let events = self.events.lock().unwrap();
            let told = events.iter().rev().find_map(|event| match event {
                Event::Misbehaved { port, what } if *port == number.to_string() => Some(what.clone()),
                _ => None,
            });
            told.filter(|_| matches!(events.last(), Some(Event::Disconnected { .. })))
        };
        wait_until("the guest is found out", || what().is_some(), || self.state());
        let what = what();
        self.events.lock().unwrap().clear();
        what.unwrap_or_default()
    }
}

pub(crate) fn mac(number: usize) -> [u8; 6] {
    [2, 0, 0, 0, 9, u8::try_from(number).unwrap()]
}

pub(crate) fn config(number: usize) -> PortConfig {
    PortConfig {
        name: number.to_string(),
        network: "blue".into(),
        mac: Mac(mac(number)),
        vlan: None,
        trunk: Vec::new(),
        spoof_check: false,
        isolated: false,
        queues: 1,
        mtu: 1500,
        from_guest_bits: None,
        to_guest_bits: None,
    }
}

/// A frame from guest to guest, of 60 bytes, with a number in it.
pub(crate) fn frame(from: usize, to: usize, number: u8) -> Vec<u8> {
    let mut frame = [mac(to).as_slice(), &mac(from), &[0x08, 0x00, number]].concat();
    frame.resize(60, number);
    frame
}

/// Asks for the features four times and sends nothing more. The answers stay unread for as long as `socket` is neither read nor dropped.
pub(crate) fn leave_replies_unread(mut socket: &UnixStream) {
    socket.write_all(&[1, PLAIN, 0].map(u32::to_ne_bytes).concat().repeat(4)).unwrap();
    socket.shutdown(Shutdown::Write).unwrap();
}

/// Sends a frame each way between two guests, and waits for both.
pub(crate) fn exchange(node: &Node, one: &mut Guest, other: &mut Guest, number: u8) {
    one.send_to(node, other, number);
    other.send_to(node, one, number);
}

/// The guest.
pub(crate) struct Guest {
    /// The port's number.
    number: usize,
    pub(crate) features: u64,
    socket: UnixStream,
    pub(crate) memory: MmapRegion,
    pub(crate) file: File,
    pub(crate) kicks: [EventFd; 2],
    pub(crate) calls: [EventFd; 2],
    sent: u16,
    seen: u16,
}

impl Guest {
    pub(crate) fn connect(number: usize, path: &Path) -> Guest {
        let file = File::from(memfd_create(c"guest", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(BYTES).unwrap();
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let memory = MmapRegion::from_file(offset, usize::try_from(BYTES).unwrap()).unwrap();
        let event = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        let (kicks, calls) = ([event(), event()], [event(), event()]);
        let socket = UnixStream::connect(path).expect("the port listens");
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let features = FEATURES;
        Guest { number, features, socket, memory, file, kicks, calls, sent: 0, seen: 0 }
    }

    /// Sends a message with file descriptors.
    pub(crate) fn message(&self, number: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let size = u32::try_from(payload.len()).unwrap();
        let bytes = [[number, flags, size].map(u32::to_ne_bytes).concat().as_slice(), payload].concat();
        self.raw(&bytes, fds);
    }

    pub(crate) fn socket_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Sends bytes. That the data plane hung up meanwhile is no error here.
    pub(crate) fn raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let fds: Vec<i32> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let control = if fds.is_empty() { &rights[..0] } else { &rights };
        let part = [IoSlice::new(bytes)];
        let _ = sendmsg::<()>(self.socket.as_raw_fd(), &part, control, MsgFlags::MSG_NOSIGNAL, None);
    }

    pub(crate) fn number(&self, message: u32, number: u64) {
        self.message(message, PLAIN, &number.to_ne_bytes(), &[]);
    }

    pub(crate) fn state(&self, message: u32, ring: u32, number: u32) {
        self.message(message, PLAIN, &[ring, number].map(u32::to_ne_bytes).concat(), &[]);
    }

    /// The number of the next reply, after a check of its header. Absent if the data plane hung up.
    pub(crate) fn reply(&mut self, message: u32) -> Option<u64> {
        let mut bytes = [0; 20];
        match self.socket.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                return None;
            }
            Err(error) => panic!("no reply to message {message}: {error}"),
        }
        assert_eq!(bytes[..12], [message, 1 | 4, 8].map(u32::to_ne_bytes).concat(), "the reply's header");
        Some(u64::from_ne_bytes(bytes[12..].try_into().unwrap()))
    }

    /// Asks for the features, and so waits until all messages before were handled.
    pub(crate) fn settle(&mut self) -> u64 {
        self.message(1, PLAIN, &[], &[]);
        self.reply(1).expect("the connection lives")
    }

    /// Everything that a driver does before the first frame.
    pub(crate) fn set_up(&mut self) {
        self.agree();
        self.share(BASE, 0, BYTES);
        (0..SIZE).for_each(|n| self.offer_buffer(n));
        self.write(self.ring(RX) + AVAILABLE + 2, SIZE);
        [RX, TX].iter().for_each(|ring| self.set_up_ring(*ring));
        self.settle();
    }

    pub(crate) fn agree(&mut self) {
        self.message(3, PLAIN, &[], &[]);
        assert_eq!(self.settle() & self.features, self.features);
        self.message(15, PLAIN, &[], &[]);
        let offered = self.reply(15).expect("a reply");
        assert_eq!(offered & PROTOCOL_FEATURES, PROTOCOL_FEATURES);
        self.number(16, PROTOCOL_FEATURES);
        self.number(2, self.features);
    }

    /// SET_MEM_TABLE with one region of the memfd.
    pub(crate) fn share(&self, guest: u64, offset: u64, bytes: u64) {
        let region = [1_u64, guest, bytes, guest, offset].map(u64::to_ne_bytes).concat();
        self.message(5, PLAIN, &region, &[self.file.as_fd()]);
    }

    pub(crate) fn set_up_ring(&self, ring: u32) {
        self.start_ring(ring);
        self.state(18, ring, 1);
    }

    /// Starts a ring, and leaves it disabled.
    pub(crate) fn start_ring(&self, ring: u32) {
        self.state(8, ring, u32::from(SIZE));
        self.state(10, ring, 0);
        self.addresses(ring, self.ring(ring));
        let index = usize::try_from(ring).unwrap();
        self.event(13, ring, self.calls[index].as_fd());
        self.event(12, ring, self.kicks[index].as_fd());
    }

    /// SET_VRING_ADDR for a ring whose areas begin at `start` of the memory.
    pub(crate) fn addresses(&self, ring: u32, start: u64) {
        let head = [ring, 0].map(u32::to_ne_bytes).concat();
        let addresses =
            [BASE + start, BASE + start + USED, BASE + start + AVAILABLE, 0].map(u64::to_ne_bytes);
        self.message(9, PLAIN, &[head, addresses.concat()].concat(), &[]);
    }

    pub(crate) fn event(&self, message: u32, ring: u32, event: BorrowedFd<'_>) {
        self.message(message, PLAIN, &u64::from(ring).to_ne_bytes(), &[event]);
    }

    pub(crate) fn ring(&self, ring: u32) -> u64 {
        u64::from(ring) * RING
    }

    pub(crate) fn write<T: vm_memory::ByteValued>(&self, offset: u64, value: T) {
        let slice = self.memory.as_volatile_slice();
        slice.write_obj(value, usize::try_from(offset).unwrap()).unwrap();
    }

    pub(crate) fn read<T: vm_memory::ByteValued>(&self, offset: u64) -> T {
        self.memory.as_volatile_slice().read_obj(usize::try_from(offset).unwrap()).unwrap()
    }

    /// Writes descriptor `index` of a ring.
    pub(crate) fn describe(&self, ring: u32, index: u16, address: u64, length: u32, flags: u16) {
        let at = self.ring(ring) + 16 * u64::from(index);
        self.write(at, address);
        self.write(at + 8, length);
        self.write(at + 12, flags);
    }

    fn offer_buffer(&mut self, index: u16) {
        let length = u32::try_from(BUFFER).unwrap();
        self.describe(RX, index, BASE + RX_BUFFERS + u64::from(index) * BUFFER, length, 2);
        self.write(self.ring(RX) + AVAILABLE + 4 + 2 * u64::from(index), index);
    }

    /// Sends a frame, and kicks if the data plane asks for it.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        let at = TX_BUFFERS + u64::from(self.sent % SIZE) * BUFFER;
        let slice = self.memory.as_volatile_slice();
        slice.write_slice(&[&[0; 12], frame].concat(), usize::try_from(at).unwrap()).unwrap();
        self.send_from(BASE + at, u32::try_from(12 + frame.len()).unwrap());
    }

    /// Sends a frame of any length with a header that asks for something. The memory is used again four such frames later.
    pub(crate) fn send_offloaded(&mut self, header: [u8; 10], frame: &[u8]) {
        let at = LONG_TX_BUFFERS + u64::from(self.sent % 4) * LONG_BUFFER;
        let slice = self.memory.as_volatile_slice();
        let bytes = [&header[..], &[0; 2], frame].concat();
        slice.write_slice(&bytes, usize::try_from(at).unwrap()).unwrap();
        self.send_from(BASE + at, u32::try_from(bytes.len()).unwrap());
    }

    /// Sends a frame to another guest and waits until it is there.
    fn send_to(&mut self, node: &Node, other: &mut Guest, number: u8) {
        let sent = frame(self.number, other.number, number);
        self.send(&sent);
        let arrived = || other.received().contains(&sent);
        wait_until("the frame arrives", arrived, || format!("{sent:?} {}", node.state()));
    }

    /// Sends what lies at an address, header included.
    pub(crate) fn send_from(&mut self, address: u64, length: u32) {
        let slot = self.sent % SIZE;
        self.describe(TX, slot, address, length, 0);
        self.write(self.ring(TX) + AVAILABLE + 4 + 2 * u64::from(slot), slot);
        self.sent = self.sent.wrapping_add(1);
        self.set_index(TX, self.sent);
    }

    /// True if there is a place for one more frame in the transmit queue.
    #[allow(dead_code, reason = "some tests send few frames")]
    pub(crate) fn has_room(&self) -> bool {
        self.sent.wrapping_sub(self.used_index(TX)) < SIZE
    }

    /// Publishes an available index, and kicks if the data plane asks for it.
    pub(crate) fn set_index(&self, ring: u32, index: u16) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.write(self.ring(ring) + AVAILABLE + 2, index);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        if self.asks_for_kicks(ring) {
            self.kicks[usize::try_from(ring).unwrap()].write(1).unwrap();
        }
    }

    pub(crate) fn asks_for_kicks(&self, ring: u32) -> bool {
        self.read::<u16>(self.ring(ring) + USED) == 0
    }

    pub(crate) fn used_index(&self, ring: u32) -> u16 {
        self.read(self.ring(ring) + USED + 2)
    }

    /// The frames that have come since the last call; their buffers are offered again.
    pub(crate) fn received(&mut self) -> Vec<Vec<u8>> {
        self.received_with_headers().into_iter().map(|(_, frame)| frame).collect()
    }

    /// The same with the header before each, without the number of buffers.
    pub(crate) fn received_with_headers(&mut self) -> Vec<([u8; 10], Vec<u8>)> {
        let mut frames = Vec::new();
        while self.seen != self.used_index(RX) {
            let mut frame = self.next_buffer();
            let buffers = frame[10];
            for _ in 1..buffers {
                frame.extend(self.next_buffer());
            }
            let frame_bytes = frame.split_off(12);
            frames.push((frame[..10].try_into().unwrap(), frame_bytes));
        }
        frames
    }

    /// What was written into the buffer that was used next, which is offered again.
    fn next_buffer(&mut self) -> Vec<u8> {
        let slot = u64::from(self.seen % SIZE);
        let entry = self.ring(RX) + USED + 4 + 8 * slot;
        let (id, length): (u32, u32) = (self.read(entry), self.read(entry + 4));
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        let at = RX_BUFFERS + u64::from(id) * BUFFER;
        self.memory.as_volatile_slice().read_slice(&mut bytes, usize::try_from(at).unwrap()).unwrap();
        let id = u16::try_from(id).unwrap();
        self.write(self.ring(RX) + AVAILABLE + 4 + 2 * slot, id);
        self.seen = self.seen.wrapping_add(1);
        self.set_index(RX, self.seen.wrapping_add(SIZE));
        bytes
    }
}
