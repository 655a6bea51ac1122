//! The header `grpc-timeout`: how long a caller waits ("gRPC over HTTP2", section "Requests").

use std::time::Duration;

/// Reads at most 8 digits and a unit; `None` for anything else.
pub(super) fn parse(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back()?;
    let digits = text.strip_suffix(unit)?;
    let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number)?;
    Some(match unit {
        'H' => Duration::from_secs(number * 3600),
        'M' => Duration::from_secs(number * 60),
        'S' => Duration::from_secs(number),
        'm' => Duration::from_millis(number),
        'u' => Duration::from_micros(number),
        'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_at_most_8_digits_and_a_unit() {
        assert_eq!(parse("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse("2M"), Some(Duration::from_secs(120)));
        assert_eq!(parse("3S"), Some(Duration::from_secs(3)));
        assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
        assert_eq!(parse("7u"), Some(Duration::from_micros(7)));
        assert_eq!(parse("8n"), Some(Duration::from_nanos(8)));
        for wrong in ["", "m", "5", "-1S", "+1S", " 1S", "123456789S", "1s", "1ü"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
