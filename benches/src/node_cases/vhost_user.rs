//! `add-vhost-user`: how long the ADD of a port of our switch takes, against the ADD of a macvlan by the same daemon, [`SCORE`] of each in
//! turn.
//!
//! The daemon is one of the case's own, with a switch beside it. A port's socket is made by its ADD, in a directory of the host: where kubelet
//! allocates ports, they are there before, and an ADD has less to do.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::one_at_a_time::{SCORE, in_scores};
use crate::bench::{Bench, BenchError, CallFailure, succeeded};
use crate::case_size::CaseSize;
use crate::daemon::Daemon;
use crate::foreign_cpu::Disturbance;
use crate::network_config::{config, port_config};
use crate::plugin_exec::Verb;
use crate::subject::{Attachment, Done, Role, Subject};
use crate::switches::contender::until;

const CASE: &str = "add-vhost-user";

/// The ADDs of a macvlan.
pub(crate) const MACVLAN: &str = "ADD of a macvlan";
/// The ADDs of a port.
pub(crate) const PORT: &str = "ADD of a vhost-user port";

/// The pause between two ADDs, so that the after-effects of one are not in the latency of the next.
const PAUSE: Duration = Duration::from_millis(2);
/// The control socket of the switch in its daemon's run directory.
const CONTROL: &str = "vswitch.sock";

/// Runs `add-vhost-user`; nothing where ours is left out.
pub(crate) fn run(bench: &mut Bench, settings: &CaseSize) -> Result<(), BenchError> {
    let Some((switch, both)) = start(bench)? else { return Ok(()) };
    let first = bench.subjects.len();
    bench.subjects.extend(both);
    bench.of_nobody.push(switch.pid);
    let outcome = in_scores(settings.warmup + settings.calls, |call, count| {
        one_round(bench, first, call, count, settings.warmup)
    });
    bench.of_nobody.pop();
    let outcome = outcome.and_then(|()| bench.nothing_allocated(CASE));
    bench.subjects.truncate(first);
    outcome
}

/// The switch, and ours in two ways by one daemon: macvlans, then ports.
fn start(bench: &Bench) -> Result<Option<(Daemon, [Subject; 2])>, BenchError> {
    let ours = bench.subjects.iter().find(|subject| subject.role == Role::Ours);
    let (Some(ours), Some(with_switch)) = (ours, &bench.with_switch) else { return Ok(None) };
    let (program, paths, ports) = (&with_switch.switch, &with_switch.paths, &with_switch.ports);
    let missing = || BenchError::process(format!("{}: `make build` makes it", program.display()));
    fs::metadata(program).map_err(missing())?;
    for dir in [&paths.run_dir, ports] {
        fs::create_dir_all(dir).map_err(BenchError::process("making a directory of the switch"))?;
    }
    let control = paths.run_dir.join(CONTROL);
    let line = format!("{} run --socket {} --user 65534:65534", program.display(), control.display());
    let switch = Daemon::companion(&line, &paths.log.with_extension("switch.log"))?;
    until("the switch's control socket", || Ok(control.exists()))?;
    let daemon = Arc::new(Daemon::start(&with_switch.daemon, paths, "{}\n")?);
    let subject = |name: &str, config: Value| Subject {
        name: name.to_owned(),
        role: Role::Ours,
        binary: ours.binary.clone(),
        version: ours.version.clone(),
        config: Some(config),
        environment: paths.environment(),
        daemon: Some(Arc::clone(&daemon)),
        interfaces: ours.interfaces,
    };
    let macvlans = subject("ours-beside-ports", config(&bench.data_dir));
    Ok(Some((switch, [macvlans, subject("ours-ports", port_config(&bench.data_dir, ports))])))
}

/// So many ADDs of both, one kind after the other; false where others had the processors meanwhile, so that they are not counted.
fn one_round(
    bench: &mut Bench,
    first: usize,
    call: usize,
    count: usize,
    warmup: usize,
) -> Result<bool, BenchError> {
    let mut both = [(first, MACVLAN), (first + 1, PORT)];
    if (call / SCORE) % 2 == 1 {
        both.reverse();
    }
    let mut turns = Vec::new();
    for (who, what) in both {
        turns.push((who, what, bench.attachments(who, count)?));
    }
    let round = bench.begin_round(Disturbance::StolenOrForeign)?;
    for (who, what, pods) in &mut turns {
        for (call, pod) in (call..).zip(pods) {
            let done = bench.subjects[*who].job(&bench.node, Verb::Add, pod).run();
            thread::sleep(PAUSE);
            let done =
                if *what == PORT { port_added(bench, pod, done) } else { bench.added(CASE, *who, pod, done) };
            if let (Some(done), true) = (done, call >= warmup) {
                bench.results.figure_mut(CASE, "ours", what)?.series.record(done.answer.latency);
            }
        }
    }
    let is_kept = bench.end_round(CASE, round)?;
    let mut all = Vec::new();
    for (who, what, pods) in turns {
        let deleted = bench.at_once(who, Verb::Del, &pods)?.done;
        for (pod, done) in pods.iter().zip(deleted) {
            if what == PORT {
                port_deleted(bench, pod, done);
            } else {
                bench.deleted(CASE, who, pod, done);
            }
        }
        all.extend(pods);
    }
    // Together: the wait is for the last macvlan, whose ever it is.
    bench.put_away(all)?;
    Ok(is_kept)
}

/// Verifies that the answer names a socket that is there, and an address.
fn port_added(bench: &mut Bench, pod: &mut Attachment, done: io::Result<Done>) -> Option<Done> {
    let checked = succeeded(done).and_then(|done| {
        let result = &done.answer.stdout;
        match socket_of(result) {
            Some(socket) if Path::new(&socket).exists() => {
                pod.result = Some(result.clone());
                Ok(done)
            }
            socket => Err(CallFailure::NoSocket(socket.unwrap_or_default())),
        }
    });
    checked.map_err(|why| bench.results.fail(CASE, "ours", format!("ADD {}: {why}", pod.id))).ok()
}

/// Verifies that the socket is gone.
fn port_deleted(bench: &mut Bench, pod: &Attachment, done: io::Result<Done>) {
    let left = pod.result.as_deref().and_then(socket_of).filter(|socket| Path::new(socket).exists());
    let checked =
        succeeded(done).and_then(|_| left.map_or(Ok(()), |left| Err(CallFailure::SocketLeft(left))));
    if let Err(why) = checked {
        bench.results.fail(CASE, "ours", format!("DEL {}: {why}", pod.id));
    }
}

/// The path of the socket in an answer that has an address, too.
fn socket_of(result: &[u8]) -> Option<String> {
    let result: Value = serde_json::from_slice(result).ok()?;
    result["ips"][0]["address"].as_str()?;
    Some(result["interfaces"][0]["socketPath"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_told_by_its_socket_and_an_address() {
        let whole = br#"{"ips":[{"address":"10.89.0.2/16"}],"interfaces":[{"socketPath":"/run/x.sock"}]}"#;
        assert_eq!(socket_of(whole).as_deref(), Some("/run/x.sock"));
        assert_eq!(socket_of(br#"{"ips":[],"interfaces":[{"socketPath":"/run/x.sock"}]}"#), None);
        assert_eq!(socket_of(br#"{"ips":[{"address":"10.89.0.2/16"}],"interfaces":[{}]}"#), None);
    }
}
