//! `switch-lengths`: the lengths between those that have targets, and what was forwarded at all lengths, for a curve.

use super::SwitchBench;
use super::cases::{FORWARDED, SWITCHES, throughput};
use crate::bench::BenchError;
use crate::case_size::CaseSize;
use crate::results::Results;
use crate::subject_descriptions::MeasuredSubjects;

/// The case's name.
pub(crate) const CASE: &str = "switch-lengths";

/// A frame's checksum, which no virtual port sends.
const CHECKSUM: u16 = 4;
/// Lengths with the checksum, and their readings.
const BETWEEN: [(u16, &str); 4] = [
    (128, "forwarded, 128 B"),
    (256, "forwarded, 256 B"),
    (512, "forwarded, 512 B"),
    (1024, "forwarded, 1024 B"),
];

/// Runs it: `calls` lengths.
pub(crate) fn run(run: &mut SwitchBench, size: &CaseSize) -> Result<(), BenchError> {
    for (length, what) in BETWEEN.into_iter().take(size.calls) {
        throughput(run, CASE, (length - CHECKSUM, what), &SWITCHES, size)?;
    }
    Ok(())
}

/// By each subject: lengths, and the medians of what it forwarded there, in Mpps. Lengths of other cases are among them.
pub(crate) fn forwarded(results: &Results, subjects: &MeasuredSubjects) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut all = vec![("switch-64", FORWARDED, 64)];
    all.extend(BETWEEN.map(|(length, what)| (CASE, what, length)));
    all.push(("switch-1518", FORWARDED, 1518));
    let points = |name: &str| -> Vec<(f64, f64)> {
        let point = |(case, what, length): &(&str, &str, u16)| {
            Some((f64::from(*length), results.reading(case, name, what)?.median()?))
        };
        all.iter().filter_map(point).collect()
    };
    subjects.0.iter().map(|subject| (subject.name.clone(), points(&subject.name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Role;

    #[test]
    fn the_curve_has_the_lengths_of_all_cases_in_their_order() {
        let mut results = Results::default();
        for (case, what, mpps) in
            [("switch-1518", FORWARDED, 6.0), (CASE, BETWEEN[1].1, 11.0), ("switch-64", FORWARDED, 13.0)]
        {
            results.read(case, "ours", what, "Mpps", mpps);
        }
        let subjects = MeasuredSubjects::of(&[("ours", Role::Ours)]);
        let points = vec![(64.0, 13.0), (256.0, 11.0), (1518.0, 6.0)];
        assert_eq!(forwarded(&results, &subjects), [("ours".to_owned(), points)]);
    }
}
