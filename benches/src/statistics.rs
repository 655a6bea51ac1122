//! The latencies of one subject in one case: an HDR histogram of nanoseconds with three significant digits, and
//! the figures that are read from it.
//!
//! Two series are joined by adding their histograms, never by averaging percentiles.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2Serializer};
use serde::Serialize;

/// The longest latency in nanoseconds that a series can hold.
const LONGEST: u64 = 600 * 1_000_000_000;

/// Why a histogram could not be made or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatisticsError {
    /// The bounds are out of the histogram's own limits.
    #[error("a histogram of 1 ns to {LONGEST} ns cannot be made: {0}")]
    Bounds(#[from] hdrhistogram::CreationError),
    /// A series does not fit into another one.
    #[error("histograms cannot be added: {0}")]
    Add(#[from] hdrhistogram::AdditionError),
    /// It could not be put into its V2 form.
    #[error("a histogram cannot be written in the HDR V2 form: {0}")]
    Write(#[from] hdrhistogram::serialization::V2SerializeError),
}

/// The latencies of many calls.
#[derive(Debug, Clone)]
pub(crate) struct Series(Histogram<u64>);

/// The usual figures of a series, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// The number of calls.
    pub(crate) calls: u64,
    /// The shortest call.
    pub(crate) min_ms: f64,
    /// The arithmetic mean of all calls.
    pub(crate) mean_ms: f64,
    /// Half of the calls were at most this long.
    pub(crate) p50_ms: f64,
    /// Of a hundred calls, 90 were at most this long.
    pub(crate) p90_ms: f64,
    /// Of a hundred calls, 95 were at most this long.
    pub(crate) p95_ms: f64,
    /// Of a hundred calls, 99 were at most this long.
    pub(crate) p99_ms: f64,
    /// Of a thousand calls, 999 were at most this long.
    pub(crate) p999_ms: f64,
    /// The longest call.
    pub(crate) max_ms: f64,
}

impl Series {
    /// Makes a series without calls.
    pub(crate) fn new() -> Result<Series, StatisticsError> {
        Ok(Series(Histogram::new_with_bounds(1, LONGEST, 3)?))
    }

    /// Adds one call; one that is longer than ten minutes counts as ten minutes.
    pub(crate) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(LONGEST).max(1));
    }

    /// Adds all calls of another series.
    pub(crate) fn add(&mut self, other: &Series) -> Result<(), StatisticsError> {
        Ok(self.0.add(&other.0)?)
    }

    /// Whether nothing was recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The milliseconds that a fraction `quantile` (0–1) of the calls did not exceed.
    pub(crate) fn at(&self, quantile: f64) -> f64 {
        milliseconds(self.0.value_at_quantile(quantile))
    }

    /// Computes the usual figures.
    pub(crate) fn summary(&self) -> Summary {
        Summary {
            calls: self.0.len(),
            min_ms: milliseconds(self.0.min()),
            mean_ms: self.0.mean() / 1e6,
            p50_ms: self.at(0.50),
            p90_ms: self.at(0.90),
            p95_ms: self.at(0.95),
            p99_ms: self.at(0.99),
            p999_ms: self.at(0.999),
            max_ms: milliseconds(self.0.max()),
        }
    }

    /// The curve of latency by percentile: (quantile, milliseconds), one point for each step that was measured.
    pub(crate) fn curve(&self) -> Vec<(f64, f64)> {
        let mut points = vec![(0.0, milliseconds(self.0.min()))];
        points.extend(self.0.iter_recorded().map(|v| (v.quantile(), milliseconds(v.value_iterated_to()))));
        points
    }

    /// The raw histogram (nanoseconds) in HDR's V2 form, base64.
    pub(crate) fn to_base64(&self) -> Result<String, StatisticsError> {
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&self.0, &mut bytes)?;
        Ok(STANDARD.encode(bytes))
    }
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::Deserializer;

    fn hundred() -> Series {
        let mut series = Series::new().unwrap();
        for ms in 1..=100 {
            series.record(Duration::from_millis(ms));
        }
        series
    }

    fn near(got: f64, want: f64) -> bool {
        (got - want).abs() <= want * 0.001
    }

    #[test]
    fn percentiles_of_a_known_series_are_right_to_a_thousandth() {
        let s = hundred().summary();
        assert_eq!(s.calls, 100);
        for (got, want) in [
            (s.min_ms, 1.0),
            (s.mean_ms, 50.5),
            (s.p50_ms, 50.0),
            (s.p95_ms, 95.0),
            (s.p99_ms, 99.0),
            (s.max_ms, 100.0),
        ] {
            assert!(near(got, want), "{got} is not {want}");
        }
    }

    #[test]
    fn one_slow_call_in_a_thousand_moves_the_maximum_and_not_the_p99() {
        let mut series = Series::new().unwrap();
        for _ in 0..999 {
            series.record(Duration::from_micros(800));
        }
        series.record(Duration::from_secs(3));
        let s = series.summary();
        assert!(near(s.p99_ms, 0.8) && near(s.max_ms, 3000.0), "{s:?}");
    }

    #[test]
    fn a_call_longer_than_the_histogram_is_kept_as_its_longest() {
        let mut series = Series::new().unwrap();
        series.record(Duration::from_secs(86_400));
        assert!(near(series.summary().max_ms, 600_000.0));
    }

    #[test]
    fn the_curve_climbs_from_the_shortest_to_the_longest_call() {
        let curve = hundred().curve();
        assert!(curve.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1));
        assert!(near(curve[0].1, 1.0) && near(curve[curve.len() - 1].1, 100.0));
    }

    #[test]
    fn the_raw_histogram_can_be_read_back() {
        let series = hundred();
        let bytes = STANDARD.decode(series.to_base64().unwrap()).unwrap();
        let back: Histogram<u64> = Deserializer::new().deserialize(&mut &bytes[..]).unwrap();
        assert_eq!(back, series.0);
        assert!(Deserializer::new().deserialize::<u64, _>(&mut &bytes[..4]).is_err());
    }
}
