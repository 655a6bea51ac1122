//! The usual call, served by the thread that accepted its connection, without a runtime and without HTTP's general rules: one
//! reading, the engine's work, one writing. What is not just one whole call of the executable's goes on to the router with the
//! bytes that were read, and with the call where it was prepared already.

use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fairlead_cni::wire;
use fairlead_host::after_answer::AnswerFirst;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::answered_calls::{AnsweredCall, AnsweredCalls};
use super::protocol_detection::CallThatCame;
use super::{LAST_ANSWERS, cni_routes, responses};
use crate::admission::Admission;
use crate::call::{CallerGone, Reply, catching_panics};

/// The longest call that is served here, in bytes: several times a usual one.
const LONGEST: usize = 16 << 10;

/// For how long a caller that has connected may take to send its call. The executable sends it at once.
const AWAITED: Duration = Duration::from_millis(2);

/// For how long the thread stays awake for that.
const AT_ONCE: Duration = Duration::from_micros(30);

/// How a connection goes on.
#[derive(Debug)]
pub(super) enum Direct {
    /// Its call was carried out and answered; what follows is left to do.
    Answered(AnsweredCall),
    /// It is the router's.
    Other(OtherConnection),
}

/// What is known of a connection that is not served here.
#[derive(Debug)]
pub(super) struct OtherConnection {
    /// All bytes that were read of it.
    pub(super) read: Vec<u8>,
    /// The call that they are, where it was prepared, and when it came.
    pub(super) call: Option<CallThatCame>,
}

/// Serves a connection, if its caller is root, has sent a whole call, and the call is carried out at once. What is left of earlier
/// calls of the same container is done before that.
/// `room` is for what is read, and stays the thread's: an allocator sweeps up for a block of this size.
pub(super) fn serve(
    connection: &Arc<OwnedFd>,
    admission: &Admission,
    answered: &AnsweredCalls,
    room: &mut Vec<u8>,
) -> Direct {
    first_bytes(connection, room);
    let Some((call, arrived)) = prepared_call(connection, room, admission) else {
        return Direct::Other(OtherConnection { read: mem::take(room), call: None });
    };
    answered.confirm_of(&call.request().container_id);
    let gone = CallerGone::Connection(Arc::clone(connection));
    let answer_first = AnswerFirst::begin();
    match admission.serve_here(call, arrived, gone) {
        Ok((reply, receipt, done)) => {
            let left = answer(connection, reply);
            // The container's next call waits for this, and for nothing that was put off.
            admission.conclude(&done);
            drop(answer_first);
            Direct::Answered(AnsweredCall::new(Arc::clone(connection), receipt, done, left))
        }
        Err(call) => Direct::Other(OtherConnection { read: mem::take(room), call: Some((call, arrived)) }),
    }
}

/// Reads until a whole call is there, or it is clear that there is none to be served here.
fn first_bytes(connection: &OwnedFd, read: &mut Vec<u8>) {
    read.clear();
    read.reserve(LONGEST);
    let (begun, until) = (Instant::now(), Instant::now() + AWAITED);
    loop {
        match rustix::net::recv(connection, rustix::buffer::spare_capacity(read), RecvFlags::DONTWAIT) {
            Ok((0, _)) => return,
            Ok(_) if wire::whole_call(read).is_some() || read.len() >= LONGEST => return,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // A caller that has just connected is about to send: to sleep and to be woken takes longer than that.
            Err(rustix::io::Errno::AGAIN) if begun.elapsed() < AT_ONCE => std::thread::yield_now(),
            Err(rustix::io::Errno::AGAIN) if ready(connection, PollFlags::POLLIN, until) => {}
            // A broken connection is the router's to notice.
            Err(_) => return,
        }
    }
}

/// The call that these bytes are. `None`: the router finds out what they are, and answers.
fn prepared_call(connection: &OwnedFd, read: &[u8], admission: &Admission) -> Option<CallThatCame> {
    let (command, body) = wire::whole_call(read)?;
    getsockopt(connection, sockopt::PeerCredentials).ok().filter(|peer| peer.uid() == 0)?;
    let arrived = Instant::now();
    let request = cni_routes::decoded(command, body)?;
    let call = catching_panics(command, || Ok(admission.prepare(request))).ok()?;
    Some((call, arrived))
}

/// Sends an answer, and ends the stream with it: some read until its end. Whether all of it has left.
fn answer(connection: &OwnedFd, reply: Reply) -> bool {
    let answer = responses::whole_answer(reply);
    let mut rest = answer.as_bytes();
    let until = Instant::now() + LAST_ANSWERS;
    while !rest.is_empty() {
        match rustix::net::send(connection, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(n) => rest = rest.get(n..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            // As a rule the socket takes it whole.
            Err(rustix::io::Errno::AGAIN) if ready(connection, PollFlags::POLLOUT, until) => {}
            Err(_) => return false,
        }
    }
    // After it the caller is awake, and does not wait for this.
    rustix::net::shutdown(connection, Shutdown::Write).is_ok()
}

/// Waits until the connection is ready for this, or broken; false when the time came first.
fn ready(connection: &OwnedFd, events: PollFlags, until: Instant) -> bool {
    let mut look = [PollFd::new(connection.as_fd(), events)];
    loop {
        // Rounded up: a rest of less than a millisecond would be none.
        let rest = until.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
        let rest = PollTimeout::try_from(rest).unwrap_or(PollTimeout::MAX);
        match poll(&mut look, rest) {
            Err(Errno::EINTR) => {}
            Ok(n) => return n > 0,
            Err(_) => return false,
        }
    }
}
