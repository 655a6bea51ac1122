//! How many lines of a log one port may fill. What a port's guest does is told there, and a guest can do it all the time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// So many lines of a port are written at once.
const LINES: u32 = 10;
/// After them one line is written as often as this passes.
const PAUSE: Duration = Duration::from_secs(30);
/// So many ports are known before those are forgotten that have been quiet.
const PORTS: usize = 2_048;

/// Counts the lines of each port.
#[derive(Debug, Default)]
pub struct LogLimit {
    ports: HashMap<String, Lines>,
}

#[derive(Debug)]
struct Lines {
    left: u32,
    /// When a line was last added to `left`.
    filled: Instant,
    left_out: u64,
}

/// A line may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// How many lines of the port were left out since the last one that was written; absent where none was.
    pub left_out: Option<u64>,
}

impl LogLimit {
    /// Whether a line about `port` may be written now; one that may not is counted.
    pub fn admit(&mut self, port: &str, now: Instant) -> Option<Admitted> {
        if self.ports.len() >= PORTS && !self.ports.contains_key(port) {
            self.ports.retain(|_, lines| lines.at(now) < LINES || lines.left_out > 0);
        }
        if self.ports.len() >= 2 * PORTS {
            // There are never so many ports that say something.
            self.ports.clear();
        }
        let new = Lines { left: LINES, filled: now, left_out: 0 };
        let lines = self.ports.entry(port.to_owned()).or_insert(new);
        lines.fill(now);
        let Some(left) = lines.left.checked_sub(1) else {
            lines.left_out += 1;
            return None;
        };
        lines.left = left;
        let left_out = std::mem::take(&mut lines.left_out);
        Some(Admitted { left_out: (left_out > 0).then_some(left_out) })
    }
}

impl Lines {
    /// How many lines the port may have written at `now`.
    fn at(&self, now: Instant) -> u32 {
        let more = now.saturating_duration_since(self.filled).as_secs() / PAUSE.as_secs();
        self.left.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(LINES)
    }

    fn fill(&mut self, now: Instant) {
        if now.saturating_duration_since(self.filled) >= PAUSE {
            (self.left, self.filled) = (self.at(now), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_says_much_is_told_of_now_and_then_with_how_much_was_left_out() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        let mut told = |port: &str, second: u64| limit.admit(port, start + Duration::from_secs(second));
        let first: Vec<_> = (0..1_000).filter_map(|_| told("a", 0)).collect();
        assert_eq!(first, [Admitted { left_out: None }; 10]);
        assert_eq!(told("a", 29), None);
        assert_eq!(told("a", 30), Some(Admitted { left_out: Some(991) }));
        assert_eq!(told("a", 31), None);
        assert_eq!(told("b", 31), Some(Admitted { left_out: None }), "another port has its own");
        let after_an_hour: Vec<_> = (0..100).filter_map(|_| told("a", 3_600)).collect();
        assert_eq!((after_an_hour.len(), after_an_hour[0].left_out), (10, Some(1)));
    }

    #[test]
    fn names_that_are_never_heard_again_are_forgotten() {
        let (mut limit, start) = (LogLimit::default(), Instant::now());
        for n in 0..10_000_u64 {
            assert!(limit.admit(&n.to_string(), start + Duration::from_secs(n)).is_some());
            assert!(limit.ports.len() <= 2 * PORTS);
        }
    }
}
