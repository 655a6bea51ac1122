//! Kubelet's part in a script of the lab. It allocates devices that a device plugin of the node offers to one pod, prints what
//! the plugin answered, and lists them as the pod's until it is ended.
//!
//!     kubelet NAMESPACE/POD RESOURCE DEVICE…
//!
//! It is the unit tests' fake kubelet at this machine's own root.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a script reads it")]

use std::path::Path;
use std::process::ExitCode;

use fairlead_kubelet::fake_kubelet::FakeKubelet;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [pod, resource, devices @ ..] = words.as_slice() else {
        return failed("a pod and a resource are missing");
    };
    let Some(pod) = pod.split_once('/') else { return failed("the pod is NAMESPACE/POD") };
    let kubelet = FakeKubelet::running(Path::new("/"));
    match kubelet.allocate_to_pod(pod, resource, devices) {
        Ok(answer) => println!("{answer}"),
        Err(refused) => return failed(&refused),
    }
    loop {
        std::thread::park();
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("kubelet: {why}");
    ExitCode::FAILURE
}
