//! Answers as messages: a list that is too long for one comes in several.

use serde::Serialize;

use super::messages::{Answer, AnswerMessage, MESSAGE_BYTES, PROTOCOL, Refusal, RefusalCode};

/// What a message has beside the items of its list.
const FRAME_BYTES: usize = 1_024;

/// One answer as a message.
pub(super) fn message(answer: Answer) -> Vec<u8> {
    let message = AnswerMessage { version: PROTOCOL, answer };
    // Strings and numbers in structs can always be written as JSON.
    serde_json::to_vec(&message).unwrap_or_default()
}

/// A list as messages of at most [`MESSAGE_BYTES`] each. `answer` is made of some items and whether more follow.
pub(super) fn pages<T: Serialize>(items: Vec<T>, answer: impl Fn(Vec<T>, bool) -> Answer) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let (mut page, mut bytes) = (Vec::new(), FRAME_BYTES);
    for item in items {
        let length = serde_json::to_vec(&item).map_or(0, |json| json.len() + 1);
        if FRAME_BYTES + length > MESSAGE_BYTES {
            let reason = format!("an item of the answer has {length} bytes, more than a message may have");
            return vec![message(Answer::Refused(Refusal::new(RefusalCode::Failed, reason)))];
        }
        if bytes + length > MESSAGE_BYTES {
            messages.push(message(answer(std::mem::take(&mut page), true)));
            bytes = FRAME_BYTES;
        }
        bytes += length;
        page.push(item);
    }
    messages.push(message(answer(page, false)));
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_cut_into_messages_that_fit_and_nothing_is_lost() {
        let names: Vec<String> = (0..5_000).map(|n| format!("{n:064}")).collect();
        let messages = pages(names.clone(), |names, more| Answer::Removed { names, more });
        assert!(messages.len() > 4);
        let mut read = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            assert!(message.len() <= MESSAGE_BYTES);
            let message: AnswerMessage = serde_json::from_slice(message).unwrap();
            let Answer::Removed { names, more } = message.answer else { panic!("another answer") };
            assert_eq!(more, at + 1 < messages.len());
            read.extend(names);
        }
        assert_eq!(read, names);
        assert_eq!(pages(Vec::<String>::new(), |names, more| Answer::Removed { names, more }).len(), 1);
    }
}
