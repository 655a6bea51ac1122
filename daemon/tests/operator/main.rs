//! What the operator sees of a node, by the real commands, of a real daemon with pods in network namespaces. Needs root and `ip`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test fails by panicking")]

mod commands_on_a_host;
mod describe;
mod examples;
mod install;
#[path = "../node_rig/mod.rs"]
#[allow(dead_code, unused_imports, reason = "several suites share it, and none uses all of it")]
mod rig;
mod tables;
mod validate_definitions;
mod validate_inputs;
mod validate_keys;
mod version;

use std::process::Command;

use rig::{Call, Pod, Rig};
use serde_json::Value;

/// What a command prints, when it succeeds.
fn told(command: &mut Command) -> String {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

/// Calls for `eth0` of the sandbox of a pod, as a runtime makes them.
fn call_of<'r>(
    rig: &'r Rig,
    netns: &Pod,
    container: &str,
    pod: (&str, &str, &str),
    config: &Value,
) -> Call<'r> {
    let (namespace, name, uid) = pod;
    let args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={container};K8S_POD_UID={uid}"
    );
    rig.call(container, netns, config).with_args(args)
}
