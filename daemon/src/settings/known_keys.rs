//! The keys of the configuration file, as its reader knows them.

use serde::de::value::Error;
use serde::de::{Deserializer, Error as _, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

use super::{SHOWN_CHARS, Settings};
use crate::network_checks::closest;

/// Keeps the names of the fields that a struct asks for, and gives it none.
struct FieldNames<'k>(&'k mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        Err(Error::custom("the names were wanted"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("it is no struct"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq
        tuple tuple_struct map enum identifier ignored_any
    }
}

/// The keys of a part of the file: of [`Settings`] those at its top, of [`Installation`](super::Installation) those under `install`.
pub fn keys_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut keys: &'static [&'static str] = &[];
    // It always fails, once it has the names.
    let _ = T::deserialize(FieldNames(&mut keys));
    keys
}

impl Settings {
    /// The keys at the top of the file.
    pub fn keys() -> &'static [&'static str] {
        keys_of::<Settings>()
    }
}

/// The known word that is closest to the unknown one that an error quotes: its parser says "unknown field `a`, expected one of b, c".
pub(super) fn meant(error: &str) -> Option<&str> {
    let (_, told) = error.split_once("unknown ")?;
    // The place comes last.
    let told = told.split(" at line ").next()?;
    let (unknown, known) = told.split_once(", expected ")?;
    // No word of ours is longer, and to compare one would take long.
    let unknown = unknown.split('`').nth(1).filter(|word| word.len() <= SHOWN_CHARS)?;
    let known = known.strip_prefix("one of ").unwrap_or(known).split([',', ' ', '`']);
    closest(unknown, known.filter(|word| !word.is_empty() && *word != "or"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_those_that_the_file_may_have() {
        assert!(Settings::keys().contains(&"logLevel") && Settings::keys().contains(&"vhostUser"));
        assert!(Settings::keys().iter().all(|key| !key.contains('_')), "as they are written");
    }
}
