//! RFC 7047's operations, as far as the driver uses them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::ovsdb_value::{Atom, Cell, map_of};
use super::Database;

impl Database {
    /// Carries out all operations, or none.
    pub(super) fn execute(&mut self, operations: &[Value]) -> Vec<Value> {
        let before = self.tables.clone();
        let mut named: BTreeMap<String, String> = BTreeMap::new();
        let mut results = Vec::new();
        for operation in operations {
            let result = self.operation(operation, &mut named);
            let failed = !result["error"].is_null();
            results.push(result);
            if failed {
                self.tables = before;
                return results;
            }
        }
        self.collect_garbage();
        results
    }

    fn operation(&mut self, operation: &Value, named: &mut BTreeMap<String, String>) -> Value {
        let table = operation["table"].as_str().unwrap_or_default();
        let found = self.find(table, &operation["where"]);
        match operation["op"].as_str().unwrap() {
            "wait" => {
                let names = found.iter().map(|id| json!({ "name": self.tables[table][id]["name"] }));
                if Value::Array(names.collect()) == operation["rows"] {
                    json!({})
                } else {
                    json!({ "error": "timed out", "details": "\"where\" clause test failed" })
                }
            }
            "insert" => {
                let name = operation["row"]["name"].as_str().unwrap();
                if self.poisoned.contains(name) {
                    return json!({ "error": "constraint violation", "details": "as a test of it" });
                }
                let id = self.insert(table, resolved(&operation["row"], named));
                named.insert(operation["uuid-name"].as_str().unwrap().to_owned(), id.clone());
                json!({ "uuid": ["uuid", id] })
            }
            "mutate" => {
                for mutation in operation["mutations"].as_array().unwrap() {
                    let [column, mutator, value] = mutation.as_array().unwrap().as_slice() else {
                        panic!("a mutation has three parts")
                    };
                    for id in &found {
                        let row = self.tables.get_mut(table).unwrap().get_mut(id).unwrap();
                        let cell = &mut row[column.as_str().unwrap()];
                        *cell = mutated(cell, mutator.as_str().unwrap(), &resolved(value, named));
                    }
                }
                json!({ "count": found.len() })
            }
            "select" => {
                let rows: Vec<&Map<String, Value>> = found.iter().map(|id| &self.tables[table][id]).collect();
                json!({ "rows": rows })
            }
            _ => json!({}),
        }
    }

    fn find(&self, table: &str, conditions: &Value) -> Vec<String> {
        let conditions: Vec<&Value> = conditions.as_array().into_iter().flatten().collect();
        let rows = self.tables.get(table).into_iter().flatten();
        let fits = |id: &String, row: &Map<String, Value>| {
            conditions.iter().all(|condition| {
                let own = json!(["uuid", id]);
                let column = condition[0].as_str().unwrap();
                let cell = if column == "_uuid" { &own } else { &row[column] };
                let (cell, wanted) = (Cell::read(cell).unwrap(), Cell::read(&condition[2]).unwrap());
                match (&cell, &wanted) {
                    _ if condition[1] == "==" => cell == wanted,
                    (Cell::Set(all), Cell::Set(some)) => some.is_subset(all),
                    (Cell::Map(all), Cell::Map(some)) => {
                        some.iter().all(|(key, value)| all.get(key) == Some(value))
                    }
                    _ => false,
                }
            })
        };
        rows.filter(|(id, row)| fits(id, row)).map(|(id, _)| id.clone()).collect()
    }
}

fn mutated(cell: &Value, mutator: &str, value: &Value) -> Value {
    if mutator == "+=" {
        return json!(cell.as_i64().unwrap() + value.as_i64().unwrap());
    }
    let (mut set, change) = match (Cell::read(cell).unwrap(), Cell::read(value).unwrap()) {
        (Cell::Set(set), Cell::Set(change)) => (set, change),
        (Cell::Map(mut map), Cell::Set(keys)) => {
            map.retain(|key, _| !keys.contains(key));
            return texts(&map);
        }
        (Cell::Map(map), Cell::Map(mut pairs)) => {
            pairs.extend(map); // a key that is there keeps its value
            return texts(&pairs);
        }
        _ => panic!("only sets and maps are mutated"),
    };
    match mutator {
        "insert" => set.extend(change),
        _ => set.retain(|element| !change.contains(element)),
    }
    let rows = set.iter().map(|atom| match atom {
        Atom::Row(id) => json!(["uuid", id]),
        other => panic!("{other:?} is no row"),
    });
    json!(["set", rows.collect::<Vec<_>>()])
}

fn texts(pairs: &BTreeMap<Atom, Atom>) -> Value {
    map_of(pairs.iter().map(|(key, value)| (key.text().unwrap(), value.text().unwrap())))
}

/// The same with the UUIDs of rows that this transaction has inserted.
fn resolved(value: &Value, named: &BTreeMap<String, String>) -> Value {
    match value {
        Value::Array(pair) if pair.first() == Some(&json!("named-uuid")) => {
            json!(["uuid", named[pair[1].as_str().unwrap()]])
        }
        Value::Array(elements) => elements.iter().map(|element| resolved(element, named)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, field)| (key.clone(), resolved(field, named)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}
