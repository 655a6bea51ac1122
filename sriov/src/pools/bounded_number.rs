//! Numbers of the configuration that have to lie within bounds.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// A number from `LOW` to `HIGH`, both included; another one is refused when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Bounded<const LOW: usize, const HIGH: usize>(usize);

impl<const LOW: usize, const HIGH: usize> Bounded<LOW, HIGH> {
    /// A number that is known to lie within the bounds; the nearest bound stands for one that does not.
    pub const fn clamped(number: usize) -> Bounded<LOW, HIGH> {
        if number < LOW {
            Bounded(LOW)
        } else if number > HIGH {
            Bounded(HIGH)
        } else {
            Bounded(number)
        }
    }

    /// The number itself.
    pub const fn get(self) -> usize {
        self.0
    }
}

impl<'de, const LOW: usize, const HIGH: usize> Deserialize<'de> for Bounded<LOW, HIGH> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // Signed, so that the bounds are told of a negative number, too.
        let number =
            i64::deserialize(from).map_err(|error| match error.to_string().contains("missing field") {
                true => error,
                // In words of its own, which do not say what would be good.
                false => D::Error::custom(format!("it is no whole number between {LOW} and {HIGH}")),
            })?;
        match usize::try_from(number) {
            Ok(number) if (LOW..=HIGH).contains(&number) => Ok(Bounded(number)),
            _ => Err(D::Error::custom(format!("{number} is not between {LOW} and {HIGH}"))),
        }
    }
}
