//! `fairlead`, the CNI executable: passes one call of a container runtime to the node daemon and prints its
//! answer.
//!
//! environment → configuration → connection → request → answer, each step in a module of its own. A runtime starts it for
//! every call, so its start is its speed: it starts no thread, handles no signal and keeps nothing. Whatever comes in, it
//! ends within the call's time limit with a result or an error object.

#![cfg_attr(not(test), no_main)]
#![deny(unsafe_code)]

mod bare_process;
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
use std::time::Duration;

use fairlead_cni::wire::Command;
use fairlead_cni::{CniError, CniVersion};

use crate::call_error::CallError;
use crate::connection::Socket;
use crate::deadline::Deadline;
use crate::environment::{EnvironmentError, Invocation, Operation, WORK_LIMIT};
use crate::netns_identity::Netns;
use crate::wait_resend_spool::Call;

/// The exit status of a call that succeeded.
const SUCCESS: i32 = 0;
/// The exit status of every other call.
const FAILURE: i32 = 1;

/// Makes the call of the program's start; `program` is the path under which it was called. Returns the exit status.
#[cfg_attr(test, allow(dead_code, reason = "the tests have an entry of their own"))]
fn run(program: &[u8]) -> i32 {
    let began = bare_process::since_boot();
    match environment::operation() {
        Ok((Operation::Version, limit)) => version(Deadline::after(began, limit)),
        Ok((Operation::Daemon(command), limit)) => serve(command, program, began, limit),
        Err(error) => {
            if matches!(error, EnvironmentError::NoCommand) {
                stdout::print_usage();
            }
            stdout::print_error(&error.into(), CniVersion::LATEST, Deadline::after(began, WORK_LIMIT))
        }
    }
}

/// Answers VERSION without the daemon, in the version of the configuration on standard input.
fn version(deadline: Deadline) -> i32 {
    // A person at a terminal types no configuration, and would wait for the end of the time limit.
    let by_hand = std::io::stdin().is_terminal();
    let config = if by_hand { String::new() } else { stdin_config::read_all(deadline).unwrap_or_default() };
    let printed =
        stdout::print(stdout::versions_json(stdin_config::version_of(&config)).as_bytes(), deadline);
    if printed { SUCCESS } else { FAILURE }
}

fn serve(command: Command, program: &[u8], began: Duration, limit: Duration) -> i32 {
    let deadline = Deadline::after(began, limit);
    let mut invocation = match Invocation::read(command, program) {
        Ok(invocation) => invocation,
        Err(error) => return refuse(command, error, deadline),
    };
    let netns = Some(&invocation.request.netns).filter(|path| !path.is_empty());
    let netns = netns.and_then(|path| Netns::open(path));
    invocation.request.netns_inode = netns.as_ref().and_then(Netns::inode);
    // Should there be none, it is tried again when it is needed, and that error counts.
    let socket = Socket::new().ok();
    invocation.request.own_netns_cookie = socket.as_ref().and_then(netns_identity::own_cookie);
    if invocation.request.own_netns_cookie.is_none() {
        invocation.request.own_netns = netns_identity::own_inode();
    }
    match stdin_config::read_all(deadline) {
        Ok(config) => invocation.request.config = config,
        Err(error) => return refuse(command, error, deadline),
    }
    let mut call = Call { invocation, netns, began, deadline, socket, answered_on: None };
    match call.run() {
        Ok(result) if stdout::print(&result, deadline) => {
            // Only now that the runtime's pipe has taken the whole result.
            call.acknowledge();
            SUCCESS
        }
        Ok(_) => FAILURE,
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

/// Answers a call whose environment or input cannot be read, in no version of its own.
fn refuse(command: Command, error: impl Into<CniError>, deadline: Deadline) -> i32 {
    stdout::print_error(&error_codes::answer_to(command, error.into()), CniVersion::LATEST, deadline)
}
