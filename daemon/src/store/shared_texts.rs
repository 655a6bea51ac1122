//! The configurations of attachments, each text kept once however many attachments have it.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Attachment, LinkRecord};

/// Texts of so many bytes may be kept that no attachment has any more, before they are looked for.
const SLACK: usize = 1 << 20;
/// A longer text than this many bytes is worth a sweep of its own.
const LONG: usize = 16 << 10;

/// Texts by their content.
#[derive(Debug, Default)]
pub(super) struct SharedTexts {
    texts: HashSet<Arc<str>>,
    /// The number of bytes in all of them.
    bytes: usize,
    /// The number of bytes above which those that nobody has are dropped.
    sweep_above: usize,
}

impl SharedTexts {
    /// Gives the attachment the texts that others have already.
    pub(super) fn share(&mut self, attachment: &mut Attachment) {
        attachment.config = self.shared(&attachment.config);
        if let LinkRecord::Conflist { conflist, .. } = &mut attachment.link {
            *conflist = self.shared(conflist);
        }
    }

    fn shared(&mut self, text: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        if self.bytes + text.len() > self.sweep_above {
            self.sweep();
        }
        self.bytes += text.len();
        self.texts.insert(Arc::clone(text));
        Arc::clone(text)
    }

    /// Forgets an attachment. Small texts wait for the next sweep; a long one goes now.
    pub(super) fn gone(&mut self, attachment: Arc<Attachment>) {
        let long = attachment.config.len() > LONG
            || matches!(&attachment.link, LinkRecord::Conflist { conflist, .. } if conflist.len() > LONG);
        drop(attachment);
        if long {
            self.sweep();
        }
    }

    /// Drops what nobody has. The next time is when as much again has come, so that a sweep costs no ADD more than its own text.
    fn sweep(&mut self) {
        self.texts.retain(|text| Arc::strong_count(text) > 1);
        self.bytes = self.texts.iter().map(|text| text.len()).sum();
        self.sweep_above = 2 * self.bytes + SLACK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once_and_goes_with_its_last_attachment() {
        let mut texts = SharedTexts::default();
        let long = || Arc::<str>::from("x".repeat(SLACK));
        let (one, two) = (texts.shared(&long()), texts.shared(&long()));
        assert!(Arc::ptr_eq(&one, &two));
        assert_eq!(texts.bytes, SLACK);
        drop((one, two));
        for n in 0..4 {
            drop(texts.shared(&format!("{n}{}", long()).into()));
        }
        assert!(texts.bytes <= 2 * SLACK + 8, "{} bytes of texts that nobody has", texts.bytes);
    }
}
