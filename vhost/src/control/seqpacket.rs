//! One message with descriptors over a unix socket of type SOCK_SEQPACKET, never waiting.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::messages::MESSAGE_BYTES;

/// Room for this many descriptors: an uplink of eight queues has 17. The kernel closes those that do not fit.
const DESCRIPTORS: usize = 17;

/// What a socket had.
#[derive(Debug)]
pub(super) enum Received {
    /// A message and what came with it.
    Message(Vec<u8>, Vec<OwnedFd>),
    /// A message that is longer than [`MESSAGE_BYTES`], or brought more descriptors than there is room for. They are closed.
    TooMuch,
    /// Nothing yet.
    Nothing,
    /// The other side is gone.
    Closed,
}

/// Takes the next message, if there is one. Its descriptors are closed on exec.
pub(super) fn receive(socket: impl AsFd) -> Received {
    let mut bytes = vec![0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            // CONNRESET is told once, where the other side closed without reading all; what it sent before comes after it.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::Closed,
            Ok(received) => break received,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Received::TooMuch;
    }
    if received.bytes == 0 {
        return Received::Closed;
    }
    bytes.truncate(received.bytes);
    Received::Message(bytes, descriptors)
}

/// Sends a message. `Errno::AGAIN`: the other side has to read first.
pub(super) fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOBIG);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            answer => return answer.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_message_arrives_whole_with_its_descriptor_closed_on_exec() {
        let (one, other) = pair();
        assert!(matches!(receive(&other), Received::Nothing));
        let file = File::open("/dev/null").unwrap();
        send(&one, b"first", &[file.as_fd()]).unwrap();
        send(&one, b"second", &[]).unwrap();
        let Received::Message(bytes, descriptors) = receive(&other) else { panic!("no message") };
        assert_eq!((bytes.as_slice(), descriptors.len()), (b"first".as_slice(), 1));
        assert!(rustix::io::fcntl_getfd(&descriptors[0]).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert!(
            matches!(receive(&other), Received::Message(bytes, none) if bytes == b"second" && none.is_empty())
        );
        drop(one);
        assert!(matches!(receive(&other), Received::Closed));
    }

    #[test]
    fn a_message_that_is_too_long_is_told_and_the_next_one_is_whole() {
        let (one, other) = pair();
        send(&one, &vec![b'x'; MESSAGE_BYTES + 1], &[]).unwrap();
        send(&one, &vec![b'y'; MESSAGE_BYTES], &[]).unwrap();
        assert!(matches!(receive(&other), Received::TooMuch));
        assert!(matches!(receive(&other), Received::Message(bytes, _) if bytes.len() == MESSAGE_BYTES));
    }

    #[test]
    fn more_descriptors_than_there_is_room_for_are_closed() {
        let (one, other) = pair();
        let (watched, kept) = pair();
        let many = [watched.as_fd(); 2 * DESCRIPTORS];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2 * DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        sendmsg(&one, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
        drop(watched);
        assert!(matches!(receive(&other), Received::TooMuch));
        assert!(matches!(receive(&kept), Received::Closed), "no copy of it is open anywhere");
    }
}
