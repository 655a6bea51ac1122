//! Lists of numbers as the kernel writes them (`0-3,8`): processors, and nodes too.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::{TopologyError, list};

/// Largest number that is believed: kernels are built for 8192 processors at most. A slip must not fill the memory.
const MOST: u32 = 65_535;

/// Numbers of processors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuList(BTreeSet<u32>);

/// A text that is no such list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no list of numbers as the kernel writes them (0-3,8)")]
pub struct BadCpuList(pub String);

impl CpuList {
    /// Whether it has this one.
    pub fn contains(&self, number: u32) -> bool {
        self.0.contains(&number)
    }

    /// How many numbers there are in it.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no number in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The numbers from the lowest to the highest.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// Those that are in this list and not in the other.
    pub fn without(&self, other: &CpuList) -> CpuList {
        CpuList(self.0.difference(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> CpuList {
        CpuList(numbers.into_iter().collect())
    }
}

impl FromStr for CpuList {
    type Err = BadCpuList;

    fn from_str(text: &str) -> Result<CpuList, BadCpuList> {
        let text = text.trim();
        // `(null)` is in `nohz_full` where the kernel was started without that parameter.
        if text.is_empty() || text == "(null)" {
            return Ok(CpuList::default());
        }
        let mut numbers = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n <= MOST);
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => numbers.extend(first..=last),
                _ => return Err(BadCpuList(text.to_owned())),
            }
        }
        Ok(CpuList(numbers))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for number in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => ranges.push((number, number)),
            }
        }
        let shown = |(first, last): &(u32, u32)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        f.write_str(&ranges.iter().map(shown).collect::<Vec<_>>().join(","))
    }
}

/// The processors that are kept free for somebody (`isolcpus`, `nohz_full`).
pub fn isolated(sysfs: &Path) -> Result<CpuList, TopologyError> {
    let dir = sysfs.join("devices/system/cpu");
    let mut all = CpuList::default();
    for name in ["isolated", "nohz_full"] {
        all.0.extend(list(&dir.join(name))?.unwrap_or_default().0);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_set;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_list_is_read_as_it_is_written(numbers in btree_set(0_u32..200, 0..40)) {
            let list = CpuList(numbers);
            prop_assert_eq!(list.to_string().parse(), Ok(list));
        }

        #[test]
        fn nothing_that_is_written_there_is_a_panic(text in "[-0-9,a-f() ]{0,20}") {
            let _ = text.parse::<CpuList>();
        }
    }

    #[test]
    fn ranges_and_single_ones_are_written_as_the_kernel_does() {
        let list: CpuList = " 0-2,4,6-7\n".parse().unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), [0, 1, 2, 4, 6, 7]);
        assert_eq!(list.to_string(), "0-2,4,6-7");
        assert_eq!(list.without(&"1,6-9".parse().unwrap()).to_string(), "0,2,4");
    }

    #[test]
    fn no_list_is_refused_and_none_is_none() {
        for text in ["", "\n", " (null)\n"] {
            assert!(text.parse::<CpuList>().unwrap().is_empty());
        }
        for text in ["a", "1-", "-1", "3-1", "1,,2", "0-4294967295", "70000"] {
            assert_eq!(text.parse::<CpuList>(), Err(BadCpuList(text.to_owned())));
        }
    }
}
