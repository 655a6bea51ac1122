//! Where a JSON-RPC message ends: a stream of bytes becomes JSON objects.
//!
//! RFC 7047 puts nothing between two messages, so the end of one is where its first brace is closed. Each byte is looked at
//! once, however the stream is cut into reads. What it keeps is bounded by [`LARGEST_MESSAGE`].

use serde_json::Value;

/// The longest message that is taken, in bytes: 16 MiB, far more than the chosen columns of any node's database.
pub(crate) const LARGEST_MESSAGE: usize = 16 << 20;

/// Why a stream of bytes is no stream of messages. Nothing after it can be understood.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FramingError {
    /// A message begins with another byte than an opening brace.
    #[error("a message begins with the byte {0:#04x} and not with an opening brace")]
    NotAnObject(u8),
    /// A message has no end within the limit.
    #[error("a message is longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The braces of a message match, and yet it is no JSON.
    #[error("a message is no JSON")]
    Malformed(#[source] serde_json::Error),
}

/// The bytes that came and are no whole message yet.
#[derive(Debug)]
pub(crate) struct Framer {
    bytes: Vec<u8>,
    /// Where the message at hand begins.
    start: usize,
    /// Up to here it has been looked at.
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    limit: usize,
}

impl Framer {
    /// An empty one that takes messages of up to `limit` bytes.
    pub(crate) fn new(limit: usize) -> Framer {
        Framer { bytes: Vec::new(), start: 0, scanned: 0, depth: 0, in_string: false, escaped: false, limit }
    }

    /// Takes what was read. [`Framer::next_message`] is to be called until it has no more before the next read.
    pub(crate) fn push(&mut self, read: &[u8]) {
        self.bytes.extend_from_slice(read);
    }

    /// The next whole message, if it has come.
    ///
    /// # Errors
    /// See [`FramingError`]; the stream is of no use after one.
    pub(crate) fn next_message(&mut self) -> Result<Option<Value>, FramingError> {
        while let Some(&byte) = self.bytes.get(self.scanned) {
            self.scanned += 1;
            if self.depth == 0 && byte.is_ascii_whitespace() {
                self.start = self.scanned;
                continue;
            }
            if self.ends_with(byte)? {
                return self.take().map(Some);
            }
        }
        if self.scanned - self.start > self.limit {
            return Err(FramingError::TooLong { limit: self.limit });
        }
        self.bytes.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        Ok(None)
    }

    /// Looks at one byte of a message; true if it is the last.
    fn ends_with(&mut self, byte: u8) -> Result<bool, FramingError> {
        if self.depth == 0 && byte != b'{' {
            return Err(FramingError::NotAnObject(byte));
        }
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return Ok(false);
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
        Ok(self.depth == 0)
    }

    fn take(&mut self) -> Result<Value, FramingError> {
        let message = &self.bytes[self.start..self.scanned];
        if message.len() > self.limit {
            return Err(FramingError::TooLong { limit: self.limit });
        }
        let value = serde_json::from_slice(message).map_err(FramingError::Malformed)?;
        self.start = self.scanned;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn all(framer: &mut Framer) -> Vec<Value> {
        std::iter::from_fn(|| framer.next_message().unwrap()).collect()
    }

    #[test]
    fn messages_without_anything_between_them_are_told_apart() {
        let mut framer = Framer::new(1000);
        framer.push(br#"{"a":1}{"b":[{"c":"}"}]}  {"d":"\"{\\"}"#);
        assert_eq!(all(&mut framer), [json!({"a": 1}), json!({"b": [{"c": "}"}]}), json!({"d": "\"{\\"})]);
        framer.push(b"\n {\"e\"");
        assert_eq!(all(&mut framer), [] as [Value; 0]);
        framer.push(b":[]}");
        assert_eq!(all(&mut framer), [json!({"e": []})]);
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_its_end_comes_and_with_it() {
        let mut framer = Framer::new(10);
        framer.push(br#"{"a":"0123456789"#);
        assert!(matches!(framer.next_message(), Err(FramingError::TooLong { limit: 10 })));
        let mut framer = Framer::new(10);
        framer.push(br#"{"a":"0123456789"}"#);
        assert!(matches!(framer.next_message(), Err(FramingError::TooLong { limit: 10 })));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for (bytes, what) in [
            (&b"[1]"[..], "a message begins with the byte 0x5b and not with an opening brace"),
            (b"}", "a message begins with the byte 0x7d and not with an opening brace"),
            (b"{]", "a message is no JSON"),
            (b"{\"a\":\xff}", "a message is no JSON"),
        ] {
            let mut framer = Framer::new(1000);
            framer.push(bytes);
            assert_eq!(framer.next_message().unwrap_err().to_string(), what);
        }
    }

    #[test]
    fn nesting_without_end_is_refused_by_the_parser_and_costs_no_stack() {
        let mut framer = Framer::new(LARGEST_MESSAGE);
        framer.push(format!("{{\"a\":{}{}}}", "[".repeat(1 << 20), "]".repeat(1 << 20)).as_bytes());
        assert!(matches!(framer.next_message(), Err(FramingError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn the_cuts_between_reads_make_no_difference(
            texts in prop::collection::vec("[\\PC\"\\\\{}\\[\\]]{0,20}", 0..5),
            cut in 1_usize..9,
        ) {
            let sent: Vec<Value> = texts.iter().map(|text| json!({ "k": [text, { text: 1 }] })).collect();
            let bytes: Vec<u8> = sent.iter().flat_map(|value| value.to_string().into_bytes()).collect();
            let mut framer = Framer::new(LARGEST_MESSAGE);
            let mut came = Vec::new();
            for part in bytes.chunks(cut) {
                framer.push(part);
                came.extend(all(&mut framer));
            }
            prop_assert_eq!(came, sent);
        }

        #[test]
        fn no_bytes_bring_it_down(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut framer = Framer::new(100);
            framer.push(&bytes);
            while let Ok(Some(_)) = framer.next_message() {}
        }
    }
}
