//! What stands in one frame of the journal: an entry, and which version wrote it for which readers.
//!
//! A whole frame that this version cannot act on was written by a newer one. It is kept word for word, and is no damage: its
//! checksum says that it stands there as it was written.

use fairlead_host::record_version::RecordVersion;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Attachment, Entry, StoreError};

/// The words of a frame that say which version wrote it.
const OF_VERSION: [&str; 2] = ["by", "needs"];
/// The words of the frames that follow an intent.
const OF_STEPS: [&str; 7] = ["id", "addresses", "answer", "phase", "at", "by", "needs"];

/// An entry as it is written.
#[derive(Serialize)]
struct Frame<E> {
    #[serde(flatten)]
    entry: E,
    #[serde(flatten)]
    version: RecordVersion,
}

/// What a whole frame says.
pub(super) enum FrameContent {
    /// An entry. `exact`: this version would have written the same bytes, so that nothing of it is lost when it is written anew.
    Known { entry: Entry, exact: bool },
    /// An entry of a newer version.
    Newer(NewerEntry),
    /// No entry of any version.
    Damaged,
}

/// What can be said of an entry of a newer version.
#[derive(Debug, Clone, Default)]
pub(super) struct NewerEntry {
    pub(super) version: RecordVersion,
    /// The number of the attachment that it is about; `None` where it names none.
    pub(super) id: Option<u64>,
    pub(super) fields: Map<String, Value>,
}

impl NewerEntry {
    /// Of a JSON object that this version cannot act on.
    pub(super) fn of(fields: Map<String, Value>) -> NewerEntry {
        NewerEntry { version: version_of(&fields), id: fields.get("id").and_then(Value::as_u64), fields }
    }
}

/// Who wrote a JSON object, as far as it says so in words that this version knows.
fn version_of(fields: &Map<String, Value>) -> RecordVersion {
    let needs = fields.get("needs").map(|needs| needs.as_u64().and_then(|n| u32::try_from(n).ok()));
    RecordVersion {
        by: fields.get("by").and_then(Value::as_str).map(|by| by.to_owned().into()),
        // A number that is none is of a format that this version cannot know.
        needs: needs.map(|needs| needs.unwrap_or(u32::MAX)),
    }
}

/// The bytes of an entry, as this version writes it.
pub(super) fn encode(entry: &Entry) -> Result<Vec<u8>, StoreError> {
    #[cfg(feature = "next-format")]
    return Ok(super::next_format::encode(entry)?);
    #[cfg(not(feature = "next-format"))]
    encode_as(entry, RecordVersion::written_now(fairlead_host::record_version::FORMAT))
}

/// [`Entry::Put`] as it is written, without a copy of the attachment.
#[cfg(not(feature = "next-format"))]
#[derive(Serialize)]
struct PutFrame<'a> {
    e: &'static str,
    #[serde(flatten)]
    attachment: &'a Attachment,
    #[serde(flatten)]
    version: RecordVersion,
}

/// The bytes of an attachment with all that is known of it.
pub(super) fn put(attachment: &Attachment) -> Result<Vec<u8>, StoreError> {
    #[cfg(feature = "next-format")]
    return encode(&Entry::Put(Box::new(attachment.clone())));
    #[cfg(not(feature = "next-format"))]
    {
        let version = RecordVersion::written_now(fairlead_host::record_version::FORMAT);
        Ok(serde_json::to_vec(&PutFrame { e: "put", attachment, version })?)
    }
}

/// The bytes of an attachment with all that its own record says of it, also what this version does not know.
pub(super) fn put_as_written(written: Value) -> Result<Vec<u8>, StoreError> {
    let kind = ("e".to_owned(), Value::from("put"));
    let mut fields = Map::from_iter([kind]);
    if let Value::Object(written) = written {
        fields.extend(written);
    }
    let version = RecordVersion::written_now(fairlead_host::record_version::FORMAT);
    Ok(serde_json::to_vec(&Frame { entry: fields, version })?)
}

/// The bytes of an attachment in place of all that these frames say of it, with what this version does not know of that.
pub(super) fn put_over(frames: &[Vec<u8>], attachment: &Attachment) -> Result<Vec<u8>, StoreError> {
    let mut written = Map::new();
    for frame in frames {
        let mut fields: Map<String, Value> = serde_json::from_slice(frame)?;
        if fields.remove("e").is_some_and(|kind| kind == "put") {
            written = fields;
        } else {
            // What a step wrote beside its own words stays with the attachment.
            fields.retain(|key, _| !OF_STEPS.contains(&key.as_str()));
            written.extend(fields);
        }
    }
    written.retain(|key, _| !OF_VERSION.contains(&key.as_str()));
    let read = Attachment::deserialize(&Value::Object(written.clone())).map(|read| as_fields(&read));
    let (read, now) = (read??, as_fields(attachment)?);
    written.retain(|key, _| now.contains_key(key) || !read.contains_key(key));
    // A value that is the same as this version reads it keeps what only a newer one reads of it.
    written.extend(now.into_iter().filter(|(key, value)| read.get(key) != Some(value)));
    put_as_written(Value::Object(written))
}

fn as_fields(attachment: &Attachment) -> Result<Map<String, Value>, serde_json::Error> {
    match serde_json::to_value(attachment)? {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

fn encode_as(entry: &Entry, version: RecordVersion) -> Result<Vec<u8>, StoreError> {
    Ok(serde_json::to_vec(&Frame { entry, version })?)
}

/// What a frame's payload says.
pub(super) fn decode(payload: &[u8]) -> FrameContent {
    #[cfg(feature = "next-format")]
    if let Some(entry) = super::next_format::decode(payload) {
        return FrameContent::Known { entry, exact: true };
    }
    let version = serde_json::from_slice::<RecordVersion>(payload).ok().filter(RecordVersion::is_readable);
    if let (Some(version), Ok(entry)) = (version, serde_json::from_slice::<Entry>(payload)) {
        let exact = encode_as(&entry, version).is_ok_and(|ours| ours == payload);
        return FrameContent::Known { entry, exact };
    }
    match serde_json::from_slice(payload) {
        Ok(fields) => FrameContent::Newer(NewerEntry::of(fields)),
        Err(_) => FrameContent::Damaged,
    }
}
