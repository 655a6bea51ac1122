//! OVSDB's values in JSON (RFC 7047, section 5.1), and what an `update2` makes of them (ovsdb-server(7), "Update2 Notification").
//!
//! Pure. A scalar and an optional scalar are sets of at most one, as OVSDB itself has it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// A row's UUID, as text.
pub(crate) type RowId = String;

/// One element of a set, or a key or value of a map. Reals occur in no column that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Atom {
    /// An integer.
    Integer(i64),
    /// A truth value.
    Truth(bool),
    /// A string.
    Text(String),
    /// A row.
    Row(RowId),
}

/// What a column of a row has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cell {
    /// A set, or a scalar.
    Set(BTreeSet<Atom>),
    /// A map.
    Map(BTreeMap<Atom, Atom>),
}

/// A value that RFC 7047 does not have, or that no column has which is asked for.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0} is no value of a column")]
pub(crate) struct NoValue(String);

impl Atom {
    fn read(value: &Value) -> Result<Atom, NoValue> {
        let no_value = || NoValue(value.to_string());
        match value {
            Value::String(text) => Ok(Atom::Text(text.clone())),
            Value::Bool(truth) => Ok(Atom::Truth(*truth)),
            Value::Number(number) => number.as_i64().map(Atom::Integer).ok_or_else(no_value),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(tag), Value::String(id)] if tag == "uuid" => Ok(Atom::Row(id.clone())),
                _ => Err(no_value()),
            },
            _ => Err(no_value()),
        }
    }
}

impl Cell {
    /// Reads a `<value>`.
    ///
    /// # Errors
    /// Where it is none.
    pub(crate) fn read(value: &Value) -> Result<Cell, NoValue> {
        let no_value = || NoValue(value.to_string());
        if let Some([Value::String(tag), Value::Array(elements)]) = value.as_array().map(Vec::as_slice) {
            if tag == "set" {
                return elements.iter().map(Atom::read).collect::<Result<_, _>>().map(Cell::Set);
            }
            if tag == "map" {
                let pair = |element: &Value| match element.as_array().map(Vec::as_slice) {
                    Some([key, value]) => Ok((Atom::read(key)?, Atom::read(value)?)),
                    _ => Err(no_value()),
                };
                return elements.iter().map(pair).collect::<Result<_, _>>().map(Cell::Map);
            }
        }
        Atom::read(value).map(|atom| Cell::Set(BTreeSet::from([atom])))
    }

    /// Takes what an `update2` says about a column of many values: the elements that only the old or only the new one has, and the
    /// new values of keys that both have.
    pub(crate) fn change(&mut self, difference: Cell) {
        match (self, difference) {
            (Cell::Set(set), Cell::Set(elements)) => {
                for element in elements {
                    if !set.remove(&element) {
                        set.insert(element);
                    }
                }
            }
            (Cell::Map(map), Cell::Map(pairs)) => {
                for (key, value) in pairs {
                    if map.get(&key) == Some(&value) {
                        map.remove(&key);
                    } else {
                        map.insert(key, value);
                    }
                }
            }
            (cell, other) => *cell = other,
        }
    }

    /// The only element, or none.
    pub(crate) fn single(&self) -> Option<&Atom> {
        match self {
            Cell::Set(set) => set.first(),
            Cell::Map(_) => None,
        }
    }

    /// The rows of a set of rows.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &RowId> {
        let set = match self {
            Cell::Set(set) => Some(set),
            Cell::Map(_) => None,
        };
        set.into_iter().flatten().filter_map(|atom| match atom {
            Atom::Row(id) => Some(id),
            _ => None,
        })
    }

    /// The value of a text's key in a map of texts.
    pub(crate) fn entry(&self, key: &str) -> Option<&str> {
        match self {
            Cell::Map(map) => map.get(&Atom::Text(key.to_owned()))?.text(),
            Cell::Set(_) => None,
        }
    }
}

impl Atom {
    /// The text, if it is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Atom::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, if it is one.
    pub(crate) fn integer(&self) -> Option<i64> {
        match self {
            Atom::Integer(integer) => Some(*integer),
            _ => None,
        }
    }
}

/// A set, as a transaction writes it.
pub(crate) fn set_of(elements: impl IntoIterator<Item = Value>) -> Value {
    json!(["set", elements.into_iter().collect::<Vec<_>>()])
}

/// A map, as a transaction writes it.
pub(crate) fn map_of<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value {
    json!(["map", pairs.into_iter().map(|(key, value)| json!([key, value])).collect::<Vec<_>>()])
}

/// A row that exists.
pub(crate) fn row(id: &str) -> Value {
    json!(["uuid", id])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(value: impl std::borrow::Borrow<Value>) -> Cell {
        Cell::read(value.borrow()).unwrap()
    }

    #[test]
    fn scalars_sets_maps_and_rows_are_read() {
        assert_eq!(cell(json!("br0")).single().and_then(Atom::text), Some("br0"));
        assert_eq!(cell(json!(["set", []])).single(), None);
        assert_eq!(cell(json!(["set", [3]])), cell(json!(3)));
        assert_eq!(cell(json!(["uuid", "a-b"])).rows().collect::<Vec<_>>(), ["a-b"]);
        assert_eq!(cell(json!(["map", [["k", "v"]]])).entry("k"), Some("v"));
    }

    #[test]
    fn what_is_no_value_is_refused_by_its_text() {
        for value in
            [json!(null), json!({}), json!([]), json!(["set", [[]]]), json!(["map", [["k"]]]), json!(1.5)]
        {
            assert_eq!(Cell::read(&value).unwrap_err().to_string().split(" is no value").count(), 2);
        }
    }

    #[test]
    fn a_difference_toggles_elements_removes_equal_pairs_and_replaces_others() {
        let mut ports = cell(json!(["set", [["uuid", "a"], ["uuid", "b"]]]));
        ports.change(cell(json!(["set", [["uuid", "a"], ["uuid", "c"]]])));
        assert_eq!(ports.rows().collect::<Vec<_>>(), ["b", "c"]);
        let mut ids = cell(json!(["map", [["a", "1"], ["b", "2"], ["c", "3"]]]));
        ids.change(cell(json!(["map", [["a", "1"], ["b", "9"], ["d", "4"]]])));
        assert_eq!(ids, cell(json!(["map", [["b", "9"], ["c", "3"], ["d", "4"]]])));
    }
}
