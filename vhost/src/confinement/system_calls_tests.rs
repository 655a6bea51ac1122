//! The filters at work, in threads and programs of their own: no filter can be taken off again.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use seccompiler::apply_filter;

use super::*;
use crate::protocol::{Channel, Reply};

/// Runs something in a thread that may only make listed calls.
fn in_confined_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let filters = SystemCallFilters::new().unwrap();
    let confined = move || {
        apply_filter(&filters.list).unwrap();
        run()
    };
    std::thread::spawn(confined).join().unwrap()
}

fn is_missing<T>(answer: io::Result<T>) -> bool {
    answer.is_err_and(|error| error.raw_os_error() == Some(libc::ENOSYS))
}

#[test]
fn no_file_is_opened_and_no_socket_made() {
    let (file, socket, list) = in_confined_thread(|| {
        (std::fs::File::open("/dev/null"), UnixStream::pair(), std::fs::read_dir("/proc"))
    });
    assert!(is_missing(file) && is_missing(socket) && is_missing(list));
}

#[test]
fn threads_memory_and_given_sockets_are_of_use() {
    let (one, other) = UnixStream::pair().unwrap();
    let echoed = in_confined_thread(move || {
        other.set_nonblocking(true).unwrap();
        let copy = other.try_clone().unwrap();
        let name = std::thread::Builder::new().name("inside".into());
        let big = name.spawn(|| vec![1_u8; 64 << 20].len()).unwrap().join().unwrap();
        rustix::io::write(&copy, b"x").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
        (big, std::thread::current().id())
    });
    assert_eq!(echoed.0, 64 << 20);
    let mut byte = [0];
    assert_eq!(rustix::io::read(&one, &mut byte), Ok(1));
}

#[test]
fn a_guests_socket_tells_that_a_reply_is_unread() {
    let (ours, _guest) = UnixStream::pair().unwrap();
    let is_unread = in_confined_thread(move || {
        let channel = Channel::new(OwnedFd::from(ours).into()).unwrap();
        channel.send(1, Reply::Number(0)).unwrap();
        channel.has_unread_replies()
    });
    assert!(is_unread);
}

#[test]
fn memory_is_not_executable() {
    let answer = in_confined_thread(|| {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that is there.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
        (mapped == libc::MAP_FAILED).then(io::Error::last_os_error)
    });
    assert_eq!(answer.unwrap().raw_os_error(), Some(libc::ENOSYS));
}

#[test]
fn other_processes_get_no_signals() {
    let (own, parent) = in_confined_thread(|| {
        let signal = |process: u32| {
            // SAFETY: signal 0 is none: the call only checks; it takes numbers.
            let answer = unsafe { libc::syscall(libc::SYS_tgkill, process, process, 0) };
            if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        (signal(std::process::id()), signal(std::os::unix::process::parent_id()))
    });
    assert!(own.is_ok() && is_missing(parent));
}

#[test]
fn who_runs_a_program_is_killed() {
    let filters = SystemCallFilters::new().unwrap();
    let mut command = Command::new("/bin/true");
    // SAFETY: between fork and exec the closure makes two system calls; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || apply_filter(&filters.deadly).map_err(|_| io::Error::from_raw_os_error(1)));
    }
    let status = command.status().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
}

#[test]
fn no_call_is_both_allowed_and_deadly() {
    let allowed = |call: &c_long| ALLOWED.contains(call) || ALLOWED_WITH.iter().any(|(with, _)| with == call);
    let both: Vec<_> = DEADLY.iter().filter(|call| allowed(call)).collect();
    assert_eq!(both, Vec::<&c_long>::new());
}
