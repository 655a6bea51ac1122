//! One round of a case, judged by who else had the processors meanwhile. What a disturbed one has measured is forgotten, and it is made
//! once more.

use nix::unistd::Pid;

use crate::bench::BenchError;
use crate::foreign_cpu::{CpuUse, Disturbance};
use crate::results::{Figure, Reading, Results};
use crate::subject::Subject;

/// So many times as many rounds as are wanted are made where the processors are others' meanwhile.
pub(crate) const TRIES: usize = 2;

/// A round that was begun: what was measured before it, and what the processors had done.
#[derive(Debug)]
pub(crate) struct Round {
    judged_by: Disturbance,
    before: CpuUse,
    figures: Vec<Figure>,
    readings: Vec<Reading>,
}

impl Round {
    /// Begins a round. `of_nobody`: programs of the suite that belong to no subject.
    pub(crate) fn begin(
        judged_by: Disturbance,
        subjects: &[Subject],
        of_nobody: &[Pid],
        results: &Results,
    ) -> Result<Round, BenchError> {
        let before = now(subjects, of_nobody)?;
        let (figures, readings) = (results.figures.clone(), results.readings.clone());
        Ok(Round { judged_by, before, figures, readings })
    }

    /// Ends it; false, and what it has measured is forgotten, where others had the processors meanwhile and such rounds are not kept.
    /// Failures are kept.
    pub(crate) fn end(
        self,
        case: &'static str,
        subjects: &[Subject],
        of_nobody: &[Pid],
        results: &mut Results,
        keeps_disturbed: bool,
    ) -> Result<bool, BenchError> {
        let is_disturbed = self.before.was_disturbed_until(&now(subjects, of_nobody)?, self.judged_by);
        results.round(case, is_disturbed);
        let is_forgotten = is_disturbed && !keeps_disturbed;
        if is_forgotten {
            results.figures = self.figures;
            results.readings = self.readings;
        }
        Ok(!is_forgotten)
    }
}

fn now(subjects: &[Subject], of_nobody: &[Pid]) -> Result<CpuUse, BenchError> {
    CpuUse::now(subjects, of_nobody).map_err(BenchError::process("the processors' time"))
}

/// Makes a round, and once more if it does not count.
pub(crate) fn until_one_counts(
    mut round: impl FnMut() -> Result<bool, BenchError>,
) -> Result<(), BenchError> {
    for _ in 0..TRIES {
        if round()? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_does_not_count_is_made_once_more_and_not_again() {
        for (counts, wanted) in [(vec![true], 1), (vec![false, true], 2), (vec![false, false, true], 2)] {
            let mut made = 0;
            until_one_counts(|| {
                made += 1;
                Ok(counts[made - 1])
            })
            .unwrap();
            assert_eq!(made, wanted, "{counts:?}");
        }
    }

    #[test]
    fn what_a_disturbed_round_has_measured_is_forgotten_and_counted() {
        for (keeps_disturbed, values) in [(false, 1), (true, 2)] {
            let mut results = Results::default();
            results.read("silence", "ours", "gone", "ms", 1.0);
            let mut round = Round::begin(Disturbance::StolenOrForeign, &[], &[], &results).unwrap();
            round.before = round.before.before_all_others();
            results.read("silence", "ours", "gone", "ms", 9.0);
            let is_kept = round.end("silence", &[], &[], &mut results, keeps_disturbed).unwrap();
            assert_eq!(is_kept, keeps_disturbed);
            assert_eq!(results.readings[0].values.len(), values);
            assert_eq!((results.rounds[0].made, results.rounds[0].disturbed), (1, 1));
        }
    }
}
