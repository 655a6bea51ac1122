//! What runs out and comes back: open files, memory, threads. A call that met it is worth another try (code 11), and its error
//! says what to raise instead of that something is wrong with a disk or a namespace.

use std::io;

use nix::errno::Errno;

use crate::process;

/// What a person can raise to end the shortage; `None` where `errno` is no shortage.
pub fn remedy(errno: Errno) -> Option<String> {
    match errno {
        Errno::EMFILE => {
            let now = process::open_files().map_or_else(|_| String::new(), |now| format!(" (now {now})"));
            Some(format!("raise LimitNOFILE of fairleadd's service{now}"))
        }
        Errno::ENFILE => Some("the node has too many files open: raise fs.file-max (sysctl)".to_owned()),
        Errno::ENOMEM | Errno::ENOBUFS | Errno::EAGAIN => {
            let text = "the node is short of memory, or fairleadd's service of memory (MemoryMax) or threads (TasksMax)";
            Some(text.to_owned())
        }
        _ => None,
    }
}

/// The same for an error of files or threads.
pub fn remedy_of(error: &io::Error) -> Option<String> {
    match error.raw_os_error() {
        Some(errno) => remedy(Errno::from_raw(errno)),
        // The allocator's, not the kernel's.
        None if error.kind() == io::ErrorKind::OutOfMemory => remedy(Errno::ENOMEM),
        None => None,
    }
}
