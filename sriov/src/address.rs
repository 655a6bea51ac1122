//! PCI addresses: read, compared, and written as sysfs writes them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a device function is on the PCI buses: `0000:21:10.0`. Shown in lower case, as sysfs names its directories.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddr {
    /// Four digits in most machines; a device behind a VMD controller has five or more.
    domain: u32,
    bus: u8,
    /// The device's number on its bus, 0–31.
    device: u8,
    /// The function's number in its device, 0–7.
    function: u8,
}

/// A text that is no PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no PCI address (domain:bus:device.function in hexadecimal, as in 0000:21:10.0)")]
pub struct BadPciAddr(pub String);

impl FromStr for PciAddr {
    type Err = BadPciAddr;

    fn from_str(text: &str) -> Result<PciAddr, BadPciAddr> {
        parse(text).ok_or_else(|| BadPciAddr(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<PciAddr> {
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.split(':');
    let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
    // `from_str_radix` also takes a leading `+`, and any number of digits.
    let digits = |part: &str, widths: std::ops::RangeInclusive<usize>| {
        widths.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let whole = parts.next().is_none()
        && digits(domain, 4..=8)
        && digits(bus, 2..=2)
        && digits(device, 2..=2)
        && digits(function, 1..=1);
    let address = PciAddr {
        domain: u32::from_str_radix(domain, 16).ok()?,
        bus: u8::from_str_radix(bus, 16).ok()?,
        device: u8::from_str_radix(device, 16).ok()?,
        function: u8::from_str_radix(function, 16).ok()?,
    };
    (whole && address.device < 32 && address.function < 8).then_some(address)
}

impl fmt::Display for PciAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl fmt::Debug for PciAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for PciAddr {
    type Error = BadPciAddr;

    fn try_from(text: String) -> Result<PciAddr, BadPciAddr> {
        text.parse()
    }
}

impl From<PciAddr> for String {
    fn from(address: PciAddr) -> String {
        address.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn addresses_of_every_domain_are_read_and_others_are_refused() {
        for text in ["0000:21:10.0", "0000:ff:1f.7", "10000:e1:00.1"] {
            assert_eq!(text.parse::<PciAddr>().unwrap().to_string(), text);
        }
        assert_eq!("0000:AF:00.0".parse::<PciAddr>().unwrap().to_string(), "0000:af:00.0");
        for text in [
            "",
            "21:10.0",
            "0000:21:20.0",
            "0000:21:10.8",
            "0000:21:10",
            "0000:21:10.00",
            "0000:021:10.0",
            "0000:2g:10.0",
            "0:0:0.0",
            "../0000:21:10.0",
            "0000:21:10.0/..",
            "+000:21:10.0",
            "0000:1:21:10.0",
        ] {
            assert!(text.parse::<PciAddr>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic_and_an_address_is_read_back_as_it_is_shown(text in ".{0,20}", number: u32) {
            let _ = text.parse::<PciAddr>();
            let [domain, bus, device, function] = number.to_le_bytes();
            let address = PciAddr { domain: u32::from(domain) << 9, bus, device: device & 31, function: function & 7 };
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}
