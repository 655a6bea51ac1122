//! Is the descriptor that came with a request the socket that the request announced?

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, getpeername, sockopt};

use super::messages::{Refusal, RefusalCode, SocketSide};
use crate::dataplane::Socket;

/// Takes the one descriptor of a request. The others, if there are any, are closed.
pub(super) fn take(descriptors: Vec<OwnedFd>, side: SocketSide) -> Result<Socket, Refusal> {
    let socket = only(descriptors)?;
    if !is_unix_stream(&socket) {
        return Err(refusal("the descriptor is no unix stream socket; vhost-user needs one".to_owned()));
    }
    match side {
        SocketSide::Listening if sockopt::socket_acceptconn(&socket) == Ok(true) => {
            Ok(Socket::Listening(socket))
        }
        SocketSide::Listening => {
            Err(refusal("the socket does not listen; call listen(2) before it is sent".to_owned()))
        }
        SocketSide::Connected if getpeername(&socket).is_ok() => Ok(Socket::Connecting(socket)),
        SocketSide::Connected => Err(refusal(
            "the socket is not connected; connect it to the guest's before it is sent".to_owned(),
        )),
    }
}

/// The one descriptor of a request. The others, if there are any, are closed.
pub(super) fn only(descriptors: Vec<OwnedFd>) -> Result<OwnedFd, Refusal> {
    let count = descriptors.len();
    match <[OwnedFd; 1]>::try_from(descriptors) {
        Ok([descriptor]) => Ok(descriptor),
        Err(_) => {
            Err(refusal(format!("{count} descriptors came with the request; send the one that it is about")))
        }
    }
}

/// A request that takes no descriptor came with some: they are closed.
pub(super) fn none(descriptors: &[OwnedFd]) -> Result<(), Refusal> {
    match descriptors.len() {
        0 => Ok(()),
        count => Err(refusal(format!("{count} descriptors came with a request that takes none; send none"))),
    }
}

fn is_unix_stream(socket: &OwnedFd) -> bool {
    sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(socket) == Ok(SocketType::STREAM)
}

fn refusal(reason: String) -> Refusal {
    Refusal::new(RefusalCode::BadSocket, reason)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::TcpListener;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    use super::*;

    fn reason(descriptors: Vec<OwnedFd>, side: SocketSide) -> String {
        let refusal = take(descriptors, side).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::BadSocket);
        refusal.reason
    }

    #[test]
    fn only_the_announced_kind_of_unix_stream_socket_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let listener = || UnixListener::bind(dir.path().join(unused_name())).unwrap().into();
        let connected = || OwnedFd::from(UnixStream::pair().unwrap().0);
        assert!(matches!(take(vec![listener()], SocketSide::Listening), Ok(Socket::Listening(_))));
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(matches!(take(vec![one.into()], SocketSide::Connected), Ok(Socket::Connecting(_))));
        assert!(reason(vec![connected()], SocketSide::Listening).contains("does not listen"));
        assert!(reason(vec![listener()], SocketSide::Connected).contains("is not connected"));
        let others: [OwnedFd; 3] = [
            File::open("/dev/null").unwrap().into(),
            UnixDatagram::unbound().unwrap().into(),
            TcpListener::bind("127.0.0.1:0").unwrap().into(),
        ];
        for other in others {
            assert!(reason(vec![other], SocketSide::Listening).contains("no unix stream socket"));
        }
        assert!(reason(Vec::new(), SocketSide::Listening).starts_with("0 descriptors came"));
        assert!(
            reason(vec![listener(), listener()], SocketSide::Listening).starts_with("2 descriptors came")
        );
    }

    fn unused_name() -> String {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed).to_string()
    }

    #[test]
    fn a_descriptor_that_nobody_asked_for_is_refused() {
        assert_eq!(none(&[]), Ok(()));
        assert!(none(&[File::open("/dev/null").unwrap().into()]).is_err());
    }
}
