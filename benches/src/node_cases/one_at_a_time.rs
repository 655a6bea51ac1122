//! `add-one`, `del-one`: one call at a time, the subjects in turn, [`SCORE`] calls each.
//!
//! A call that follows another subject's finds the caches as that one left them, and takes up to half as long
//! again. So a subject makes its calls of a turn in a row, and every other time the subjects come in the opposite
//! order. Pods are made for a turn and put away together, so that no namespace dies while a call is timed. The
//! DELs of a turn take less time than ours waits before it removes a link by itself, so no removal is timed
//! either.

use std::thread;
use std::time::Duration;

use super::ours_waiting;
use crate::bench::{Bench, BenchError, CpuMark};
use crate::case_size::CaseSize;
use crate::foreign_cpu::Disturbance;
use crate::plugin_exec::Verb;
use crate::results::{Figure, Results};
use crate::round::TRIES;
use crate::statistics::StatisticsError;
use crate::subject::{Attachment, Done, Subject};

/// The number of calls in a row, after which the pods are put away.
pub(crate) const SCORE: usize = 20;
const PAUSE: Duration = Duration::from_millis(2);
/// When an address is free again its attachment is still on record, for less than this.
const RECORDED: Duration = Duration::from_millis(100);

/// The reading of what a daemon's CPU clock has gone on by when nothing is left of any call, for each pod.
pub(crate) const WHOLE_CPU: &str = "the daemon's CPU time of an ADD, a DEL and all that follows them";

const ADD: &str = "add-one";
const DEL: &str = "del-one";

/// What distinguishes one course of single calls from another.
#[derive(Debug)]
pub(crate) struct Course {
    /// The case of its ADDs.
    pub(crate) add: &'static str,
    /// The case of its DELs.
    pub(crate) del: &'static str,
    /// The pause between two calls, so that the after-effects of one are not in the latency of the next.
    pub(crate) pause: Duration,
}

const MACVLANS: Course = Course { add: ADD, del: DEL, pause: PAUSE };

/// Runs `add-one` and `del-one`.
pub(crate) fn run(bench: &mut Bench, settings: &CaseSize) -> Result<(), BenchError> {
    ours_waiting::after_the_others(bench, |bench| {
        let before = bench.subjects.iter().map(CpuMark::now).collect::<Result<Vec<_>, _>>()?;
        let mut pods_of_each = 0;
        in_scores(settings.warmup + settings.calls, |first, count| {
            let mut pods = Vec::new();
            for who in 0..bench.subjects.len() {
                pods.push(bench.attachments(who, count)?);
            }
            let is_kept = one_round(bench, &MACVLANS, &mut pods, first, settings.warmup)?;
            bench.put_away(pods.into_iter().flatten().collect())?;
            pods_of_each += count;
            Ok(is_kept)
        })?;
        bench.nothing_allocated(DEL)?;
        read_whole_cpu(bench, &before, pods_of_each)
    })
}

/// Reads what each daemon has used since `before`, for each of its pods: those to warm up and those of disturbed rounds are among them.
fn read_whole_cpu(bench: &mut Bench, before: &[CpuMark], pods_of_each: usize) -> Result<(), BenchError> {
    thread::sleep(RECORDED);
    let pods = u32::try_from(pods_of_each).unwrap_or(u32::MAX);
    for (subject, before) in bench.subjects.iter().zip(before) {
        let cpu = before.until(CpuMark::now(subject)?, pods);
        if let (Some(_), Some((_, daemon))) = (&subject.daemon, cpu.per_call_ms()) {
            bench.results.read(DEL, &subject.name, WHOLE_CPU, "ms", daemon);
        }
    }
    Ok(())
}

/// Makes rounds of [`SCORE`] calls until so many calls count, or too many rounds were disturbed. A round gets the number of its first
/// call and how many it makes, and tells whether it counts.
pub(crate) fn in_scores(
    calls: usize,
    mut round: impl FnMut(usize, usize) -> Result<bool, BenchError>,
) -> Result<(), BenchError> {
    let (mut first, mut tries) = (0, TRIES * calls.div_ceil(SCORE));
    while first < calls && tries > 0 {
        tries -= 1;
        let count = SCORE.min(calls - first);
        if round(first, count)? {
            first += count;
        }
    }
    Ok(())
}

/// ADDs of all pods, then their DELs; false where others had the processors, so that it is not counted.
pub(crate) fn one_round(
    bench: &mut Bench,
    course: &Course,
    pods: &mut [Vec<Attachment>],
    first: usize,
    warmup: usize,
) -> Result<bool, BenchError> {
    let round = bench.begin_round(Disturbance::StolenOrForeign)?;
    take_turns(bench, course, Verb::Add, pods, first, warmup)?;
    take_turns(bench, course, Verb::Del, pods, first, warmup)?;
    bench.end_round(course.add, round)
}

/// Makes one call for each pod, one at a time; the calls below number `warmup` are not counted.
fn take_turns(
    bench: &mut Bench,
    course: &Course,
    verb: Verb,
    pods: &mut [Vec<Attachment>],
    first: usize,
    warmup: usize,
) -> Result<(), BenchError> {
    let backwards = (first / SCORE) % 2 == 1;
    let subjects = pods.len();
    for at in 0..subjects {
        let who = if backwards { subjects - 1 - at } else { at };
        let Some(pods) = pods.get_mut(who) else { continue };
        for (call, attachment) in (first..).zip(pods) {
            one_call(bench, course, verb, who, attachment, call >= warmup)?;
        }
    }
    Ok(())
}

fn one_call(
    bench: &mut Bench,
    course: &Course,
    verb: Verb,
    who: usize,
    attachment: &mut Attachment,
    counts: bool,
) -> Result<(), BenchError> {
    let subject = &bench.subjects[who];
    let job = subject.job(&bench.node, verb, attachment);
    let before = CpuMark::now(subject)?;
    let done = job.run();
    // Within the pause the daemon does most of what it does off the answer's path. What comes later is in `WHOLE_CPU`.
    thread::sleep(course.pause);
    let cpu = before.until(CpuMark::now(subject)?, 1);
    let done = match verb {
        Verb::Add => bench.added(course.add, who, attachment, done),
        Verb::Del => bench.deleted(course.del, who, attachment, done),
    };
    if let (Some(done), true) = (done, counts) {
        record(&mut bench.results, course, &bench.subjects[who], verb, &done)?.cpu.add(cpu);
    }
    Ok(())
}

fn record<'a>(
    results: &'a mut Results,
    course: &Course,
    subject: &Subject,
    verb: Verb,
    done: &Done,
) -> Result<&'a mut Figure, StatisticsError> {
    let case = if verb == Verb::Add { course.add } else { course.del };
    if let Some((spawn, kernel)) = done.parts {
        results.figure_mut(case, &subject.name, "of it: spawn")?.series.record(spawn);
        results.figure_mut(case, &subject.name, "of it: kernel calls")?.series.record(kernel);
    }
    let figure = results.figure_mut(case, &subject.name, verb.name())?;
    figure.series.record(done.answer.latency);
    figure.rates.push(1.0 / done.answer.latency.as_secs_f64().max(1e-9));
    Ok(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_a_disturbed_round_are_made_again_and_a_busy_machine_does_not_keep_the_run_for_ever() {
        let rounds = |disturbed: &[usize]| {
            let mut made = Vec::new();
            in_scores(2 * SCORE + 5, |first, count| {
                made.push((first, count));
                Ok(!disturbed.contains(&made.len()))
            })
            .unwrap();
            made
        };
        assert_eq!(rounds(&[]), [(0, SCORE), (SCORE, SCORE), (2 * SCORE, 5)]);
        assert_eq!(rounds(&[2]), [(0, SCORE), (SCORE, SCORE), (SCORE, SCORE), (2 * SCORE, 5)]);
        assert_eq!(rounds(&[1, 2, 3, 4, 5, 6, 7]), [(0, SCORE); 6]);
    }
}
