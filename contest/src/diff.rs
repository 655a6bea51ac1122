//! Compares two trees of observations and names every leaf in which they differ.

use serde_json::Value;

/// The text between the steps of a path. Routes and addresses contain slashes and dots, so those can't be used.
pub const STEP: &str = " > ";

/// One leaf in which two trees differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The path of the leaf from the root.
    pub path: String,
    /// The value that the reference has there.
    pub reference: Option<Value>,
    /// The value that the subject has there.
    pub subject: Option<Value>,
}

/// All leaves in which `subject` differs from `reference`.
pub fn differences(reference: &Value, subject: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    walk("", Some(reference), Some(subject), &mut found);
    found
}

fn walk(path: &str, reference: Option<&Value>, subject: Option<&Value>, found: &mut Vec<Difference>) {
    match (reference, subject) {
        (Some(Value::Object(r)), Some(Value::Object(s))) => {
            let mut keys: Vec<&String> = r.keys().chain(s.keys().filter(|k| !r.contains_key(*k))).collect();
            keys.sort();
            for key in keys {
                walk(&step(path, key), r.get(key), s.get(key), found);
            }
        }
        (Some(Value::Array(r)), Some(Value::Array(s))) => {
            for index in 0..r.len().max(s.len()) {
                walk(&step(path, &index.to_string()), r.get(index), s.get(index), found);
            }
        }
        _ if reference == subject => {}
        _ => found.push(Difference {
            path: path.to_owned(),
            reference: reference.cloned(),
            subject: subject.cloned(),
        }),
    }
}

fn step(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}{STEP}{key}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_trees_have_no_differences() {
        let tree = json!({"a": [1, {"b": null}], "c": "x"});
        assert!(differences(&tree, &tree).is_empty());
    }

    #[test]
    fn every_differing_leaf_is_named_by_its_path() {
        let found =
            differences(&json!({"a": {"b": [1, 2]}, "c": 1}), &json!({"a": {"b": [1, 3, 4]}, "d": 1}));
        let paths: Vec<&str> = found.iter().map(|d| d.path.as_str()).collect();
        assert_eq!(paths, ["a > b > 1", "a > b > 2", "c", "d"]);
        assert_eq!(found[1].reference, None);
        assert_eq!(found[2].subject, None);
    }

    #[test]
    fn a_branch_that_one_side_lacks_is_one_difference() {
        assert_eq!(differences(&json!({"a": {"b": 1, "c": 2}}), &json!({})).len(), 1);
    }
}
