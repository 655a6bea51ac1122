//! Curves as SVG with a legend above them: times by percentile, one line for each subject and kind of call; and frames by length,
//! one line for each switch.
//!
//! The percentiles are spread by their nines, so that the tail is as wide as the middle. A subject has its colour; what comes second
//! and later in the same colour is dashed. The legend is text of the page, where no curve can run through it.

use std::fmt::Write;

use plotters::coord::Shift;
use plotters::coord::ranged1d::Ranged;
use plotters::prelude::*;

use crate::report::colours;
use crate::report::page::escaped;
use crate::results::Figure;
use crate::subject_descriptions::MeasuredSubjects;
use crate::targets::number;

/// The size of one drawing, in pixels.
const SIZE: (u32, u32) = (860, 340);
/// Dash and gap of the lines of one colour, in pixels; the first is drawn through.
const DASHES: [(u32, u32); 4] = [(1, 0), (7, 4), (2, 4), (14, 3)];
/// The lines of the grid.
const LIGHT: RGBColor = RGBColor(235, 235, 235);
/// The number of nines of the last percentile that is drawn; beyond it a curve is made of single calls.
const MOST_NINES: f64 = 3.5;

/// The unit in which times are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeUnit {
    /// In which the times of calls are told.
    Milliseconds,
    /// In which those of frames are told, a thousandth of it.
    Microseconds,
}

impl TimeUnit {
    /// Its name, of several.
    pub(crate) fn name(self) -> &'static str {
        match self {
            TimeUnit::Milliseconds => "milliseconds",
            TimeUnit::Microseconds => "microseconds",
        }
    }

    /// So many milliseconds.
    fn of_milliseconds(self, ms: f64) -> f64 {
        match self {
            TimeUnit::Milliseconds => ms,
            TimeUnit::Microseconds => ms * 1e3,
        }
    }
}

/// One line of a drawing, without its looks.
struct Line {
    /// The name of its subject, which gives it its colour.
    subject: String,
    /// What the legend says of it: whose, of what, made of how much.
    legend: [String; 3],
    points: Vec<(f64, f64)>,
}

/// One line with its looks.
struct Curve {
    line: Line,
    colour: RGBColor,
    dashes: (u32, u32),
}

/// Draws `figures`, with a legend; the error is the drawing library's own words.
pub(crate) fn latency_curves(
    figures: &[&Figure],
    unit: TimeUnit,
    subjects: &MeasuredSubjects,
) -> Result<String, String> {
    // The whole call is drawn through, and its parts are dashed.
    let mut figures = figures.to_vec();
    figures.sort_by_key(|figure| figure.what.contains(' '));
    let line = |figure: &&Figure| Line {
        subject: figure.subject.clone(),
        legend: [
            figure.subject.clone(),
            figure.what.to_owned(),
            format!(
                "({} {})",
                figure.series.summary().calls,
                if figure.is_of_frames() { "frames" } else { "calls" }
            ),
        ],
        points: figure
            .series
            .curve()
            .into_iter()
            .map(|(quantile, ms)| (nines(quantile), unit.of_milliseconds(ms)))
            .collect(),
    };
    let curves = distinguished(figures.iter().map(line), subjects);
    let mut html = legend(&curves).map_err(|e| e.to_string())?;
    draw_latencies(&curves, unit, &mut html).map_err(|e| e.to_string())?;
    Ok(html)
}

/// Draws what each subject forwards at each length, by name: points of a length and Mpps. Nothing where no subject has two points.
pub(crate) fn throughput_curves(
    of_subjects: Vec<(String, Vec<(f64, f64)>)>,
    subjects: &MeasuredSubjects,
) -> Result<String, String> {
    let lines = of_subjects.into_iter().filter(|(_, points)| points.len() > 1).map(|(subject, points)| {
        let legend = [subject.clone(), String::new(), format!("({} lengths)", points.len())];
        Line { subject, legend, points }
    });
    let curves = distinguished(lines, subjects);
    if curves.is_empty() {
        return Ok(String::new());
    }
    let mut html = legend(&curves).map_err(|e| e.to_string())?;
    draw_throughput(&curves, &mut html).map_err(|e| e.to_string())?;
    Ok(html)
}

/// Gives each line its subject's colour, and a dash where lines before it have the same one.
fn distinguished(lines: impl Iterator<Item = Line>, subjects: &MeasuredSubjects) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for line in lines {
        let colour = colours::of_subject(subjects, &line.subject);
        let earlier = curves.iter().filter(|other| other.colour == colour).count();
        let dashes = DASHES.get(earlier).or(DASHES.last()).copied().unwrap_or((1, 0));
        curves.push(Curve { line, colour, dashes });
    }
    curves
}

/// What each line is, and of how much it is made.
fn legend(curves: &[Curve]) -> Result<String, std::fmt::Error> {
    let mut html = String::from("<p class=\"legend\">");
    for Curve { line, colour, dashes: (dash, gap) } in curves {
        let [subject, what, made_of] = line.legend.each_ref().map(|text| escaped(text));
        let colour = colours::css(*colour);
        write!(
            html,
            "<span><svg width=\"30\" height=\"10\"><line x1=\"0\" y1=\"5\" x2=\"30\" y2=\"5\" stroke=\"{colour}\" \
             stroke-width=\"3\" stroke-dasharray=\"{dash} {gap}\"/></svg> {subject} {what} <i>{made_of}</i></span>"
        )?;
    }
    html.push_str("</p>");
    Ok(html)
}

/// How many nines a quantile has: 0.9 → 1, 0.99 → 2.
fn nines(quantile: f64) -> f64 {
    (-(1.0 - quantile).max(1e-9).log10()).min(MOST_NINES)
}

fn percentile(nines: &f64) -> String {
    let percent = (1.0 - 10f64.powf(-nines)) * 100.0;
    let rounded = (percent * 100.0).round() / 100.0;
    format!("{rounded} %")
}

/// The least and the most of all points, by one of their coordinates.
fn bounds(curves: &[Curve], coordinate: fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let all = curves.iter().flat_map(|curve| &curve.line.points).map(coordinate);
    all.fold((f64::INFINITY, 0.0), |(least, most), value| (least.min(value), most.max(value)))
}

fn draw_latencies(
    curves: &[Curve],
    unit: TimeUnit,
    html: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let (least, most) = bounds(curves, |(_, time)| *time);
    let least = least.max(0.001) * 0.8;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = margins(&area)
            .build_cartesian_2d(0.0..MOST_NINES, (least..most.max(least) * 1.25).log_scale())?;
        chart
            .configure_mesh()
            .x_labels(4)
            .y_labels(5)
            .x_label_formatter(&percentile)
            .y_label_formatter(&|time| number(*time))
            .y_desc(unit.name())
            .light_line_style(LIGHT)
            .draw()?;
        draw_lines(&mut chart, curves, least)?;
        area.present()?;
    }
    html.push_str(&svg);
    Ok(())
}

fn draw_throughput(curves: &[Curve], html: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let (shortest, longest) = bounds(curves, |(length, _)| *length);
    let (_, most) = bounds(curves, |(_, mpps)| *mpps);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = margins(&area).build_cartesian_2d(shortest..longest, 0.0..most * 1.1)?;
        chart
            .configure_mesh()
            .x_label_formatter(&|bytes| format!("{bytes:.0} B"))
            .y_label_formatter(&|mpps| number(*mpps))
            .y_desc("Mpps, both ways together")
            .light_line_style(LIGHT)
            .draw()?;
        draw_lines(&mut chart, curves, 0.0)?;
        area.present()?;
    }
    html.push_str(&svg);
    Ok(())
}

fn margins<'a, 'b>(area: &'a DrawingArea<SVGBackend<'b>, Shift>) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut chart = ChartBuilder::on(area);
    chart.margin(12).x_label_area_size(34).y_label_area_size(64);
    chart
}

/// Draws the lines; none goes below `least`.
fn draw_lines<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    curves: &[Curve],
    least: f64,
) -> Result<(), Box<dyn std::error::Error>>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    for Curve { line, colour, dashes: (dash, gap) } in curves {
        let points = line.points.iter().map(|(x, y)| (*x, y.max(least)));
        let style = colour.stroke_width(2);
        if *gap == 0 {
            chart.draw_series(LineSeries::new(points, style)).map_err(|e| e.to_string())?;
        } else {
            chart
                .draw_series(DashedLineSeries::new(points, *dash, *gap, style))
                .map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Results;
    use crate::subject::Role;
    use std::time::Duration;

    fn drawn(figures: &[(&str, &'static str)]) -> String {
        let mut results = Results::default();
        for (subject, what) in figures {
            let figure = results.figure_mut("add-one", subject, what).unwrap();
            (1..200).for_each(|ms| figure.series.record(Duration::from_millis(ms)));
        }
        let subjects = MeasuredSubjects::of(&[("ours", Role::Ours), ("debian", Role::Reference)]);
        latency_curves(&results.figures.iter().collect::<Vec<_>>(), TimeUnit::Milliseconds, &subjects)
            .unwrap()
    }

    #[test]
    fn every_subject_has_its_line_and_the_legend_is_outside_the_drawing() {
        let html = drawn(&[("ours", "ADD"), ("debian", "ADD")]);
        let (legend, svg) = html.split_once("</p>").unwrap();
        assert!(legend.contains("ours ADD <i>(199 calls)") && legend.contains("debian ADD"), "{legend}");
        assert!(
            svg.starts_with("<svg") && !svg.contains("ours") && svg.to_lowercase().contains("#0072b2"),
            "{svg}"
        );
    }

    #[test]
    fn a_subject_has_one_colour_whoever_is_drawn_beside_it_and_its_further_calls_are_dashed() {
        let colour = |html: &str, what: &str| {
            let before = html.split_once(what).unwrap().0;
            before.rsplit_once("stroke=\"").unwrap().1.split_once('"').unwrap().0.to_owned()
        };
        let (both, alone) = (
            drawn(&[("debian", "ADD"), ("ours", "ADD")]),
            drawn(&[("ours", "of it: spawn"), ("ours", "ADD")]),
        );
        assert_eq!(colour(&both, "ours ADD"), colour(&alone, "ours ADD"));
        assert_eq!(colour(&alone, "ours of it: spawn"), colour(&alone, "ours ADD"));
        let dashed = alone.find("stroke-dasharray=\"7 4\"").unwrap();
        assert!(alone.find("ours ADD") < Some(dashed), "the whole call is drawn through: {alone}");
    }

    #[test]
    fn subjects_of_one_colour_are_told_apart_by_their_dashes() {
        let mut results = Results::default();
        let names = ["ours-one", "ours-call", "ours-watch"];
        for name in names {
            results.figure_mut("pod-add", name, "ADD").unwrap().series.record(Duration::from_millis(1));
        }
        let subjects = MeasuredSubjects::of(&names.map(|name| (name, Role::Ours)));
        let html =
            latency_curves(&results.figures.iter().collect::<Vec<_>>(), TimeUnit::Milliseconds, &subjects)
                .unwrap();
        let legend = html.split_once("</p>").unwrap().0;
        let dashes: Vec<_> =
            legend.split("stroke-dasharray=\"").skip(1).map(|rest| rest.split_once('"').unwrap().0).collect();
        assert_eq!(dashes, ["1 0", "7 4", "2 4"]);
    }

    #[test]
    fn what_is_forwarded_is_drawn_by_length_for_those_who_have_several() {
        let subjects = MeasuredSubjects::of(&[("ours", Role::Ours), ("ovs-normal", Role::Peer)]);
        let points = |count: u32| (0..count).map(|at| (64.0 * f64::from(at + 1), 9.0)).collect::<Vec<_>>();
        let of = |ours, ovs| {
            let of_subjects = vec![("ours".to_owned(), points(ours)), ("ovs-normal".to_owned(), points(ovs))];
            throughput_curves(of_subjects, &subjects).unwrap()
        };
        let html = of(3, 1);
        assert!(html.contains("ours  <i>(3 lengths)") && html.contains("Mpps"), "{html}");
        assert!(!html.contains("ovs-normal"), "{html}");
        assert_eq!(of(1, 0), "");
    }

    #[test]
    fn percentiles_are_spread_by_their_nines() {
        assert!((nines(0.9) - 1.0).abs() < 1e-9 && (nines(0.99) - 2.0).abs() < 1e-9);
        assert_eq!((nines(0.0), nines(1.0)), (0.0, MOST_NINES));
        assert_eq!((percentile(&1.0), percentile(&3.0)), ("90 %".to_owned(), "99.9 %".to_owned()));
    }
}
