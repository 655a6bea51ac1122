//! Runs one program to its end, with a time limit, and returns everything that it printed.
//!
//! The program starts in the network and mount namespace of the calling thread. Never waits longer than the limit:
//! a subject that hangs is a verdict, not a hanging suite.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Everything that a program left when it ended.
#[derive(Debug, Clone, Default)]
pub struct Output {
    /// The exit status; `None` when a signal or the time limit ended the program.
    pub status: Option<i32>,
    /// Whether the time limit ended it.
    pub timed_out: bool,
    /// The bytes on standard output.
    pub stdout: Vec<u8>,
    /// The bytes on standard error.
    pub stderr: Vec<u8>,
}

/// Why a program could not be run.
#[derive(Debug, thiserror::Error)]
#[error("{program} can't be run: {source}")]
pub struct RunError {
    program: String,
    source: std::io::Error,
}

/// Runs `command` with `input` on its standard input, for at most `limit`.
pub fn run(command: &mut Command, input: &[u8], limit: Duration) -> Result<Output, RunError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |source| RunError { program: program.clone(), source };
    let deadline = Instant::now() + limit;
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    feed(&mut child, input);
    let stdout = child.stdout.take().map(drain);
    let stderr = child.stderr.take().map(drain);
    let (stdout, in_time) = collect(stdout, deadline);
    let (stderr, _) = collect(stderr, deadline);
    if !in_time {
        child.kill().map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    Ok(Output { status: status.code(), timed_out: !in_time, stdout, stderr })
}

fn feed(child: &mut Child, input: &[u8]) {
    let Some(mut stdin) = child.stdin.take() else { return };
    let input = input.to_vec();
    // A program that does not read all of its input is free not to: a broken pipe is no fault.
    thread::spawn(move || stdin.write_all(&input).ok());
}

fn drain(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (said, hear) = mpsc::channel();
    thread::spawn(move || {
        let mut all = Vec::new();
        from.read_to_end(&mut all).ok();
        said.send(all).ok();
    });
    hear
}

fn collect(from: Option<Receiver<Vec<u8>>>, deadline: Instant) -> (Vec<u8>, bool) {
    let Some(from) = from else { return (Vec::new(), true) };
    match from.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(all) => (all, true),
        Err(_) => (Vec::new(), false),
    }
}
