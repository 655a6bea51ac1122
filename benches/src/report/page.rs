//! The report as one page that needs nothing beside itself: no script, no font, no picture from elsewhere.

use std::fmt::Write;

use crate::comparison::Other;
use crate::report::plot::TimeUnit;
use crate::report::table::{COLUMNS, cells, outcome};
use crate::report::{Report, colours, plot};
use crate::results::Figure;
use crate::switches::{lengths, one_frame};
use crate::targets::{State, number};

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:.6rem 0;font-size:14px}td,th{padding:.2rem .7rem;text-align:right;\
border-bottom:1px solid #e4e4e4}td:first-child,th:first-child{text-align:left}svg{max-width:100%;height:auto}\
h2{margin:2.2rem 0 .2rem;font-size:20px}th{white-space:nowrap}h2 code{font-size:13px;color:#777;font-weight:400}h3{margin:1rem 0 0}\
.verdict{font-size:18px;margin:.3rem 0}.legend{margin:.4rem 0 0;font-size:14px}.legend span{margin-right:1.4rem;white-space:nowrap}\
.legend i{color:#777}.met{color:#00704a}.missed{color:#b03a00;font-weight:600}.not-measured,.no-target{color:#777}.about{color:#555}";

/// Why the page could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageError {
    /// A curve could not be drawn.
    #[error("a latency curve cannot be drawn: {0}")]
    Plot(String),
    /// A text could not be written.
    #[error(transparent)]
    Text(#[from] std::fmt::Error),
}

/// The whole report as one HTML page.
pub(crate) fn page(report: &Report) -> Result<String, PageError> {
    let mut html = String::new();
    write!(
        html,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>fairlead-bench</title><style>{STYLE}</style>"
    )?;
    write!(html, "<h1>fairlead-bench</h1>")?;
    verdict(report, &mut html)?;
    head(report, &mut html)?;
    for case in &report.cases {
        let title = escaped(&case.title(report.quick));
        write!(html, "<h2>{title} <code>{}</code></h2>", escaped(case.name))?;
        section(report, case.name, &mut html)?;
    }
    if !report.quick {
        targets(report, &mut html)?;
    }
    html.push_str("</html>\n");
    Ok(html)
}

/// What a reader wants to know first: how ours stands, and whether all of it is to be believed.
fn verdict(report: &Report, html: &mut String) -> Result<(), PageError> {
    if report.quick {
        write!(html, "<p class=\"missed\">A smoke test (--quick): its numbers measure nothing.</p>")?;
    }
    for sentence in report.comparison.sentences() {
        write!(html, "<p class=\"verdict\">{}</p>", escaped(&sentence))?;
    }
    failures(report, html)?;
    let lines = &report.comparison.lines;
    if lines.is_empty() {
        return Ok(());
    }
    write!(html, "<table><tr><th></th><th>ours</th><th>others</th></tr>")?;
    for line in lines {
        let told = |value: f64| format!("{} {}", number(value), line.unit);
        let other = |o: &Other| format!("{} {} ({} ×)", o.subject, told(o.value), number(o.factor));
        let others: Vec<String> = line.others.iter().map(other).collect();
        let of_what = format!("{}, {}", line.what, line.of_what());
        row(html, [&of_what, &told(line.ours), &others.join(" · ")].map(String::as_str), "")?;
    }
    Ok(write!(html, "</table>")?)
}

fn head(report: &Report, html: &mut String) -> Result<(), PageError> {
    let m = &report.machine;
    let about = format!("{} · {} CPUs ({}) · {} MiB", m.kernel, m.cpus, m.cpu_model, m.memory_mib);
    let paths = format!("run directory on {} · allocation files on {}", m.run_dir_fs, m.data_dir_fs);
    let slowed = m.slowed_by.as_ref().map(|reason| format!("{}<br>", escaped(reason))).unwrap_or_default();
    write!(
        html,
        "<p>{}<br>{}<br>{slowed}revision {}</p>",
        escaped(&about),
        escaped(&paths),
        escaped(&m.git_revision)
    )?;
    write!(html, "<table><tr><th>subject</th><th>executable</th><th>says of itself</th></tr>")?;
    for subject in &report.subjects.0 {
        let colour = colours::css(colours::of_subject(&report.subjects, &subject.name));
        write!(
            html,
            "<tr><td style=\"border-left:.5rem solid {colour}\">{}</td><td>{}</td><td>{}</td></tr>",
            escaped(&subject.name),
            escaped(&subject.path),
            escaped(&subject.version)
        )?;
    }
    Ok(write!(html, "</table>")?)
}

fn targets(report: &Report, html: &mut String) -> Result<(), PageError> {
    write!(
        html,
        "<h2>Targets of the development</h2><table><tr><th>figure</th><th>target</th><th>measured</th><th>met?</th></tr>"
    )?;
    for verdict in &report.verdicts {
        let class = match verdict.state {
            State::Met => "met",
            State::Missed => "missed",
            State::NotMeasured => "not-measured",
            State::NoTarget => "no-target",
        };
        row(
            html,
            [&verdict.figure, &verdict.target, &verdict.measured, &outcome(verdict)].map(String::as_str),
            class,
        )?;
    }
    Ok(write!(html, "</table>")?)
}

fn section(report: &Report, case: &str, html: &mut String) -> Result<(), PageError> {
    let figures: Vec<&Figure> =
        report.results.figures.iter().filter(|f| f.case == case && !f.series.is_empty()).collect();
    // Readings tell the times of frames, in their unit.
    let (of_frames, of_calls): (Vec<&Figure>, Vec<&Figure>) =
        figures.into_iter().partition(|figure| figure.is_of_frames());
    if !of_calls.is_empty() {
        figures_table(&of_calls, html)?;
    }
    // ADD and DEL of one case are two drawings: their latencies are not compared with each other.
    for (verb, also) in [("ADD", "of it"), ("DEL", "of it")] {
        let belongs = |f: &&Figure| f.what.starts_with(verb) || f.what.starts_with(also);
        let drawn: Vec<_> = of_calls.iter().copied().filter(belongs).collect();
        if drawn.iter().any(|figure| figure.what.starts_with(verb)) {
            latency_curves(report, verb, &drawn, TimeUnit::Milliseconds, html)?;
        }
    }
    for what in [one_frame::FRAME, one_frame::AFTER_PAUSE] {
        let drawn: Vec<_> = of_frames.iter().copied().filter(|figure| figure.what == what).collect();
        if !drawn.is_empty() {
            latency_curves(report, what, &drawn, TimeUnit::Microseconds, html)?;
        }
    }
    if let Some(rounds) = report.results.rounds_of(case) {
        write!(html, "<p>{}</p>", escaped(&rounds))?;
    }
    if case == lengths::CASE {
        let forwarded = lengths::forwarded(&report.results, &report.subjects);
        html.push_str(&plot::throughput_curves(forwarded, &report.subjects).map_err(PageError::Plot)?);
    }
    readings(report, case, html)
}

fn latency_curves(
    report: &Report,
    what: &str,
    drawn: &[&Figure],
    unit: TimeUnit,
    html: &mut String,
) -> Result<(), PageError> {
    write!(html, "<h3>{what}: {} by percentile</h3>", unit.name())?;
    html.push_str(&plot::latency_curves(drawn, unit, &report.subjects).map_err(PageError::Plot)?);
    Ok(())
}

/// The table of a case, without the columns that nothing in it has.
fn figures_table(figures: &[&Figure], html: &mut String) -> Result<(), PageError> {
    let rows: Vec<_> = figures.iter().map(|figure| cells(figure)).collect();
    let shown =
        |at: usize| at == 0 || rows.iter().any(|row| row.get(at).is_some_and(|cell| !cell.is_empty()));
    write!(html, "<table><tr>")?;
    for (_, column) in COLUMNS.iter().enumerate().filter(|(at, _)| shown(*at)) {
        write!(html, "<th>{}</th>", escaped(column))?;
    }
    for row in &rows {
        html.push_str("</tr><tr>");
        for (_, cell) in row.iter().enumerate().filter(|(at, _)| shown(*at)) {
            write!(html, "<td>{}</td>", escaped(cell))?;
        }
    }
    Ok(write!(html, "</tr></table>")?)
}

fn readings(report: &Report, case: &str, html: &mut String) -> Result<(), PageError> {
    let readings: Vec<_> = report.results.readings.iter().filter(|r| r.case == case).collect();
    if readings.is_empty() {
        return Ok(());
    }
    write!(html, "<table><tr><th></th><th>median</th><th>most</th><th>rounds</th></tr>")?;
    for reading in readings {
        let text =
            |value: Option<f64>| value.map(|v| format!("{} {}", number(v), reading.unit)).unwrap_or_default();
        let name = format!("{}: {}", reading.subject, reading.what);
        let (median, most) = (text(reading.median()), text(reading.max()));
        row(html, [&name, &median, &most, &reading.values.len().to_string()].map(String::as_str), "")?;
    }
    Ok(write!(html, "</table>")?)
}

fn failures(report: &Report, html: &mut String) -> Result<(), PageError> {
    let failures = &report.results.failures;
    if failures.is_empty() {
        return Ok(write!(html, "<p class=\"met\">Every interface was verified; nothing failed.</p>")?);
    }
    write!(html, "<h2 class=\"missed\">{} calls failed or gave a wrong interface</h2><ul>", failures.len())?;
    for failure in failures.iter().take(100) {
        let what = format!("{}: {}: {}", failure.case, failure.subject, failure.what);
        write!(html, "<li>{}</li>", escaped(&what))?;
    }
    Ok(write!(html, "</ul>")?)
}

/// Writes one row; the last cell gets the class.
fn row<const N: usize>(html: &mut String, cells: [&str; N], class: &str) -> Result<(), PageError> {
    html.push_str("<tr>");
    for (at, cell) in cells.iter().enumerate() {
        match class {
            class if !class.is_empty() && at + 1 == N => {
                write!(html, "<td class=\"{class}\">{}</td>", escaped(cell))?;
            }
            _ => write!(html, "<td>{}</td>", escaped(cell))?,
        }
    }
    html.push_str("</tr>");
    Ok(())
}

pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_plugin_cannot_become_markup() {
        assert_eq!(escaped("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    }
}
