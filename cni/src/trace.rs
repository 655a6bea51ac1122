//! The caller's trace context: a `traceparent` of W3C Trace Context (level 1 and 2, section 3.2), which OpenTelemetry puts into
//! the environment variable `TRACEPARENT`.
//!
//! A text of another form is no trace context. It is ignored and never an error.

/// The name of the environment variable.
pub const VARIABLE: &str = "TRACEPARENT";

/// A `traceparent` that follows the standard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent<'a>(&'a str);

impl<'a> TraceParent<'a> {
    /// Reads a `traceparent`. A later version of the standard may have further fields at the end.
    pub fn parse(text: &'a str) -> Option<TraceParent<'a>> {
        let mut fields = text.splitn(5, '-');
        let version = hex(fields.next()?, 2).filter(|version| *version != "ff")?;
        let identifier = |text, length| hex(text, length).filter(|id| id.bytes().any(|digit| digit != b'0'));
        identifier(fields.next()?, 32)?;
        identifier(fields.next()?, 16)?;
        hex(fields.next()?, 2)?;
        (fields.next().is_none() || version != "00").then_some(TraceParent(text))
    }

    /// Finds the `traceparent` of an environment.
    pub fn of(environment: &'a [(String, String)]) -> Option<TraceParent<'a>> {
        let (_, text) = environment.iter().find(|(name, _)| name == VARIABLE)?;
        TraceParent::parse(text)
    }

    /// The text as the caller wrote it.
    pub fn as_str(self) -> &'a str {
        self.0
    }
}

fn hex(text: &str, length: usize) -> Option<&str> {
    let digits = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (text.len() == length && digits).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn x15_a_trace_is_known_by_the_standards_form() {
        for text in [GOOD, &format!("cc{}", &GOOD[2..]), &format!("cc{}-what-will-be", &GOOD[2..])] {
            assert_eq!(TraceParent::parse(text).map(TraceParent::as_str), Some(text));
        }
    }

    #[test]
    fn x15_what_is_no_trace_is_ignored() {
        let with = |from: &str, to: &str| GOOD.replacen(from, to, 1);
        for text in [
            String::new(),
            "00-1-2-01".to_owned(),
            with("00-", "ff-"),
            with("00-", "0-"),
            with("4bf9", "4BF9"),
            with("4bf9", "4bg9"),
            with("4bf9", "4bf"),
            with("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            with("00f067aa0ba902b7", &"0".repeat(16)),
            with("-01", ""),
            with("-01", "-1"),
            with("-01", "-01-more"),
            with("-01", "-01 "),
            with("4bf9", "é\u{301}"),
        ] {
            assert_eq!(TraceParent::parse(&text), None, "{text:?}");
        }
        let environment = |value: &str| {
            vec![("PATH".to_owned(), "/bin".to_owned()), (VARIABLE.to_owned(), value.to_owned())]
        };
        assert_eq!(TraceParent::of(&environment("garbage")), None);
        assert_eq!(TraceParent::of(&[]), None);
        assert_eq!(TraceParent::of(&environment(GOOD)).map(TraceParent::as_str), Some(GOOD));
    }
}
