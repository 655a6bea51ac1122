//! Objects that tenants make, kept within a bound for each namespace: those of the whole cluster are in the memory of every node.
//!
//! The bound of a namespace is its own: what one tenant makes takes nothing from another. What is known of a namespace stays known
//! while more of it comes, over lists and restarts too. What is beyond the bound is told as unusable, and its text is not kept: once
//! the namespace has room again, all objects of the kind are to be listed anew.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use super::listed::Listed;
use super::pods::ObjectName;
use crate::cluster::{Definition, LegacyNetwork};

/// So many bytes of text are kept of one namespace's objects: sixteen of the longest definitions, or two thousand of a usual length.
const MOST_TEXT: usize = 1 << 20;
/// So many objects of one namespace are kept: without a text, too, each takes some hundred bytes.
const MOST_OBJECTS: usize = 4096;

/// An object, or why it cannot be used.
pub(super) type Found<T> = Result<Arc<T>, String>;

/// An object that a tenant makes.
pub(super) trait TenantObject: PartialEq {
    /// Several of the kind, for people.
    const PLURAL: &'static str;

    /// The length of what is kept of the tenant's text, in bytes.
    fn text_length(&self) -> usize;
}

impl TenantObject for Definition {
    const PLURAL: &'static str = "NetworkAttachmentDefinitions";

    fn text_length(&self) -> usize {
        self.config.as_ref().map_or(0, |config| config.len()) + self.resource.as_ref().map_or(0, String::len)
    }
}

impl TenantObject for LegacyNetwork {
    const PLURAL: &'static str = "Networks (alpha.network.k8s.io/v1)";

    fn text_length(&self) -> usize {
        self.plugin.as_ref().map_or(0, String::len)
    }
}

/// All objects of a kind.
#[derive(Debug)]
pub(super) struct TenantObjects<T> {
    listed: Listed<Found<T>>,
    shares: BTreeMap<String, Share>,
    has_room_again: bool,
}

/// What is kept of one namespace.
#[derive(Debug, Default)]
struct Share {
    objects: usize,
    text: usize,
    /// Not all of its objects are kept whole, by the last list and the events since.
    is_short: bool,
    /// There are some of which not even the name is kept.
    has_unnamed: bool,
}

impl<T> Default for TenantObjects<T> {
    fn default() -> Self {
        TenantObjects { listed: Listed::default(), shares: BTreeMap::new(), has_room_again: false }
    }
}

impl<T: TenantObject> TenantObjects<T> {
    /// The object, or why it cannot be used; and whether the API has confirmed it in this process.
    pub(super) fn get(&self, name: &ObjectName) -> Option<(&Found<T>, bool)> {
        self.listed.get(name)
    }

    /// Why an object of which nothing is known may be there all the same, and cannot be used then.
    pub(super) fn too_many_of(&self, namespace: &str) -> Option<String> {
        let share = self.shares.get(namespace)?;
        share.has_unnamed.then(|| beyond::<T>(namespace, &format!("there are more than {MOST_OBJECTS}")))
    }

    /// Takes what the API, or before its first list the snapshot, says of an object. Answers whether a usable one has come, changed
    /// or gone by it.
    pub(super) fn apply(&mut self, name: ObjectName, found: Found<T>) -> bool {
        let before = self.forget(&name);
        let share = self.shares.entry(name.0.clone()).or_default();
        if share.objects >= MOST_OBJECTS {
            (share.is_short, share.has_unnamed) = (true, true);
            // It was not known: one that is has its place.
            return false;
        }
        let others_lack = share.is_short;
        let fits = share.text + text_of(&found) <= MOST_TEXT;
        let kept = if fits { found } else { Err(too_much_of::<T>(&name.0)) };
        share.is_short |= !fits;
        share.objects += 1;
        share.text += text_of(&kept);
        self.has_room_again |= others_lack && text_of(&kept) < before.as_ref().map_or(0, text_of);
        let changed = before.and_then(Result::ok).as_ref() != kept.as_ref().ok();
        self.listed.apply(name, kept);
        changed
    }

    /// Takes the deletion of an object. Answers whether it was usable.
    pub(super) fn delete(&mut self, name: &ObjectName) -> bool {
        let was_usable = self.forget(name).is_some_and(|known| known.is_ok());
        // It may be one of which nothing was kept: whether others still lack is known by the next list.
        self.has_room_again |= self.shares.get(&name.0).is_some_and(|share| share.is_short);
        was_usable
    }

    /// A list of all objects begins.
    pub(super) fn begin_list(&mut self) {
        self.listed.begin_list();
        self.has_room_again = false;
        self.shares.retain(|_, share| {
            (share.is_short, share.has_unnamed) = (false, false);
            share.objects > 0
        });
    }

    /// The list is whole: whatever it does not have is gone.
    pub(super) fn end_list(&mut self) {
        for (name, found) in self.listed.end_list() {
            self.give_back(&name.0, text_of(&found));
            // Its room was not there yet for those that were listed.
            self.has_room_again |= self.shares.get(&name.0).is_some_and(|share| share.is_short);
        }
    }

    /// Whether a namespace of which not all is kept has got room since this was asked last: all are to be listed anew then.
    pub(super) fn takes_room(&mut self) -> bool {
        mem::take(&mut self.has_room_again)
    }

    /// All objects that are known.
    pub(super) fn all(&self) -> impl Iterator<Item = (&ObjectName, &Found<T>)> {
        self.listed.all()
    }

    /// How many are known.
    pub(super) fn len(&self) -> usize {
        self.listed.len()
    }

    /// Forgets an object; answers what was known of it.
    fn forget(&mut self, name: &ObjectName) -> Option<Found<T>> {
        let known = self.listed.delete(name)?;
        self.give_back(&name.0, text_of(&known));
        Some(known)
    }

    fn give_back(&mut self, namespace: &str, text: usize) {
        if let Some(share) = self.shares.get_mut(namespace) {
            share.objects = share.objects.saturating_sub(1);
            share.text = share.text.saturating_sub(text);
        }
    }
}

/// Of an object that cannot be used only our own words are kept.
fn text_of<T: TenantObject>(found: &Found<T>) -> usize {
    found.as_ref().map_or(0, |object| object.text_length())
}

fn too_much_of<T: TenantObject>(namespace: &str) -> String {
    beyond::<T>(namespace, &format!("they have more than {MOST_TEXT} bytes of text together"))
}

fn beyond<T: TenantObject>(namespace: &str, why: &str) -> String {
    format!(
        "a node does not keep all {} of namespace {namespace}, since {why}; delete or shorten some, and what there is room for \
         can be used within two minutes",
        T::PLURAL
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(namespace: &str, name: &str) -> ObjectName {
        (namespace.to_owned(), name.to_owned())
    }

    fn put(objects: &mut TenantObjects<Definition>, namespace: &str, object: &str, length: usize) {
        let definition = Definition {
            namespace: namespace.to_owned(),
            name: object.to_owned(),
            config: Some("x".repeat(length).into()),
            resource: None,
        };
        objects.apply(name(namespace, object), Ok(Arc::new(definition)));
    }

    fn is_usable(objects: &TenantObjects<Definition>, namespace: &str, object: &str) -> bool {
        objects.get(&name(namespace, object)).is_some_and(|(found, _)| found.is_ok())
    }

    #[test]
    fn beyond_the_bound_of_its_namespace_a_definition_is_unusable_and_another_namespace_is_not_concerned() {
        let mut objects = TenantObjects::default();
        put(&mut objects, "a", "first", MOST_TEXT - 10);
        put(&mut objects, "a", "second", 11);
        put(&mut objects, "b", "other", MOST_TEXT);
        put(&mut objects, "a", "short", 10);
        assert!(is_usable(&objects, "a", "first") && is_usable(&objects, "a", "short"));
        assert!(is_usable(&objects, "b", "other"));
        let (second, _) = objects.get(&name("a", "second")).unwrap();
        let reason = second.clone().unwrap_err();
        for word in ["namespace a,", "1048576 bytes", "delete or shorten"] {
            assert!(reason.contains(word), "{word}: {reason}");
        }
        assert!(!objects.takes_room());
    }

    #[test]
    fn only_a_usable_object_that_comes_changes_or_goes_is_a_change() {
        let mut objects = TenantObjects::<Definition>::default();
        let name = name("a", "net");
        let with = |config: &str| {
            let (namespace, name) = name.clone();
            Ok(Arc::new(Definition { namespace, name, config: Some(config.into()), resource: None }))
        };
        assert!(objects.apply(name.clone(), with("{}")) && !objects.apply(name.clone(), with("{}")));
        assert!(objects.apply(name.clone(), with("[]")));
        assert!(objects.apply(name.clone(), Err("it is broken".to_owned())));
        assert!(!objects.apply(name.clone(), Err("it is broken otherwise".to_owned())));
        assert!(!objects.delete(&name));
        assert!(objects.apply(name.clone(), with("{}")) && objects.delete(&name));
    }

    #[test]
    fn what_is_known_stays_known_over_a_list_that_has_others_before_it() {
        let mut objects = TenantObjects::default();
        // From the snapshot.
        put(&mut objects, "a", "known", MOST_TEXT);
        for _ in 0..2 {
            objects.begin_list();
            put(&mut objects, "a", "a-newer-one", 1);
            put(&mut objects, "a", "known", MOST_TEXT);
            objects.end_list();
            assert!(is_usable(&objects, "a", "known") && !is_usable(&objects, "a", "a-newer-one"));
            assert!(!objects.takes_room(), "nothing has gone");
        }
    }

    #[test]
    fn a_deletion_another_text_and_a_list_without_it_are_room_that_the_next_list_uses() {
        let delete = |objects: &mut TenantObjects<Definition>| assert!(objects.delete(&name("a", "long")));
        let shorten = |objects: &mut TenantObjects<Definition>| put(objects, "a", "long", 1);
        let list = |objects: &mut TenantObjects<Definition>| {
            objects.begin_list();
            put(objects, "a", "late", MOST_TEXT / 2);
            objects.end_list();
        };
        // Its own new text is too long.
        let lengthen = |objects: &mut TenantObjects<Definition>| put(objects, "a", "long", MOST_TEXT + 1);
        type Way = fn(&mut TenantObjects<Definition>);
        for way in [delete as Way, shorten, list, lengthen] {
            let mut objects = TenantObjects::default();
            put(&mut objects, "a", "long", MOST_TEXT);
            put(&mut objects, "a", "late", MOST_TEXT / 2);
            put(&mut objects, "b", "other", 1);
            objects.delete(&name("b", "other"));
            assert!(!is_usable(&objects, "a", "late") && !objects.takes_room(), "b lacks nothing");
            way(&mut objects);
            assert!(objects.takes_room() && !objects.takes_room());
            objects.begin_list();
            put(&mut objects, "a", "late", MOST_TEXT / 2);
            objects.end_list();
            assert!(is_usable(&objects, "a", "late") && !objects.takes_room());
        }
    }

    #[test]
    fn of_more_objects_than_are_kept_none_is_said_not_to_be_there() {
        let mut objects = TenantObjects::default();
        for n in 0..MOST_OBJECTS + 10 {
            put(&mut objects, "a", &format!("n{n}"), 0);
        }
        assert_eq!(objects.len(), MOST_OBJECTS);
        assert!(objects.too_many_of("a").unwrap().contains("more than 4096"));
        assert_eq!(objects.too_many_of("b"), None);
        objects.delete(&name("a", "n1"));
        assert!(objects.takes_room());
        objects.begin_list();
        for n in 2..=MOST_OBJECTS {
            put(&mut objects, "a", &format!("n{n}"), 0);
        }
        objects.end_list();
        assert_eq!((objects.too_many_of("a"), objects.takes_room()), (None, false));
    }
}
