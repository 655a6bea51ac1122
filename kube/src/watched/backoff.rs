//! How long to wait before the next attempt, and how many may be made in a second.

use std::time::{Duration, Instant};

/// Pauses that double, within bounds. Each is between one and one and a half times its nominal length: the nodes of a cluster
/// whose API server comes back do not come at once.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, next: first }
    }

    /// The pause before the next attempt.
    pub(super) fn pause(&mut self) -> Duration {
        let nominal = self.next;
        self.next = nominal.saturating_mul(2).min(self.longest);
        nominal + nominal.mul_f64(fastrand::f64() / 2.0)
    }

    /// The last attempt went well.
    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }
}

/// So many at once, and so many in a second after that.
#[derive(Debug)]
pub(super) struct TokenBucket {
    burst: f64,
    per_second: f64,
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    pub(super) fn new(burst: u32, per_second: f64) -> TokenBucket {
        TokenBucket { burst: burst.into(), per_second, tokens: burst.into(), at: Instant::now() }
    }

    /// Takes one, or says how long there is none.
    ///
    /// # Errors
    /// The time until there is one.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + gained).min(self.burst);
        self.at = self.at.max(now);
        if self.tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.tokens) / self.per_second));
        }
        self.tokens -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_within_their_bounds_and_start_again() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(4));
        for nominal in [1, 2, 4, 4] {
            let (pause, nominal) = (backoff.pause(), Duration::from_secs(nominal));
            assert!(pause >= nominal && pause <= nominal.mul_f64(1.5), "{pause:?} for {nominal:?}");
        }
        backoff.reset();
        assert!(backoff.pause() < Duration::from_secs(2));
    }

    #[test]
    fn a_bucket_gives_its_burst_at_once_and_its_rate_after_that() {
        let mut bucket = TokenBucket::new(2, 10.0);
        let start = bucket.at;
        assert_eq!((bucket.take(start), bucket.take(start)), (Ok(()), Ok(())));
        assert!(bucket.take(start).unwrap_err() <= Duration::from_millis(101));
        assert_eq!(bucket.take(start + Duration::from_millis(101)), Ok(()));
        assert!(bucket.take(start + Duration::from_millis(101)).is_err());
    }
}
