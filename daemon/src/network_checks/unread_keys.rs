//! Keys of a network that nobody reads, each with the one that was probably meant. The keys of a plugin that is executed are its own.

use fairlead_cni::config::{NetConf, known_keys};
use fairlead_cni::go_json::folded;
use serde_json::{Map, Value};

use super::ABOUT;
use crate::engine::attachment_request::OWN_TYPE;
use crate::finding::{Finding, less, wrong};

/// From this likeness on, of at most 1, a key is taken for another one that was mistyped.
const ALIKE: f64 = 0.8;

/// Words of other programs, and even of other objects of the same configuration, for a key that is not like them.
const SAME_MEANING: [(&str, &str); 4] =
    [("gateway", "gw"), ("via", "gw"), ("nextHop", "gw"), ("destination", "dst")];

/// Whether a key as it is written is read as a known one.
type IsRead = fn(written: &str, known: &str) -> bool;

/// As libcni reads a list's own keys.
fn exactly(written: &str, known: &str) -> bool {
    written == known
}

/// As Go reads the keys of a plugin.
fn in_any_case(written: &str, known: &str) -> bool {
    folded(written) == folded(known)
}

/// Those of a list itself. One plugin's configuration has a plugin's keys only.
pub(super) fn of_list(text: &str, place: &str) -> Vec<Finding> {
    match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(written) if written.contains_key("plugins") => {
            unread_exactly(&written, known_keys::OF_LIST, place)
        }
        _ => Vec::new(),
    }
}

/// What was meant by a text that has neither plugins nor a type, as the words that follow the statement that it has none; empty where
/// it has one of them.
pub(crate) fn meant_by(text: &str) -> String {
    let written: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
    if written.contains_key("plugins") || written.contains_key("type") {
        return String::new();
    }
    let unread = written.keys().filter(|key| !known_keys::OF_LIST.contains(&key.as_str()));
    asked_of_each(unread, &["type", "plugins"])
}

/// Of each of these keys that is like one of `possible`, whether that was meant.
fn asked_of_each<'k>(keys: impl Iterator<Item = &'k String>, possible: &[&str]) -> String {
    let meant = keys.filter_map(|key| Some((closest(key, possible.iter().copied())?, key)));
    meant.map(|(meant, key)| format!("; did you mean {meant:?} by {key:?}?")).collect()
}

/// Those of a plugin that we know and of its IPAM, and of the objects in them. A plugin that is executed may have keys of its own, and
/// our own type refuses them itself. `is_told`: of such a key of the plugin something else is told.
pub(super) fn of_plugin(conf: &NetConf, place: &str, is_told: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let Ok(written) = serde_json::from_str::<Value>(&conf.raw) else { return Vec::new() };
    let mut findings = Vec::new();
    if let (Some(known), Value::Object(keys)) = (known_keys::of_plugin(&conf.plugin_type), &written) {
        let untold = keys.iter().filter(|(key, _)| !is_told(key));
        let untold = untold.map(|(key, value)| (key.clone(), value.clone())).collect();
        findings.extend(unread(&untold, &known, in_any_case, place));
    }
    if known_keys::of_plugin(&conf.plugin_type).is_some() || conf.plugin_type == OWN_TYPE {
        let (dns, capabilities) = (below(&written, "dns"), below(&written, "capabilities"));
        findings.extend(unread_in(dns, known_keys::OF_DNS, in_any_case, &format!("{place}: dns")));
        let of_capabilities = format!("{place}: capabilities");
        findings.extend(unread_in(capabilities, known_keys::CAPABILITIES, exactly, &of_capabilities));
    }
    if let Some(kind) = &conf.ipam_type {
        findings.extend(of_ipam(below(&written, "ipam"), kind, &format!("{place}: ipam")));
    }
    findings
}

/// What was meant by keys that our own type does not have, as the words that follow the refusal of one; empty where nothing is like them.
pub(super) fn meant_in_own_type(conf: &NetConf) -> String {
    let Ok(written) = serde_json::from_str::<Value>(&conf.raw) else { return String::new() };
    let paths = written["paths"].as_array().into_iter().flatten();
    let paths = paths.filter_map(|path| Some((path, known_keys::of_path(path["type"].as_str()?)?)));
    let all = std::iter::once((&written, known_keys::of_own_type())).chain(paths);
    let one = |(object, known): (&Value, Vec<&'static str>)| {
        let keys = object.as_object().into_iter().flat_map(Map::keys);
        asked_of_each(keys.filter(|key| !known.contains(&key.as_str())), &known)
    };
    all.map(one).collect()
}

fn of_ipam(ipam: &Value, kind: &str, place: &str) -> Vec<Finding> {
    let Some(known) = known_keys::of_ipam(kind) else { return Vec::new() };
    let mut findings = unread_in(ipam, known, in_any_case, place);
    if known.contains(&"dns") {
        findings.extend(unread_in(
            below(ipam, "dns"),
            known_keys::OF_DNS,
            in_any_case,
            &format!("{place}.dns"),
        ));
    }
    for (key, of_item) in [
        ("ranges", known_keys::OF_RANGE),
        ("addresses", known_keys::OF_ADDRESS),
        ("routes", known_keys::OF_ROUTE),
    ] {
        if known.contains(&key) {
            findings.extend(in_items(below(ipam, key), of_item, &format!("{place}.{key}")));
        }
    }
    findings
}

/// Those of the objects of a list, or of lists in it.
fn in_items(value: &Value, known: &[&str], place: &str) -> Vec<Finding> {
    match value {
        Value::Array(items) => {
            let each = items.iter().enumerate();
            each.flat_map(|(at, item)| in_items(item, known, &format!("{place}[{at}]"))).collect()
        }
        object => unread_in(object, known, in_any_case, place),
    }
}

/// What an object has under a key in any case.
fn below<'v>(value: &'v Value, key: &str) -> &'v Value {
    let keys = value.as_object().into_iter().flatten();
    keys.filter(|(name, _)| folded(name) == folded(key))
        .map(|(_, value)| value)
        .next_back()
        .unwrap_or(&Value::Null)
}

fn unread_in(value: &Value, known: &[&str], is_read: IsRead, place: &str) -> Vec<Finding> {
    value.as_object().map_or_else(Vec::new, |written| unread(written, known, is_read, place))
}

/// Those of an object whose keys are read as they are written.
pub(crate) fn unread_exactly(written: &Map<String, Value>, known: &[&str], place: &str) -> Vec<Finding> {
    unread(written, known, exactly, place)
}

fn unread(written: &Map<String, Value>, known: &[&str], is_read: IsRead, place: &str) -> Vec<Finding> {
    // What is written already was not meant by another key.
    let is_written = |known: &str| written.iter().any(|(key, value)| is_read(key, known) && !value.is_null());
    let one = |key: &String| match meant(key, known).filter(|meant| !is_written(meant)) {
        Some(meant) => wrong(
            ABOUT,
            format!("{place}: unknown key {key:?}{}", asked(Some(meant))),
            "correct it: what is written under an unknown key has no effect",
        ),
        None => less(ABOUT, format!("{place}: unknown key {key:?}"), "leave it out: it has no effect"),
    };
    written.keys().filter(|key| !known.iter().any(|known| is_read(key, known))).map(one).collect()
}

/// The key that was probably meant, by its likeness or its meaning.
fn meant<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let same = SAME_MEANING.iter().filter(|(other, _)| folded(other) == folded(key));
    let same = same.filter_map(|(_, ours)| known.iter().find(|known| *known == ours)).next();
    same.copied().or_else(|| closest(key, known.iter().copied()))
}

/// The word that was probably meant.
pub(crate) fn closest<'w>(word: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let likeness = |known: &str| match is_misspelt(&folded(word), &folded(known)) {
        true => strsim::jaro_winkler(&folded(word), &folded(known)),
        false => 0.0,
    };
    let best = known.map(|known| (likeness(known), known)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(likeness, _)| *likeness >= ALIKE).map(|(_, known)| known)
}

/// Whether so few letters differ that one can be the other, mistyped: a third of the longer one's. Long words that begin alike are alike
/// by [`ALIKE`] alone, as `firewall` and `fairlead` are.
fn is_misspelt(word: &str, known: &str) -> bool {
    let longer = word.chars().count().max(known.chars().count());
    strsim::osa_distance(word, known) <= longer.div_ceil(3)
}

pub(super) fn asked(meant: Option<&str>) -> String {
    meant.map_or_else(String::new, |meant| format!("; did you mean {meant:?}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_meant_when_few_of_its_letters_differ() {
        for (word, known, is_meant) in [
            ("mastr", "master", true),
            ("mcas", "mac", true),
            ("hostlocal", "host-local", true),
            ("firewall", "fairlead", false),
            ("late", "wait", false),
        ] {
            assert_eq!(closest(word, [known].into_iter()).is_some(), is_meant, "{word}");
        }
    }
}
