//! `switch-one-frame`: how long single frames take between two ports, each of them timed, by polling and by sleeping switches.

use super::SwitchBench;
use super::cases::WAITING;
use super::contender::Contender;
use super::frame_path::{FramePath, FrameTimes, clock_cost, microseconds, on_second_processor};
use crate::bench::BenchError;
use crate::case_size::CaseSize;
use crate::results::Results;
use crate::round::until_one_counts;

/// The case's name.
pub(crate) const CASE: &str = "switch-one-frame";
/// What is timed.
pub(crate) const FRAME: &str = "frame";
/// The same after a pause.
pub(crate) const AFTER_PAUSE: &str = "frame after a pause";
/// The readings of one frame's time.
pub(crate) const P50: &str = "p50";
/// The slowest in a hundred.
pub(crate) const P99: &str = "p99";
const PAUSE_P50: &str = "after a pause, p50";
const PAUSE_P99: &str = "after a pause, p99";
const LOST: &str = "lost";
const CLOCK: &str = "of it: the clock";

/// Runs it: `calls` frames that follow each other, and `at_once` after pauses.
pub(crate) fn run(run: &mut SwitchBench, size: &CaseSize) -> Result<(), BenchError> {
    if !run.has_two_processors(CASE, Contender::Ours, "a switch and its pods need") {
        return Ok(());
    }
    for _ in 0..size.rounds {
        for who in WAITING {
            until_one_counts(|| round(run, who, size))?;
        }
    }
    Ok(())
}

fn round(run: &mut SwitchBench, who: Contender, size: &CaseSize) -> Result<bool, BenchError> {
    let running = who.start(run)?;
    let doing = || BenchError::process(format!("timing single frames through {}", who.name()));
    let mut path = FramePath::connect(&running).map_err(doing())?;
    let sleeps = who == Contender::Adaptive;
    run.round(CASE, &running, |results| {
        let measured = on_second_processor(|| {
            let times = path.times(size.calls, |_, _| Ok(false))?;
            Ok((times, path.times_after_pauses(size.at_once, sleeps)?, clock_cost()?))
        });
        let (one, paused, clock) = measured.map_err(doing())?;
        record(results, who, (FRAME, P50, P99), &one)?;
        record(results, who, (AFTER_PAUSE, PAUSE_P50, PAUSE_P99), &paused)?;
        let all = (size.calls + size.at_once) as f64;
        results.read(CASE, who.name(), LOST, "%", (one.lost + paused.lost) as f64 / all * 100.0);
        results.read(CASE, who.name(), CLOCK, "µs", clock);
        Ok(())
    })
}

fn record(
    results: &mut Results,
    who: Contender,
    (what, p50, p99): (&'static str, &'static str, &'static str),
    times: &FrameTimes,
) -> Result<(), BenchError> {
    if times.series.is_empty() {
        results.fail(CASE, who.name(), format!("{what}: none came"));
        return Ok(());
    }
    for (reading, quantile) in [(p50, 0.5), (p99, 0.99)] {
        results.read(CASE, who.name(), reading, "µs", microseconds(&times.series, quantile));
    }
    results.figure_mut(CASE, who.name(), what)?.series.add(&times.series)?;
    Ok(())
}
