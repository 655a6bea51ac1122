//! `fairlead`, the CNI executable: passes one call of a container runtime to the node daemon and prints its
//! answer.
//!
//! environment → configuration → connection → request → answer, each step in a module of its own. A runtime starts it for
//! every call, so its start is its speed: it starts no thread, handles no signal and keeps nothing. Whatever comes in, it
//! ends within the call's time limit with a result or an error object.

#![forbid(unsafe_code)]

mod call_error;
mod connection;
mod daemon_process;
mod deadline;
mod environment;
mod errno_text;
mod error_codes;
mod http_exchange;
mod netns_identity;
mod spool_writer;
mod status_wait;
mod stdin_config;
mod stdout;
mod wait_for_socket;
mod wait_resend_spool;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use dlmalloc::GlobalDlmalloc;
use fairlead_cni::CniVersion;
use fairlead_cni::wire::Command;

use crate::call_error::CallError;
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::environment::{EnvironmentError, Invocation, Operation, WORK_LIMIT};
use crate::netns_identity::Netns;
use crate::wait_resend_spool::Call;

/// The C library's allocator maps and faults in a page for every size of block that it meets; this one takes one
/// mapping for all. That halves what a call costs above an empty program (SPECIFICATION.md, "Start").
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    let began = Instant::now();
    match environment::operation() {
        Ok((Operation::Version, limit)) => version(Deadline::after(began, limit)),
        Ok((Operation::Daemon(command), limit)) => serve(command, Deadline::after(began, limit)),
        Err(error) => {
            if matches!(error, EnvironmentError::NoCommand) {
                stdout::print_usage();
            }
            stdout::print_error(&error.into(), CniVersion::LATEST, Deadline::after(began, WORK_LIMIT))
        }
    }
}

/// Answers VERSION without the daemon, in the version of the configuration on standard input.
fn version(deadline: Deadline) -> ExitCode {
    // A person at a terminal types no configuration, and would wait for the end of the time limit.
    let by_hand = std::io::stdin().is_terminal();
    let config = if by_hand { String::new() } else { stdin_config::read_all(deadline).unwrap_or_default() };
    let printed =
        stdout::print(stdout::versions_json(stdin_config::version_of(&config)).as_bytes(), deadline);
    if printed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn serve(command: Command, deadline: Deadline) -> ExitCode {
    let mut invocation = match Invocation::read(command) {
        Ok(invocation) => invocation,
        Err(error) => return stdout::print_error(&error.into(), CniVersion::LATEST, deadline),
    };
    // The daemon wakes up and accepts while the runtime is still writing the configuration.
    let early = Connection::try_connect(&invocation.socket);
    let netns = Some(&invocation.request.netns).filter(|path| !path.is_empty());
    let netns = netns.and_then(|path| Netns::open(path));
    invocation.request.netns_inode = netns.as_ref().and_then(Netns::inode);
    invocation.request.own_netns = netns_identity::own();
    match stdin_config::read_all(deadline) {
        Ok(config) => invocation.request.config = config,
        Err(error) => return stdout::print_error(&error.into(), CniVersion::LATEST, deadline),
    }
    let mut call = Call { invocation, netns, deadline, answered_on: None };
    match call.run(early) {
        Ok(result) if stdout::print(&result, deadline) => {
            // Only now that the runtime's pipe has taken the whole result.
            call.acknowledge();
            ExitCode::SUCCESS
        }
        Ok(_) => ExitCode::FAILURE,
        Err(CallError::Answered(error)) => stdout::print_failure(&error, deadline),
        Err(error) => {
            let version = stdin_config::version_of(&call.invocation.request.config);
            stdout::print_error(
                &error_codes::of_call(error, command, &call.invocation.socket),
                version,
                deadline,
            )
        }
    }
}
