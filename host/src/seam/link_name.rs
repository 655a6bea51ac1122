//! Names of links as the kernel has them: bytes, of which a pod may choose any but NUL.
//!
//! As text a name is itself where it is UTF-8. Another one is a NUL and its bytes in hexadecimal: no name has a NUL in it, so the two are
//! never taken for each other, and either leads back to the very bytes. So [`Link::name`](super::Link) may be a `String`.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::hexadecimal;

/// The mark of a text that is no name itself, but one in hexadecimal.
const IN_HEXADECIMAL: char = '\0';

/// An alternative name of a link, 0–127 bytes. Printed, it is one line whatever the bytes are; on record it is its text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct LinkName(Vec<u8>);

impl LinkName {
    /// The name of these bytes.
    pub fn from_bytes(bytes: &[u8]) -> LinkName {
        LinkName(bytes.to_owned())
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its text, which leads back to its bytes by [`LinkName::from`].
    pub fn text(&self) -> Cow<'_, str> {
        match str::from_utf8(&self.0) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => Cow::Owned(format!("{IN_HEXADECIMAL}{}", hexadecimal::written(&self.0))),
        }
    }
}

/// The bytes of a text's name. What begins with a NUL and is no row of hexadecimal digits was made by nobody here: its bytes are its own,
/// and no link has that name.
pub(crate) fn bytes_of(text: &str) -> Cow<'_, [u8]> {
    match text.strip_prefix(IN_HEXADECIMAL).and_then(hexadecimal::read) {
        Some(bytes) => Cow::Owned(bytes),
        None => Cow::Borrowed(text.as_bytes()),
    }
}

impl From<&str> for LinkName {
    fn from(text: &str) -> LinkName {
        LinkName(bytes_of(text).into_owned())
    }
}

impl From<String> for LinkName {
    fn from(text: String) -> LinkName {
        LinkName::from(text.as_str())
    }
}

impl From<LinkName> for String {
    fn from(name: LinkName) -> String {
        name.text().into_owned()
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match str::from_utf8(&self.0) {
            Ok(text) => text.escape_debug().fmt(f),
            Err(_) => self.0.escape_ascii().fmt(f),
        }
    }
}

impl fmt::Debug for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_the_same_again_after_their_text(bytes in proptest::collection::vec(1_u8.., 0..128)) {
            let name = LinkName::from_bytes(&bytes);
            prop_assert_eq!(&LinkName::from(&*name.text()), &name);
            prop_assert_eq!(&LinkName::from(String::from(name.clone())), &name);
            prop_assert!(!name.to_string().contains(char::is_control));
        }

        #[test]
        fn the_text_of_a_name_that_is_utf_8_is_the_name(text in "[^\0]{0,40}") {
            let name = LinkName::from(text.as_str());
            prop_assert_eq!(name.as_bytes(), text.as_bytes());
            prop_assert_eq!(name.text(), text);
        }
    }

    #[test]
    fn no_two_names_have_one_text() {
        let (strange, spelled) = (LinkName::from_bytes(b"a\xff"), LinkName::from("\u{fffd}"));
        assert_ne!(strange.text(), LinkName::from("61ff").text());
        assert_ne!(LinkName::from_bytes(b"\xff").text(), spelled.text());
        assert_eq!((strange.text().as_ref(), strange.to_string().as_str()), ("\u{0}61ff", "a\\xff"));
        // No link can have these: a text of nobody's making stays what it is.
        assert_eq!(LinkName::from("\u{0}6").as_bytes(), b"\x006");
        assert_eq!(LinkName::from("\u{0}+f").as_bytes(), b"\x00+f");
    }
}
