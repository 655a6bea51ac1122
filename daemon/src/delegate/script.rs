//! Plugins for tests, as shell scripts.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::Parameters;

/// What a plugin is told of a call in a test, and where it lies.
pub(crate) fn parameters(path: &str) -> Parameters<'_> {
    Parameters { container_id: "c1", netns: "/n", ifname: "eth0", args: "", path, env: &[], of_tenant: false }
}

/// Writes an executable script, by way of another process: while this one had the file open for writing, another test
/// could fork and keep it so, and the script could not be executed ("text file busy").
pub(crate) fn write(path: &Path, body: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"cat > "$0.new" && chmod 755 "$0.new" && mv "$0.new" "$0""#]).arg(path);
    let mut shell = shell.stdin(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{body}\n").as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
}
