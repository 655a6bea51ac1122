//! What is done in the namespaces of the calling thread: `ip` commands, and files of `/proc/sys` and of the node.
//!
//! Knows nothing of nodes and pods: whoever calls has entered the right namespace before.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::{self, RunError};

/// Why a test node could not be set up or looked at.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A system call failed.
    #[error("the stage can't {what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// Why the system call failed.
        source: io::Error,
    },
    /// A program that the test node needs could not be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The program `ip` refused a command.
    #[error("ip {command}: {stderr}")]
    Ip {
        /// The arguments of the command.
        command: String,
        /// What `ip` printed on standard error.
        stderr: String,
    },
    /// The test node has no pod of this name.
    #[error("the stage has no pod {0}")]
    NoPod(String),
}

pub(crate) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> NodeError {
    let what = what.into();
    move |e| NodeError::System { what, source: e.into() }
}

/// Runs `ip` in the current namespace, and returns what it prints.
pub fn ip(arguments: &str) -> Result<String, NodeError> {
    let out = process::run(Command::new("ip").args(arguments.split(' ')), b"", Duration::from_secs(20))?;
    if out.status == Some(0) {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(NodeError::Ip {
        command: arguments.to_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    })
}

/// Runs many `ip` commands in one process, up to the first that fails.
pub fn ip_batch(lines: &[String]) -> Result<(), NodeError> {
    if lines.is_empty() {
        return Ok(());
    }
    ip_listings(&[], lines).map(drop)
}

/// Runs many `ip` commands in one process with these options; returns what they print, one after the other.
pub fn ip_listings(options: &[&str], lines: &[String]) -> Result<String, NodeError> {
    let input = lines.join("\n");
    let mut command = Command::new("ip");
    command.args(options).args(["-batch", "-"]);
    let out = process::run(&mut command, input.as_bytes(), Duration::from_secs(20))?;
    if out.status == Some(0) {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(NodeError::Ip {
        command: lines.join("; "),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    })
}

/// Writes a file of `/proc/sys` or of the test node.
pub fn put(path: &str, content: &str) -> Result<(), NodeError> {
    fs::write(path, content).map_err(system(format!("write {path}")))
}

/// Writes a file of the test node, and makes its directories.
pub fn keep(path: &str, content: &str) -> Result<(), NodeError> {
    let directory = Path::new(path).parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(system(format!("make {}", directory.display())))?;
    put(path, content)
}
