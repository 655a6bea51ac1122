//! The journal of a daemon of the next format, for tests of going back: what this tree writes, and more. It is in no release.
//!
//! An attachment with addresses of host-local gets fields that an older reader may pass over. Any other made link is of a kind
//! that an older reader does not know, so that it must leave the attachment alone.

use fairlead_host::record_version::{FORMAT, RecordVersion};
use serde_json::{Value, json};

use super::Entry;

/// The field that today's readers do not know, and what is in it.
const FIELD: &str = "future";
/// What today's readers know as `made`.
const LINK: &str = "crafted";

/// The bytes of an entry.
pub(super) fn encode(entry: &Entry) -> Result<Vec<u8>, serde_json::Error> {
    let mut written = serde_json::to_value(entry)?;
    let mut needs = FORMAT - 1;
    if matches!(entry, Entry::Put(_) | Entry::Commit { .. }) {
        add(&mut written, FIELD, json!({ "epoch": 7 }));
    }
    if let Some(link) = written.get_mut("link").filter(|link| link["link"] == "made") {
        add(link, FIELD, json!("within"));
    }
    if written.pointer("/link/link") == Some(&json!("made")) && written["ipam"]["ipam"] != "hostlocal" {
        needs = FORMAT;
        add(&mut written["link"], "link", json!(LINK));
    }
    let version = RecordVersion::written_now(needs);
    add(&mut written, "by", json!(version.by));
    add(&mut written, "needs", json!(version.needs));
    serde_json::to_vec(&written)
}

/// The entry in a frame that [`encode`] wrote; `None` for every other.
pub(super) fn decode(payload: &[u8]) -> Option<Entry> {
    let mut written: Value = serde_json::from_slice(payload).ok()?;
    if written["by"] != json!(RecordVersion::written_now(FORMAT).by) {
        return None;
    }
    if written.pointer("/link/link") == Some(&json!(LINK)) {
        add(&mut written["link"], "link", json!("made"));
    }
    serde_json::from_value(written).ok()
}

fn add(object: &mut Value, key: &str, value: Value) {
    if let Value::Object(fields) = object {
        fields.insert(key.to_owned(), value);
    }
}
