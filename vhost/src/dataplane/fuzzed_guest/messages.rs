//! What a hostile guest says on its connection, with which descriptors, and what it does to its rings meanwhile.

use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::actions::{AVAILABLE, Driver, GUEST, RING, USED, USER};
use super::shared_file::{FILE, SHARED};
use super::{Choices, LocalRings, Node, SharedFile};
use crate::protocol::{Channel, Offer, Refusal, Session};

/// Rings of the port: three pairs.
const QUEUES: u16 = 3;
/// What is said of each ring in the usual order: SET_VRING_NUM, BASE, ADDR, KICK, CALL, ENABLE.
const OF_A_RING: [u32; 6] = [8, 10, 9, 12, 13, 18];

/// The switch's end and the guest's.
struct Connection {
    channel: Channel,
    session: Session,
    guest: UnixStream,
}

impl Connection {
    fn new() -> Connection {
        let (ours, guest) = UnixStream::pair().unwrap();
        guest.set_nonblocking(true).unwrap();
        let channel = Channel::new(OwnedFd::from(ours).into()).unwrap();
        Connection { channel, session: Session::new(Offer { queues: QUEUES, mtu: 1500 }, None), guest }
    }

    /// Answers what has come, as the connection thread does.
    fn hear(&mut self, node: &mut Node) -> Result<(), Refusal> {
        for _ in 0..32 {
            let Some(message) = self.channel.receive()? else { return Ok(()) };
            let number = message.header.message;
            let mut rings = LocalRings(node);
            if let Some(reply) =
                self.session.handle(message.header, &message.payload, message.fds, &mut rings)?
            {
                self.channel.send(number, reply)?;
                self.check_reply(number);
            }
            assert!(self.session.active_queues() <= QUEUES);
        }
        Ok(())
    }

    /// A reply is of the message that it answers, and has a payload of eight bytes.
    fn check_reply(&mut self, message: u32) {
        let mut bytes = [0; 64];
        let count = self.guest.read(&mut bytes).unwrap();
        let header = [message, 1 | 4, 8].map(u32::to_ne_bytes).concat();
        assert_eq!((count, &bytes[..12]), (20, header.as_slice()));
    }

    /// Says it; a socket that is full, or closed, is the guest's own business.
    fn say(&self, bytes: &[u8], descriptors: &[OwnedFd]) {
        let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let with = if raw.is_empty() { &rights[..0] } else { &rights[..] };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = sendmsg::<()>(self.guest.as_fd().as_raw_fd(), &[IoSlice::new(bytes)], with, flags, None);
    }

    fn end(mut self, node: &mut Node) {
        self.session.stop_all(&mut LocalRings(node)).unwrap();
        assert!(node.rings().iter().all(|ring| ring.ring.is_none()), "a ring runs without a connection");
        node.forget_hostile();
    }
}

fn message(number: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [&[number, flags, length].map(u32::to_ne_bytes).concat(), payload].concat()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn descriptor(choices: &mut Choices<'_>, driver: &Driver) -> OwnedFd {
    match choices.below(8) {
        0..=2 => driver.files[0].descriptor(),
        3 => driver.files[1].descriptor(),
        4..=6 => EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap().into(),
        _ => UnixStream::pair().unwrap().0.into(),
    }
}

/// A region as it should be, or nearly.
fn region(choices: &mut Choices<'_>, at: usize) -> [u64; 4] {
    let mut place = [GUEST + SHARED * at as u64, SHARED, USER[at], 0];
    let value = choices.of([0, 1, 4096, SHARED, FILE, u64::MAX, u64::MAX - 4095, GUEST, USER[0]]);
    let field = choices.below(16);
    if let Some(field) = place.get_mut(field) {
        *field = if choices.is() { value } else { field.wrapping_add(value) };
    }
    place
}

/// The payload that a message has, mostly, and the descriptors that come with it.
fn payload(number: u32, choices: &mut Choices<'_>, driver: &Driver) -> (Vec<u8>, Vec<OwnedFd>) {
    let ring = u32::from(choices.byte()) % (2 * u32::from(QUEUES) + 1);
    let state = |value: u32| (([ring, value].map(u32::to_ne_bytes)).concat(), Vec::new());
    match number {
        2 => {
            (words(&[choices.of([0x1_5040_8008, 0x1_7040_bb8b | 1 << 35, 0, 1 << 30, u64::MAX])]), Vec::new())
        }
        16 => (words(&[choices.of([0x200a | 0x8000, 0, 8, u64::MAX])]), Vec::new()),
        20 => (words(&[u64::from(choices.u16())]), Vec::new()),
        5 => {
            let count = choices.below(4);
            let regions: Vec<u8> = (0..count).flat_map(|at| words(&region(choices, at & 1))).collect();
            let fds = (0..count).map(|at| driver.files[at & 1].descriptor()).collect();
            (
                ([u32::try_from(count).unwrap(), 0].map(u32::to_ne_bytes).concat())
                    .into_iter()
                    .chain(regions)
                    .collect(),
                fds,
            )
        }
        37 | 38 => {
            let at = choices.below(2);
            let bytes = [words(&[0]), words(&region(choices, at))].concat();
            (bytes, if number == 37 { vec![driver.files[at].descriptor()] } else { Vec::new() })
        }
        8 => state(choices.of([u32::from(driver.size), 0, 1, 3, 256, 32_768, 65_536])),
        9 => {
            let at = USER[0] + RING * u64::from(ring & 1);
            let mut areas = [at, at + USED, at + AVAILABLE, 0];
            let field = choices.below(12);
            if let Some(area) = areas.get_mut(field) {
                *area = choices.of([at, at + 1, at + 2, at + 8, USER[0] + SHARED - 16, USER[1], 0, u64::MAX]);
            }
            ([[ring, 0].map(u32::to_ne_bytes).concat(), words(&areas)].concat(), Vec::new())
        }
        12..=14 => {
            let fd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
            (words(&[u64::from(ring)]), vec![fd.into()])
        }
        18 => state(u32::from(choices.below(8) != 0)),
        10 | 11 => state(u32::from(choices.u16())),
        _ => (Vec::new(), Vec::new()),
    }
}

fn speak(choices: &mut Choices<'_>, connection: &Connection, driver: &Driver) {
    let number = match choices.below(8) {
        0 => choices.u32(),
        1..=4 => choices.of(OF_A_RING),
        _ => choices.of([1, 2, 3, 4, 5, 11, 15, 16, 17, 20, 34, 36, 37, 38]),
    };
    let (mut bytes, mut fds) = payload(number, choices, driver);
    let spoilt = choices.byte();
    if spoilt & 7 == 7 {
        let length = usize::from(choices.byte());
        bytes.resize(length, 0);
    }
    if spoilt & 56 == 56 {
        fds.extend((0..choices.below(5)).map(|_| descriptor(choices, driver)));
    }
    let flags = if spoilt & 64 != 0 { 1 | 8 } else { 1 };
    let mut whole = message(number, flags, &bytes);
    if spoilt == 0x87 {
        whole.truncate(choices.below(32));
    }
    connection.say(&whole, &fds);
}

/// Everything that a frontend says before frames pass: one byte of an input stands for all of it, so that what comes behind is reached.
fn introduce(connection: &mut Connection, node: &mut Node, driver: &Driver) -> Result<(), Refusal> {
    let features = words(&[0x1_7040_8008 & !(1 << 29)]);
    connection.say(&message(2, 1, &features), &[]);
    let table = [
        [2, 0].map(u32::to_ne_bytes).concat(),
        words(&[GUEST, SHARED, USER[0], 0]),
        words(&[GUEST + SHARED, SHARED, USER[1], 0]),
    ];
    connection
        .say(&message(5, 1, &table.concat()), &[driver.files[0].descriptor(), driver.files[1].descriptor()]);
    for ring in 0..2_u32 {
        let at = USER[0] + RING * u64::from(ring);
        let state = |value: u32| [ring, value].map(u32::to_ne_bytes).concat();
        connection.say(&message(8, 1, &state(u32::from(driver.size))), &[]);
        let areas = [state(0), words(&[at, at + USED, at + AVAILABLE, 0])].concat();
        connection.say(&message(9, 1, &areas), &[]);
        let kick = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        connection.say(&message(12, 1, &words(&[u64::from(ring)])), &[kick.into()]);
        connection.say(&message(18, 1, &state(1)), &[]);
    }
    connection.hear(node)
}

/// Sessions of a guest, one after the other: whatever it says, with whatever descriptors, and what it does to its rings meanwhile.
///
/// # Panics
/// If something does not hold that must.
pub fn fuzzed_messages(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let mut node = Node::new(QUEUES, choices.is());
    let mut driver = Driver::new(choices.of([16, 1, 64]));
    let mut connection = Connection::new();
    for _ in 0..256 {
        if choices.is_empty() {
            break;
        }
        let mut heard = Ok(());
        match choices.below(8) {
            0 => heard = introduce(&mut connection, &mut node, &driver),
            1 | 2 => driver.act(&mut choices, &mut node),
            3 => {
                let count = choices.below(24);
                connection.say(choices.bytes(count), &[]);
            }
            _ => speak(&mut choices, &connection, &driver),
        }
        let heard = heard.and_then(|()| connection.hear(&mut node));
        if heard.is_err() || node.broken {
            std::mem::replace(&mut connection, Connection::new()).end(&mut node);
        }
    }
    node.neighbours_go_on();
    driver.files.iter().for_each(SharedFile::check);
    connection.end(&mut node);
}
