//! A latency curve: milliseconds by percentile, one line for each subject and kind of call, as SVG with a legend above it.
//!
//! The percentiles are spread by their nines, so that the tail is as wide as the middle. A subject has its colour; its second and
//! third kind of call are dashed. The legend is text of the page, where no curve can run through it.

use std::fmt::Write;

use plotters::prelude::*;

use crate::report::colours;
use crate::report::page::escaped;
use crate::results::Figure;
use crate::subject_descriptions::MeasuredSubjects;

/// The size of one drawing, in pixels.
const SIZE: (u32, u32) = (860, 340);
/// Dash and gap of a subject's kinds of call, in pixels; the first is drawn through.
const DASHES: [(u32, u32); 3] = [(1, 0), (7, 4), (2, 4)];
/// The number of nines of the last percentile that is drawn; beyond it a curve is made of single calls.
const MOST_NINES: f64 = 3.5;

/// One line of the drawing.
struct Curve<'a> {
    figure: &'a Figure,
    colour: RGBColor,
    dashes: (u32, u32),
}

/// Draws `figures`, with a legend; the error is the drawing library's own words.
pub(crate) fn latency_curves(figures: &[&Figure], subjects: &MeasuredSubjects) -> Result<String, String> {
    // The whole call is drawn through, and its parts are dashed.
    let mut figures = figures.to_vec();
    figures.sort_by_key(|figure| figure.what.contains(' '));
    let curves: Vec<Curve<'_>> = figures
        .iter()
        .enumerate()
        .map(|(at, figure)| {
            let earlier = figures.iter().take(at).filter(|other| other.subject == figure.subject).count();
            let dashes = DASHES.get(earlier).or(DASHES.last()).copied().unwrap_or((1, 0));
            Curve { figure, colour: colours::of_subject(subjects, &figure.subject), dashes }
        })
        .collect();
    let mut html = legend(&curves).map_err(|e| e.to_string())?;
    draw(&curves, &mut html).map_err(|e| e.to_string())?;
    Ok(html)
}

/// What each line is, and of how many calls it is made.
fn legend(curves: &[Curve<'_>]) -> Result<String, std::fmt::Error> {
    let mut html = String::from("<p class=\"legend\">");
    for Curve { figure, colour, dashes: (dash, gap) } in curves {
        let calls = figure.series.summary().calls;
        let colour = colours::css(*colour);
        write!(
            html,
            "<span><svg width=\"30\" height=\"10\"><line x1=\"0\" y1=\"5\" x2=\"30\" y2=\"5\" stroke=\"{colour}\" \
             stroke-width=\"3\" stroke-dasharray=\"{dash} {gap}\"/></svg> {} {} <i>({calls} calls)</i></span>",
            escaped(&figure.subject),
            escaped(figure.what)
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

fn draw(curves: &[Curve<'_>], html: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let series = || curves.iter().map(|curve| &curve.figure.series);
    let least = series().map(|s| s.at(0.0)).fold(f64::INFINITY, f64::min).max(0.001) * 0.8;
    let most = series().map(|s| s.at(1.0)).fold(least, f64::max) * 1.25;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..MOST_NINES, (least..most).log_scale())?;
        chart
            .configure_mesh()
            .x_labels(4)
            .y_labels(5)
            .x_label_formatter(&percentile)
            .y_label_formatter(&|ms| crate::targets::number(*ms))
            .y_desc("milliseconds")
            .light_line_style(RGBColor(235, 235, 235))
            .draw()?;
        for Curve { figure, colour, dashes: (dash, gap) } in curves {
            let points = figure.series.curve().into_iter().map(|(q, ms)| (nines(q), ms.max(least)));
            let style = colour.stroke_width(2);
            match gap {
                0 => drop(chart.draw_series(LineSeries::new(points, style))?),
                _ => drop(chart.draw_series(DashedLineSeries::new(points, *dash, *gap, style))?),
            }
        }
        area.present()?;
    }
    html.push_str(&svg);
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
        latency_curves(&results.figures.iter().collect::<Vec<_>>(), &subjects).unwrap()
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
    fn percentiles_are_spread_by_their_nines() {
        assert!((nines(0.9) - 1.0).abs() < 1e-9 && (nines(0.99) - 2.0).abs() < 1e-9);
        assert_eq!((nines(0.0), nines(1.0)), (0.0, MOST_NINES));
        assert_eq!((percentile(&1.0), percentile(&3.0)), ("90 %".to_owned(), "99.9 %".to_owned()));
    }
}
