//! What was measured, while the cases run. Nothing is averaged away: rounds add to one series, and failures are
//! kept beside the successes.

use std::borrow::Cow;
use std::time::Duration;

use serde::Serialize;

use crate::process_cost::Memory;
use crate::statistics::{Series, StatisticsError};
use crate::switches::one_frame::FRAME;

/// The latencies of one kind of call of one subject in one case, and what those calls used.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    /// The name of the case.
    pub(crate) case: &'static str,
    /// The name of the subject.
    pub(crate) subject: String,
    /// What was timed: `ADD`, `DEL`, or a part of it; [`FRAME`], and what came before it.
    pub(crate) what: &'static str,
    /// The latencies of all calls.
    pub(crate) series: Series,
    /// Calls per second, one number for each round.
    pub(crate) rates: Vec<f64>,
    /// The CPU time that the calls took.
    pub(crate) cpu: Cpu,
    /// The daemon's memory, the most of all rounds.
    pub(crate) daemon: Option<Memory>,
    /// The most memory that all plugin processes together had at one moment, in KiB.
    pub(crate) plugins_peak_kib: Option<u64>,
}

/// The CPU time of a number of calls.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cpu {
    /// The number of calls that were accounted.
    pub(crate) calls: u32,
    /// The CPU time of the plugin's processes, delegates included.
    pub(crate) plugins: Duration,
    /// The CPU time of the daemon.
    pub(crate) daemon: Duration,
}

impl Cpu {
    /// Adds another account.
    pub(crate) fn add(&mut self, other: Cpu) {
        self.calls += other.calls;
        self.plugins += other.plugins;
        self.daemon += other.daemon;
    }

    /// Milliseconds per call: (plugins, daemon).
    pub(crate) fn per_call_ms(&self) -> Option<(f64, f64)> {
        let calls = f64::from(self.calls);
        (self.calls > 0)
            .then(|| (self.plugins.as_secs_f64() * 1e3 / calls, self.daemon.as_secs_f64() * 1e3 / calls))
    }
}

impl Figure {
    /// Whether it is of frames, whose times are told in microseconds.
    pub(crate) fn is_of_frames(&self) -> bool {
        self.what.starts_with(FRAME)
    }

    /// The median of the rounds' rates.
    pub(crate) fn rate(&self) -> Option<f64> {
        median(&self.rates)
    }

    /// Keeps `memory` if it is larger than what was seen before.
    pub(crate) fn saw_daemon(&mut self, memory: Option<Memory>) {
        self.daemon = match (self.daemon, memory) {
            (Some(a), Some(b)) => {
                Some(Memory { rss_kib: a.rss_kib.max(b.rss_kib), peak_kib: a.peak_kib.max(b.peak_kib) })
            }
            (a, b) => b.or(a),
        };
    }

    /// Keeps `kib` if it is larger than what was seen before.
    pub(crate) fn saw_plugins(&mut self, kib: u64) {
        self.plugins_peak_kib = self.plugins_peak_kib.max(Some(kib));
    }
}

/// A number that is no latency, with one value for each round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Reading {
    /// The name of the case.
    pub(crate) case: &'static str,
    /// The name of the subject.
    pub(crate) subject: String,
    /// The name of the number.
    pub(crate) what: Cow<'static, str>,
    /// The unit of the values.
    pub(crate) unit: &'static str,
    /// The values of all rounds.
    pub(crate) values: Vec<f64>,
}

impl Reading {
    /// The median of its values.
    pub(crate) fn median(&self) -> Option<f64> {
        median(&self.values)
    }

    /// The largest of its values.
    pub(crate) fn max(&self) -> Option<f64> {
        self.values.iter().copied().reduce(f64::max)
    }
}

/// How many rounds of a case were made, and how many of them are not counted because others had the processors.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Rounds {
    /// The name of the case.
    pub(crate) case: &'static str,
    /// All rounds, those to warm up included.
    pub(crate) made: usize,
    /// Those with stolen or foreign CPU time.
    pub(crate) disturbed: usize,
}

/// A call that failed, or whose interface was wrong.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Failure {
    /// The name of the case.
    pub(crate) case: &'static str,
    /// The name of the subject.
    pub(crate) subject: String,
    /// What happened, to which attachment.
    pub(crate) what: String,
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// The latencies, by case and subject.
    pub(crate) figures: Vec<Figure>,
    /// All other numbers, by case and subject.
    pub(crate) readings: Vec<Reading>,
    /// The rounds of each case that has any.
    pub(crate) rounds: Vec<Rounds>,
    /// The calls that failed or made a wrong interface.
    pub(crate) failures: Vec<Failure>,
}

impl Results {
    /// The figure of that name; it is made if there is none yet.
    pub(crate) fn figure_mut(
        &mut self,
        case: &'static str,
        subject: &str,
        what: &'static str,
    ) -> Result<&mut Figure, StatisticsError> {
        let found =
            self.figures.iter().position(|f| f.case == case && f.subject == subject && f.what == what);
        let at = match found {
            Some(at) => at,
            None => {
                let (series, cpu) = (Series::new()?, Cpu::default());
                let subject = subject.to_owned();
                let rates = Vec::new();
                let (daemon, plugins_peak_kib) = (None, None);
                self.figures.push(Figure {
                    case,
                    subject,
                    what,
                    series,
                    rates,
                    cpu,
                    daemon,
                    plugins_peak_kib,
                });
                self.figures.len() - 1
            }
        };
        Ok(&mut self.figures[at])
    }

    /// The figure of that name, if it has any call.
    pub(crate) fn figure(&self, case: &str, subject: &str, what: &str) -> Option<&Figure> {
        self.figures
            .iter()
            .find(|f| f.case == case && f.subject == subject && f.what == what && !f.series.is_empty())
    }

    /// Adds a value to a reading.
    pub(crate) fn read(
        &mut self,
        case: &'static str,
        subject: &str,
        what: impl Into<Cow<'static, str>>,
        unit: &'static str,
        value: f64,
    ) {
        let what = what.into();
        match self.readings.iter_mut().find(|r| r.case == case && r.subject == subject && r.what == what) {
            Some(reading) => reading.values.push(value),
            None => {
                let subject = subject.to_owned();
                self.readings.push(Reading { case, subject, what, unit, values: vec![value] });
            }
        }
    }

    /// The reading of that name.
    pub(crate) fn reading(&self, case: &str, subject: &str, what: &str) -> Option<&Reading> {
        self.readings.iter().find(|r| r.case == case && r.subject == subject && r.what == what)
    }

    /// Counts a round.
    pub(crate) fn round(&mut self, case: &'static str, is_disturbed: bool) {
        if !self.rounds.iter().any(|rounds| rounds.case == case) {
            self.rounds.push(Rounds { case, made: 0, disturbed: 0 });
        }
        for rounds in self.rounds.iter_mut().filter(|rounds| rounds.case == case) {
            rounds.made += 1;
            rounds.disturbed += usize::from(is_disturbed);
        }
    }

    /// The rounds of a case, in words; `None` where it has none.
    pub(crate) fn rounds_of(&self, case: &str) -> Option<String> {
        let Rounds { made, disturbed, .. } = self.rounds.iter().find(|rounds| rounds.case == case)?;
        Some(format!("{made} rounds, {disturbed} of them with stolen or foreign CPU time"))
    }

    /// Keeps a failure for the report.
    pub(crate) fn fail(&mut self, case: &'static str, subject: &str, what: String) {
        self.failures.push(Failure { case, subject: subject.to_owned(), what });
    }

    /// The number of failures of a subject in a case.
    pub(crate) fn failures_of(&self, case: &str, subject: &str) -> usize {
        self.failures.iter().filter(|f| f.case == case && f.subject == subject).count()
    }
}

/// The middle of these values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_of_rounds_is_between_the_middle_two() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn rounds_of_one_case_add_to_one_figure() {
        let mut results = Results::default();
        for ms in [1, 2, 3] {
            results.figure_mut("add-one", "ours", "ADD").unwrap().series.record(Duration::from_millis(ms));
        }
        results.figure_mut("add-one", "debian", "ADD").unwrap();
        assert_eq!(results.figure("add-one", "ours", "ADD").unwrap().series.summary().calls, 3);
        assert!(results.figure("add-one", "debian", "ADD").is_none());
    }

    #[test]
    fn cpu_is_told_per_call() {
        let mut cpu = Cpu::default();
        assert_eq!(cpu.per_call_ms(), None);
        cpu.add(Cpu { calls: 1, plugins: Duration::from_millis(3), daemon: Duration::ZERO });
        cpu.add(Cpu { calls: 1, plugins: Duration::from_millis(1), daemon: Duration::from_millis(1) });
        assert_eq!(cpu.per_call_ms(), Some((2.0, 0.5)));
    }
}
