//! Objects of one kind by namespace and name, kept equal to the API's by lists and events.

use std::collections::BTreeMap;

use super::pods::{FROM_SNAPSHOT, ObjectName, Round};

/// All objects of a kind.
#[derive(Debug)]
pub(super) struct Listed<V> {
    entries: BTreeMap<ObjectName, (V, Round)>,
    round: Round,
}

impl<V> Default for Listed<V> {
    fn default() -> Self {
        Listed { entries: BTreeMap::new(), round: FROM_SNAPSHOT }
    }
}

impl<V> Listed<V> {
    /// The object, and whether the API has confirmed it in this process.
    pub(super) fn get(&self, name: &ObjectName) -> Option<(&V, bool)> {
        self.entries.get(name).map(|(value, seen)| (value, *seen != FROM_SNAPSHOT))
    }

    /// Takes what the API, or before its first list the snapshot, says of an object; answers what was known of it.
    pub(super) fn apply(&mut self, name: ObjectName, value: V) -> Option<V> {
        self.entries.insert(name, (value, self.round)).map(|(value, _)| value)
    }

    /// Takes the deletion of an object; answers what was known of it.
    pub(super) fn delete(&mut self, name: &ObjectName) -> Option<V> {
        self.entries.remove(name).map(|(value, _)| value)
    }

    /// A list of all objects begins.
    pub(super) fn begin_list(&mut self) {
        self.round += 1;
    }

    /// The list is whole: whatever it does not have is gone, and answered.
    pub(super) fn end_list(&mut self) -> Vec<(ObjectName, V)> {
        let round = self.round;
        let gone = self.entries.extract_if(.., |_, (_, seen)| *seen != round);
        gone.map(|(name, (value, _))| (name, value)).collect()
    }

    /// All objects.
    pub(super) fn all(&self) -> impl Iterator<Item = (&ObjectName, &V)> {
        self.entries.iter().map(|(name, (value, _))| (name, value))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
