//! `add-under-del`: how long an ADD takes while 50 other pods a second are torn down, their namespaces removed
//! after each DEL as runtimes do. The same ADDs are measured when nothing else happens.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::bench::{Bench, BenchError, CallFailure};
use crate::case_size::CaseSize;
use crate::foreign_cpu::Disturbance;
use crate::plugin_exec::Verb;
use crate::round::until_one_counts;
use crate::subject::{Attachment, Done};

/// The number of DELs per second.
const DELS_PER_S: u32 = 50;
/// The pause between two ADDs, so that the machine's load is the DELs' and not the ADDs'.
const PAUSE: Duration = Duration::from_millis(10);

const CASE: &str = "add-under-del";

/// Runs `add-under-del`.
pub(crate) fn run(bench: &mut Bench, settings: &CaseSize) -> Result<(), BenchError> {
    for round in 0..settings.warmup + settings.rounds {
        for who in 0..bench.subjects.len() {
            if bench.subjects[who].is_plugin() {
                let counts = round >= settings.warmup;
                until_one_counts(|| in_quiet(bench, who, settings, counts))?;
                until_one_counts(|| under_del(bench, who, settings, counts))?;
            }
        }
    }
    bench.nothing_allocated(CASE)
}

/// The ADDs when nothing else happens; false where others had the processors meanwhile, so that they are not counted.
fn in_quiet(bench: &mut Bench, who: usize, settings: &CaseSize, counts: bool) -> Result<bool, BenchError> {
    let mut quiet = bench.attachments(who, settings.calls)?;
    let round = bench.begin_round(Disturbance::StolenOrForeign)?;
    let done = adds(bench, who, &quiet, || true);
    record(bench, who, &mut quiet, done, counts.then_some("ADD quiet"))?;
    let is_kept = bench.end_round(CASE, round)?;
    put_away(bench, who, quiet)?;
    Ok(is_kept)
}

/// The same ADDs while others are torn down; false where the hypervisor had the processors meanwhile.
fn under_del(bench: &mut Bench, who: usize, settings: &CaseSize, counts: bool) -> Result<bool, BenchError> {
    let dying = bench.attached(CASE, who, settings.at_once)?;
    let mut busy = bench.attachments(who, settings.calls)?;
    let round = bench.begin_round(Disturbance::Stolen)?;
    let started = Instant::now();
    let (done, (ended, dels)) = thread::scope(|scope| {
        let dels = scope.spawn(|| paced_dels(bench, who, dying, started));
        let done = adds(bench, who, &busy, || !dels.is_finished());
        (done, dels.join().unwrap_or_else(|_| (Instant::now(), Vec::new())))
    });
    let count = u32::try_from(dels.len()).unwrap_or(u32::MAX);
    let name = bench.subjects[who].name.clone();
    if counts {
        let rate = f64::from(count) / (ended - started).as_secs_f64().max(1e-9);
        bench.results.read(CASE, &name, "DELs made meanwhile", "/s", rate);
    }
    for outcome in dels {
        match outcome {
            Ok(done) if counts => {
                bench.results.figure_mut(CASE, &name, "DEL meanwhile")?.series.record(done.answer.latency);
            }
            Ok(_) => {}
            Err(what) => bench.results.fail(CASE, &name, format!("DEL: {what}")),
        }
    }
    record(bench, who, &mut busy, done, counts.then_some("ADD under DEL"))?;
    let is_kept = bench.end_round(CASE, round)?;
    put_away(bench, who, busy)?;
    Ok(is_kept)
}

/// Pods without an interface (the busy time was over) are deleted too: DEL is idempotent.
fn put_away(bench: &Bench, who: usize, pods: Vec<Attachment>) -> Result<(), BenchError> {
    for some in pods.chunks(50) {
        bench.at_once(who, Verb::Del, some)?;
    }
    bench.put_away(pods)
}

/// Makes ADDs one at a time for as long as `go_on` says.
fn adds(bench: &Bench, who: usize, pods: &[Attachment], go_on: impl Fn() -> bool) -> Vec<io::Result<Done>> {
    let subject = &bench.subjects[who];
    let mut done = Vec::new();
    for attachment in pods {
        if !go_on() {
            break;
        }
        done.push(subject.job(&bench.node, Verb::Add, attachment).run());
        thread::sleep(PAUSE);
    }
    done
}

fn record(
    bench: &mut Bench,
    who: usize,
    pods: &mut [Attachment],
    done: Vec<io::Result<Done>>,
    what: Option<&'static str>,
) -> Result<(), BenchError> {
    for (attachment, done) in pods.iter_mut().zip(done) {
        if let (Some(done), Some(what)) = (bench.added(CASE, who, attachment, done), what) {
            let name = &bench.subjects[who].name;
            bench.results.figure_mut(CASE, name, what)?.series.record(done.answer.latency);
        }
    }
    Ok(())
}

/// Makes DELs at a fixed rate, whatever each of them takes, and removes each namespace right after. Returns the
/// time of the last.
fn paced_dels(
    bench: &Bench,
    who: usize,
    dying: Vec<Attachment>,
    started: Instant,
) -> (Instant, Vec<Result<Done, CallFailure>>) {
    let subject = &bench.subjects[who];
    let outcomes = Mutex::new((started, Vec::new()));
    thread::scope(|scope| {
        for (at, attachment) in (0..).zip(dying) {
            let outcomes = &outcomes;
            scope.spawn(move || {
                let due = started + Duration::from_secs(1) * at / DELS_PER_S;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                let done = subject.job(&bench.node, Verb::Del, &attachment).run();
                let ended = Instant::now();
                // The pod is removed at once, so the answer alone can be judged here.
                let outcome = done.map_err(CallFailure::from).and_then(|done| {
                    if done.answer.success {
                        Ok(done)
                    } else {
                        Err(CallFailure::Refused(done.answer.complaint()))
                    }
                });
                attachment.pod.remove();
                let mut outcomes = outcomes.lock();
                outcomes.0 = outcomes.0.max(ended);
                outcomes.1.push(outcome);
            });
        }
    });
    outcomes.into_inner()
}
