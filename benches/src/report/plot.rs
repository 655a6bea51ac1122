//! A latency curve: milliseconds by percentile, one line for each subject, as SVG.
//!
//! The percentiles are spread by their nines, so that the tail is as wide as the middle.

use plotters::prelude::*;

use crate::results::Figure;

/// The size of one drawing, in pixels.
const SIZE: (u32, u32) = (860, 400);
/// Colours that people who see colours differently can distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
];
/// The number of nines of the last percentile that is drawn; beyond it a curve is made of single calls.
const MOST_NINES: f64 = 3.5;

/// Draws `figures`; the error is the drawing library's own words.
pub(crate) fn latency_curves(figures: &[&Figure]) -> Result<String, String> {
    let mut svg = String::new();
    draw(figures, &mut svg).map_err(|e| e.to_string())?;
    Ok(svg)
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

fn draw(figures: &[&Figure], svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let least = figures.iter().map(|f| f.series.at(0.0)).fold(f64::INFINITY, f64::min).max(0.001) * 0.8;
    let most = figures.iter().map(|f| f.series.at(1.0)).fold(least, f64::max) * 1.25;
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..MOST_NINES, (least..most).log_scale())?;
    chart
        .configure_mesh()
        .x_labels(4)
        .x_label_formatter(&percentile)
        .y_label_formatter(&|ms| crate::targets::number(*ms))
        .y_desc("milliseconds")
        .light_line_style(RGBColor(235, 235, 235))
        .draw()?;
    for (figure, colour) in figures.iter().zip(COLOURS.iter().cycle()) {
        let points: Vec<_> =
            figure.series.curve().into_iter().map(|(q, ms)| (nines(q), ms.max(least))).collect();
        chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            .label(format!("{} {}", figure.subject, figure.what))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Results;
    use std::time::Duration;

    #[test]
    fn every_subject_has_its_line_in_the_drawing() {
        let mut results = Results::default();
        for subject in ["ours", "debian"] {
            let figure = results.figure_mut("add-one", subject, "ADD").unwrap();
            (1..200).for_each(|ms| figure.series.record(Duration::from_millis(ms)));
        }
        let svg = latency_curves(&results.figures.iter().collect::<Vec<_>>()).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("ours ADD") && svg.contains("debian ADD"), "{svg}");
    }

    #[test]
    fn percentiles_are_spread_by_their_nines() {
        assert!((nines(0.9) - 1.0).abs() < 1e-9 && (nines(0.99) - 2.0).abs() < 1e-9);
        assert_eq!((nines(0.0), nines(1.0)), (0.0, MOST_NINES));
        assert_eq!((percentile(&1.0), percentile(&3.0)), ("90 %".to_owned(), "99.9 %".to_owned()));
    }
}
