//! A link from both sides: what is put in comes out, in order and whole, and nobody takes all of it.

use std::thread;

use super::super::bell::Bell;
use super::*;

/// Miri takes a thousand times as long: it gets smaller rings, and goes around them less often.
const LINKS: usize = if cfg!(miri) { 4 } else { 1 };

fn waker() -> Arc<Waker> {
    Arc::new(Waker::new(Arc::new(Bell::new().unwrap())))
}

fn port(number: u16) -> PortAt {
    PortAt { index: PortIndex(number), key: PortKey(1_000 + u64::from(number)) }
}

/// What the frames of this port leave to be done.
fn header(from: u16) -> NetHeader {
    NetHeader::of_number(0x0102_0304_0506_0700 + u64::from(from))
}

/// Puts a frame of these bytes in, for port 7.
fn put(sender: &mut LinkSender, from: u16, bytes: &[u8]) -> bool {
    let (mut own, mut space) = (bytes.to_vec(), HeadSpace::new());
    let frame = Frame::of_slice(GuestSlice::of_bytes(&mut own).unwrap(), header(from), &mut space).unwrap();
    sender.put(port(from), Some(port(7)), 3, &frame)
}

/// The oldest record, and the bytes of its frame.
fn take(receiver: &mut LinkReceiver) -> Option<(Record, Vec<u8>)> {
    let mut received = receiver.next()?;
    let (record, mut all) = (received.record, Vec::new());
    received.with_frame(|frame| {
        assert!(matches!(record, Record::Frame { header, .. } if header == frame.header()));
        all = vec![0; frame.length()];
        copy_with_head(&[GuestSlice::of_bytes(&mut all).unwrap()], &[], frame, TagChange::None);
    });
    received.end();
    Some((record, all))
}

/// Bytes that tell their number and their place.
fn bytes(number: usize, length: usize) -> Vec<u8> {
    static ALL: [u8; 66_000] = {
        let mut all = [0; 66_000];
        let mut at = 0;
        while at < all.len() {
            all[at] = at.to_le_bytes()[0];
            at += 1;
        }
        all
    };
    ALL[number * 31 % 256..][..length].to_vec()
}

#[test]
fn frames_of_every_length_come_out_as_they_were_put_in_also_around_the_rings_end() {
    let (mut sender, mut receiver) = thread_link(waker(), LINKS);
    assert!(!receiver.has_work() && take(&mut receiver).is_none());
    // More than three times around: each length is at the ring's end at some time.
    for number in 0..if cfg!(miri) { 150 } else { 3_000_usize } {
        let sent = bytes(number, [14, 31, 32, 33, 60, 96, 97, 128, 129, 1_514, 9_238, 65_000][number % 12]);
        assert!(put(&mut sender, 2, &sent), "{number}");
        assert!(receiver.has_work());
        let (record, came) = take(&mut receiver).unwrap();
        let length = u32::try_from(sent.len()).unwrap();
        let expected = Record::Frame { from: port(2), to: Some(port(7)), pair: 3, length, header: header(2) };
        assert_eq!(record, expected);
        assert!(came == sent, "frame {number} of {length} bytes");
        assert!(!receiver.has_work());
    }
}

#[test]
fn a_port_that_floods_a_link_leaves_room_for_every_other() {
    let (mut sender, mut receiver) = thread_link(waker(), LINKS);
    let most = sender.capacity / 2 / 2;
    let frame = bytes(0, 60);
    let flood =
        |sender: &mut LinkSender, from: u16| (0..most * 2).take_while(|_| put(sender, from, &frame)).count();
    let mut counts: Vec<usize> = (0..6).map(|from| flood(&mut sender, from)).collect();
    assert_eq!(counts[0], most, "two lines each, and half of all lines at most");
    assert!(counts.is_sorted_by(|one, next| one > next) && counts[5] > most / 40, "{counts:?}");
    assert!(put(&mut sender, 9, &frame), "one that has put nothing in");
    counts[0] = 0;
    while take(&mut receiver).is_some() {
        counts[0] += 1;
    }
    assert!(counts[0] > most, "{counts:?}");
    assert_eq!(flood(&mut sender, 0), most, "when all is taken, half is for one again");
}

#[test]
fn addresses_find_room_in_a_full_link_when_some_was_made_and_stay_in_order() {
    let (mut sender, mut receiver) = thread_link(waker(), LINKS);
    let frame = bytes(0, 60);
    (0..3).for_each(|address| sender.tell(port(1), Sighting { port: PortIndex(1), address }));
    for from in 0..200 {
        while put(&mut sender, from, &frame) {}
    }
    let left = sender.capacity - sender.taken;
    (3..4 + WAITING as u64)
        .for_each(|address| sender.tell(port(1), Sighting { port: PortIndex(1), address }));
    sender.put_waiting();
    assert_eq!(sender.waiting.len(), WAITING - left, "each takes a line, and so many may wait");
    let mut came = Vec::new();
    while let Some((record, _)) = take(&mut receiver) {
        if let Record::Address { from, address } = record {
            assert_eq!(from, port(1));
            came.push(address);
        }
        sender.put_waiting();
    }
    assert_eq!(came, (0..WAITING as u64).collect::<Vec<_>>());
}

#[test]
fn a_thread_that_sleeps_is_woken_once_for_what_was_put_in() {
    let bell = Arc::new(Bell::new().unwrap());
    let waker = Arc::new(Waker::new(Arc::clone(&bell)));
    let (mut sender, receiver) = thread_link(Arc::clone(&waker), 1);
    assert!(put(&mut sender, 1, &bytes(0, 60)) && sender.has_news());
    sender.wake(Fenced::now());
    assert!(!bell.was_rung(), "it is awake");
    waker.sleep_unless(|| receiver.has_work(), || panic!("there is something to do"));
    let wait = || {
        sender.wake(Fenced::now());
        assert!(!bell.was_rung(), "there is nothing new");
        for is_first in [true, false] {
            assert!(put(&mut sender, 1, &bytes(0, 60)));
            sender.wake(Fenced::now());
            assert_eq!(bell.was_rung(), is_first);
        }
    };
    waker.sleep_unless(|| false, wait);
}

#[test]
fn two_threads_lose_and_change_nothing() {
    const COUNT: usize = if cfg!(miri) { 300 } else { 100_000 };
    let (mut sender, mut receiver) = thread_link(waker(), 1);
    let sending = thread::spawn(move || {
        for number in 0..COUNT {
            let sent = bytes(number, 14 + number % 300);
            while !put(&mut sender, u16::try_from(number % 5).unwrap(), &sent) {
                thread::yield_now();
            }
        }
    });
    for number in 0..COUNT {
        let (record, came) = loop {
            match take(&mut receiver) {
                Some(taken) => break taken,
                None => thread::yield_now(),
            }
        };
        let from = port(u16::try_from(number % 5).unwrap());
        assert!(matches!(record, Record::Frame { from: sender, .. } if sender == from), "{record:?}");
        assert!(came == bytes(number, 14 + number % 300), "frame {number}");
    }
    sending.join().unwrap();
    assert!(take(&mut receiver).is_none());
}
