//! The report as one JSON document, for programs: all figures, and the raw histograms to make any other from.

use serde::Serialize;

use crate::case_size::CaseSize;
use crate::comparison::Comparison;
use crate::machine::Machine;
use crate::process_cost::Memory;
use crate::report::Report;
use crate::results::{Failure, Figure, Reading, Rounds};
use crate::statistics::{StatisticsError, Summary};
use crate::subject_descriptions::MeasuredSubjects;
use crate::targets::Verdict;

#[derive(Serialize)]
struct Document<'a> {
    /// The version of the format, raised when a field changes its meaning.
    format: u32,
    suite_version: &'static str,
    quick: bool,
    machine: &'a Machine,
    subjects: &'a MeasuredSubjects,
    cases: Vec<CaseEntry>,
    figures: Vec<FigureEntry<'a>>,
    readings: &'a [Reading],
    rounds: &'a [Rounds],
    comparison: &'a Comparison,
    targets: &'a [Verdict],
    failures: &'a [Failure],
}

#[derive(Serialize)]
struct CaseEntry {
    name: &'static str,
    about: String,
    settings: CaseSize,
}

#[derive(Serialize)]
struct FigureEntry<'a> {
    case: &'static str,
    subject: &'a str,
    what: &'static str,
    latency: Summary,
    /// Median of the rounds, and each of them where there are rounds.
    rate_per_s: Option<f64>,
    rates_per_s: &'a [f64],
    plugins_cpu_per_call_ms: Option<f64>,
    daemon_cpu_per_call_ms: Option<f64>,
    daemon_memory: Option<Memory>,
    plugins_peak_kib: Option<u64>,
    histogram: HistogramEntry,
}

#[derive(Serialize)]
struct HistogramEntry {
    unit: &'static str,
    encoding: &'static str,
    data: String,
}

/// Why the document could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JsonError {
    /// A histogram could not be written.
    #[error(transparent)]
    Statistics(#[from] StatisticsError),
    /// The document could not be written as JSON.
    #[error("the report cannot be written as JSON: {0}")]
    Write(#[from] serde_json::Error),
}

/// The whole report as one JSON document.
pub(crate) fn document(report: &Report) -> Result<String, JsonError> {
    let figures = report.results.figures.iter().map(entry).collect::<Result<_, _>>()?;
    let document = Document {
        format: 1,
        suite_version: env!("CARGO_PKG_VERSION"),
        quick: report.quick,
        machine: &report.machine,
        subjects: &report.subjects,
        cases: report
            .cases
            .iter()
            .map(|case| CaseEntry {
                name: case.name,
                about: case.title(report.quick),
                settings: *case.size(report.quick),
            })
            .collect(),
        figures,
        readings: &report.results.readings,
        rounds: &report.results.rounds,
        comparison: &report.comparison,
        targets: &report.verdicts,
        failures: &report.results.failures,
    };
    Ok(serde_json::to_string_pretty(&document)?)
}

fn entry(figure: &Figure) -> Result<FigureEntry<'_>, StatisticsError> {
    let cpu = figure.cpu.per_call_ms();
    Ok(FigureEntry {
        case: figure.case,
        subject: &figure.subject,
        what: figure.what,
        latency: figure.series.summary(),
        rate_per_s: figure.rate(),
        rates_per_s: if figure.rates.len() > 100 { &[] } else { &figure.rates },
        plugins_cpu_per_call_ms: cpu.map(|(plugins, _)| plugins),
        daemon_cpu_per_call_ms: cpu.map(|(_, daemon)| daemon),
        daemon_memory: figure.daemon,
        plugins_peak_kib: figure.plugins_peak_kib,
        histogram: HistogramEntry {
            unit: "ns",
            encoding: "HDR V2, base64",
            data: figure.series.to_base64()?,
        },
    })
}
