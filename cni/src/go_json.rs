//! JSON as Go's encoding/json reads it into structs, because existing configurations were written for that.
//!
//! Keys match in any case. The last duplicate in the text wins, but an object that is there twice is merged, as Go decodes
//! twice into one struct. `null` is the same as absent, and unknown keys are ignored. Types are strict: a number is no
//! string, and an integer has no point.
//!
//! [`parse`] returns a tree whose struct keys are in lower case. Maps with keys of the user's own (`args` except `args.cni`,
//! `capabilities`, `cni-args`, pod annotations) keep them as they are. [`Fields`] reads such a tree, or one that was not parsed here. Its
//! errors name the key, the value and what was expected. Nesting deeper than 127 is refused.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::addr;
use crate::error::{CniError, Code};
use crate::names::shown;

/// Reads a text.
///
/// # Errors
/// Code 6, with line and column.
pub fn parse(text: &str) -> Result<Value, CniError> {
    read(text).or_else(|error| match as_go_reads(text) {
        Cow::Owned(text) => read(&text),
        Cow::Borrowed(_) => Err(error),
    })
}

/// Rewrites what Go accepts and serde_json refuses. One is half of a surrogate pair, which Go reads as U+FFFD. The other is a
/// number beyond every range, which Go skips where nobody asks for it, and which is no integer where somebody does.
fn as_go_reads(text: &str) -> Cow<'_, str> {
    let mut out = Cow::Borrowed(text);
    let mut at = 0;
    let mut in_string = false;
    while let Some(byte) = out.as_bytes().get(at).copied() {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => {
                let half = |from: usize, low: bool| surrogate(out.as_bytes().get(from..from + 6), low);
                if half(at, false) && half(at + 6, true) {
                    at += 11;
                } else if half(at, false) || half(at, true) {
                    out.to_mut().replace_range(at + 2..at + 6, "fffd");
                    at += 5;
                } else {
                    at += 1;
                }
            }
            b'-' | b'0'..=b'9' if !in_string => {
                let number = |b: &u8| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E');
                let end = at + out.as_bytes()[at..].iter().take_while(|b| number(b)).count();
                if out.get(at..end).and_then(|n| n.parse::<f64>().ok()).is_some_and(f64::is_infinite) {
                    // The replacement has the same length: else a text full of such numbers would be moved at each of them.
                    let largest = format!("1e{:0>1$}", 308, end - at - 2);
                    out.to_mut().replace_range(at..end, &largest);
                }
                at = end - 1;
            }
            _ => {}
        }
        at += 1;
    }
    out
}

/// Whether this escape is the low or the high half of a surrogate pair (`\uD8xx` to `\uDFxx`).
fn surrogate(escape: Option<&[u8]>, low: bool) -> bool {
    let digits = escape.and_then(|e| e.strip_prefix(b"\\u")).and_then(|d| std::str::from_utf8(d).ok());
    let unit = digits.and_then(|d| u16::from_str_radix(d, 16).ok()).unwrap_or(0);
    if low { (0xdc00..=0xdfff).contains(&unit) } else { (0xd800..=0xdbff).contains(&unit) }
}

fn read(text: &str) -> Result<Value, CniError> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = Keys::Fold.deserialize(&mut json).map_err(|e| unreadable(&e))?;
    json.end().map_err(|e| unreadable(&e))?;
    Ok(value)
}

fn unreadable(error: &serde_json::Error) -> CniError {
    let hint = match error.classify() {
        serde_json::error::Category::Eof => "the text ends too early: is a closing bracket or quote missing?",
        _ => "it must be one JSON object in UTF-8, without comments and trailing commas",
    };
    CniError::new(Code::Decode, format!("the JSON cannot be read: {error}")).with(hint)
}

/// How the keys of an object are treated, by the place of the object.
#[derive(Clone, Copy, PartialEq)]
enum Keys {
    /// The object is a struct, whose keys match in any case.
    Fold,
    /// The object is `args`: a map in which only `cni` is a struct.
    Args,
    /// The object is a map, whose keys stay as they are.
    Keep,
}

impl Keys {
    fn below(self, key: &str) -> Keys {
        match (self, key) {
            (Keys::Fold, "args") => Keys::Args,
            (Keys::Fold, "capabilities" | "cni-args" | "io.kubernetes.cri.pod-annotations") => Keys::Keep,
            (Keys::Fold, _) | (Keys::Args, "cni") => Keys::Fold,
            _ => Keys::Keep,
        }
    }

    fn fold(self, mut key: String) -> String {
        match self {
            Keys::Fold => fold(&mut key),
            Keys::Args if key.len() <= 4 && key.eq_ignore_ascii_case("cni") => key.make_ascii_lowercase(),
            _ => {}
        }
        key
    }
}

/// A key of a struct as Go compares it with the struct's own: in lower case.
pub fn folded(key: &str) -> String {
    let mut key = key.to_owned();
    fold(&mut key);
    key
}

/// Makes a key lower case as Go folds it: of all letters beyond ASCII only `ſ` and the Kelvin sign are equal to an ASCII one.
fn fold(key: &mut String) {
    if !key.is_ascii() && key.contains(['\u{17f}', '\u{212a}']) {
        *key = key.replace('\u{17f}', "s").replace('\u{212a}', "k");
    }
    key.make_ascii_lowercase();
}

impl<'de> DeserializeSeed<'de> for Keys {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keys {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(Value::Number(n.into()))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(Value::Number(n.into()))
    }

    fn visit_f64<E>(self, n: f64) -> Result<Value, E> {
        Ok(Number::from_f64(n).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = pairs.next_key::<String>()? {
            let key = self.fold(key);
            let value = pairs.next_value_seed(self.below(&key))?;
            insert(&mut map, key, value);
        }
        Ok(Value::Object(map))
    }
}

fn insert(map: &mut Map<String, Value>, key: String, value: Value) {
    match map.get_mut(&key) {
        None => {
            map.insert(key, value);
        }
        Some(Value::Object(old)) if value.is_object() => {
            if let Value::Object(new) = value {
                new.into_iter().for_each(|(key, value)| insert(old, key, value));
            }
        }
        // Go leaves a text, number or truth value as it is when null follows.
        Some(Value::String(_) | Value::Number(_) | Value::Bool(_)) if value.is_null() => {}
        Some(old) => *old = value,
    }
}

/// The path to a value, for errors: `ipam.ranges[0][1].subnet`.
#[derive(Debug, Clone, Copy)]
enum Place<'a> {
    Root,
    Key(&'a Place<'a>, &'a str),
    Item(&'a Place<'a>, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Root => Ok(()),
            Place::Key(Place::Root, key) => f.write_str(key),
            Place::Key(up, key) => write!(f, "{up}.{key}"),
            Place::Item(up, at) => write!(f, "{up}[{at}]"),
        }
    }
}

/// A value and the path to it.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    value: &'a Value,
    place: Place<'a>,
}

impl<'a> Item<'a> {
    /// The value itself.
    pub fn value(&self) -> &'a Value {
        self.value
    }

    fn wrong(&self, expected: &str) -> CniError {
        CniError::new(
            Code::Decode,
            format!("\"{}\" is {}, expected {expected}", self.place, described(self.value)),
        )
    }

    /// The value as an object.
    ///
    /// # Errors
    /// Code 6 when it is none.
    pub fn object(&self) -> Result<Fields<'a>, CniError> {
        match self.value {
            Value::Object(map) => Ok(Fields { map, place: self.place }),
            _ => Err(self.wrong("an object")),
        }
    }

    /// Reads each item of a list, except `null`.
    ///
    /// # Errors
    /// Code 6 when the value is no list, and those of `read`.
    pub fn each<T>(&self, mut read: impl FnMut(Item<'_>) -> Result<T, CniError>) -> Result<Vec<T>, CniError> {
        let Value::Array(list) = self.value else { return Err(self.wrong("a list")) };
        let items = list.iter().enumerate().filter(|(_, value)| !value.is_null());
        items.map(|(at, value)| read(Item { value, place: Place::Item(&self.place, at) })).collect()
    }

    /// The value as a text.
    ///
    /// # Errors
    /// Code 6 when it is none.
    pub fn text(&self) -> Result<&'a str, CniError> {
        self.value.as_str().ok_or_else(|| self.wrong("a string"))
    }

    /// The value as a text, or as a list of texts.
    ///
    /// # Errors
    /// Code 6 when it is neither.
    pub fn text_or_texts(&self) -> Result<Vec<String>, CniError> {
        match self.value {
            Value::String(text) => Ok(vec![text.clone()]),
            Value::Array(_) => self.each(|item| item.text().map(str::to_owned)),
            _ => Err(self.wrong("a string or a list of strings")),
        }
    }

    /// The value as an integer of 32 bits without sign.
    ///
    /// # Errors
    /// Code 6 when it is none.
    pub fn number(&self) -> Result<u32, CniError> {
        let number = self.value.as_u64().and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| self.wrong("an integer of 32 bits without sign"))
    }

    /// The value as a text that `read` understands.
    ///
    /// # Errors
    /// Code 7 when `read` does not understand it; `what` says what it should be.
    pub fn read<T>(&self, what: &str, read: impl Fn(&str) -> Option<T>) -> Result<T, CniError> {
        let text = self.text()?;
        read(text).ok_or_else(|| {
            CniError::new(
                Code::InvalidConfig,
                format!("\"{}\" is {}, expected {what}", self.place, shown(text)),
            )
        })
    }
}

/// The keys of an object. `null` counts as absent everywhere.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    place: Place<'a>,
}

impl<'a> Fields<'a> {
    /// The keys of a whole tree.
    ///
    /// # Errors
    /// Code 6 when the tree is no object.
    pub fn of(value: &'a Value) -> Result<Fields<'a>, CniError> {
        match value {
            Value::Object(map) => Ok(Fields { map, place: Place::Root }),
            other => Err(CniError::new(
                Code::Decode,
                format!("the JSON is {}, expected an object", described(other)),
            )),
        }
    }

    /// The value of `key` in any case, even `null`; `None` when the key is absent.
    pub fn raw(&self, key: &str) -> Option<&'a Value> {
        let mut lower = [0u8; 64];
        let exact = lower.get_mut(..key.len()).and_then(|lower| {
            lower.copy_from_slice(key.as_bytes());
            lower.make_ascii_lowercase();
            std::str::from_utf8(lower).ok()
        });
        exact.and_then(|lower| self.map.get(lower)).or_else(|| {
            let mut others = self.map.iter().filter(|(k, _)| k.eq_ignore_ascii_case(key));
            others.next_back().map(|(_, value)| value)
        })
    }

    /// The value of `key`; `None` for `null` and an absent key.
    pub fn item<'s>(&'s self, key: &'s str) -> Option<Item<'s>> {
        let value = self.raw(key).filter(|value| !value.is_null())?;
        Some(Item { value, place: Place::Key(&self.place, key) })
    }

    /// The object under `key`.
    ///
    /// # Errors
    /// Code 6 when it is no object.
    pub fn object<'s>(&'s self, key: &'s str) -> Result<Option<Fields<'s>>, CniError> {
        self.item(key).map(|item| item.object()).transpose()
    }

    /// Reads each item of the list under `key`; none when the key is absent.
    ///
    /// # Errors
    /// Code 6 when it is no list, and those of `read`.
    pub fn each<T>(
        &self,
        key: &str,
        read: impl FnMut(Item<'_>) -> Result<T, CniError>,
    ) -> Result<Vec<T>, CniError> {
        self.item(key).map_or_else(|| Ok(Vec::new()), |item| item.each(read))
    }

    /// The texts of the list under `key`; none when the key is absent.
    ///
    /// # Errors
    /// Code 6 when it is no list of texts.
    pub fn texts(&self, key: &str) -> Result<Vec<String>, CniError> {
        self.each(key, |item| item.text().map(str::to_owned))
    }

    /// The text under `key`. Absent and empty are the same, as they are in Go.
    ///
    /// # Errors
    /// Code 6 when it is no text.
    pub fn text(&self, key: &str) -> Result<Option<String>, CniError> {
        let text = self.item(key).map(|item| item.text().map(str::to_owned)).transpose()?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// The truth value under `key`; false when the key is absent.
    ///
    /// # Errors
    /// Code 6 when it is no truth value.
    pub fn flag(&self, key: &str) -> Result<bool, CniError> {
        match self.item(key) {
            Some(item) => item.value.as_bool().ok_or_else(|| item.wrong("true or false")),
            None => Ok(false),
        }
    }

    /// The integer under `key`.
    ///
    /// # Errors
    /// Code 6 for another type, a fraction, or an integer beyond 64 bits.
    pub fn int(&self, key: &str) -> Result<Option<i64>, CniError> {
        self.item(key).map(|item| item.value.as_i64().ok_or_else(|| item.wrong("an integer"))).transpose()
    }

    /// The integer under `key`, from 0 to the largest of `T`.
    ///
    /// # Errors
    /// Code 6 for anything else.
    pub fn unsigned<T: TryFrom<u64>>(&self, key: &str) -> Result<Option<T>, CniError> {
        let Some(item) = self.item(key) else { return Ok(None) };
        let number = item.value.as_u64().and_then(|n| T::try_from(n).ok());
        let bits = 8 * size_of::<T>();
        number.map(Some).ok_or_else(|| item.wrong(&format!("an integer of {bits} bits without sign")))
    }

    /// The integer under `key`, from `least` to `most`.
    ///
    /// # Errors
    /// Code 7 outside that range, 6 for another type.
    pub fn within(&self, key: &str, least: u32, most: u32) -> Result<Option<u32>, CniError> {
        let Some(number) = self.int(key)? else { return Ok(None) };
        match u32::try_from(number) {
            Ok(n) if (least..=most).contains(&n) => Ok(Some(n)),
            _ => Err(self.invalid(key, &number.to_string(), &format!("an integer from {least} to {most}"))),
        }
    }

    /// The IP address under `key`. Absent and empty are the same.
    ///
    /// # Errors
    /// Code 7 when it is no address.
    pub fn ip(&self, key: &str) -> Result<Option<IpAddr>, CniError> {
        self.filled(key).map(|item| item.read("an IP address", addr::ip)).transpose()
    }

    /// The address with prefix length under `key`.
    ///
    /// # Errors
    /// Code 7 when it is no such address.
    pub fn cidr(&self, key: &str) -> Result<Option<IpNet>, CniError> {
        self.item(key)
            .map(|item| item.read("an address with prefix length, as in 10.1.2.3/24", addr::cidr))
            .transpose()
    }

    /// The error of code 7 about the value of one key of this object.
    pub fn invalid(&self, key: &str, value: &str, allowed: &str) -> CniError {
        let place = Place::Key(&self.place, key);
        CniError::new(Code::InvalidConfig, format!("\"{place}\" is {value}, expected {allowed}"))
    }

    /// The error of code 7 about a key of this object that must be there and is not.
    pub fn missing(&self, key: &str, what: &str) -> CniError {
        let place = Place::Key(&self.place, key);
        CniError::new(Code::InvalidConfig, format!("\"{place}\" is missing")).with(what)
    }

    fn filled<'s>(&'s self, key: &'s str) -> Option<Item<'s>> {
        self.item(key).filter(|item| item.value.as_str() != Some(""))
    }
}

fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => format!("the number {n}"),
        Value::String(s) => format!("the string {}", shown(s)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_go_takes_and_json_forbids_in_a_key_that_nobody_reads_is_taken() {
        let text =
            r#"{"note":"a\ud800b\udc00 \ud83d\ude00 \\ud800","n":[1e999,-1E+999,12],"name":"1e999 \"1e999"}"#;
        let read = parse(text).unwrap();
        assert_eq!(read["note"], "a\u{fffd}b\u{fffd} \u{1f600} \\ud800");
        assert_eq!(read["n"][2], 12);
        assert_eq!(read["name"], "1e999 \"1e999");
        for bad in [r#"{"a":"\ud8"}"#, r#"{"a":1e}"#, r#"{"a":"\"#, "-", "\"\\"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_last_duplicate_in_the_text_wins_whatever_its_case() {
        assert_eq!(parse(r#"{"mode":"a","Mode":"b","MODE":"c"}"#).unwrap(), json!({"mode": "c"}));
        assert_eq!(parse(r#"{"MODE":"c","mode":"a"}"#).unwrap(), json!({"mode": "a"}));
        assert_eq!(parse(r#"{"l":[1,2],"L":[3]}"#).unwrap(), json!({"l": [3]}));
    }

    #[test]
    fn an_object_given_twice_is_merged_and_null_leaves_a_text_as_it_is() {
        let twice =
            parse(r#"{"ipam":{"type":"a","x":1},"IPAM":{"X":2},"m":"v","m":null,"l":[1],"l":null}"#).unwrap();
        assert_eq!(twice, json!({"ipam": {"type": "a", "x": 2}, "m": "v", "l": null}));
    }

    #[test]
    fn two_letters_beyond_ascii_are_folded_as_in_go_and_no_others() {
        let value = parse("{\"ma\u{17f}ter\":1,\"lin\u{212a}\":2,\"\u{c4}\":3}").unwrap();
        assert_eq!(value, json!({"master": 1, "link": 2, "\u{c4}": 3}));
    }

    #[test]
    fn a_tree_that_was_not_parsed_here_is_read_in_any_case_too() {
        let value = json!({"MTU": 9, "linkInContainer": true, "x": null});
        let fields = Fields::of(&value).unwrap();
        assert_eq!(fields.int("mtu"), Ok(Some(9)));
        assert_eq!(fields.flag("linkInContainer"), Ok(true));
        assert_eq!((fields.raw("x"), fields.item("x").is_none()), (Some(&Value::Null), true));
        assert_eq!(fields.int(&"k".repeat(100)), Ok(None));
    }
}
