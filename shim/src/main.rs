//! `fairlead`, the CNI executable: passes one call of a container runtime to the node daemon and prints its
//! answer.
//!
//! environment → configuration → connection → request → answer, each step in a module of its own. It is started
//! for every call, so it starts no thread, handles no signal and keeps nothing: what it costs is what the kernel
//! asks for a process. Whatever comes in, it ends within the call's time limit with a result or an error object.

#![forbid(unsafe_code)]

mod answer;
mod conduct;
mod config;
mod connection;
mod deadline;
mod exchange;
mod failure;
mod invocation;
mod namespace;
mod peer;
mod reason;
mod spool;
mod watch;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use dlmalloc::GlobalDlmalloc;
use fairlead_cni::CniVersion;
use fairlead_cni::wire::Command;

use crate::conduct::{Call, Unserved};
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::invocation::{Asked, BadCall, Invocation, WORK_LIMIT};
use crate::namespace::Namespace;

/// The C library's allocator maps and faults in a page for every size of block that it meets; this one takes one
/// mapping for all. That halves what a call costs above an empty program (SPECIFICATION.md, "Start").
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    let began = Instant::now();
    match invocation::asked() {
        Ok((Asked::Version, limit)) => version(Deadline::after(began, limit)),
        Ok((Asked::Daemon(command), limit)) => serve(command, Deadline::after(began, limit)),
        Err(bad) => {
            if matches!(bad, BadCall::NoCommand) {
                answer::about();
            }
            answer::error(&bad.into(), CniVersion::LATEST, Deadline::after(began, WORK_LIMIT))
        }
    }
}

/// VERSION needs nothing; a version on standard input is given back.
fn version(deadline: Deadline) -> ExitCode {
    let typed = std::io::stdin().is_terminal();
    let config = if typed { String::new() } else { config::read_all(deadline).unwrap_or_default() };
    let printed = answer::print(answer::versions(config::version_of(&config)).as_bytes(), deadline);
    if printed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn serve(command: Command, deadline: Deadline) -> ExitCode {
    let mut invocation = match Invocation::read(command) {
        Ok(invocation) => invocation,
        Err(bad) => return answer::error(&bad.into(), CniVersion::LATEST, deadline),
    };
    // The daemon wakes up and accepts while the runtime is still writing the configuration.
    let early = Connection::at_once(&invocation.socket);
    let namespace = Some(&invocation.request.netns).filter(|path| !path.is_empty());
    let namespace = namespace.and_then(|path| Namespace::open(path));
    invocation.request.netns_inode = namespace.as_ref().and_then(Namespace::inode);
    invocation.request.own_netns = namespace::own();
    match config::read_all(deadline) {
        Ok(config) => invocation.request.config = config,
        Err(bad) => return answer::error(&bad.into(), CniVersion::LATEST, deadline),
    }
    let mut call = Call { invocation, namespace, deadline, answered_on: None };
    match call.carry_out(early) {
        Ok(result) if answer::print(&result, deadline) => {
            call.was_delivered();
            ExitCode::SUCCESS
        }
        Ok(_) => ExitCode::FAILURE,
        Err(Unserved::Told(error)) => answer::failure(&error, deadline),
        Err(unserved) => {
            let version = config::version_of(&call.invocation.request.config);
            answer::error(&failure::unserved(unserved, command, &call.invocation.socket), version, deadline)
        }
    }
}
