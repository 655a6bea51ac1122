//! How much of a file of bounded length each namespace may fill.
//!
//! Where there is no room for everything, the namespaces with the most text lose, and no others: what one tenant makes keeps nothing of
//! a smaller one out of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde::Serialize;

/// The lengths of the objects of each namespace, as JSON.
#[derive(Debug, Default)]
pub(super) struct Lengths(BTreeMap<String, u64>);

/// What has room of each namespace.
#[derive(Debug)]
pub(super) struct Shares {
    /// What a namespace may fill, in bytes.
    share: u64,
    filled: BTreeMap<String, u64>,
    left_out: BTreeSet<String>,
}

impl Lengths {
    /// Counts an object.
    pub(super) fn add(&mut self, namespace: &str, object: &impl Serialize) {
        *self.0.entry(namespace.to_owned()).or_default() += json_length(object);
    }

    /// The share of each namespace where so many bytes are not enough for all objects; `None` where they are.
    pub(super) fn shares(self, mut room: u64) -> Option<Shares> {
        let mut lengths: Vec<u64> = self.0.into_values().collect();
        lengths.sort_unstable();
        // What the small ones do not need, the large ones share.
        for (namespaces, length) in (1..=lengths.len() as u64).rev().zip(lengths) {
            let share = room / namespaces;
            if length > share {
                return Some(Shares { share, filled: BTreeMap::new(), left_out: BTreeSet::new() });
            }
            room -= length;
        }
        None
    }
}

impl Shares {
    /// Whether there is room for an object, which is taken then.
    pub(super) fn takes(&mut self, namespace: &str, object: &impl Serialize) -> bool {
        let filled = self.filled.entry(namespace.to_owned()).or_default();
        let with_it = *filled + json_length(object);
        let fits = with_it <= self.share;
        if fits {
            *filled = with_it;
        } else {
            self.left_out.insert(namespace.to_owned());
        }
        fits
    }

    /// The namespaces of which there was no room for everything.
    pub(super) fn left_out(self) -> BTreeSet<String> {
        self.left_out
    }
}

/// The length of an object and of the comma behind it. What a tenant writes may be six times as long there.
fn json_length(object: &impl Serialize) -> u64 {
    let mut length = Length(0);
    // What cannot be written is met again, and told, when it is to be.
    let _ = serde_json::to_writer(&mut length, object);
    length.0 + 1
}

/// Counts what is written to it.
struct Length(u64);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten bytes with its quotes and the comma.
    const TEN: &str = "1234567";
    const OBJECTS: [(&str, usize); 4] = [("least", 1), ("most", 90), ("much", 50), ("small", 9)];

    fn counted() -> Lengths {
        let mut lengths = Lengths::default();
        for (namespace, objects) in OBJECTS {
            (0..objects).for_each(|_| lengths.add(namespace, &TEN));
        }
        lengths
    }

    fn taken(room: u64) -> Vec<usize> {
        let mut shares = counted().shares(room).unwrap();
        let of = |(namespace, objects): (&str, usize)| {
            (0..objects).filter(|_| shares.takes(namespace, &TEN)).count()
        };
        OBJECTS.map(of).to_vec()
    }

    #[test]
    fn the_largest_namespaces_lose_and_share_what_the_small_ones_leave() {
        assert!(counted().shares(1500).is_none(), "there is room for all");
        assert_eq!(taken(1490), [1, 89, 50, 9]);
        assert_eq!(taken(500), [1, 20, 20, 9]);
        assert_eq!(taken(80), [1, 2, 2, 2]);
    }

    #[test]
    fn what_json_escapes_counts_as_it_is_written() {
        assert_eq!(json_length(&TEN), 10);
        assert_eq!(json_length(&"\u{1}"), 6 + 3);
    }
}
