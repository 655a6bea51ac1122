//! One exec of a CNI plugin, as a runtime does it: three pipes, the CNI environment and nothing else of ours, the
//! config on stdin.
//!
//! Everything that can be made ready before is made ready in [`Invocation::new`], so that the time of
//! [`Invocation::run`] is the plugin's and the kernel's: from just before the spawn until the exit was reaped and
//! both outputs were read. It never retries.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The commands that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// The command ADD.
    Add,
    /// The command DEL.
    Del,
}

impl Verb {
    /// The value of `CNI_COMMAND`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
        }
    }
}

/// A program that is ready to be spawned.
#[derive(Debug)]
pub(crate) struct Invocation {
    command: Command,
    stdin: Vec<u8>,
}

/// The outcome of one exec.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The time from just before the spawn until both outputs were read.
    pub(crate) latency: Duration,
    /// The time at which the exit was reaped.
    pub(crate) finished: Instant,
    /// Whether the exit status is 0.
    pub(crate) success: bool,
    /// Standard output: a CNI result or a CNI error.
    pub(crate) stdout: Vec<u8>,
    /// The plugin's standard error.
    pub(crate) stderr: Vec<u8>,
}

impl Invocation {
    /// Makes `binary` ready with an environment of exactly `environment`.
    pub(crate) fn new<'a>(
        binary: &Path,
        environment: impl IntoIterator<Item = (&'a str, &'a str)>,
        stdin: Vec<u8>,
    ) -> Invocation {
        let mut command = Command::new(binary);
        command.env_clear().envs(environment);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Invocation { command, stdin }
    }

    /// Spawns it and waits for its end.
    pub(crate) fn run(mut self) -> io::Result<Answer> {
        let start = Instant::now();
        let mut child = self.command.spawn()?;
        let written = match child.stdin.take() {
            Some(mut pipe) => pipe.write_all(&self.stdin),
            None => Ok(()),
        };
        let output = child.wait_with_output()?;
        let finished = Instant::now();
        // A program that never reads its input is no error of the exec.
        written.or_else(|e| if e.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(e) })?;
        Ok(Answer {
            latency: finished - start,
            finished,
            success: output.status.success(),
            stdout: output.stdout,
            stderr: output.stderr,
        })
    }
}

impl Answer {
    /// The message of a failed call, on one line.
    pub(crate) fn complaint(&self) -> String {
        let said = if self.stdout.is_empty() { &self.stderr } else { &self.stdout };
        let text = String::from_utf8_lossy(said).split_whitespace().collect::<Vec<_>>().join(" ");
        if text.is_empty() { "it said nothing".to_owned() } else { text.chars().take(400).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_gets_the_config_on_stdin_and_only_the_environment_that_is_given() {
        let invocation = Invocation::new(
            Path::new("/bin/sh"),
            [("CNI_COMMAND", "ADD")],
            b"printf %s \"$CNI_COMMAND$HOME\"; echo why >&2; exit 3".to_vec(),
        );
        let answer = invocation.run().unwrap();
        assert!(!answer.success);
        assert_eq!(answer.stdout, b"ADD");
        assert_eq!(answer.stderr, b"why\n");
        assert!(answer.latency > Duration::ZERO);
    }

    #[test]
    fn a_program_that_does_not_read_its_input_is_no_failure() {
        let answer = Invocation::new(Path::new("/bin/true"), [], vec![b' '; 1 << 20]).run().unwrap();
        assert!(answer.success);
    }
}
