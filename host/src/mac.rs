//! MAC addresses: read in the forms that Go reads, shown as the kernel shows them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A 48-bit MAC address. Shown in lower case with colons, as the kernel and CNI results write it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

/// A text that is no MAC address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no MAC address (six hexadecimal bytes with colons, as in 02:00:5e:10:00:01)")]
pub struct BadMac(pub String);

impl Mac {
    /// A unicast, locally administered address made of `seed`'s low 46 bits.
    pub fn local(seed: u64) -> Mac {
        let b = seed.to_le_bytes();
        // Bit 0 of the first byte marks a group address, bit 1 a local one.
        Mac([(b[0] & 0xfc) | 0x02, b[1], b[2], b[3], b[4], b[5]])
    }

    /// True for a group address, which no interface may have.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// True for 00:00:00:00:00:00.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = BadMac;

    /// Takes `aa:bb:cc:dd:ee:ff`, `aa-bb-cc-dd-ee-ff` and `aabb.ccdd.eeff`, as Go's `net.ParseMAC` does.
    fn from_str(text: &str) -> Result<Mac, BadMac> {
        let bad = || BadMac(text.to_owned());
        let (separator, width) = if text.contains(':') {
            (':', 2)
        } else if text.contains('-') {
            ('-', 2)
        } else {
            ('.', 4)
        };
        let mut bytes = Vec::with_capacity(6);
        for part in text.split(separator) {
            if part.len() != width || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(bad());
            }
            for at in (0..width).step_by(2) {
                bytes.push(u8::from_str_radix(&part[at..at + 2], 16).map_err(|_| bad())?);
            }
        }
        bytes.try_into().map(Mac).map_err(|_| bad())
    }
}

impl TryFrom<String> for Mac {
    type Error = BadMac;

    fn try_from(text: String) -> Result<Mac, BadMac> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> String {
        mac.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_gos_parser_are_read_and_others_are_refused() {
        let want = Mac([2, 0, 0x5e, 0x10, 0, 1]);
        for text in ["02:00:5e:10:00:01", "02-00-5E-10-00-01", "0200.5e10.0001"] {
            assert_eq!(text.parse(), Ok(want), "{text}");
        }
        for text in [
            "",
            "02:00:5e:10:00",
            "02:00:5e:10:00:01:02",
            "0:0:5e:10:0:1",
            "gg:00:5e:10:00:01",
            "02:00-5e:10:00:01",
            "+2:00:5e:10:00:01",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
        assert_eq!(want.to_string(), "02:00:5e:10:00:01");
    }
}
