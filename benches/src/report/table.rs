//! The report as text for a person at a terminal.

use std::io::{self, Write};

use crate::report::Report;
use crate::results::Figure;
use crate::targets::{State, Verdict, number};

/// The number of failures that are printed one by one.
const FAILURES_TOLD: usize = 20;

/// Columns of a case's table; the first is left-aligned, all others right.
pub(crate) const COLUMNS: [&str; 10] = [
    "",
    "calls",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "max ms",
    "rate /s",
    "CPU ms/call",
    "daemon RSS/peak MiB",
    "plugins MiB",
];

/// The cells of a figure under [`COLUMNS`].
pub(crate) fn cells(figure: &Figure) -> [String; 10] {
    let s = figure.series.summary();
    let cpu = match figure.cpu.per_call_ms() {
        Some((plugins, daemon)) if daemon > 0.0 => format!("{}+{}", number(plugins), number(daemon)),
        Some((plugins, _)) => number(plugins),
        None => String::new(),
    };
    let daemon = |m: crate::process_cost::Memory| format!("{}/{}", mib(m.rss_kib), mib(m.peak_kib));
    [
        format!("{} {}", figure.subject, figure.what),
        s.calls.to_string(),
        number(s.p50_ms),
        number(s.p95_ms),
        number(s.p99_ms),
        number(s.max_ms),
        figure.rate().map(number).unwrap_or_default(),
        cpu,
        figure.daemon.map(daemon).unwrap_or_default(),
        figure.plugins_peak_kib.map(mib).unwrap_or_default(),
    ]
}

/// Writes the whole report as text.
pub(crate) fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let machine = &report.machine;
    writeln!(
        out,
        "{} · {} CPUs ({}) · {} MiB",
        machine.kernel, machine.cpus, machine.cpu_model, machine.memory_mib
    )?;
    writeln!(out, "run directory on {} · allocation files on {}", machine.run_dir_fs, machine.data_dir_fs)?;
    if let Some(reason) = &machine.slowed_by {
        writeln!(out, "{reason}")?;
    }
    writeln!(out, "revision {}", machine.git_revision)?;
    for subject in &report.subjects.0 {
        writeln!(out, "  {:10} {} · {}", subject.name, subject.path, subject.version)?;
    }
    if report.quick {
        writeln!(out, "quick: a smoke test, its numbers measure nothing")?;
    }
    for case in &report.cases {
        writeln!(out, "\n{} — {}", case.name, case.title(report.quick))?;
        figures(report, case.name, out)?;
        readings(report, case.name, out)?;
        if let Some(rounds) = report.results.rounds_of(case.name) {
            writeln!(out, "  {rounds}")?;
        }
    }
    if !report.quick {
        verdicts(&report.verdicts, out)?;
    }
    writeln!(out)?;
    for sentence in report.comparison.sentences() {
        writeln!(out, "{sentence}")?;
    }
    failures(report, out)
}

fn figures(report: &Report, case: &str, out: &mut impl Write) -> io::Result<()> {
    // Readings tell the times of frames, in their unit.
    let is_told = |f: &&Figure| f.case == case && !f.series.is_empty() && !f.is_of_frames();
    let rows: Vec<_> = report.results.figures.iter().filter(is_told).map(cells).collect();
    if rows.is_empty() {
        return Ok(());
    }
    let header = COLUMNS.map(str::to_owned);
    aligned(std::iter::once(&header).chain(&rows), out)
}

fn readings(report: &Report, case: &str, out: &mut impl Write) -> io::Result<()> {
    for reading in report.results.readings.iter().filter(|r| r.case == case) {
        let (median, max) = (reading.median().unwrap_or(f64::NAN), reading.max().unwrap_or(f64::NAN));
        let most =
            if reading.values.len() > 1 { format!(", at most {}", number(max)) } else { String::new() };
        let unit = reading.unit;
        writeln!(out, "  {}: {}: {} {unit}{most}", reading.subject, reading.what, number(median))?;
    }
    Ok(())
}

fn verdicts(verdicts: &[Verdict], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\ntargets")?;
    let header = ["figure", "target", "measured", "met?"].map(str::to_owned);
    let rows: Vec<_> = verdicts
        .iter()
        .map(|v| [v.figure.clone(), v.target.clone(), v.measured.clone(), outcome(v)])
        .collect();
    aligned(std::iter::once(&header).chain(&rows), out)
}

/// The word for a verdict: met, missed by how much, or why neither.
pub(crate) fn outcome(verdict: &Verdict) -> String {
    match (verdict.state, verdict.missed_by_percent) {
        (State::Met, _) => "met".to_owned(),
        (State::Missed, Some(by)) if by.is_finite() && by < 1e6 => format!("missed by {by:.0} %"),
        (State::Missed, _) => "missed".to_owned(),
        (State::NotMeasured, _) => "not measured".to_owned(),
        (State::NoTarget, _) => "no target".to_owned(),
    }
}

fn failures(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let failures = &report.results.failures;
    if failures.is_empty() {
        return writeln!(out, "every interface was verified; nothing failed");
    }
    writeln!(out, "{} calls failed or gave a wrong interface", failures.len())?;
    for failure in failures.iter().take(FAILURES_TOLD) {
        writeln!(out, "  {}: {}: {}", failure.case, failure.subject, failure.what)?;
    }
    if failures.len() > FAILURES_TOLD {
        writeln!(out, "  … and {} more (all are in the JSON)", failures.len() - FAILURES_TOLD)?;
    }
    Ok(())
}

fn mib(kib: u64) -> String {
    number(kib as f64 / 1024.0)
}

fn aligned<'a, const N: usize>(
    rows: impl Iterator<Item = &'a [String; N]> + Clone,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut widths = [0; N];
    for row in rows.clone() {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            line += &if at == 0 { format!("  {cell:width$}") } else { format!("  {cell:>width$}") };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
