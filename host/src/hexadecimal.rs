//! Bytes as hexadecimal digits, two for each, and back.

use std::fmt::Write;

/// The digits of these bytes, in lower case.
pub(crate) fn written(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of these digits; `None` where it is anything else than pairs of digits.
pub(crate) fn read(text: &str) -> Option<Vec<u8>> {
    let digit = |ascii: u8| char::from(ascii).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(byte).collect()
}
